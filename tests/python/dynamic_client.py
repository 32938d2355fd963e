"""The dynamic client: discovery first, then everything by kind."""
from kubernetes import config, dynamic
from kubernetes.client import api_client
from kubernetes.dynamic.exceptions import ConflictError, NotFoundError, ResourceNotFoundError

MERGE = "application/merge-patch+json"
client = dynamic.DynamicClient(api_client.ApiClient(configuration=config.load_kube_config()))
maps = client.resources.get(api_version="v1", kind="ConfigMap")
deployments = client.resources.get(api_version="apps/v1", kind="Deployment")
assert deployments.namespaced and "deploy" in deployments.short_names, deployments
assert client.resources.get(api_version="v1", kind="Node").namespaced is False
try:
    raise AssertionError(client.resources.get(api_version="v1", kind="Wheel"))
except ResourceNotFoundError:
    pass

body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"a": "1"}}
made = maps.create(body=body, namespace="default")
assert made.data.a == "1" and made.metadata.uid
try:
    raise AssertionError(maps.create(body=body, namespace="default"))
except ConflictError as error:
    assert error.status == 409

body["data"]["b"] = "2"
body["metadata"]["resourceVersion"] = made.metadata.resourceVersion
assert maps.replace(body=body, namespace="default").data.b == "2"
patched = maps.patch(body={"data": {"a": None}}, name="c", namespace="default", content_type=MERGE)
assert patched.data.to_dict() == {"b": "2"}, patched

# Watch from the start: the object, then its end.
maps.patch(body={"metadata": {"labels": {"seen": "yes"}}}, name="c", namespace="default", content_type=MERGE)
events = []
for event in maps.watch(namespace="default", label_selector="seen=yes", timeout=20):
    events.append(event["type"])
    if event["type"] == "ADDED":
        maps.delete(name="c", namespace="default")
    if event["type"] == "DELETED":
        break
assert events == ["ADDED", "DELETED"], events
try:
    raise AssertionError(maps.get(name="c", namespace="default"))
except NotFoundError:
    pass

# Status and scale are parts of a kind.
template = {"metadata": {"labels": {"app": "w"}}, "spec": {"containers": [{"name": "c", "image": "nginx"}]}}
spec = {"selector": {"matchLabels": {"app": "w"}}, "template": template}
body = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "w"}, "spec": spec}
deployments.create(namespace="default", body=body)
scale = deployments.scale.patch(name="w", namespace="default", body={"spec": {"replicas": 3}}, content_type=MERGE)
assert scale.spec.replicas == 3
status = {"status": {"readyReplicas": 2, "replicas": 3}}
status = deployments.status.patch(name="w", namespace="default", body=status, content_type=MERGE)
assert status.status.readyReplicas == 2
assert len(deployments.get().items) == 1
deployments.delete(name="w", namespace="default")
print("ok")
