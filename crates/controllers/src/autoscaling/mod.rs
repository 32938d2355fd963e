//! The horizontal pod autoscaler: scales workloads by the metrics of their pods, of other objects, and of other systems.
//!
//! * [`plan`]: the decision and the status; [`proposals`]: what each metric asks for
//! * [`replica_calculator`]: replicas from samples; [`behavior`]: windows, policies and bounds
//! * [`metrics_client`]: reads the metrics APIs; [`history`]: what is remembered between reconciles
//! * [`conditions`]: the conditions of the status
//!
//! An autoscaler is reconciled every fifteen seconds and when its spec changes. Changes of its status are its own and
//! cause nothing.

mod behavior;
mod conditions;
mod history;
mod metrics_client;
mod plan;
mod proposals;
mod replica_calculator;

use std::sync::Arc;

use futures::future::join_all;
use jiff::Timestamp;
use k8s_openapi::api::autoscaling::v2::{HorizontalPodAutoscaler, HorizontalPodAutoscalerSpec};
use mainstay_api::selector::Labels;
use mainstay_events::EventNote;

use self::{
    history::HistoryStore,
    plan::{Action, Report, Rescale, ScaleTarget, SelectedPods, SelectorError, World},
};
use crate::{
    runtime::{
        ApiError, Change, Context, Controller, Limits, ObjectKey, Outcomes, Plan, Runnable, object_writes,
        scale_client::{self, ScaleReference},
    },
    workloads::controller_ref,
};

const COMPONENT: &str = "horizontal-pod-autoscaler";

pub struct Autoscaling {
    context: Arc<Context>,
    histories: HistoryStore,
}

pub fn controller(context: &Arc<Context>) -> Runnable {
    let queue = context.queue::<Autoscaling>();
    let own = queue.clone();
    context.caches.autoscalers.on_change(move |change: Change<'_, HorizontalPodAutoscaler>| {
        let spec = |object: Option<&HorizontalPodAutoscaler>| object.map(|object| object.spec.clone());
        if change.before.is_none() || spec(change.before) != spec(change.after) {
            own.add(change.key.clone());
        }
    });
    let autoscaling = Autoscaling { context: context.clone(), histories: HistoryStore::default() };
    context.runnable(Arc::new(autoscaling), queue, Limits::default())
}

impl Autoscaling {
    async fn target(&self, key: &ObjectKey, spec: &HorizontalPodAutoscalerSpec) -> Result<ScaleTarget, String> {
        let reference = &spec.scale_target_ref;
        let reference = ScaleReference {
            namespace: &key.namespace,
            api_version: reference.api_version.as_deref().unwrap_or("v1"),
            kind: &reference.kind,
            name: &reference.name,
        };
        let (resource, scale) =
            scale_client::get(&self.context.client, reference).await.map_err(|error| error.to_string())?;
        let selector = scale.status.as_ref().and_then(|status| status.selector.clone()).unwrap_or_default();
        let pods = self.selected_pods(key, spec, &selector).await;
        Ok(ScaleTarget { resource, scale, pods })
    }

    async fn selected_pods(
        &self,
        key: &ObjectKey,
        spec: &HorizontalPodAutoscalerSpec,
        text: &str,
    ) -> Result<SelectedPods, SelectorError> {
        let selector = match text {
            "" => Err(SelectorError::Missing),
            text => Labels::parse(text).map_err(|error| SelectorError::Invalid(error.to_string())),
        };
        self.histories.set_selector(key, selector.as_ref().ok().cloned());
        let selector = selector?;
        let mut pods = self.context.caches.pods.in_namespace(&key.namespace);
        pods.retain(|pod| controller_ref::selects(&selector, &pod.metadata));
        let mut autoscalers = self.histories.also_scaling(key, &pods);
        if !autoscalers.is_empty() {
            autoscalers.push(key.clone());
            autoscalers.sort();
            return Err(SelectorError::Ambiguous { selector: text.to_owned(), autoscalers });
        }
        let metrics = spec.metrics.as_deref().unwrap_or_default();
        let read = |metric| metrics_client::read(&self.context.client, &key.namespace, text, metric);
        Ok(SelectedPods { pods, samples: join_all(metrics.iter().map(read)).await })
    }

    fn record(&self, key: &ObjectKey, note: EventNote) {
        if let Some(autoscaler) = self.context.caches.autoscalers.get(key) {
            self.context.events.record_as(COMPONENT, plan::involved_object(&autoscaler), note);
        }
    }

    async fn rescale(&self, key: &ObjectKey, rescale: Rescale) -> Result<(), ApiError> {
        let Rescale { resource, scale, from, to, reason, at, remembered_for } = rescale;
        match scale_client::replace(&self.context.client, &key.namespace, &resource, &scale).await {
            Ok(_) => {
                self.record(key, EventNote::normal("SuccessfulRescale", format!("New size: {to}; reason: {reason}")));
                self.histories.update(key, |history| history.scaled(to - from, at, remembered_for));
                Ok(())
            }
            Err(error) => {
                let error = ApiError::new(format!("scale the target of autoscaler {key:?} to {to}"), error);
                if !error.is_conflict() {
                    let message = format!("New size: {to}; reason: {reason}; error: {}", error.message());
                    self.record(key, EventNote::warning("FailedRescale", message));
                }
                Err(error)
            }
        }
    }
}

impl Controller for Autoscaling {
    const NAME: &'static str = "horizontalpodautoscaler";
    type Key = ObjectKey;
    type World = World;
    type Action = Action;
    type Outcome = ();
    type Status = Report;

    async fn observe(&self, key: &ObjectKey) -> Result<Option<World>, ApiError> {
        let Some(autoscaler) = self.context.caches.autoscalers.get(key) else {
            self.histories.forget(key);
            return Ok(None);
        };
        let target = self.target(key, &autoscaler.spec).await;
        let history = self.histories.get(key);
        Ok(Some(World { target, history, autoscaler }))
    }

    fn plan(world: &World, now: Timestamp) -> Plan<Action, Report> {
        plan::plan(world, now)
    }

    async fn apply(&self, key: &ObjectKey, action: Action) -> Result<(), ApiError> {
        match action {
            Action::Record(note) => self.record(key, note),
            Action::Remember(history) => self.histories.update(key, |known| *known = history),
            Action::Rescale(rescale) => self.rescale(key, *rescale).await?,
        }
        Ok(())
    }

    async fn report(&self, key: &ObjectKey, report: Report, outcomes: &Outcomes<()>) -> Result<(), ApiError> {
        let status = match outcomes.iter().find_map(|outcome| outcome.as_ref().err()) {
            Some(error) if error.is_conflict() => return Ok(()), // decided anew at once
            Some(error) => report.rescale_failed(&error.message()),
            None => report.status,
        };
        let caches = &self.context.caches;
        object_writes::write_status(&self.context.client, &caches.autoscalers, key, &status).await
    }
}
