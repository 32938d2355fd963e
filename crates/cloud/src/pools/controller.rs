//! Launch: creates and deletes the machines of Klusters, as their pools say.
//!
//! Inline pools of a Kluster and NodePools that name it are alike. All pools of a Kluster are decided in one look, and any of them that changes has the Kluster
//! looked at again soon. When the Kluster is deleted, its machines go after deorbit, and `launchctl` is dropped when the cloud was seen without them.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use mainstay_api::cloud::{
    cloud_resource::{ResourcePhase, ResourceType},
    kluster::{CLUSTER_CIDR, DEORBIT_FINALIZER, Kluster, KlusterPhase, LAUNCH_FINALIZER},
    node_pool::{NodePool, PoolSpec, PoolStatus},
    teardown_receipt::TeardownReceipt,
};
use mainstay_controllers::runtime::{
    ApiError, Change, Controller, Limits, ObjectKey, Outcomes, Plan, Runnable, context::resync_every, object_writes,
};

use super::{
    conditions,
    launcher::{Launcher, PoolChecks, recorded_route},
    members::{NodeView, ServerView},
    metrics::PoolMetrics,
    new_server::Affinity,
    observatory::NodeObservatory,
    plan::{self, DeleteReason, PoolAction, PoolPlan, PoolWorld},
    problems::PoolProblem,
    terminate::{self, TerminationAction, TerminationPlan, TerminationWorld},
};
use crate::{
    context::CloudContext,
    deorbit::{
        controller::{set_finalizer, tell},
        notice::Notice,
        receipt,
    },
};

const COMPONENT: &str = "launchctl";
const RESYNC: Duration = Duration::from_mins(5);
const LIMITS: Limits = Limits { concurrent_reconciles: 10, longest_backoff: RESYNC };

/// What pools of all Klusters have in common.
#[derive(Clone, Default)]
pub struct PoolSettings {
    pub affinity: Option<Affinity>,
}

impl PoolSettings {
    /// Of the environment, as Kubernikus had it.
    pub fn from_environment() -> Self {
        let variable = |name: &str| std::env::var(name).ok();
        let (affinity, anti) = (variable("NODEPOOL_AFFINITY"), variable("NODEPOOL_ANTI_AFFINITY"));
        Self { affinity: Affinity::from_variables(affinity.as_deref(), anti.as_deref()) }
    }
}

pub struct LaunchController {
    context: Arc<CloudContext>,
    launcher: Launcher,
    observatory: Arc<NodeObservatory>,
    metrics: PoolMetrics,
    wake: Arc<dyn Fn(ObjectKey) + Send + Sync>,
}

/// What a Kluster's state asks of launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaunchStep {
    Nothing,
    AddFinalizer,
    DropFinalizer,
    Reconcile,
    Terminate,
}

pub struct LaunchWorld {
    kluster: Arc<Kluster>,
    step: LaunchStep,
    pools: Vec<PoolWorld>,
    problems: Vec<PoolProblem>,
    /// Servers of the ledger whose pool is gone.
    strays: Vec<(String, String)>,
    termination: Option<(TerminationWorld, TeardownReceipt)>,
    began: Instant,
}

#[derive(Debug)]
pub enum LaunchAction {
    SetFinalizer(bool),
    Pool { pool: Box<PoolSpec>, action: PoolAction },
    Terminate(TerminationAction),
}

pub struct LaunchReport {
    kluster: Arc<Kluster>,
    pools: Vec<PoolStatus>,
    problems: Vec<PoolProblem>,
    termination: Option<(TerminationPlan, TeardownReceipt)>,
    began: Instant,
}

