//! Deorbits Klusters that are deleted: adds the finalizer while they run, and drops it when nothing of them is left in the cloud, or when it is given up.
//!
//! A look at one Kluster takes no longer than its calls; between looks nothing is held, so that one Kluster that hangs keeps no other waiting. The receipt
//! is written before the finalizer is dropped.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::{
    Api, Client,
    api::{ListParams, Patch, PatchParams},
};
use mainstay_api::cloud::{
    cloud_resource::CloudResource,
    kluster::{DEORBIT_FINALIZER, Kluster, KlusterPhase},
    teardown_receipt::TeardownReceipt,
};
use mainstay_controllers::runtime::{
    ApiError, Change, Controller, Limits, ObjectKey, Outcomes, Plan, Runnable, context::resync_every,
};
use mainstay_events::EventNote;
use serde_json::json;

use super::{
    cloud::DeorbitCloud,
    cluster,
    inventory::LedgerItem,
    metrics::DeorbitMetrics,
    notice::Notice,
    plan::{self, Action, ClusterContact, DeorbitEnd, DeorbitPlan, DeorbitWorld},
    receipt,
};
use crate::{context::CloudContext, kluster_access::KlusterAccess};

const COMPONENT: &str = "deorbiter";
const RESYNC: Duration = Duration::from_mins(5);
/// Ten Klusters at once; a failure is repeated after at most five minutes.
const LIMITS: Limits = Limits { concurrent_reconciles: 10, longest_backoff: RESYNC };

pub struct DeorbitController {
    context: Arc<CloudContext>,
    access: Arc<KlusterAccess>,
    metrics: DeorbitMetrics,
}

/// What a Kluster's state asks of deorbit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KlusterStep {
    Nothing,
    AddFinalizer,
    /// It has nothing in a cloud.
    DropFinalizer,
    Deorbit,
}

pub struct KlusterWorld {
    kluster: Arc<Kluster>,
    step: KlusterStep,
    deorbit: Option<(DeorbitWorld, TeardownReceipt)>,
    began: Instant,
}

#[derive(Debug)]
pub enum KlusterAction {
    SetFinalizer(bool),
    Cluster(Action),
}

pub struct DeorbitReport {
    kluster: Arc<Kluster>,
    receipt: TeardownReceipt,
    plan: DeorbitPlan,
    began: Instant,
}

/// Why something could not be removed in the cloud.
pub struct Hindrance {
    id: String,
    message: String,
}

pub fn controller(context: &Arc<CloudContext>) -> Runnable {
    let queue = context.queue::<DeorbitController>();
    context.caches.klusters.on_change({
        let queue = queue.clone();
        move |change: Change<'_, Kluster>| queue.add(change.key.clone())
    });
    let resync = {
        let (queue, klusters) = (queue.clone(), context.caches.klusters.clone());
        resync_every(RESYNC, move || {
            klusters.all().iter().for_each(|kluster| queue.add(ObjectKey::from_meta(&kluster.metadata)));
        })
    };
    let parts = &context.kluster_parts;
    let (access, metrics) = (parts.access.clone(), parts.deorbit.clone());
    let controller = DeorbitController { context: context.clone(), access, metrics };
    context.runnable(Arc::new(controller), queue, LIMITS).alongside(resync)
}

/// A protected Kluster is not touched.
pub fn judge_kluster(kluster: &Kluster) -> KlusterStep {
    let has_finalizer = kluster.has_finalizer(DEORBIT_FINALIZER);
    let is_deleted = kluster.metadata.deletion_timestamp.is_some();
    match (is_deleted, has_finalizer) {
        _ if kluster.is_protected() => KlusterStep::Nothing,
        (false, false) if kluster.phase() == KlusterPhase::Running && !kluster.spec.no_cloud => {
            KlusterStep::AddFinalizer
        }
        (true, true) if kluster.spec.no_cloud => KlusterStep::DropFinalizer,
        (true, true) => KlusterStep::Deorbit,
        _ => KlusterStep::Nothing,
    }
}

