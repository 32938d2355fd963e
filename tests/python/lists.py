"""Pages, selectors, collections, and what a client sees of refusals."""
import json

from kubernetes import client, config
from kubernetes.client.rest import ApiException

config.load_kube_config()
core = client.CoreV1Api()
core.create_namespace(client.V1Namespace(metadata={"name": "many"}))
for i in range(25):
    labels = {"i": str(i), "parity": "odd" if i % 2 else "even"}
    core.create_namespaced_secret("many", client.V1Secret(metadata={"name": f"s{i:02}", "labels": labels}))

# Pages are of one revision and miss nothing.
page = core.list_namespaced_secret("many", limit=10)
assert len(page.items) == 10 and page.metadata.remaining_item_count == 15, page.metadata
core.delete_namespaced_secret("s24", "many")
seen, version = [s.metadata.name for s in page.items], page.metadata.resource_version
while page.metadata._continue:
    page = core.list_namespaced_secret("many", limit=10, _continue=page.metadata._continue)
    assert page.metadata.resource_version == version, (page.metadata.resource_version, version)
    seen += [s.metadata.name for s in page.items]
assert seen == [f"s{i:02}" for i in range(25)], seen


def names(**selection):
    return [s.metadata.name for s in core.list_namespaced_secret("many", **selection).items]


assert len(names(label_selector="parity=odd")) == 12
assert names(label_selector="i in (3,5),parity!=even") == ["s03", "s05"]
assert names(field_selector="metadata.name=s07") == ["s07"]
assert len(names(field_selector="type=Opaque")) == 24
assert [s.metadata.name for s in core.list_secret_for_all_namespaces(label_selector="i=9").items] == ["s09"]

# All of a selection at once.
core.delete_collection_namespaced_secret("many", label_selector="parity=odd")
assert len(names()) == 12, names()


def refused(call, *args, **kw):
    try:
        call(*args, **kw)
    except ApiException as error:
        return error.status, json.loads(error.body)
    raise AssertionError(f"{call.__name__} was not refused")


code, status = refused(core.read_namespaced_secret, "nobody", "many")
assert (code, status["reason"], status["kind"]) == (404, "NotFound", "Status"), status
assert status["details"] == {"name": "nobody", "kind": "secrets"}, status
code, status = refused(core.create_namespaced_secret, "many", client.V1Secret(metadata={"name": "s00"}))
assert (code, status["reason"], status["message"]) == (409, "AlreadyExists", 'secrets "s00" already exists'), status
stale = core.read_namespaced_secret("s00", "many")
core.patch_namespaced_secret("s00", "many", {"metadata": {"labels": {"x": "y"}}})
code, status = refused(core.replace_namespaced_secret, "s00", "many", stale)
assert (code, status["reason"]) == (409, "Conflict"), status
code, status = refused(core.create_namespaced_pod, "many", {"metadata": {"name": "p"}, "spec": {"containers": []}})
assert (code, status["reason"]) == (422, "Invalid"), status
cause = {"reason": "FieldValueRequired", "message": "Required value", "field": "spec.containers"}
assert status["details"]["causes"] == [cause], status
code, status = refused(core.list_namespaced_secret, "many", label_selector="a b")
assert (code, status["reason"]) == (400, "BadRequest"), status
code, status = refused(core.list_namespaced_secret, "many", _continue="nonsense")
assert (code, status["reason"]) == (400, "BadRequest"), status
code, status = refused(core.delete_namespaced_secret, "s00", "many", body={"preconditions": {"uid": "other"}})
assert (code, status["reason"]) == (409, "Conflict"), status
print("ok")