pub fn controller(context: &Arc<CloudContext>) -> Runnable {
    let (parts, settings) = (context.kluster_parts.clone(), PoolSettings::from_environment());
    // Watches end with the controller: the next one, of another term of leadership, has its own queue to wake.
    let (access, metrics, observatory) = (parts.access, parts.pools, Arc::<NodeObservatory>::default());
    let queue = context.queue::<LaunchController>();
    context.caches.klusters.on_change({
        let (queue, observatory) = (queue.clone(), observatory.clone());
        move |change: Change<'_, Kluster>| {
            if change.after.is_none() {
                let uid = change.before.and_then(|kluster| kluster.metadata.uid.as_deref());
                observatory.close(uid.unwrap_or_default());
            }
            queue.add(change.key.clone());
        }
    });
    context.caches.node_pools.on_change({
        let queue = queue.clone();
        move |change: Change<'_, NodePool>| {
            let kluster = change.latest().map(|pool| pool.spec.kluster.clone()).unwrap_or_default();
            queue.add(ObjectKey::new(change.key.namespace.clone(), kluster));
        }
    });
    let resync = {
        let (queue, klusters) = (queue.clone(), context.caches.klusters.clone());
        resync_every(RESYNC, move || {
            klusters.all().iter().for_each(|kluster| queue.add(ObjectKey::from_meta(&kluster.metadata)));
        })
    };
    let wake: Arc<dyn Fn(ObjectKey) + Send + Sync> = {
        let queue = queue.clone();
        Arc::new(move |key| queue.add(key))
    };
    let launcher = Launcher { context: context.clone(), access, settings };
    let controller = LaunchController { context: context.clone(), launcher, observatory, metrics, wake };
    context.runnable(Arc::new(controller), queue, LIMITS).alongside(resync)
}

/// Machines go after deorbit: while its finalizer is there, volumes and load balancers need them.
pub fn judge_kluster(kluster: &Kluster) -> LaunchStep {
    let has_finalizer = kluster.has_finalizer(LAUNCH_FINALIZER);
    let pending = kluster.status.as_ref().is_some_and(|status| status.migrations_pending);
    let runs = matches!(kluster.phase(), KlusterPhase::Running | KlusterPhase::Upgrading);
    if kluster.is_protected() && kluster.metadata.deletion_timestamp.is_some() {
        return LaunchStep::Nothing;
    }
    match (kluster.metadata.deletion_timestamp.is_some(), has_finalizer) {
        (true, true) if kluster.has_finalizer(DEORBIT_FINALIZER) => LaunchStep::Nothing,
        (true, true) if kluster.spec.no_cloud => LaunchStep::DropFinalizer,
        (true, true) => LaunchStep::Terminate,
        (true, false) => LaunchStep::Nothing,
        (false, _) if kluster.spec.no_cloud || pending || !runs => LaunchStep::Nothing,
        (false, false) => LaunchStep::AddFinalizer,
        (false, true) => LaunchStep::Reconcile,
    }
}

/// Whether entries of this type go with the machines.
fn is_of_machines(resource: ResourceType) -> bool {
    use ResourceType::{AddressPair, Route, Server, ServerGroup};
    matches!(resource, Server | ServerGroup | Route | AddressPair)
}

/// The name that servers and tags have of a Kluster.
pub fn short_name(kluster: &Kluster) -> &str {
    if kluster.spec.name.is_empty() { kluster.name() } else { &kluster.spec.name }
}

impl Controller for LaunchController {
    const NAME: &'static str = "launchctl";
    type Key = ObjectKey;
    type World = LaunchWorld;
    type Action = LaunchAction;
    type Outcome = Option<PoolProblem>;
    type Status = Box<LaunchReport>;

    async fn observe(&self, key: &ObjectKey) -> Result<Option<LaunchWorld>, ApiError> {
        let began = Instant::now();
        let Some(kluster) = self.context.caches.klusters.get(key) else { return Ok(None) };
        let step = judge_kluster(&kluster);
        let mut world = LaunchWorld {
            kluster: kluster.clone(),
            step,
            pools: Vec::new(),
            problems: Vec::new(),
            strays: Vec::new(),
            termination: None,
            began,
        };
        match step {
            LaunchStep::Reconcile => self.observe_pools(&mut world).await?,
            LaunchStep::Terminate => world.termination = Some(self.observe_termination(&kluster).await?),
            LaunchStep::Nothing | LaunchStep::AddFinalizer | LaunchStep::DropFinalizer => {}
        }
        Ok(Some(world))
    }

