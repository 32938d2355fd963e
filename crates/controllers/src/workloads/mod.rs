//! What runs, how many of it, and for how long.
//!
//! One cache per kind serves all controllers here ([`Caches`]); nobody takes a turn before all of
//! them are complete, so that nothing is judged by half a world.
//!
//! * [`pod`]: pods as far as these controllers look at them
//! * [`owner`]: whose objects are whose; [`template`]: pods made from a template
//! * [`act`]: making and deleting pods; [`events`]: saying so; [`wake`]: who wants to know
//! * [`selector`]: selectors, read and ready to be asked
//! * [`replicas`]: so many pods of a kind; [`deployment`]: which template they have
//! * [`job`]: pods that run to an end; [`cron`]: again and again; [`finished`]: not kept for ever
//! * [`stateful`], [`daemon`]: StatefulSets and DaemonSets; [`history`]: their revisions
//! * [`disruption`]: how many pods may be taken away; [`garbage`]: pods that nobody else removes

pub mod act;
pub mod cron;
mod daemon;
pub mod deployment;
mod disruption;
pub mod events;
pub mod finished;
mod garbage;
mod history;
pub mod job;
pub mod owner;
pub mod pod;
pub mod replicas;
pub mod selector;
mod stateful;
pub mod template;
mod wake;

use std::sync::Arc;

use futures::future::BoxFuture;
use k8s_openapi::api::{
    apps::v1::{ControllerRevision, DaemonSet, StatefulSet},
    batch::v1::{CronJob, Job},
    core::v1::{Endpoints, Node, PersistentVolumeClaim},
    discovery::v1::EndpointSlice,
    policy::v1::PodDisruptionBudget,
};
use kube::Client;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    cache::Cache,
    runner::{self, Limits, Queue},
    services::{self, object::Service},
    shell::Controller,
};
use deployment::object::Deployment;
use events::Events;
use pod::Pod;
use replicas::object::{ReplicaSet, ReplicationController};

macro_rules! caches {
    ($($name:ident: $kind:ty,)*) => {
        /// The kinds that several controllers look at, each followed once.
        pub struct Caches { $(pub $name: Arc<Cache<$kind>>,)* }

        impl Default for Caches {
            fn default() -> Self {
                Self { $($name: Cache::new(),)* }
            }
        }

        impl Caches {
            fn follow(&self, client: &Client, tasks: &TaskTracker, stop: &CancellationToken) {
                $(tasks.spawn(self.$name.clone().run(client.clone(), stop.clone()));)*
            }

            async fn ready(&self) {
                $(self.$name.ready().await;)*
            }
        }
    };
}

caches! {
    pods: Pod,
    nodes: Node,
    replica_sets: ReplicaSet,
    replication_controllers: ReplicationController,
    deployments: Deployment,
    stateful_sets: StatefulSet,
    daemon_sets: DaemonSet,
    revisions: ControllerRevision,
    budgets: PodDisruptionBudget,
    claims: PersistentVolumeClaim,
    jobs: Job,
    cron_jobs: CronJob,
    services: Service,
    slices: EndpointSlice,
    endpoints: Endpoints,
}

/// What all controllers of workloads share.
pub struct Workloads {
    pub client: Client,
    pub caches: Caches,
    pub events: Events,
}

/// A controller that listens already, and takes turns once it is let.
pub type Turns = Box<dyn FnOnce(CancellationToken) -> BoxFuture<'static, ()> + Send>;

pub fn turns<C: Controller>(controller: Arc<C>, queue: Arc<Queue<C::Key>>, limits: Limits) -> Turns {
    Box::new(move |stop| Box::pin(runner::run(controller, queue, limits, stop)))
}

/// Runs all controllers of workloads and Services until asked to stop, and returns when they have.
pub async fn run(client: Client, stop: CancellationToken) {
    let shared = Arc::new(Workloads { client: client.clone(), caches: Caches::default(), events: Events::default() });
    let everybody = everybody(&shared);
    let tasks = TaskTracker::new();
    shared.caches.follow(&client, &tasks, &stop);
    let (events, written, until) = (shared.events.clone(), client.clone(), stop.clone());
    tasks.spawn(async move { events.write(written, until).await });
    if stop.run_until_cancelled(shared.caches.ready()).await.is_some() {
        for turns in everybody {
            tasks.spawn(turns(stop.clone()));
        }
    }
    tasks.close();
    tasks.wait().await;
}

/// Each begins to listen to the caches, before any of them is filled.
fn everybody(shared: &Arc<Workloads>) -> Vec<Turns> {
    let mut all: Vec<Turns> = Vec::new();
    all.extend(replicas::controllers(shared));
    all.extend([job::start(shared), job::orphan::start(shared), cron::start(shared), finished::start(shared)]);
    all.push(stateful::listen(shared));
    all.push(daemon::listen(shared));
    all.push(disruption::listen(shared));
    all.push(disruption::stale::listen(shared));
    all.push(garbage::listen(shared));
    all.push(deployment::controller_of_deployments(shared));
    all.extend(services::listen(shared));
    all
}
