//! ConfigTemplates: rendered from other objects, written without force, and brought to consumers in waves.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod, Secret};
use kube::{
    Api,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use mainstay_api::{
    config_template::ConfigTemplate,
    config_versions::{self, FILES_CONDITION},
    machine::{Machine, MachineAxis, StateValue},
    machine_file::MachineFile,
    node_loss::Timing,
};
use mainstay_controllers::{
    CommandResult, ConsumerNotifier, InputText, PodCommand, PodRequest, Settings, TemplateRenderer, render_texts,
    runtime::ApiError,
};
use mainstay_templates::TemplateError;
use serde_json::{Value, json};

use crate::cluster::{Cluster, until};

/// Records who was told, and refuses what is bad.
#[derive(Default)]
struct RecordingNotifier {
    commands: Mutex<Vec<(String, String)>>,
}

/// Counts what is rendered.
#[derive(Default)]
struct CountingRenderer(AtomicUsize);

impl CountingRenderer {
    /// How often since the last time.
    fn take(&self) -> usize {
        self.0.swap(0, Ordering::SeqCst)
    }
}

impl TemplateRenderer for CountingRenderer {
    fn render(
        &self,
        template: String,
        inputs: BTreeMap<String, InputText>,
    ) -> BoxFuture<'_, Result<String, TemplateError>> {
        self.0.fetch_add(1, Ordering::SeqCst);
        Box::pin(async move { render_texts(&template, &inputs) })
    }
}

impl RecordingNotifier {
    fn record(&self, pod: String, what: String) -> BoxFuture<'_, Result<CommandResult, ApiError>> {
        self.commands.lock().unwrap().push((pod, what));
        Box::pin(async { Ok(CommandResult::Succeeded) })
    }

    /// How often each pod was told since the last time.
    fn take(&self) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for (pod, _) in std::mem::take(&mut *self.commands.lock().unwrap()) {
            *counts.entry(pod).or_default() += 1;
        }
        counts
    }
}

impl ConsumerNotifier for RecordingNotifier {
    fn run(&self, command: PodCommand) -> BoxFuture<'_, Result<CommandResult, ApiError>> {
        self.record(command.pod, command.command.join(" "))
    }

    fn request(&self, request: PodRequest) -> BoxFuture<'_, Result<CommandResult, ApiError>> {
        self.record(request.pod, request.path)
    }
}

fn templates(cluster: &Cluster) -> Api<ConfigTemplate> {
    Api::namespaced(cluster.client.clone(), "default")
}

fn pods(cluster: &Cluster) -> Api<Pod> {
    Api::namespaced(cluster.client.clone(), "default")
}

async fn create_template(cluster: &Cluster, name: &str, mut spec: Value) {
    spec["quietSeconds"] = json!(0);
    let template = serde_json::from_value(json!({ "metadata": { "name": name }, "spec": spec })).unwrap();
    templates(cluster).create(&PostParams::default(), &template).await.expect("create a template");
}

/// The reason of its condition `Current`.
async fn reason(cluster: &Cluster, name: &str) -> (String, String) {
    let template = templates(cluster).get(name).await.expect("the template");
    let conditions = template.status.unwrap_or_default().conditions;
    let current = conditions.into_iter().find(|condition| condition.type_ == "Current");
    current.map(|condition| (condition.reason, condition.message)).unwrap_or_default()
}

async fn version(cluster: &Cluster, name: &str) -> String {
    templates(cluster)
        .get(name)
        .await
        .expect("the template")
        .status
        .and_then(|status| status.version)
        .unwrap_or_default()
}

async fn set_map(cluster: &Cluster, name: &str, value: &str) {
    let map =
        json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name }, "data": { "value": value } });
    let params = PatchParams::apply("test").force();
    cluster.maps("default").patch(name, &params, &Patch::Apply(map)).await.expect("write a config map");
}

async fn create_pod(cluster: &Cluster, name: &str, app: &str) {
    create_pod_on(cluster, name, app, Some("n1")).await;
}

/// A pod that is bound to a node which does not exist is deleted after a while.
async fn create_pod_on(cluster: &Cluster, name: &str, app: &str, node: Option<&str>) {
    let pod = json!({
        "metadata": { "name": name, "labels": { "app": app } },
        "spec": { "nodeName": node, "containers": [{ "name": "c", "image": "i" }] },
    });
    pods(cluster).create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.expect("create a pod");
    report(cluster, name, json!([{ "type": "Ready", "status": "True" }])).await;
}