    fn plan(world: &LaunchWorld, now: Timestamp) -> Plan<LaunchAction, Box<LaunchReport>> {
        let report = |pools, termination| {
            let (kluster, problems) = (world.kluster.clone(), world.problems.clone());
            Some(Box::new(LaunchReport { kluster, pools, problems, termination, began: world.began }))
        };
        match (world.step, &world.termination) {
            (LaunchStep::AddFinalizer, _) => Plan::act([LaunchAction::SetFinalizer(true)]),
            (LaunchStep::DropFinalizer, _) => Plan::act([LaunchAction::SetFinalizer(false)]),
            (LaunchStep::Reconcile, _) => {
                let plans: Vec<PoolPlan> = world.pools.iter().map(plan::plan).collect();
                let requeue_at = Some(plan::next_look(&plans, now));
                let mut actions = Vec::new();
                for (pool, plan) in world.pools.iter().zip(&plans) {
                    let action = |action: &PoolAction| LaunchAction::Pool {
                        pool: Box::new(pool.pool.clone()),
                        action: action.clone(),
                    };
                    actions.extend(plan.actions.iter().map(action));
                }
                actions.extend(world.strays.iter().map(|(name, id)| LaunchAction::Pool {
                    pool: Box::default(),
                    action: PoolAction::Delete { id: id.clone(), name: name.clone(), why: DeleteReason::PoolRemoved },
                }));
                let pools = plans.into_iter().map(|plan| plan.status).collect();
                Plan { actions, status: report(pools, None), requeue_at }
            }
            (LaunchStep::Terminate, Some((termination, receipt))) => {
                let mut plan = terminate::plan(termination, now);
                let actions = std::mem::take(&mut plan.actions).into_iter().map(LaunchAction::Terminate).collect();
                let requeue_at = (!plan.is_over).then_some(now + plan::SOON);
                Plan { actions, status: report(Vec::new(), Some((plan, receipt.clone()))), requeue_at }
            }
            (LaunchStep::Nothing | LaunchStep::Terminate, _) => Plan::default(),
        }
    }

    async fn apply(&self, key: &ObjectKey, action: LaunchAction) -> Result<Option<PoolProblem>, ApiError> {
        let Some(kluster) = self.context.caches.klusters.get(key) else { return Ok(None) };
        match action {
            LaunchAction::SetFinalizer(present) => {
                set_finalizer(&self.context, &kluster, LAUNCH_FINALIZER, present).await?;
                Ok(None)
            }
            LaunchAction::Terminate(action) => {
                self.launcher.terminate(&kluster, &action).await?;
                if let TerminationAction::Delete { name, .. } = &action {
                    let message = format!("Successfully deleted node {name}");
                    self.tell(&kluster, &Notice::normal("SuccessfulDeleteNode", message));
                }
                Ok(None)
            }
            LaunchAction::Pool { pool, action } => self.apply_to_pool(&kluster, &pool, &action).await,
        }
    }

    async fn report(
        &self,
        key: &ObjectKey,
        report: Box<LaunchReport>,
        outcomes: &Outcomes<Option<PoolProblem>>,
    ) -> Result<(), ApiError> {
        let LaunchReport { kluster, pools, mut problems, termination, began } = *report;
        let has_failed = outcomes.iter().any(Result::is_err);
        self.metrics.count("Reconcile", began.elapsed(), !has_failed);
        if let Some((plan, receipt)) = termination {
            receipt::write(&self.context.client, &kluster, &receipt, plan.status).await?;
            if plan.is_over && !has_failed {
                set_finalizer(&self.context, &kluster, LAUNCH_FINALIZER, false).await?;
            }
            return Ok(());
        }
        problems.extend(outcomes.iter().filter_map(|outcome| outcome.as_ref().ok()?.clone()));
        pools.iter().for_each(|pool| self.metrics.show_pool(kluster.name(), pool));
        let written = self.write_status(key, &pools, &problems).await;
        self.metrics.count("SetStatus", began.elapsed(), written.is_ok());
        written
    }
}