impl Controller for DeorbitController {
    const NAME: &'static str = "deorbiter";
    type Key = ObjectKey;
    type World = KlusterWorld;
    type Action = KlusterAction;
    type Outcome = Option<Hindrance>;
    type Status = Box<DeorbitReport>;

    async fn observe(&self, key: &ObjectKey) -> Result<Option<KlusterWorld>, ApiError> {
        let began = Instant::now();
        let Some(kluster) = self.context.caches.klusters.get(key) else { return Ok(None) };
        let step = judge_kluster(&kluster);
        let deorbit = if step == KlusterStep::Deorbit { Some(self.look(&kluster).await?) } else { None };
        Ok(Some(KlusterWorld { kluster, step, deorbit, began }))
    }

    fn plan(world: &KlusterWorld, now: Timestamp) -> Plan<KlusterAction, Box<DeorbitReport>> {
        match (world.step, &world.deorbit) {
            (KlusterStep::AddFinalizer, _) => Plan::act([KlusterAction::SetFinalizer(true)]),
            (KlusterStep::DropFinalizer, _) => Plan::act([KlusterAction::SetFinalizer(false)]),
            (KlusterStep::Deorbit, Some((deorbit, receipt))) => {
                let mut plan = plan::plan(deorbit, now);
                let actions = std::mem::take(&mut plan.actions).into_iter().map(KlusterAction::Cluster).collect();
                let requeue_at = plan.end.is_none().then_some(plan.next_look);
                let (kluster, receipt) = (world.kluster.clone(), receipt.clone());
                let report = DeorbitReport { kluster, receipt, plan, began: world.began };
                Plan { actions, status: Some(Box::new(report)), requeue_at }
            }
            (KlusterStep::Nothing | KlusterStep::Deorbit, _) => Plan::default(),
        }
    }

    async fn apply(&self, key: &ObjectKey, action: KlusterAction) -> Result<Option<Hindrance>, ApiError> {
        let Some(kluster) = self.context.caches.klusters.get(key) else { return Ok(None) };
        let action = match action {
            KlusterAction::SetFinalizer(present) => {
                set_finalizer(&self.context, &kluster, DEORBIT_FINALIZER, present).await?;
                return Ok(None);
            }
            KlusterAction::Cluster(action) => action,
        };
        let began = Instant::now();
        if let Action::DeleteInCloud { resource, id } = &action {
            let session = self.access.session(&self.context, &kluster).await?;
            let result = session.remove(*resource, id).await;
            self.metrics.count_action(&action, began.elapsed(), result.is_ok());
            // One thing that cannot be removed keeps no other from being removed.
            return Ok(result.err().map(|error| Hindrance { id: id.clone(), message: error.message() }));
        }
        let client = self.access.client(&self.context, &kluster).await?.client;
        let result = cluster::apply(&client, &action).await;
        self.metrics.count_action(&action, began.elapsed(), result.is_ok());
        let told = result.as_ref().copied().map_err(mainstay_controllers::runtime::error::message);
        if let Some(notice) = cluster::describe_result(&action, told) {
            self.tell(&kluster, &notice);
        }
        result.map(|()| None).map_err(ApiError::when(format!("{action:?}")))
    }