/// Reports a running pod with these conditions, as its node would.
async fn report(cluster: &Cluster, name: &str, conditions: Value) {
    let running = json!({
        "name": "c", "image": "i", "imageID": "", "ready": true, "restartCount": 0, "state": { "running": {} },
    });
    let status = json!({ "status": { "phase": "Running", "conditions": conditions, "containerStatuses": [running] } });
    let patch = Patch::Strategic(status);
    pods(cluster).patch_status(name, &PatchParams::default(), &patch).await.expect("report as a node");
}

/// Reports for pods that were given versions that their files have them, as nodes would.
async fn follow_versions(cluster: &Cluster) {
    for pod in pods(cluster).list(&ListParams::default()).await.expect("list pods") {
        let annotations = pod.metadata.annotations.unwrap_or_default();
        let Some(wanted) = annotations.get(config_versions::ANNOTATION) else { continue };
        let conditions = pod.status.and_then(|status| status.conditions).unwrap_or_default();
        let shown = conditions.iter().find(|condition| condition.type_ == FILES_CONDITION);
        if shown.and_then(|condition| condition.message.as_ref()) != Some(wanted) {
            let name = pod.metadata.name.unwrap_or_default();
            report(cluster, &name, json!([{ "type": FILES_CONDITION, "status": "True", "message": wanted }])).await;
        }
    }
}

fn by_map(map: &str, app: &str, output: &str) -> Value {
    json!({
        "inputs": [{ "name": "settings", "configMap": { "name": map } }],
        "template": "value={{ settings.value }}\n",
        "output": { "configMap": { "name": output, "key": "app.conf" } },
        "consumers": [{ "selector": { "matchLabels": { "app": app } }, "onChange": { "signal": { "signal": "SIGHUP" } } }],
        "rollout": { "maxUnavailable": "100%" },
    })
}

#[tokio::test]
async fn only_the_consumers_of_what_changed_are_notified() {
    let (notifier, renderer) = (Arc::new(RecordingNotifier::default()), Arc::new(CountingRenderer::default()));
    let settings = Settings {
        consumer_notifier: Some(notifier.clone()),
        template_renderer: Some(renderer.clone()),
        ..Settings::default()
    };
    let cluster = Cluster::start_as(settings).await;
    for number in 0..50 {
        // Every fifth template reads what templates of its ten share.
        let map = if number % 5 == 0 { format!("shared-{}", number / 10) } else { format!("own-{number}") };
        set_map(&cluster, &map, "1").await;
        for pod in 0..10 {
            create_pod_on(&cluster, &format!("app-{number}-{pod}"), &format!("app-{number}"), None).await;
        }
        create_template(
            &cluster,
            &format!("t-{number}"),
            by_map(&map, &format!("app-{number}"), &format!("out-{number}")),
        )
        .await;
    }
    until("all are current", async || {
        let all = templates(&cluster).list(&ListParams::default()).await.expect("list templates");
        let is_current = |template: &ConfigTemplate| {
            let conditions = template.status.iter().flat_map(|status| &status.conditions);
            conditions.into_iter().any(|condition| condition.type_ == "Current" && condition.status == "True")
        };
        all.items.len() == 50 && all.iter().all(is_current)
    })
    .await;
    assert_eq!(notifier.take(), BTreeMap::new(), "the first version touches nobody");
    assert_eq!(renderer.take(), 50, "each is rendered once, however often it is looked at");

    let told_by = async |map: &str, changed: &[usize]| {
        let mut before = Vec::new();
        for number in changed {
            before.push(version(&cluster, &format!("t-{number}")).await);
        }
        set_map(&cluster, map, "2").await;
        until("the new version is current", async || {
            follow_versions(&cluster).await;
            for (number, before) in changed.iter().zip(&before) {
                let name = format!("t-{number}");
                if reason(&cluster, &name).await.0 != "Current" || version(&cluster, &name).await == *before {
                    return false;
                }
            }
            true
        })
        .await;
        notifier.take()
    };
    let pods_of = |numbers: &[usize]| -> BTreeMap<String, usize> {
        let pods = numbers.iter().flat_map(|number| (0..10).map(move |pod| (format!("app-{number}-{pod}"), 1)));
        pods.collect()
    };
    assert_eq!(told_by("own-7", &[7]).await, pods_of(&[7]));
    assert_eq!(renderer.take(), 1, "of 50 templates, one reads it");
    assert_eq!(told_by("shared-2", &[20, 25]).await, pods_of(&[20, 25]));
    assert_eq!(renderer.take(), 2);
    // A change that renders to the same touches nobody: it is followed by one that does.
    let patch = Patch::Merge(json!({ "data": { "unused": "x" } }));
    cluster.maps("default").patch("own-7", &PatchParams::default(), &patch).await.expect("change another key");
    assert_eq!(told_by("own-8", &[8]).await, pods_of(&[8]));
    cluster.stop().await;
}