impl LaunchController {
    fn tell(&self, kluster: &Kluster, notice: &Notice) {
        tell(&self.context, COMPONENT, kluster, notice);
    }

    async fn observe_pools(&self, world: &mut LaunchWorld) -> Result<(), ApiError> {
        let kluster = world.kluster.clone();
        let began = Instant::now();
        let servers = self.launcher.list_servers(&kluster).await;
        self.metrics.count("GetStatus", began.elapsed(), servers.is_ok());
        let servers = servers?;
        let nodes = self.list_nodes(&kluster).await;
        let pools = self.pools_of(&kluster);
        let uid = kluster.metadata.uid.as_deref().unwrap_or_default();
        let entries = self.context.ledger.entries_of(uid);
        let short = short_name(&kluster);
        let belongs = |name: &str, pool: &PoolSpec| super::members::is_member(name, short, &pool.name);
        let of_servers = || entries.iter().filter(|entry| entry.resource == ResourceType::Server);
        world.strays = of_servers()
            .filter(|entry| !pools.iter().any(|pool| belongs(&entry.cloud_name, pool)))
            .map(|entry| (entry.cloud_name.clone(), entry.id.clone().unwrap_or_default()))
            .collect();
        let mut checks = PoolChecks::default();
        for pool in pools {
            let of_pool = || of_servers().filter(|entry| belongs(&entry.cloud_name, &pool));
            let intended = of_pool().filter(|entry| entry.id.is_none()).map(|entry| entry.cloud_name.clone()).collect();
            let recorded = of_pool().filter_map(|entry| Some((entry.cloud_name.clone(), entry.id.clone()?))).collect();
            let mut pool_world = PoolWorld {
                kluster: short.to_owned(),
                servers: servers.clone(),
                nodes: nodes.clone(),
                intended,
                recorded,
                is_removing: of_pool().any(|entry| entry.phase == ResourcePhase::Deleting),
                is_blocked: false,
                pool,
            };
            let is_create = |action: &&PoolAction| matches!(action, PoolAction::Create { .. });
            let needed = plan::plan(&pool_world).actions.iter().filter(is_create).count();
            if needed > 0
                && let Some(problem) = self.launcher.check(&kluster, &pool_world.pool, needed, &mut checks).await?
            {
                pool_world.is_blocked = true;
                world.problems.push(problem);
            }
            world.pools.push(pool_world);
        }
        Ok(())
    }

    /// Inline pools and NodePools, each name once.
    fn pools_of(&self, kluster: &Kluster) -> Vec<PoolSpec> {
        let mut pools = kluster.spec.node_pools.clone();
        let namespace = kluster.metadata.namespace.as_deref().unwrap_or_default();
        let mut objects = self.context.caches.node_pools.in_namespace(namespace);
        objects.retain(|object| object.spec.kluster == kluster.name() && object.metadata.deletion_timestamp.is_none());
        for object in objects {
            let mut pool = object.spec.pool.clone();
            if pool.name.is_empty() {
                pool.name = object.name().to_owned();
            }
            if !pools.iter().any(|known| known.name == pool.name) {
                pools.push(pool);
            }
        }
        pools
    }

    /// The kluster's Nodes; nothing if they are not known now.
    async fn list_nodes(&self, kluster: &Kluster) -> Option<Vec<NodeView>> {
        let access = self.launcher.access.client(&self.context, kluster).await;
        let access = access
            .inspect_err(|error| tracing::debug!(error = error.chain(), "Nodes of the kluster are not known"))
            .ok()?;
        let (wake, key) = (self.wake.clone(), ObjectKey::from_meta(&kluster.metadata));
        let uid = kluster.metadata.uid.as_deref().unwrap_or_default();
        let nodes = self.observatory.nodes(uid, &access, move || wake(key.clone())).await;
        let nodes = nodes.inspect_err(|error| tracing::debug!(%error, "Nodes of the kluster are not known")).ok()?;
        Some(nodes.iter().map(|node| NodeView::from(AsRef::<Node>::as_ref(node))).collect())
    }