    async fn report(
        &self,
        _key: &ObjectKey,
        report: Box<DeorbitReport>,
        outcomes: &Outcomes<Option<Hindrance>>,
    ) -> Result<(), ApiError> {
        let DeorbitReport { kluster, receipt, mut plan, began } = *report;
        for hindrance in outcomes.iter().filter_map(|outcome| outcome.as_ref().ok()?.as_ref()) {
            let item = plan.status.items.iter_mut().find(|item| item.id == hindrance.id);
            if let Some(item) = item {
                item.message.clone_from(&hindrance.message);
            }
        }
        receipt::write(&self.context.client, &kluster, &receipt, plan.status.clone()).await?;
        self.metrics.count_notices(&plan.notices, &plan);
        plan.notices.iter().for_each(|notice| self.tell(&kluster, notice));
        let has_failed = plan.failure.is_some() || outcomes.iter().any(Result::is_err);
        self.metrics.count_reconcile(began.elapsed(), !has_failed);
        if let Some(why) = &plan.failure {
            tracing::warn!(kluster = kluster.name(), why, "deorbit could not see everything; it looks again");
        }
        if let Some(end) = plan.end {
            let remaining = plan.status.items.iter().filter(|item| item.gone.is_none()).count();
            tracing::info!(kluster = kluster.name(), result = end.text(), remaining, "deorbit is over");
            let dropped = set_finalizer(&self.context, &kluster, DEORBIT_FINALIZER, false).await;
            if let (Err(error), DeorbitEnd::SelfDestruct(_)) = (&dropped, end) {
                let message =
                    format!("Failed to give up removing what the cluster has in the cloud: {}", error.message());
                self.tell(&kluster, &Notice::normal("FailedDeorbitSelfDestruct", message));
            }
            dropped?;
        }
        Ok(())
    }
}

impl DeorbitController {
    async fn look(&self, kluster: &Kluster) -> Result<(DeorbitWorld, TeardownReceipt), ApiError> {
        let receipt = receipt::ensure(&self.context.client, kluster).await?;
        // A client that cannot be made is an API that is not available; that this cluster's own API fails is another matter.
        let (contact, mut ledger) = match self.access.client(&self.context, kluster).await {
            Ok(access) => (cluster::contact(&access.client).await, read_ledger(&access.client).await),
            Err(error) if error.is_unavailable() => return Err(error),
            Err(error) => (ClusterContact::Unavailable(error.chain()), Vec::new()),
        };
        let cloud = match self.access.session(&self.context, kluster).await {
            Ok(session) => session.inventory().await.map_err(|error| mainstay_errors::error_chain(&error)),
            Err(error) => Err(error.chain()),
        };
        let uid = kluster.metadata.uid.as_deref().unwrap_or_default();
        ledger.extend(self.context.ledger.entries_of(uid).into_iter().filter_map(|entry| {
            let owner = format!("{} {}/{}", entry.owner.kind, entry.owner.namespace, entry.owner.name);
            Some(LedgerItem { resource: entry.resource, id: entry.id?, name: entry.cloud_name, owner })
        }));
        let began = kluster.metadata.deletion_timestamp.as_ref().map_or(Timestamp::UNIX_EPOCH, |time| time.0);
        let world = DeorbitWorld {
            began,
            contact,
            cloud,
            ledger,
            cluster_name: kluster.name().to_owned(),
            status: receipt.status.clone().unwrap_or_default(),
        };
        Ok((world, receipt))
    }

    fn tell(&self, kluster: &Kluster, notice: &Notice) {
        tell(&self.context, COMPONENT, kluster, notice);
    }
}

/// The ledger of the cluster itself; a cluster without one has nothing in it.
pub async fn read_ledger(client: &Client) -> Vec<LedgerItem> {
    let Ok(list) = Api::<CloudResource>::all(client.clone()).list(&ListParams::default()).await else {
        return Vec::new();
    };
    let item = |entry: CloudResource| {
        let owner = &entry.spec.owner;
        let name =
            if owner.namespace.is_empty() { owner.name.clone() } else { format!("{}/{}", owner.namespace, owner.name) };
        let owner = format!("{} {name}", owner.kind);
        let id = entry.status.map(|status| status.id).filter(|id| !id.is_empty())?;
        Some(LedgerItem { resource: entry.spec.resource, id, name: entry.spec.name, owner })
    };
    list.items.into_iter().filter_map(item).collect()
}