#[tokio::test]
pub async fn a_template_follows_its_inputs_and_keeps_the_last_good_version() {
    let cluster = Cluster::start().await;
    let spec = json!({
        "inputs": [{ "name": "settings", "configMap": { "name": "settings" } }],
        "template": "value={{ settings.value }}\n",
        "output": { "configMap": { "name": "out", "key": "app.conf" } },
        "historyLimit": 1,
    });
    create_template(&cluster, "t", spec).await;
    until("its input is missing", async || reason(&cluster, "t").await.0 == "InputMissing").await;
    let (_, message) = reason(&cluster, "t").await;
    assert!(message.starts_with("spec.inputs[0] (settings): configmap \"settings\" does not exist"), "{message}");
    let content = async || -> Option<String> { cluster.get("out").await?.data?.remove("app.conf") };
    for value in ["1", "2", "3"] {
        set_map(&cluster, "settings", value).await;
        until("the output follows", async || content().await == Some(format!("value={value}\n"))).await;
    }
    until("old copies are deleted", async || {
        let copies = ListParams::default().labels("mainstay.dev/config-template=t");
        cluster.maps("default").list(&copies).await.expect("list copies").items.len() == 1
    })
    .await;
    let map = json!({ "data": { "value": null } });
    cluster
        .maps("default")
        .patch("settings", &PatchParams::default(), &Patch::Merge(map))
        .await
        .expect("remove the key");
    until("the template names the line", async || reason(&cluster, "t").await.0 == "RenderFailed").await;
    let (_, message) = reason(&cluster, "t").await;
    let expected = "spec.template: line 1: undefined value in \"value={{ settings.value }}\"; consumers have ";
    assert!(message.starts_with(expected), "{message}");
    assert_eq!(content().await.as_deref(), Some("value=3\n"));
    cluster.stop().await;
}

#[tokio::test]
async fn pods_read_the_output_itself_once_their_template_is_deleted() {
    let settings = Settings { consumer_notifier: Some(Arc::new(RecordingNotifier::default())), ..Settings::default() };
    let cluster = Cluster::start_as(settings).await;
    set_map(&cluster, "settings", "1").await;
    create_pod_on(&cluster, "web", "web", None).await;
    create_template(&cluster, "t", by_map("settings", "web", "out")).await;
    until("the first version is current", async || reason(&cluster, "t").await.0 == "Current").await;
    let before = version(&cluster, "t").await;
    set_map(&cluster, "settings", "2").await;
    until("the next one is", async || {
        follow_versions(&cluster).await;
        reason(&cluster, "t").await.0 == "Current" && version(&cluster, "t").await != before
    })
    .await;
    let annotations = async || {
        let pod = pods(&cluster).get("web").await.expect("the pod");
        pod.metadata.annotations.unwrap_or_default()
    };
    assert!(annotations().await.contains_key(config_versions::ANNOTATION), "it reads a copy");
    templates(&cluster).delete("t", &Default::default()).await.expect("delete the template");
    until("it reads no copy any more", async || annotations().await.is_empty()).await;
    let output = cluster.get("out").await.and_then(|map| map.data).unwrap_or_default();
    assert_eq!(output.get("app.conf").map(String::as_str), Some("value=2\n"), "the output stays");
    cluster.stop().await;
}

#[tokio::test]
pub async fn a_key_of_somebody_else_is_a_conflict_and_not_a_fight() {
    let cluster = Cluster::start().await;
    let theirs = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "out" }, "data": { "app.conf": "theirs" } });
    let params = PatchParams::apply("puppet");
    cluster.maps("default").patch("out", &params, &Patch::Apply(theirs)).await.expect("write a config map");
    set_map(&cluster, "settings", "1").await;
    create_template(&cluster, "t", by_map("settings", "none", "out")).await;
    until("the conflict is named", async || reason(&cluster, "t").await.0 == "Conflict").await;
    let (_, message) = reason(&cluster, "t").await;
    assert!(message.contains("puppet") && message.contains(".data.app.conf"), "{message}");
    let written = cluster.get("out").await.expect("the output").data.expect("data");
    assert_eq!(written["app.conf"], "theirs");
    let given_up = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "out" } });
    cluster.maps("default").patch("out", &params, &Patch::Apply(given_up)).await.expect("give the key up");
    until("the template has the key", async || reason(&cluster, "t").await.0 == "Current").await;
    cluster.stop().await;
}