    async fn observe_termination(&self, kluster: &Kluster) -> Result<(TerminationWorld, TeardownReceipt), ApiError> {
        let receipt = receipt::ensure(&self.context.client, kluster).await?;
        let pools = self.pools_of(kluster);
        let uid = kluster.metadata.uid.as_deref().unwrap_or_default();
        let entries = self.context.ledger.entries_of(uid);
        let short = short_name(kluster);
        let is_ours = |server: &ServerView| {
            pools.iter().any(|pool| super::members::is_member(&server.name, short, &pool.name))
                || entries.iter().any(|entry| entry.id.as_deref() == Some(&server.id))
                || entries.iter().any(|entry| entry.resource == ResourceType::Server && entry.cloud_name == server.name)
        };
        let mut servers = self.launcher.list_servers(kluster).await?;
        servers.retain(is_ours);
        let routes = self.launcher.list_routes(kluster).await?;
        // Entries that were never created, or whose server is gone, end here.
        self.launcher.settle_entries(kluster, &entries, &servers, &routes).await?;
        let left = self.context.ledger.entries_of(uid);
        let world = TerminationWorld {
            entries_left: left.iter().filter(|entry| is_of_machines(entry.resource)).count(),
            servers,
            recorded_routes: left.iter().filter_map(recorded_route).collect(),
            routes,
            cluster_cidr: kluster.spec.cluster_cidr.clone().unwrap_or_else(|| CLUSTER_CIDR.to_owned()),
            groups: self.launcher.list_groups(kluster, &pools).await?,
            status: receipt.status.clone().unwrap_or_default(),
        };
        Ok((world, receipt))
    }

    async fn apply_to_pool(
        &self,
        kluster: &Kluster,
        pool: &PoolSpec,
        action: &PoolAction,
    ) -> Result<Option<PoolProblem>, ApiError> {
        let began = Instant::now();
        match action {
            PoolAction::Create { name } => {
                let created = self.launcher.create(kluster, pool, name.as_deref()).await;
                self.metrics.count("CreateNode", began.elapsed(), matches!(created, Ok(Ok(_))));
                match created? {
                    Ok(name) => {
                        let message = format!("Successfully created node {name}");
                        self.tell(kluster, &Notice::normal("SuccessfulCreateNode", message));
                        Ok(None)
                    }
                    Err(problem) => {
                        let message = format!("Failed to create node in pool {}: {}", pool.name, problem.text());
                        self.tell(kluster, &Notice::warning("FailedCreateNode", message));
                        Ok(Some(problem))
                    }
                }
            }
            PoolAction::Delete { id, name, why } => {
                let deleted = self.launcher.delete(kluster, id, name).await;
                self.metrics.count("DeleteNode", began.elapsed(), deleted.is_ok());
                let notice = match &deleted {
                    Ok(()) => {
                        Notice::normal("SuccessfulDeleteNode", format!("Successfully deleted node {name} ({why:?})"))
                    }
                    Err(error) => Notice::warning(
                        "FailedDeleteNode",
                        format!("Failed to delete node {name}: {}", error.message()),
                    ),
                };
                self.tell(kluster, &notice);
                deleted.map(|()| None)
            }
            PoolAction::Adopt { name, id } => self.launcher.adopt(kluster, name, id).await.map(|()| None),
            PoolAction::Withdraw { name } | PoolAction::RecordGone { name } => {
                self.launcher.forget(kluster, name).await.map(|()| None)
            }
            PoolAction::RemoveNode { name, uid } => self.launcher.remove_node(kluster, name, uid).await.map(|()| None),
        }
    }

