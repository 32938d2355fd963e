//! The controllers of pools and of deorbit are killed at every call of a run in which a Kluster gets a machine and a volume and goes: at the end the cloud holds nothing
//! of it, and its receipt names both.
//!
//! One run without faults enumerates the calls. By default, for each call that changes something two more runs follow: killed before the service is asked, and killed
//! after it did the work and before anybody heard. With `MAINSTAY_KILL_STRIDE=1` they follow for each call, with a larger number for every so many calls.

use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use mainstay_api::cloud::{
    cloud_resource::ResourceType,
    kluster::{GROUND_FINALIZER, Kluster},
    teardown_receipt::TeardownReceipt,
};
use mainstay_cloud::openstack::{network::PortFilter, session::Deadlines};
use mainstay_controllers::runtime::Clock;
use mainstay_testing::{TestApi, until};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::{
    fault_proxy::{FaultProxy, KillPoint, is_write, summary},
    harness::{Manager, TestProject, cloud_client, cluster, entries, resources},
    teardown::{KlusterControllers, create_kluster, pool, server_names},
    volumes::{claim, create_class, is_bound, start_binder},
};

/// Short, since a create that was cut off is waited out.
const DEADLINES: Deadlines = Deadlines { attempt: Duration::from_secs(6), call: Duration::from_secs(30) };
/// The controllers' clock is so many times as fast: deorbit waits 15 s for what may still come.
const HASTE: i32 = 10;
/// After so long without a call to the cloud the Kluster is changed, so that no controller sleeps by the clock of the machine. While
/// they are at work it is left alone: what they write is fenced by its version, and would be refused each time.
const IDLE: Duration = Duration::from_millis(300);

fn hasty_clock() -> Clock {
    let began = Timestamp::now();
    Clock::new(move || {
        let elapsed: SignedDuration = Timestamp::now().duration_since(began);
        began + elapsed * HASTE
    })
}

/// The controllers in a runtime of their own, so that they can be ended between any two instructions.
struct KillableControllers(Option<tokio::runtime::Runtime>);

impl KillableControllers {
    fn start(client: Client, yaml: &str, clock: Clock) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let yaml = yaml.to_owned();
        runtime.spawn(async move {
            let _controllers = KlusterControllers::start_with(client, &yaml, DEADLINES, clock).await;
            std::future::pending::<()>().await;
        });
        Self(Some(runtime))
    }
}

impl Drop for KillableControllers {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

struct Run<'a> {
    project: &'a TestProject,
    proxy: FaultProxy,
    yaml: String,
    api: TestApi,
    client: Client,
    clock: Clock,
    controllers: Option<KillableControllers>,
    /// Those of claims, which nobody kills.
    _manager: Manager,
    binder: CancellationToken,
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        self.binder.cancel();
    }
}

impl<'a> Run<'a> {
    async fn start(project: &'a TestProject) -> Self {
        let (api, proxy) = (cluster().await, FaultProxy::start().await);
        let client = api.client("test");
        create_class(&client).await;
        let binder = start_binder(&api);
        let manager = Manager::start_only(cloud_client(&api), &project.yaml, &["volumes"]);
        let yaml = project.yaml_through(&proxy.keystone(project.session.auth_url()));
        Self { project, proxy, yaml, api, client, clock: hasty_clock(), controllers: None, _manager: manager, binder }
    }

    fn start_controllers(&self) -> KillableControllers {
        KillableControllers::start(self.api.client("klusters"), &self.yaml, self.clock.clone())
    }

    /// Waits for a state; if the kill comes first, kills the controllers and starts others.
    async fn until(&mut self, what: &str, mut look: impl AsyncFnMut() -> bool) {
        let klusters: Api<Kluster> = Api::namespaced(self.client.clone(), "default");
        let proxy = &self.proxy;
        let (mut calls, mut changed) = (0, Instant::now());
        let mut look = async || {
            let calls_now = proxy.calls().len();
            if calls_now != calls {
                (calls, changed) = (calls_now, Instant::now());
            } else if changed.elapsed() >= IDLE {
                changed = Instant::now();
                let change = json!({"metadata": {"annotations": {"test": Timestamp::now().to_string()}}});
                // It may be gone.
                let _ = klusters.patch("kate", &PatchParams::default(), &Patch::Merge(change)).await;
            }
            look().await
        };
        if !self.proxy.was_killed() {
            tokio::select! {
                () = self.proxy.killed() => {
                    drop(self.controllers.take());
                    self.controllers = Some(self.start_controllers());
                }
                () = until(what, &mut look) => return,
            }
        }
        until(what, look).await;
    }