#[tokio::test]
async fn a_copy_that_a_workload_made_first_is_shared() {
    let cluster = Cluster::start().await;
    let output = json!({ "metadata": { "name": "out" }, "data": { "app.conf": "value=1\n" } });
    let copy = config_versions::copy_config_map(&serde_json::from_value(output).unwrap());
    let name = copy.metadata.name.clone().expect("a name");
    cluster.maps("default").create(&PostParams::default(), &copy).await.expect("make the copy");
    set_map(&cluster, "settings", "1").await;
    create_template(&cluster, "t", by_map("settings", "none", "out")).await;
    until("the template knows the copy as its own", async || {
        let labels = cluster.get(&name).await.and_then(|copy| copy.metadata.labels).unwrap_or_default();
        labels.get("mainstay.dev/config-template").is_some_and(|template| template == "t")
    })
    .await;
    let owners = cluster.get(&name).await.and_then(|copy| copy.metadata.owner_references).unwrap_or_default();
    assert_eq!(owners.iter().map(|owner| owner.name.as_str()).collect::<Vec<_>>(), ["out"]);
    cluster.stop().await;
}

#[tokio::test]
pub async fn secrets_are_rendered_into_secrets_and_pods_are_restarted_by_eviction() {
    let cluster = Cluster::start().await;
    let secrets: Api<Secret> = Api::namespaced(cluster.client.clone(), "default");
    let set = async |value: &str| {
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "db" }, "stringData": { "password": value },
        });
        let params = PatchParams::apply("test").force();
        secrets.patch("db", &params, &Patch::Apply(secret)).await.expect("write a secret");
    };
    set("s3cret-1").await;
    create_pod(&cluster, "web", "web").await;
    let spec = json!({
        "inputs": [{ "name": "db", "secret": { "name": "db" } }],
        "template": "password={{ db.password }}\n",
        "output": { "secret": { "name": "out", "key": "app.conf" } },
        "consumers": [{ "selector": { "matchLabels": { "app": "web" } }, "onChange": { "restart": {} } }],
    });
    create_template(&cluster, "t", spec).await;
    until("it is current", async || reason(&cluster, "t").await.0 == "Current").await;
    set("s3cret-2").await;
    until("the pod is evicted", async || {
        let pod = pods(&cluster).get_opt("web").await.expect("get the pod");
        pod.is_none_or(|pod| pod.metadata.deletion_timestamp.is_some())
    })
    .await;
    let status = serde_json::to_string(&templates(&cluster).get("t").await.expect("the template").status).unwrap();
    assert!(!status.contains("s3cret"), "{status}");
    cluster.stop().await;
}

/// Commands and requests go through the API with the controller's own rights; there are no nodes here that would carry them out.
#[tokio::test]
pub async fn pods_are_reached_by_the_api() {
    let cluster = Cluster::start().await;
    set_map(&cluster, "settings", "1").await;
    for (name, action) in
        [("signal", json!({ "signal": { "signal": "SIGHUP" } })), ("http", json!({ "http": { "port": 80 } }))]
    {
        create_pod(&cluster, name, name).await;
        let mut spec = by_map("settings", name, name);
        spec["consumers"][0]["onChange"] = action;
        create_template(&cluster, name, spec).await;
        until("it is current", async || reason(&cluster, name).await.0 == "Current").await;
    }
    let maps: Api<ConfigMap> = cluster.maps("default");
    set_map(&cluster, "settings", "2").await;
    until("the request failed, and the version was taken back", async || {
        follow_versions(&cluster).await;
        reason(&cluster, "http").await.0 == "RolledBack"
    })
    .await;
    assert_eq!(maps.get("http").await.expect("the output").data.expect("data")["app.conf"], "value=1\n");
    cluster.stop().await;
}

/// The files that machines are to have: the node, its version, and what the content is read from.
async fn machine_files(cluster: &Cluster) -> BTreeMap<String, MachineFile> {
    let files: Api<MachineFile> = Api::namespaced(cluster.client.clone(), "default");
    let all = files.list(&ListParams::default()).await.expect("list machine files");
    all.into_iter().map(|file| (file.spec.node_name.clone(), file)).collect()
}