    async fn write_status(
        &self,
        key: &ObjectKey,
        pools: &[PoolStatus],
        problems: &[PoolProblem],
    ) -> Result<(), ApiError> {
        let caches = &self.context.caches;
        let Some(kluster) = caches.klusters.get(key) else { return Ok(()) };
        let before = kluster.status.clone().unwrap_or_default();
        let mut status = before.clone();
        let is_inline = |pool: &&PoolStatus| kluster.spec.node_pools.iter().any(|spec| spec.name == pool.name);
        for gone in before.node_pools.iter().filter(|known| !pools.iter().any(|pool| pool.name == known.name)) {
            self.metrics.forget_pool(kluster.name(), &gone.name);
        }
        status.node_pools = pools.iter().filter(is_inline).cloned().collect();
        conditions::set_pools_condition(&mut status.conditions, problems, self.context.clock.now());
        if status != before {
            object_writes::write_status(&self.context.client, &caches.klusters, key, &status).await?;
        }
        for problem in conditions::new_problems(&before.conditions, problems) {
            self.tell(&kluster, &Notice::warning(problem.reason, problem.text()));
        }
        for object in caches.node_pools.in_namespace(&key.namespace) {
            let name = if object.spec.pool.name.is_empty() { object.name() } else { &object.spec.pool.name };
            let status = pools.iter().find(|pool| pool.name == name && object.spec.kluster == key.name);
            if let Some(status) = status.filter(|status| object.status.as_ref() != Some(*status)) {
                let key = ObjectKey::from_meta(&object.metadata);
                object_writes::write_status(&self.context.client, &caches.node_pools, &key, status).await?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use mainstay_api::cloud::kluster::{KlusterSpec, KlusterStatus, TERMINATION_PROTECTION};

    use super::*;

    fn kluster(phase: KlusterPhase, deleted: bool, finalizers: &[&str]) -> Kluster {
        let mut kluster = Kluster::new("kate", KlusterSpec::default());
        kluster.status = Some(KlusterStatus { phase, ..KlusterStatus::default() });
        let time = k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Timestamp::UNIX_EPOCH);
        kluster.metadata.deletion_timestamp = deleted.then_some(time);
        kluster.metadata.finalizers = Some(finalizers.iter().map(|name| (*name).to_owned()).collect());
        kluster
    }

    #[test]
    fn machines_come_while_the_kluster_runs_and_go_after_deorbit() {
        use KlusterPhase::{Creating, Pending, Running, Terminating, Upgrading};
        for (phase, deleted, finalizers, expected) in [
            (Pending, false, &[][..], LaunchStep::Nothing),
            (Creating, false, &[], LaunchStep::Nothing),
            (Running, false, &[], LaunchStep::AddFinalizer),
            (Running, false, &[LAUNCH_FINALIZER], LaunchStep::Reconcile),
            (Upgrading, false, &[LAUNCH_FINALIZER], LaunchStep::Reconcile),
            (Terminating, true, &[DEORBIT_FINALIZER, LAUNCH_FINALIZER], LaunchStep::Nothing),
            (Terminating, true, &[LAUNCH_FINALIZER], LaunchStep::Terminate),
            (Terminating, true, &[], LaunchStep::Nothing),
        ] {
            assert_eq!(
                judge_kluster(&kluster(phase, deleted, finalizers)),
                expected,
                "{phase} {deleted} {finalizers:?}"
            );
        }
    }

    #[test]
    fn migrations_and_protection_keep_launch_away() {
        let mut migrating = kluster(KlusterPhase::Running, false, &[LAUNCH_FINALIZER]);
        migrating.status.as_mut().unwrap().migrations_pending = true;
        assert_eq!(judge_kluster(&migrating), LaunchStep::Nothing);
        let mut protected = kluster(KlusterPhase::Terminating, true, &[LAUNCH_FINALIZER]);
        protected.metadata.annotations = Some([(TERMINATION_PROTECTION.to_owned(), "yes".to_owned())].into());
        assert_eq!(judge_kluster(&protected), LaunchStep::Nothing);
    }
}