    /// A Kluster gets a machine, its cluster a volume, and all goes.
    async fn create_and_tear_down(&mut self) {
        self.controllers = Some(self.start_controllers());
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), "default");
        claims.create(&PostParams::default(), &claim("1Gi")).await.unwrap();
        until("a bound claim", async || is_bound(&claims.get("data").await.unwrap())).await;
        let klusters = create_kluster(&self.client, self.project, pool("small", 1, "m1.tiny")).await;
        self.until("a machine, and both finalizers", async || {
            let kluster = klusters.get("kate").await.unwrap();
            let status = kluster.status.unwrap_or_default();
            status.node_pools.first().is_some_and(|pool| pool.running == 1)
                && kluster.metadata.finalizers.unwrap_or_default().len() == 3
        })
        .await;
        klusters.delete("kate", &DeleteParams::default()).await.unwrap();
        self.until("no finalizer but the last", async || {
            klusters.get("kate").await.unwrap().metadata.finalizers.unwrap_or_default() == [GROUND_FINALIZER]
        })
        .await;
    }

    /// What is left: in the cloud, and in the ledger.
    async fn leftovers(&self) -> Vec<String> {
        let mut left = resources(&self.project.session).await;
        left.extend(server_names(self.project).await.into_iter().map(|name| format!("server {name}")));
        left.extend(entries(&self.client).await.iter().map(|entry| format!("entry {}", entry.name())));
        let receipts: Api<TeardownReceipt> = Api::namespaced(self.client.clone(), "default");
        let receipts = receipts.list(&ListParams::default()).await.unwrap().items;
        if receipts.len() != 1 {
            left.push(format!("{} receipts", receipts.len()));
        }
        for receipt in receipts {
            let status = receipt.status.unwrap_or_default();
            let resources: Vec<ResourceType> = status.items.iter().map(|item| item.resource).collect();
            let has_all = [ResourceType::Server, ResourceType::Volume].iter().all(|wanted| resources.contains(wanted));
            if status.result != "Complete" || !has_all || status.items.iter().any(|item| item.gone.is_none()) {
                left.push(format!("receipt {:?} {:?}", status.result, status.items));
            }
        }
        left
    }
}

async fn ports(project: &TestProject) -> usize {
    project.session.network().list_ports(&PortFilter::default()).await.expect("list ports").len()
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_at_any_call_a_kluster_leaves_a_receipt_and_nothing_else() {
    let project = TestProject::create("kluster-kills").await;
    let ports_before = ports(&project).await;
    let mut run = Run::start(&project).await;
    run.create_and_tear_down().await;
    assert_eq!(run.leftovers().await, [] as [&str; 0], "without any fault");
    let calls = run.proxy.calls();
    drop(run);

    let stride: Option<usize> = std::env::var("MAINSTAY_KILL_STRIDE").ok().map(|text| text.parse().expect("a number"));
    let count = match stride {
        Some(_) => calls.len(),
        None => calls.iter().filter(|line| is_write(line)).count(),
    };
    let points = (0..count)
        .step_by(stride.unwrap_or(1))
        .flat_map(|call| [false, true].map(|after_work| KillPoint { call, after_work }));
    let (mut runs, mut kills) = (0, 0);
    for point in points {
        let mut run = Run::start(&project).await;
        match stride {
            Some(_) => run.proxy.kill_at(point),
            None => run.proxy.kill_at_write(point),
        }
        run.create_and_tear_down().await;
        for look in ["first", "second"] {
            let left = run.leftovers().await;
            assert_eq!(left, [] as [&str; 0], "{look} look after {point:?} of {:?}", summary(&run.proxy.calls()));
        }
        let was_killed = run.proxy.was_killed();
        println!("{point:?} of {count}, killed: {was_killed}, nothing left");
        runs += 1;
        kills += usize::from(was_killed);
    }
    until("no port of a machine", async || ports(&project).await == ports_before).await;
    println!("{} calls, {runs} runs, {kills} kills, 0 leaks", calls.len());
    assert!(kills > 0, "no run was killed");
}