/// Reports for machines that were given a version that they have it, or why they cannot, as their agents would.
async fn report_files(cluster: &Cluster, bad: &str) {
    let files: Api<MachineFile> = Api::namespaced(cluster.client.clone(), "default");
    for file in machine_files(cluster).await.into_values().filter(|file| file.current_status().is_none()) {
        let is_bad = file.spec.version == bad;
        let status = json!({ "status": {
            "observedGeneration": file.metadata.generation, "version": file.spec.version,
            "reason": is_bad.then_some("CommandFailed"), "message": is_bad.then_some("exit code 1"),
            "time": jiff::Timestamp::now().to_string(),
        } });
        let written = files.patch_status(file.name(), &PatchParams::default(), &Patch::Merge(status)).await;
        assert!(written.is_ok() || machine_files(cluster).await.len() < 3, "{written:?}");
    }
}

#[tokio::test]
pub async fn machines_get_the_output_as_a_file_in_waves_and_lose_it_with_their_label() {
    // Nobody sends heartbeats here.
    let timing = Timing { unknown_after: Duration::from_secs(3600), ..Timing::default() };
    let cluster = Cluster::start_with(timing).await;
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    for name in ["lb-1", "lb-2", "lb-3", "other"] {
        let role = if name == "other" { "other" } else { "lb" };
        let node = json!({ "metadata": { "name": name, "labels": { "role": role } } });
        nodes.create(&PostParams::default(), &serde_json::from_value(node).unwrap()).await.expect("create a node");
        let ready = json!({ "status": { "conditions": [{ "type": "Ready", "status": "True" }] } });
        nodes.patch_status(name, &PatchParams::default(), &Patch::Merge(ready)).await.expect("report a node");
    }
    // A machine that no controller has seen yet is nobody's consumer.
    let machines: Api<Machine> = Api::all(cluster.client.clone());
    until("the controllers know all nodes", async || {
        let known = machines.list(&ListParams::default()).await.expect("list machines");
        let is_seen = |own: &&Machine| own.state(MachineAxis::Seen).is_some_and(|own| own.state == StateValue::Success);
        known.iter().filter(is_seen).count() == 4
    })
    .await;
    set_map(&cluster, "settings", "1").await;
    let mut spec = by_map("settings", "nobody", "out");
    spec["consumers"] = json!([{ "machines": {
        "selector": { "matchLabels": { "role": "lb" } }, "path": "/etc/lb/lb.conf", "mode": "0644",
    } }]);
    spec["rollout"] = json!({ "waves": [1], "maxUnavailable": 1 });
    create_template(&cluster, "lb", spec).await;
    let until_current = async |value: &str, reason_wanted: &str, bad: &str| {
        until(&format!("machines have {value}"), async || {
            report_files(&cluster, bad).await;
            reason(&cluster, "lb").await.0 == reason_wanted
        })
        .await;
    };
    until_current("1", "Current", "").await;
    let files = machine_files(&cluster).await;
    assert_eq!(files.keys().collect::<Vec<_>>(), ["lb-1", "lb-2", "lb-3"]);
    let first = version(&cluster, "lb").await;
    for file in files.values() {
        assert_eq!((&*file.spec.file.path, file.spec.file.mode.as_deref()), ("/etc/lb/lb.conf", Some("0644")));
        let (content, _) = file.spec.content.target().expect("a content");
        let copy = cluster.maps("default").get(&content.name).await.expect("the copy");
        assert_eq!(copy.data.unwrap()[&content.key], "value=1\n");
        assert_eq!(file.spec.version, first);
    }
    // What fails on the first machine reaches no other, and is taken back.
    let bad = mainstay_templates::version("value=bad\n");
    set_map(&cluster, "settings", "bad").await;
    until_current("what was good", "RolledBack", &bad).await;
    until("all have the first version again", async || {
        report_files(&cluster, "").await;
        machine_files(&cluster).await.values().all(|file| file.spec.version == first)
    })
    .await;
    let generations: Vec<_> = machine_files(&cluster).await.values().map(|file| file.metadata.generation).collect();
    assert_eq!(generations, [Some(3), Some(1), Some(1)], "only one machine was touched");
    set_map(&cluster, "settings", "2").await;
    until_current("2", "Current", "").await;
    // A machine that is selected no longer loses its file, and so do all with the template.
    let relabelled = Patch::Merge(json!({ "metadata": { "labels": { "role": "other" } } }));
    nodes.patch("lb-3", &PatchParams::default(), &relabelled).await.expect("relabel a node");
    until("lb-3 is released", async || machine_files(&cluster).await.keys().all(|node| node != "lb-3")).await;
    templates(&cluster).delete("lb", &Default::default()).await.expect("delete the template");
    until("all files are gone", async || machine_files(&cluster).await.is_empty()).await;
    cluster.stop().await;
}
