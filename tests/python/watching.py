"""Watches: from a revision, resumed, from nothing, ended in time, and refused."""
from kubernetes import client, config, watch
from kubernetes.client.rest import ApiException

config.load_kube_config()
core = client.CoreV1Api()
core.create_namespace(client.V1Namespace(metadata={"name": "watched"}))
OURS = "metadata.name!=kube-root-ca.crt"


def make(name):
    return core.create_namespaced_config_map("watched", client.V1ConfigMap(metadata={"name": name}))


def patch(name, body):
    return core.patch_namespaced_config_map(name, "watched", body)


def version():
    return core.list_namespaced_config_map("watched").metadata.resource_version


def events(count, **options):
    """That many events, as (type, name, resourceVersion)."""
    seen, w = [], watch.Watch()
    for event in w.stream(core.list_namespaced_config_map, "watched", field_selector=OURS, timeout_seconds=20, **options):
        metadata = event["object"].metadata
        seen.append((event["type"], metadata.name, metadata.resource_version))
        if len(seen) == count:
            w.stop()
    return seen


start = version()
for name in ["a", "b", "c"]:
    make(name)
patch("b", {"data": {"x": "y"}})
core.delete_namespaced_config_map("a", "watched")

# From a revision: everything since, in order.
seen = events(5, resource_version=start)
expected = [("ADDED", "a"), ("ADDED", "b"), ("ADDED", "c"), ("MODIFIED", "b"), ("DELETED", "a")]
assert [event[:2] for event in seen] == expected, seen

# Resumed where it ended: what is new, once.
make("d")
assert [e[:2] for e in events(1, resource_version=seen[-1][2])] == [("ADDED", "d")]
assert [e[:2] for e in events(2, resource_version=seen[-2][2])] == [("DELETED", "a"), ("ADDED", "d")]

# Without a revision: what there is, first.
assert sorted(e[:2] for e in events(3)) == [("ADDED", "b"), ("ADDED", "c"), ("ADDED", "d")]

# A watch ends in time.
w = watch.Watch()
quiet = w.stream(core.list_namespaced_config_map, "watched", resource_version=version(), timeout_seconds=1)
assert list(quiet) == []

# An object that leaves the selection is deleted from it.
inside = patch("b", {"metadata": {"labels": {"in": "yes"}}}).metadata.resource_version
patch("b", {"metadata": {"labels": {"in": None}}})
assert [e[:2] for e in events(1, label_selector="in=yes", resource_version=inside)] == [("DELETED", "b")]

# A revision that makes no sense.
try:
    raise AssertionError(events(1, resource_version="soon"))
except ApiException as error:
    assert error.status == 400, error
print("ok")
