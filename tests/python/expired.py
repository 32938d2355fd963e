"""A watch from a revision that the server no longer has: the client gets to know, with the code."""
import sys

from kubernetes import client, config, watch
from kubernetes.client.rest import ApiException

config.load_kube_config()
core = client.CoreV1Api()
try:
    for event in watch.Watch().stream(
        core.list_namespaced_config_map, "kube-public", resource_version=sys.argv[1], timeout_seconds=5
    ):
        raise AssertionError(event)
    raise AssertionError("the watch ended in peace")
except ApiException as error:
    assert error.status == 410, error
    assert "Expired" in error.reason, error.reason
fresh = core.list_namespaced_config_map("kube-public")
for event in watch.Watch().stream(
    core.list_namespaced_config_map, "kube-public", resource_version=fresh.metadata.resource_version, timeout_seconds=1
):
    assert event["type"] != "ERROR", event
print("ok")
