//! What an autoscaler does: the replicas its metrics ask for, within its bounds and its speed, and its status. Pure.
//!
//! Every metric makes a proposal and the largest wins. A metric that cannot be read keeps the target from being scaled
//! down, since it might have asked for more. Reasons and messages of conditions and events are upstream's.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    api::{
        autoscaling::{
            v1::Scale,
            v2::{HorizontalPodAutoscaler, HorizontalPodAutoscalerSpec, HorizontalPodAutoscalerStatus, MetricStatus},
        },
        core::v1::ObjectReference,
    },
    apimachinery::pkg::apis::meta::v1::Time,
};
use kube::api::ApiResource;
use mainstay_events::EventNote;

use super::{
    behavior::ScalingRules,
    conditions::Conditions,
    history::ScaleHistory,
    metrics_client::MetricSample,
    proposals::{self, MetricError},
    replica_calculator::ReplicaCalculator,
};
use crate::{
    objects::pod::Pod,
    runtime::{self, ObjectKey},
};

/// How often an autoscaler is reconciled.
pub const SYNC_PERIOD: SignedDuration = SignedDuration::from_secs(15);

pub struct World {
    pub autoscaler: Arc<HorizontalPodAutoscaler>,
    /// The scale of its target, or why there is none.
    pub target: Result<ScaleTarget, String>,
    pub history: ScaleHistory,
}

#[derive(Clone, Debug)]
pub struct ScaleTarget {
    pub resource: ApiResource,
    pub scale: Scale,
    /// The pods it selects, or why that is not known.
    pub pods: Result<SelectedPods, SelectorError>,
}

#[derive(Clone, Debug, Default)]
pub struct SelectedPods {
    pub pods: Vec<Arc<Pod>>,
    /// In the order of the spec's metrics.
    pub samples: Vec<Result<MetricSample, String>>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SelectorError {
    #[error("selector is required")]
    Missing,
    #[error("couldn't convert selector into a corresponding internal selector object: {0}")]
    Invalid(String),
    #[error("pods by selector {selector} are controlled by multiple HPAs: {autoscalers:?}")]
    Ambiguous { selector: String, autoscalers: Vec<ObjectKey> },
}

#[derive(Clone, Debug)]
pub enum Action {
    /// An event about the autoscaler.
    Record(EventNote),
    /// Remembers what was recommended.
    Remember(ScaleHistory),
    Rescale(Box<Rescale>),
}

/// A new number of replicas, fenced by the version of the scale that was judged.
#[derive(Clone, Debug)]
pub struct Rescale {
    pub resource: ApiResource,
    pub scale: Scale,
    pub from: i32,
    pub to: i32,
    pub reason: String,
    pub at: Timestamp,
    /// How long scale events matter to the policies of this autoscaler.
    pub remembered_for: SignedDuration,
}

/// The status to write, and what it falls back to if the target could not be scaled.
#[derive(Clone, Debug)]
pub struct Report {
    pub status: HorizontalPodAutoscalerStatus,
    pub if_not_scaled: HorizontalPodAutoscalerStatus,
    pub at: Timestamp,
}

impl Report {
    /// The status after a rescale that the API refused.
    pub fn rescale_failed(self, why: &str) -> HorizontalPodAutoscalerStatus {
        let mut conditions = Conditions::new(&self.if_not_scaled, self.at);
        let message = format!("the HPA controller was unable to update the target scale: {why}");
        conditions.set("AbleToScale", false, "FailedUpdateScale", message);
        HorizontalPodAutoscalerStatus { conditions: Some(conditions.into_list()), ..self.if_not_scaled }
    }
}

/// What was decided so far.
struct Draft<'a> {
    autoscaler: &'a HorizontalPodAutoscaler,
    before: HorizontalPodAutoscalerStatus,
    conditions: Conditions,
    actions: Vec<Action>,
    now: Timestamp,
}

/// How many replicas there should be, and why.
struct Decision {
    replicas: i32,
    reason: String,
    metrics: Vec<MetricStatus>,
}

