//! Attaching claims' volumes with the real Nova and Cinder. Agents are played: they say what they have mounted.

use k8s_openapi::api::{
    core::v1::{Event, Node, PersistentVolume, PersistentVolumeClaim, Pod},
    storage::v1::VolumeAttachment,
};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use mainstay_api::cinder::{attachment_name, unique_volume_name};
use mainstay_cloud::openstack::{
    compute::{NewServer, ServerNetwork},
    session::Deadlines,
};
use mainstay_testing::{TestApi, until};
use serde_json::{Value, json};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

use crate::{
    fault_proxy::{Effect, Fault, FaultProxy},
    harness::{Manager, TestProject, cloud_client, cluster, entries, resources},
    volumes::{claim, create_class, is_bound, start_binder},
};

/// Short, since a call that hangs is waited out.
const DEADLINES: Deadlines = Deadlines { attempt: Duration::from_secs(8), call: Duration::from_secs(30) };

struct Fixture {
    project: TestProject,
    api: TestApi,
    client: Client,
    binder: CancellationToken,
    servers: Vec<String>,
    /// Of the claim's volume, once it is bound.
    volume: String,
    handle: String,
}

impl Fixture {
    /// Two nodes with a server each, and a claim; the controllers are started by `start`.
    async fn create(name: &str, start: impl AsyncFnOnce(&TestProject, &TestApi) -> Manager) -> (Self, Manager) {
        let (project, api) = (TestProject::create(name).await, cluster().await);
        let (client, binder) = (api.client("test"), start_binder(&api));
        let nodes: Api<Node> = Api::all(client.clone());
        nodes.create(&PostParams::default(), &node("node-2")).await.unwrap();
        let mut servers = Vec::new();
        for name in ["node-1", "node-2"] {
            let server = create_server(&project, name).await;
            let patch = json!({"spec": {"providerID": format!("openstack:///{server}")}});
            nodes.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
            servers.push(server);
        }
        create_class(&client).await;
        let manager = start(&project, &api).await;
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), "default");
        claims.create(&PostParams::default(), &claim("1Gi")).await.unwrap();
        until("a bound claim", async || is_bound(&claims.get("data").await.unwrap())).await;
        let volume = claims.get("data").await.unwrap().spec.unwrap().volume_name.unwrap();
        let volumes: Api<PersistentVolume> = Api::all(client.clone());
        let handle = volumes.get(&volume).await.unwrap().spec.unwrap().csi.unwrap().volume_handle;
        (Self { project, api, client, binder, servers, volume, handle }, manager)
    }

    async fn create_pod(&self, name: &str, node: &str) {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), "default");
        pods.create(&PostParams::default(), &pod(name, node)).await.unwrap();
    }

    /// As the agent does when the pod has ended, or a server whose node is lost.
    async fn delete_pod(&self, name: &str) {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), "default");
        pods.delete(name, &DeleteParams::default().grace_period(0)).await.unwrap();
    }

    async fn attachment(&self, node: &str) -> Option<VolumeAttachment> {
        Api::all(self.client.clone()).get_opt(&attachment_name(&self.handle, node)).await.unwrap()
    }

    async fn is_attached(&self, node: &str) -> bool {
        self.attachment(node).await.and_then(|own| own.status).is_some_and(|status| status.attached)
    }

    /// What the node's agent says to have mounted.
    async fn set_in_use(&self, node: &str, is_in_use: bool) {
        let volumes = if is_in_use { vec![unique_volume_name(&self.handle)] } else { vec![] };
        self.patch_node_status(node, json!({"volumesInUse": volumes})).await;
    }

    async fn patch_node_status(&self, node: &str, status: Value) {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let patch = Patch::Merge(json!({"status": status}));
        nodes.patch_status(node, &PatchParams::default(), &patch).await.unwrap();
    }

    /// Servers that Nova shows the volume at.
    async fn attached_servers(&self) -> Vec<String> {
        let mut found = Vec::new();
        for server in &self.servers {
            let attachments = self.project.session.compute().list_volume_attachments(server).await.unwrap();
            found.extend(attachments.iter().any(|own| own.volume_id == self.handle).then(|| server.clone()));
        }
        found
    }

    async fn has_event(&self, pod: &str, reason: &str) -> bool {
        let events: Api<Event> = Api::namespaced(self.client.clone(), "default");
        let all = events.list(&ListParams::default()).await.unwrap().items;
        let is_wanted = |event: &Event| {
            event.involved_object.name.as_deref() == Some(pod)
                && event.reason.as_deref() == Some(reason)
                && event.message.as_deref().is_some_and(|message| message.contains(&self.volume))
        };
        all.iter().any(is_wanted)
    }

    /// Deletes claim and servers, and looks whether anything is left.
    async fn tear_down(self, manager: Manager) {
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), "default");
        claims.delete("data", &DeleteParams::default()).await.unwrap();
        let volumes: Api<PersistentVolume> = Api::all(self.client.clone());
        until("no PersistentVolume", async || volumes.get_opt(&self.volume).await.unwrap().is_none()).await;
        assert_eq!(resources(&self.project.session).await, [] as [&str; 0]);
        assert_eq!(entries(&self.client).await.len(), 0);
        for server in &self.servers {
            self.project.session.compute().delete_server(server).await.unwrap();
        }
        drop(manager);
        self.binder.cancel();
        drop(self.api);
    }
}

