"""An operator written with kopf: for each Widget a ConfigMap, with finalizer, status and events."""

import asyncio
import threading
import time

import kopf
import kubernetes

GROUP, VERSION, PLURAL = "kopf.example.com", "v1", "widgets"
DEFINITION = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": f"{PLURAL}.{GROUP}"},
    "spec": {
        "group": GROUP,
        "scope": "Namespaced",
        "names": {"plural": PLURAL, "singular": "widget", "kind": "Widget"},
        "versions": [
            {
                "name": VERSION,
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {
                            "spec": {
                                "type": "object",
                                "properties": {"text": {"type": "string"}},
                            },
                            "status": {
                                "type": "object",
                                "x-kubernetes-preserve-unknown-fields": True,
                            },
                        },
                    }
                },
            }
        ],
    },
}

kubernetes.config.load_kube_config()
core = kubernetes.client.CoreV1Api()
custom = kubernetes.client.CustomObjectsApi()
extensions = kubernetes.client.ApiextensionsV1Api()
deleted = threading.Event()


@kopf.on.create(PLURAL)
@kopf.on.update(PLURAL)
def write_map(name, namespace, spec, body, patch, **_):
    content = {"metadata": {"name": name}, "data": {"text": spec.get("text", "")}}
    kopf.adopt(content, owner=body)
    try:
        core.create_namespaced_config_map(namespace, content)
    except kubernetes.client.ApiException as refused:
        if refused.status != 409:
            raise
        core.patch_namespaced_config_map(name, namespace, {"data": content["data"]})
    patch.status["text"] = spec.get("text", "")


@kopf.on.delete(PLURAL)
def note_deletion(**_):
    deleted.set()


def eventually(what, look):
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            if look():
                return
        except kubernetes.client.ApiException as refused:
            if refused.status != 404:
                raise
        time.sleep(0.05)
    raise AssertionError(f"never: {what}")


def widget():
    return custom.get_namespaced_custom_object(GROUP, VERSION, "default", PLURAL, "one")


def text():
    return core.read_namespaced_config_map("one", "default").data["text"]


def main():
    extensions.create_custom_resource_definition(DEFINITION)
    ready, stop = threading.Event(), threading.Event()
    settings = kopf.OperatorSettings()
    operator = threading.Thread(
        target=lambda: asyncio.run(
            kopf.operator(
                namespaces=["default"], ready_flag=ready, stop_flag=stop, settings=settings, standalone=True
            )
        )
    )
    operator.start()
    try:
        assert ready.wait(60), "the operator does not start"
        body = {
            "apiVersion": f"{GROUP}/{VERSION}",
            "kind": "Widget",
            "metadata": {"name": "one"},
            "spec": {"text": "first"},
        }
        custom.create_namespaced_custom_object(GROUP, VERSION, "default", PLURAL, body)
        eventually("the operator writes a ConfigMap", lambda: text() == "first")
        eventually("the status says so", lambda: widget().get("status", {}).get("text") == "first")
        assert widget()["metadata"]["finalizers"], "a delete handler needs a finalizer"
        custom.patch_namespaced_custom_object(
            GROUP, VERSION, "default", PLURAL, "one", {"spec": {"text": "second"}}
        )
        eventually("a change reaches the ConfigMap", lambda: text() == "second")
        custom.delete_namespaced_custom_object(GROUP, VERSION, "default", PLURAL, "one")
        assert deleted.wait(60), "the delete handler does not run"

        def gone():
            try:
                widget()
            except kubernetes.client.ApiException as refused:
                return refused.status == 404
            return False

        eventually("the object goes once the operator lets it", gone)
    finally:
        stop.set()
        operator.join(60)
    print("ok")


main()