pub fn plan(world: &World, now: Timestamp) -> runtime::Plan<Action, Report> {
    let autoscaler = &*world.autoscaler;
    let spec = &autoscaler.spec;
    let before = autoscaler.status.clone().unwrap_or_default();
    let conditions = Conditions::new(&before, now);
    let mut draft = Draft { autoscaler, before, conditions, actions: Vec::new(), now };
    let target = match &world.target {
        Ok(target) => target,
        Err(why) => {
            draft.warn("FailedGetScale", why.clone());
            let message = format!("the HPA controller was unable to get the target's current scale: {why}");
            draft.conditions.set("AbleToScale", false, "FailedGetScale", message);
            return draft.finish(None, None);
        }
    };
    let message = "the HPA controller was able to get the target's current scale";
    draft.conditions.set("AbleToScale", true, "SucceededGetScale", message);
    let current = target.scale.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(0);
    let rules =
        ScalingRules { behavior: spec.behavior.as_ref(), min: spec.min_replicas.unwrap_or(1), max: spec.max_replicas };
    let mut history = world.history.clone();
    if history.is_empty() {
        history.recommend(current, now, rules.longest_window());
    }
    let decision = match bounds_decision(&rules, current, &mut draft.conditions) {
        Some(decision) => decision,
        None => match draft.by_metrics(spec, target, current, &rules, &mut history) {
            Ok(decision) => decision,
            Err(metrics) => {
                draft.actions.push(Action::Remember(history));
                let desired = draft.before.desired_replicas;
                return draft.finish(Some((current, desired)), metrics);
            }
        },
    };
    draft.actions.push(Action::Remember(history));
    if decision.replicas != current {
        return draft.rescale(target, current, decision, rules.longest_period());
    }
    draft.finish(Some((current, current)), non_empty(decision.metrics))
}

/// What the bounds alone decide.
fn bounds_decision(rules: &ScalingRules<'_>, current: i32, conditions: &mut Conditions) -> Option<Decision> {
    let decision = |replicas, reason: &str| Decision { replicas, reason: reason.to_owned(), metrics: Vec::new() };
    if current == 0 && rules.min != 0 {
        let message = "scaling is disabled since the replica count of the target is zero";
        conditions.set("ScalingActive", false, "ScalingDisabled", message);
        return Some(decision(0, ""));
    }
    if current > rules.max {
        return Some(decision(rules.max, "Current number of replicas above Spec.MaxReplicas"));
    }
    if current < rules.min {
        return Some(decision(rules.min, "Current number of replicas below Spec.MinReplicas"));
    }
    None
}

