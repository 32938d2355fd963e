// Create, read, update, patch (all forms), apply, list, delete, and what refusals look like, with the official JavaScript client.
import assert from "node:assert/strict";
import {
  ApiException, AppsV1Api, CoreV1Api, CustomObjectsApi, KubeConfig, KubernetesObjectApi, PatchStrategy, VersionApi,
  setHeaderOptions,
} from "@kubernetes/client-node";

const config = new KubeConfig();
config.loadFromDefault();
const core = config.makeApiClient(CoreV1Api);
const apps = config.makeApiClient(AppsV1Api);
const namespace = "default";

const version = await config.makeApiClient(VersionApi).getCode();
assert.equal(version.major, "1");

const made = await core.createNamespacedConfigMap({
  namespace, body: { metadata: { name: "c", labels: { a: "b" } }, data: { k: "v" } },
});
assert.ok(made.metadata.uid && made.metadata.resourceVersion && made.metadata.creationTimestamp instanceof Date);
const read = await core.readNamespacedConfigMap({ name: "c", namespace });
read.data.k = "w";
const updated = await core.replaceNamespacedConfigMap({ name: "c", namespace, body: read });
assert.deepEqual(updated.data, { k: "w" });
const stale = await core.replaceNamespacedConfigMap({ name: "c", namespace, body: made }).catch((error) => error);
assert.ok(stale instanceof ApiException && stale.code === 409, stale);
assert.equal(JSON.parse(stale.body).reason, "Conflict");

const body = {
  metadata: { name: "web" },
  spec: {
    replicas: 2, selector: { matchLabels: { app: "web" } },
    template: { metadata: { labels: { app: "web" } }, spec: { containers: [{ name: "web", image: "nginx" }] } },
  },
};
const deployment = await apps.createNamespacedDeployment({ namespace, body });
assert.equal(deployment.spec.strategy.rollingUpdate.maxSurge, "25%");
const patch = (strategy, body, more = {}) =>
  apps.patchNamespacedDeployment({ name: "web", namespace, body, ...more }, setHeaderOptions("Content-Type", strategy));
const names = (deployment) => deployment.spec.template.spec.containers.map((container) => container.name).sort();
const side = { spec: { template: { spec: { containers: [{ name: "side", image: "busybox" }] } } } };
assert.deepEqual(names(await patch(PatchStrategy.StrategicMergePatch, side)), ["side", "web"]);
assert.deepEqual(names(await patch(PatchStrategy.MergePatch, side)), ["side"]);
const edit = [{ op: "replace", path: "/spec/replicas", value: 5 }];
assert.equal((await patch(PatchStrategy.JsonPatch, edit)).spec.replicas, 5);
const applied = { apiVersion: "apps/v1", kind: "Deployment", metadata: { name: "web" }, spec: { replicas: 7 } };
const conflict = await patch(PatchStrategy.ServerSideApply, applied, { fieldManager: "js" }).catch((error) => error);
assert.equal(conflict.code, 409);
assert.match(JSON.parse(conflict.body).message, /conflict with .*: \.spec\.replicas/);
const forced = await patch(PatchStrategy.ServerSideApply, applied, { fieldManager: "js", force: true });
assert.ok(forced.spec.replicas === 7 && forced.metadata.managedFields.some((entry) => entry.manager === "js"));

for (let n = 0; n < 5; n++) {
  await core.createNamespacedConfigMap({ namespace, body: { metadata: { name: `page-${n}`, labels: { page: "yes" } } } });
}
const seen = [];
let _continue;
do {
  const page = await core.listNamespacedConfigMap({ namespace, labelSelector: "page=yes", limit: 2, _continue });
  seen.push(...page.items.map((item) => item.metadata.name));
  _continue = page.metadata._continue;
} while (_continue);
assert.deepEqual(seen, [0, 1, 2, 3, 4].map((n) => `page-${n}`));

const objects = KubernetesObjectApi.makeApiClient(config);
const secret = await objects.create({
  apiVersion: "v1", kind: "Secret", metadata: { name: "s", namespace }, stringData: { password: "hunter2" },
});
assert.equal(secret.data.password, "aHVudGVyMg==");
const invalid = await core
  .createNamespacedConfigMap({ namespace, body: { metadata: { name: "Not_A_Name" } } })
  .catch((error) => error);
assert.equal(invalid.code, 422);
assert.equal(JSON.parse(invalid.body).details.causes[0].field, "metadata.name");

await objects.create({
  apiVersion: "apiextensions.k8s.io/v1", kind: "CustomResourceDefinition", metadata: { name: "crontabs.example.com" },
  spec: {
    group: "example.com", scope: "Namespaced", names: { plural: "crontabs", kind: "CronTab" },
    versions: [{
      name: "v1", served: true, storage: true,
      schema: { openAPIV3Schema: { type: "object", properties: {
        spec: { type: "object", properties: { cron: { type: "string", _default: "@daily" } } },
      } } },
    }],
  },
});
const custom = config.makeApiClient(CustomObjectsApi);
const kind = { group: "example.com", version: "v1", namespace, plural: "crontabs" };
const tab = { apiVersion: "example.com/v1", kind: "CronTab", metadata: { name: "t" }, spec: {} };
assert.equal((await custom.createNamespacedCustomObject({ ...kind, body: tab })).spec.cron, "@daily");
assert.equal((await custom.listNamespacedCustomObject(kind)).items.length, 1);

const status = await core.deleteNamespacedConfigMap({ name: "c", namespace });
assert.equal(status.status, "Success");
const gone = await core.readNamespacedConfigMap({ name: "c", namespace }).catch((error) => error);
assert.equal(gone.code, 404);
console.log("ok");
