//! The controllers are killed at every single call of a run that creates, attaches and tears down: at the end the cloud holds exactly what the API says.
//!
//! One run without faults enumerates the calls. For each of them two more follow: killed before the service is asked, and killed after it did the work and
//! before anybody heard. `MAINSTAY_KILL_STRIDE=1` kills at all of them; by default at every eleventh, so that CI has time for the rest.

use k8s_openapi::api::{
    core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod, Service},
    storage::v1::VolumeAttachment,
};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use mainstay_cloud::openstack::session::Deadlines;
use mainstay_testing::{TestApi, until};
use serde_json::json;
use std::time::Duration;

use crate::{
    attachments::{create_server, pod},
    fault_proxy::{FaultProxy, KillPoint, summary},
    harness::{Manager, TestProject, cloud_client, cluster, entries, resources},
    load_balancers::{ingress, service},
    volumes::{claim, create_class, is_bound, start_binder},
};

/// Short, since a create that was cut off is waited out.
const DEADLINES: Deadlines = Deadlines { attempt: Duration::from_secs(6), call: Duration::from_secs(30) };

pub struct Run<'a> {
    project: &'a TestProject,
    pub proxy: FaultProxy,
    yaml: String,
    pub api: TestApi,
    client: Client,
    manager: Option<Manager>,
}

impl<'a> Run<'a> {
    /// The node's server is `server`.
    pub async fn start(project: &'a TestProject, server: &str) -> Self {
        let (api, proxy) = (cluster().await, FaultProxy::start().await);
        let client = api.client("test");
        create_class(&client).await;
        let patch = Patch::Merge(json!({"spec": {"providerID": format!("openstack:///{server}")}}));
        let nodes: Api<Node> = Api::all(client.clone());
        nodes.patch("node-1", &PatchParams::default(), &patch).await.unwrap();
        let yaml = project.yaml_through(&proxy.keystone(project.session.auth_url()));
        Self { project, proxy, yaml, api, client, manager: None }
    }

    fn start_manager(&mut self) {
        self.manager = Some(Manager::start_with(cloud_client(&self.api), &self.yaml, DEADLINES));
    }

    /// Waits for a state; if the kill comes first, kills the controllers and starts others.
    async fn until(&mut self, what: &str, mut look: impl AsyncFnMut() -> bool) {
        let killed_before = self.proxy.was_killed();
        if !killed_before {
            tokio::select! {
                () = self.proxy.killed() => {
                    if let Some(manager) = self.manager.take() {
                        manager.kill();
                    }
                    self.start_manager();
                }
                () = until(what, &mut look) => return,
            }
        }
        until(what, look).await;
    }

    /// Creates a claim and a Service, waits until both have what they ask for, deletes them, and waits until all is gone.
    pub async fn create_and_tear_down(&mut self) {
        self.start_manager();
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), "default");
        let services: Api<Service> = Api::namespaced(self.client.clone(), "default");
        let volumes: Api<PersistentVolume> = Api::all(self.client.clone());
        claims.create(&PostParams::default(), &claim("1Gi")).await.unwrap();
        services.create(&PostParams::default(), &service()).await.unwrap();
        self.until("a bound claim and a Service with an address", async || {
            is_bound(&claims.get("data").await.unwrap()) && ingress(&services.get("web").await.unwrap()).is_some()
        })
        .await;
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), "default");
        let attachments: Api<VolumeAttachment> = Api::all(self.client.clone());
        // As soon as the namespace has its service account.
        let user = pod("user", "node-1");
        until("a pod", async || pods.create(&PostParams::default(), &user).await.is_ok()).await;
        self.until("an attached volume", async || {
            let all = attachments.list(&ListParams::default()).await.unwrap().items;
            all.iter().any(|own| own.status.as_ref().is_some_and(|status| status.attached))
        })
        .await;
        pods.delete("user", &DeleteParams::default().grace_period(0)).await.unwrap();
        self.until("no attachment", async || attachments.list(&ListParams::default()).await.unwrap().items.is_empty())
            .await;
        claims.delete("data", &DeleteParams::default()).await.unwrap();
        services.delete("web", &DeleteParams::default()).await.unwrap();
        self.until("neither Service nor PersistentVolume", async || {
            services.get_opt("web").await.unwrap().is_none()
                && volumes.list(&ListParams::default()).await.unwrap().items.is_empty()
        })
        .await;
    }

    /// What is left: in the cloud, and in the ledger.
    pub async fn leftovers(&self) -> Vec<String> {
        let mut left = resources(&self.project.session).await;
        left.extend(entries(&self.client).await.iter().map(|entry| format!("entry {}", entry.name())));
        left
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_at_any_call_nothing_is_left_behind() {
    let project = TestProject::create("kills").await;
    let server = create_server(&project, "node-1").await;
    let mut run = Run::start(&project, &server).await;
    let binder = start_binder(&run.api);
    run.create_and_tear_down().await;
    assert_eq!(run.leftovers().await, [] as [&str; 0], "without any fault");
    let calls = run.proxy.calls();
    drop(run);
    binder.cancel();

    let stride = std::env::var("MAINSTAY_KILL_STRIDE").map_or(11, |text| text.parse().expect("a number"));
    let points = (0..calls.len())
        .step_by(stride)
        .flat_map(|call| [false, true].map(|after_work| KillPoint { call, after_work }));
    let (mut runs, mut kills) = (0, 0);
    for point in points {
        let mut run = Run::start(&project, &server).await;
        let binder = start_binder(&run.api);
        run.proxy.kill_at(point);
        run.create_and_tear_down().await;
        for look in ["first", "second"] {
            let left = run.leftovers().await;
            assert_eq!(left, [] as [&str; 0], "{look} look after {point:?} of {:?}", summary(&run.proxy.calls()));
        }
        let was_killed = run.proxy.was_killed();
        println!("{point:?} of {} calls, killed: {was_killed}, nothing left", calls.len());
        runs += 1;
        kills += usize::from(was_killed);
        binder.cancel();
    }
    project.session.compute().delete_server(&server).await.unwrap();
    println!("{} calls, {runs} runs, {kills} kills, 0 leaks", calls.len());
    assert!(kills > 0, "no run was killed");
}