/// Records an event about a Kluster.
pub fn tell(context: &CloudContext, component: &'static str, kluster: &Kluster, notice: &Notice) {
    let meta = &kluster.metadata;
    let involved = ObjectReference {
        api_version: Some(kluster.api_version.clone()),
        kind: Some(kluster.kind.clone()),
        namespace: meta.namespace.clone(),
        name: meta.name.clone(),
        uid: meta.uid.clone(),
        resource_version: meta.resource_version.clone(),
        field_path: None,
    };
    let make = if notice.warning { EventNote::warning } else { EventNote::normal };
    context.events.record_as(component, involved, make(notice.reason, notice.message.clone()));
}

/// Adds or drops a finalizer of a Kluster, unless the Kluster changed since it was read.
pub async fn set_finalizer(
    context: &CloudContext,
    kluster: &Kluster,
    finalizer: &str,
    present: bool,
) -> Result<(), ApiError> {
    let mut finalizers = kluster.metadata.finalizers.clone().unwrap_or_default();
    if finalizers.iter().any(|name| name == finalizer) == present {
        return Ok(());
    }
    finalizers.retain(|name| name != finalizer);
    if present {
        finalizers.push(finalizer.to_owned());
    }
    let metadata = json!({ "resourceVersion": kluster.metadata.resource_version, "finalizers": finalizers });
    let api: Api<Kluster> =
        Api::namespaced(context.client.clone(), kluster.metadata.namespace.as_deref().unwrap_or_default());
    let patch = Patch::Merge(json!({ "metadata": metadata }));
    let written = api.patch(kluster.name(), &PatchParams::default(), &patch).await;
    let written = written.map_err(ApiError::when(format!("write the finalizers of kluster {}", kluster.name())))?;
    let is_last =
        written.metadata.deletion_timestamp.is_some() && written.metadata.finalizers.iter().flatten().next().is_none();
    if is_last {
        let key = ObjectKey::from_meta(&written.metadata);
        context.caches.klusters.removed(&key, written.metadata.uid.as_deref().unwrap_or_default());
    } else {
        context.caches.klusters.wrote(written);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use mainstay_api::cloud::kluster::{KlusterSpec, KlusterStatus, TERMINATION_PROTECTION};

    use super::*;

    fn kluster(phase: KlusterPhase, deleted: bool, finalizer: bool) -> Kluster {
        let mut kluster = Kluster::new("kate", KlusterSpec::default());
        kluster.status = Some(KlusterStatus { phase, ..KlusterStatus::default() });
        let time = k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Timestamp::UNIX_EPOCH);
        kluster.metadata.deletion_timestamp = deleted.then_some(time);
        kluster.metadata.finalizers = finalizer.then(|| vec![DEORBIT_FINALIZER.to_owned()]);
        kluster
    }

    #[test]
    fn the_finalizer_comes_while_running_and_deorbit_when_deleted() {
        for (phase, deleted, finalizer, expected) in [
            (KlusterPhase::Pending, false, false, KlusterStep::Nothing),
            (KlusterPhase::Creating, false, false, KlusterStep::Nothing),
            (KlusterPhase::Running, false, false, KlusterStep::AddFinalizer),
            (KlusterPhase::Running, false, true, KlusterStep::Nothing),
            (KlusterPhase::Terminating, true, true, KlusterStep::Deorbit),
            (KlusterPhase::Running, true, true, KlusterStep::Deorbit),
            (KlusterPhase::Terminating, true, false, KlusterStep::Nothing),
        ] {
            assert_eq!(judge_kluster(&kluster(phase, deleted, finalizer)), expected, "{phase} {deleted} {finalizer}");
        }
    }

    #[test]
    fn a_protected_kluster_is_not_touched_and_one_without_a_cloud_has_nothing_to_remove() {
        let mut protected = kluster(KlusterPhase::Terminating, true, true);
        protected.metadata.annotations = Some([(TERMINATION_PROTECTION.to_owned(), "yes".to_owned())].into());
        assert_eq!(judge_kluster(&protected), KlusterStep::Nothing);
        let mut without = kluster(KlusterPhase::Terminating, true, true);
        without.spec.no_cloud = true;
        assert_eq!(judge_kluster(&without), KlusterStep::DropFinalizer);
    }
}
