"""Create, read, update, patch and delete through the official client's typed API."""
from kubernetes import client, config

config.load_kube_config()
core, apps, batch = client.CoreV1Api(), client.AppsV1Api(), client.BatchV1Api()

version = client.VersionApi().get_code()
assert (version.major, version.minor) == ("1", "37"), version

# core
body = client.V1ConfigMap(metadata={"name": "c", "labels": {"a": "b"}}, data={"k": "v"})
made = core.create_namespaced_config_map("default", body)
assert made.metadata.uid and made.metadata.resource_version and made.metadata.creation_timestamp.tzinfo, made
read = core.read_namespaced_config_map("c", "default")
read.data["k"] = "w"
updated = core.replace_namespaced_config_map("c", "default", read)
assert updated.data == {"k": "w"} and updated.metadata.resource_version != made.metadata.resource_version
patched = core.patch_namespaced_config_map("c", "default", {"data": {"k": None, "n": "1"}})
assert patched.data == {"n": "1"}, patched.data
status = core.delete_namespaced_config_map("c", "default")
status = status if isinstance(status, dict) else status.to_dict()
assert status["status"] == "Success" and status["details"]["name"] == "c", status

# Text of secrets becomes data.
body = client.V1Secret(metadata={"name": "s"}, string_data={"password": "hunter2"})
secret = core.create_namespaced_secret("default", body)
assert secret.data == {"password": "aHVudGVyMg=="} and secret.string_data is None, secret

# apps
labels = {"app": "web"}
container = client.V1Container(name="web", image="nginx", ports=[client.V1ContainerPort(container_port=80)])
template = client.V1PodTemplateSpec(
    metadata=client.V1ObjectMeta(labels=labels), spec=client.V1PodSpec(containers=[container])
)
spec = client.V1DeploymentSpec(replicas=2, selector=client.V1LabelSelector(match_labels=labels), template=template)
deployment = client.V1Deployment(metadata=client.V1ObjectMeta(name="web"), spec=spec)
made = apps.create_namespaced_deployment("default", deployment)
assert made.spec.strategy.rolling_update.max_surge == "25%", made.spec.strategy
assert made.spec.template.spec.restart_policy == "Always"


def names(deployment):
    return sorted(c.name for c in deployment.spec.template.spec.containers)


# A strategic patch merges containers by name; a merge patch replaces them; a JSON patch edits one.
patch = {"spec": {"template": {"spec": {"containers": [{"name": "side", "image": "busybox"}]}}}}
merged = apps.patch_namespaced_deployment("web", "default", patch, _content_type="application/strategic-merge-patch+json")
assert names(merged) == ["side", "web"], names(merged)
replaced = apps.patch_namespaced_deployment("web", "default", patch, _content_type="application/merge-patch+json")
assert names(replaced) == ["side"], names(replaced)
edited = apps.patch_namespaced_deployment("web", "default", [{"op": "replace", "path": "/spec/replicas", "value": 5}])
assert edited.spec.replicas == 5 and edited.metadata.generation == 4, edited.metadata

assert apps.read_namespaced_deployment_scale("web", "default").spec.replicas == 5
assert apps.patch_namespaced_deployment_scale("web", "default", {"spec": {"replicas": 1}}).spec.replicas == 1
status = {"status": {"replicas": 1, "observedGeneration": 5}}
assert apps.patch_namespaced_deployment_status("web", "default", status).status.observed_generation == 5
# The controller counts replicas meanwhile; of the generation it says the same.
assert apps.read_namespaced_deployment_status("web", "default").status.observed_generation == 5

# batch
template = client.V1PodTemplateSpec(spec=client.V1PodSpec(restart_policy="Never", containers=[container]))
job = client.V1Job(metadata=client.V1ObjectMeta(generate_name="job-"), spec=client.V1JobSpec(template=template))
job = batch.create_namespaced_job("default", job)
assert job.metadata.name.startswith("job-") and job.spec.backoff_limit == 6, job
assert job.spec.selector.match_labels["batch.kubernetes.io/controller-uid"] == job.metadata.uid
batch.delete_namespaced_job(job.metadata.name, "default", propagation_policy="Background")

# Dry runs leave nothing behind.
core.create_namespaced_config_map("default", client.V1ConfigMap(metadata={"name": "dry"}), dry_run="All")
assert not [c for c in core.list_namespaced_config_map("default").items if c.metadata.name == "dry"]
print("ok")