impl Draft<'_> {
    fn warn(&mut self, reason: &'static str, message: String) {
        self.actions.push(Action::Record(EventNote::warning(reason, message)));
    }

    /// What the metrics ask for, normalized. On failure, the status of the metrics.
    fn by_metrics(
        &mut self,
        spec: &HorizontalPodAutoscalerSpec,
        target: &ScaleTarget,
        current: i32,
        rules: &ScalingRules<'_>,
        history: &mut ScaleHistory,
    ) -> Result<Decision, Option<Vec<MetricStatus>>> {
        let selected = match &target.pods {
            Ok(selected) => selected,
            Err(error) => {
                self.report_selector(error);
                self.warn("FailedComputeMetricsReplicas", error.to_string());
                return Err(None);
            }
        };
        let calculator = ReplicaCalculator {
            pods: &selected.pods,
            current,
            observed: target.scale.status.as_ref().map_or(0, |status| status.replicas),
            tolerances: rules.tolerances(),
            now: self.now,
        };
        let proposals = proposals::compute(spec.metrics.as_deref().unwrap_or_default(), &selected.samples, &calculator);
        for MetricError { reason, message, .. } in &proposals.errors {
            self.warn(reason, message.clone());
        }
        let scales_down = proposals.largest.as_ref().is_some_and(|largest| largest.replicas < current);
        let largest = match (&proposals.largest, proposals.errors.first()) {
            (Some(largest), None) => largest,
            (Some(largest), Some(_)) if !scales_down => largest,
            (_, first) => {
                if let Some(first) = first {
                    let message = format!("the HPA was unable to compute the replica count: {}", first.message);
                    self.conditions.set("ScalingActive", false, first.reason, message);
                    let (invalid, all) = (proposals.errors.len(), proposals.statuses.len());
                    let context = &first.context;
                    let message =
                        format!("invalid metrics ({invalid} invalid out of {all}), first error is: {context}");
                    self.warn("FailedComputeMetricsReplicas", message);
                }
                return Err(non_empty(proposals.statuses));
            }
        };
        let message = format!("the HPA was able to successfully calculate a replica count from {}", largest.metric);
        self.conditions.set("ScalingActive", true, "ValidMetricFound", message);
        let reason = match largest.replicas > current {
            true => format!("{} above target", largest.metric),
            false => "All metrics below target".to_owned(),
        };
        let replicas = self.normalize(rules, history, current, largest.replicas);
        Ok(Decision { replicas, reason, metrics: proposals.statuses })
    }

    fn report_selector(&mut self, error: &SelectorError) {
        let (event, reason, message) = match error {
            SelectorError::Missing => {
                ("SelectorRequired", "InvalidSelector", "the HPA target's scale is missing a selector".to_owned())
            }
            SelectorError::Invalid(_) => ("InvalidSelector", "InvalidSelector", error.to_string()),
            SelectorError::Ambiguous { .. } => ("AmbiguousSelector", "AmbiguousSelector", error.to_string()),
        };
        self.warn(event, error.to_string());
        self.conditions.set("ScalingActive", false, reason, message);
    }

    /// A recommendation after stabilization and limits.
    fn normalize(
        &mut self,
        rules: &ScalingRules<'_>,
        history: &mut ScaleHistory,
        current: i32,
        recommended: i32,
    ) -> i32 {
        let stabilized = rules.stabilize(history, current, recommended, self.now);
        history.recommend(recommended, self.now, rules.longest_window());
        if stabilized.replicas == recommended {
            let message = "recommended size matches current size";
            self.conditions.set("AbleToScale", true, "ReadyForNewScale", message);
        } else {
            self.conditions.set("AbleToScale", true, stabilized.reason, stabilized.message);
        }
        let limited = rules.limit(history, current, stabilized.replicas, self.now);
        let is_limited = limited.replicas != stabilized.replicas;
        self.conditions.set("ScalingLimited", is_limited, limited.reason, limited.message);
        limited.replicas
    }

    fn rescale(
        mut self,
        target: &ScaleTarget,
        from: i32,
        Decision { replicas: to, reason, metrics }: Decision,
        remembered_for: SignedDuration,
    ) -> runtime::Plan<Action, Report> {
        let metrics = non_empty(metrics);
        let if_not_scaled = self.status(from, self.before.desired_replicas, metrics.clone());
        let message = format!("the HPA controller was able to update the target scale to {to}");
        self.conditions.set("AbleToScale", true, "SucceededRescale", message);
        let last_scale_time = Some(Time(whole_seconds(self.now)));
        let status = HorizontalPodAutoscalerStatus { last_scale_time, ..self.status(from, to, metrics) };
        let mut scale = target.scale.clone();
        scale.spec.get_or_insert_default().replicas = Some(to);
        let resource = target.resource.clone();
        let rescale = Rescale { resource, scale, from, to, reason, at: self.now, remembered_for };
        self.actions.push(Action::Rescale(Box::new(rescale)));
        runtime::Plan {
            actions: self.actions,
            status: Some(Report { status, if_not_scaled, at: self.now }),
            requeue_at: Some(self.now + SYNC_PERIOD),
        }
    }

    fn status(&self, current: i32, desired: i32, metrics: Option<Vec<MetricStatus>>) -> HorizontalPodAutoscalerStatus {
        HorizontalPodAutoscalerStatus {
            conditions: Some(self.conditions.to_list()),
            current_metrics: metrics,
            current_replicas: Some(current),
            desired_replicas: desired,
            last_scale_time: self.before.last_scale_time.clone(),
            observed_generation: self.autoscaler.metadata.generation,
        }
    }

    /// The plan without a rescale. Without counts, only the conditions are reported.
    fn finish(self, counts: Option<(i32, i32)>, metrics: Option<Vec<MetricStatus>>) -> runtime::Plan<Action, Report> {
        let status = match counts {
            Some((current, desired)) => self.status(current, desired, metrics),
            None => {
                HorizontalPodAutoscalerStatus { conditions: Some(self.conditions.to_list()), ..self.before.clone() }
            }
        };
        let changed = status != self.before;
        runtime::Plan {
            actions: self.actions,
            status: changed.then(|| Report { if_not_scaled: status.clone(), status, at: self.now }),
            requeue_at: Some(self.now + SYNC_PERIOD),
        }
    }
}

fn non_empty(metrics: Vec<MetricStatus>) -> Option<Vec<MetricStatus>> {
    (!metrics.is_empty()).then_some(metrics)
}

/// As the API stores times.
pub fn whole_seconds(now: Timestamp) -> Timestamp {
    Timestamp::from_second(now.as_second()).unwrap_or(now)
}

/// What events of an autoscaler are about.
pub fn involved_object(autoscaler: &HorizontalPodAutoscaler) -> ObjectReference {
    ObjectReference {
        api_version: Some("autoscaling/v2".to_owned()),
        kind: Some("HorizontalPodAutoscaler".to_owned()),
        namespace: autoscaler.metadata.namespace.clone(),
        name: autoscaler.metadata.name.clone(),
        uid: autoscaler.metadata.uid.clone(),
        resource_version: autoscaler.metadata.resource_version.clone(),
        ..ObjectReference::default()
    }
}

#[cfg(test)]
mod tests;
