// A watch from a version on, and an informer that sees every change, with the official JavaScript client.
import assert from "node:assert/strict";
import { CoreV1Api, KubeConfig, Watch, makeInformer } from "@kubernetes/client-node";

const config = new KubeConfig();
config.loadFromDefault();
const core = config.makeApiClient(CoreV1Api);
const namespace = "default";
const path = `/api/v1/namespaces/${namespace}/configmaps`;
const create = (name) => core.createNamespacedConfigMap({ namespace, body: { metadata: { name, labels: { js: "yes" } } } });
const remove = (name) => core.deleteNamespacedConfigMap({ name, namespace });

// Events of a watch: everything after the list, in order.
const { metadata } = await core.listNamespacedConfigMap({ namespace });
await create("first");
const events = [];
let enough;
const three = new Promise((resolve) => { enough = resolve; });
const query = { resourceVersion: metadata.resourceVersion, labelSelector: "js=yes", allowWatchBookmarks: true };
const onEvent = (type, object) => {
  if (type !== "BOOKMARK") events.push(`${type} ${object.metadata.name}`);
  if (events.length === 3) enough();
};
const request = await new Watch(config).watch(path, query, onEvent, () => {});
await create("second");
await remove("first");
await three;
request.abort();
assert.deepEqual(events, ["ADDED first", "ADDED second", "DELETED first"]);

// An informer: what is there, what comes, what changes, what goes.
const list = () => core.listNamespacedConfigMap({ namespace, labelSelector: "js=yes" });
const informer = makeInformer(config, path, list, "js=yes");
const waiting = new Map();
const happens = (what) => new Promise((resolve) => { waiting.set(what, resolve); });
for (const verb of ["add", "update", "delete"]) {
  informer.on(verb, (object) => waiting.get(`${verb} ${object.metadata.name}`)?.(object));
}
informer.on("error", (error) => { throw error; });
const there = happens("add second");
await informer.start();
await there;
const added = happens("add third");
await create("third");
await added;
const updated = happens("update third");
const third = await core.readNamespacedConfigMap({ name: "third", namespace });
await core.replaceNamespacedConfigMap({ name: "third", namespace, body: { ...third, data: { k: "v" } } });
assert.deepEqual((await updated).data, { k: "v" });
const deleted = happens("delete second");
await remove("second");
await deleted;
assert.deepEqual(informer.list().map((object) => object.metadata.name), ["third"]);
await informer.stop();
console.log("ok");
process.exit(0);