/// A pod on a node that uses the claim.
pub fn pod(name: &str, node: &str) -> Pod {
    serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {"nodeName": node, "containers": [{"name": "c", "image": "i"}],
                 "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]},
    }))
    .unwrap()
}

fn node(name: &str) -> Node {
    serde_json::from_value(json!({"metadata": {"name": name}})).unwrap()
}

pub async fn create_server(project: &TestProject, name: &str) -> String {
    let session = &project.session;
    let flavors = session.compute().list_flavors().await.unwrap();
    let images = session.image().list_images(None).await.unwrap();
    let server = NewServer {
        name: name.to_owned(),
        flavor: flavors.iter().find(|flavor| flavor.name == "m1.tiny").expect("a flavor").id.clone(),
        image: images.first().map(|image| image.id.clone()),
        networks: vec![ServerNetwork { network: Some(project.network.clone()), ..ServerNetwork::default() }],
        ..NewServer::default()
    };
    let id = session.compute().create_server(&server).await.expect("create a server");
    until("an active server", async || {
        session.compute().show_server(&id).await.unwrap().is_some_and(|server| server.status == "ACTIVE")
    })
    .await;
    id
}

async fn start_plain(project: &TestProject, api: &TestApi) -> Manager {
    Manager::start_only(cloud_client(api), &project.yaml, &["volumes"])
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_follows_its_pod_and_is_never_at_two_servers() {
    let (f, manager) = Fixture::create("follows", start_plain).await;
    f.create_pod("first", "node-1").await;
    until("the volume at the first node", async || f.is_attached("node-1").await).await;
    assert_eq!(f.attached_servers().await, f.servers[..1]);
    let attachment = f.attachment("node-1").await.unwrap();
    assert_eq!(attachment.spec.source.persistent_volume_name.as_deref(), Some(f.volume.as_str()));
    assert!(attachment.status.unwrap().attachment_metadata.unwrap()["DevicePath"].starts_with("/dev/"));
    let nodes: Api<Node> = Api::all(f.client.clone());
    until("the volume in the node's status", async || {
        let attached = nodes.get("node-1").await.unwrap().status.unwrap().volumes_attached.unwrap_or_default();
        attached.iter().any(|own| own.name == unique_volume_name(&f.handle))
    })
    .await;

    f.set_in_use("node-1", true).await;
    f.create_pod("second", "node-2").await;
    until("a second pod that waits", async || f.has_event("second", "FailedAttachVolume").await).await;
    f.delete_pod("first").await;
    until("an attachment that ends", async || {
        f.attachment("node-1").await.is_some_and(|own| own.metadata.deletion_timestamp.is_some())
    })
    .await;
    // Each change of the node is looked at; it is mounted all the while.
    for round in 0..5 {
        let noted = Patch::Merge(json!({"metadata": {"annotations": {"round": round.to_string()}}}));
        nodes.patch("node-1", &PatchParams::default(), &noted).await.unwrap();
    }
    assert_eq!(f.attached_servers().await, f.servers[..1], "it is mounted");
    assert!(f.attachment("node-2").await.is_none(), "nobody else gets it");

    f.set_in_use("node-1", false).await;
    until("the volume at the second node", async || f.is_attached("node-2").await).await;
    assert_eq!(f.attached_servers().await, f.servers[1..]);
    assert!(f.attachment("node-1").await.is_none());
    f.delete_pod("second").await;
    until("no attachment", async || f.attachment("node-2").await.is_none()).await;
    assert_eq!(f.attached_servers().await, [] as [&str; 0]);
    f.tear_down(manager).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_node_loses_a_mounted_volume_only_when_it_cannot_write_any_more() {
    let (mut f, manager) = Fixture::create("lost", start_plain).await;
    f.create_pod("first", "node-1").await;
    until("the volume at the first node", async || f.is_attached("node-1").await).await;
    f.set_in_use("node-1", true).await;
    // What follows is this test's to say, and not the node controller's.
    f.binder.cancel();
    let nodes: Api<Node> = Api::all(f.client.clone());
    let unreachable =
        json!({"key": "node.kubernetes.io/unreachable", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:10Z"});
    let tainted = Patch::Merge(json!({"spec": {"taints": [unreachable]}}));
    nodes.patch("node-1", &PatchParams::default(), &tainted).await.unwrap();
    f.delete_pod("first").await;
    f.create_pod("second", "node-2").await;
    until("an attachment that ends", async || {
        f.attachment("node-1").await.is_some_and(|own| own.metadata.deletion_timestamp.is_some())
    })
    .await;
    let said =
        |time: &str| json!({"conditions": [{"type": "UniquePodsEnded", "status": "True", "lastTransitionTime": time}]});
    f.patch_node_status("node-1", said("2026-01-01T00:00:00Z")).await;
    until("a second pod that waits", async || f.has_event("second", "FailedAttachVolume").await).await;
    assert_eq!(f.attached_servers().await, f.servers[..1], "that was said of an earlier loss");
    f.patch_node_status("node-1", said("2026-01-01T00:00:20Z")).await;
    until("the volume at the second node", async || f.is_attached("node-2").await).await;
    assert_eq!(f.attached_servers().await, f.servers[1..]);

    // The administrator switches the second machine off in the cloud.
    f.set_in_use("node-2", true).await;
    f.delete_pod("second").await;
    until("an attachment that ends", async || {
        f.attachment("node-2").await.is_some_and(|own| own.metadata.deletion_timestamp.is_some())
    })
    .await;
    f.project.session.compute().stop_server(&f.servers[1]).await.unwrap();
    until("no attachment", async || f.attachment("node-2").await.is_none()).await;
    assert_eq!(f.attached_servers().await, [] as [&str; 0]);
    f.binder = start_binder(&f.api);
    f.tear_down(manager).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn controllers_killed_between_the_attach_call_and_its_record_find_the_attachment() {
    let proxy = FaultProxy::start().await;
    let start = async |project: &TestProject, api: &TestApi| {
        let yaml = project.yaml_through(&proxy.keystone(project.session.auth_url()));
        Manager::start_with(cloud_client(api), &yaml, DEADLINES)
    };
    let (f, manager) = Fixture::create("attach-kill", &start).await;
    let line = "/os-volume_attachments";
    let posts = || proxy.calls().iter().filter(|call| call.starts_with("POST") && call.contains(line)).count();
    // The volume is attached, and nobody hears of it.
    proxy.inject(Fault::new("POST /v2.1/", 1, Effect::HangAfterWork));
    f.create_pod("first", "node-1").await;
    until("a call that attaches", async || posts() == 1).await;
    until("the volume at the server", async || !f.attached_servers().await.is_empty()).await;
    assert!(f.attachment("node-1").await.is_some(), "the record is older than the call");
    assert!(!f.is_attached("node-1").await);
    manager.kill();
    let manager = start(&f.project, &f.api).await;
    until("the attachment on record", async || f.is_attached("node-1").await).await;
    assert_eq!((posts(), f.attached_servers().await.len()), (1, 1), "Nova was not asked twice");

    // Likewise between detaching and forgetting.
    proxy.inject(Fault::new("DELETE /v2.1/", 1, Effect::HangAfterWork));
    f.delete_pod("first").await;
    until("no attachment in the cloud", async || f.attached_servers().await.is_empty()).await;
    manager.kill();
    let manager = start(&f.project, &f.api).await;
    until("no attachment on record", async || f.attachment("node-1").await.is_none()).await;
    f.tear_down(manager).await;
}
