//! Pods whose devices are allocated but not there yet: they are bound when the devices' binding conditions are true.
//!
//! Until then such a pod is assumed to be on its node, and its claims stay reserved for it. If a device fails, or is not
//! there in time, the devices are given back and the pod is scheduled again. The time counts from the allocation, which the claim
//! remembers, so that a restart of the scheduler does not begin it anew.

use std::time::{Duration, Instant};

use mainstay_events::EventNote;

use super::{Action, SchedulerState};
use crate::{
    bind::BindRequest,
    core::{
        devices::{BindingProgress, extended::ExtendedClaim},
        view::{PodKey, PodView},
    },
    event_recorder::PodEvent,
};

/// A pod that is bound once its devices are ready.
pub(super) struct WaitingBinding {
    request: BindRequest,
    deadline: Instant,
}

/// What becomes of a pod that waits for its devices.
enum BindingStep {
    Wait,
    Bind,
    /// Its claims are not what they were.
    Restart,
    Fail {
        message: String,
    },
}

impl SchedulerState {
    /// `allocated_for`: how long its devices have been allocated.
    pub(super) fn await_devices(&mut self, request: &BindRequest, allocated_for: Duration, now: Instant) {
        let deadline = now + self.settings.binding_timeout.saturating_sub(allocated_for);
        let known =
            self.waiting_bindings.insert(request.pod.clone(), WaitingBinding { request: request.clone(), deadline });
        if known.is_none_or(|known| known.request.uid != request.uid) {
            let message = format!("waiting for binding conditions for device on node {}", request.node);
            let note = EventNote::normal("BindingConditionsPending", message);
            let (pod, uid) = (request.pod.clone(), request.uid.clone());
            self.actions.push(Action::RecordEvent(PodEvent { pod, uid, note }));
        }
    }

    /// Binds pods whose devices are ready, and gives back devices that failed.
    pub(super) fn resolve_waiting_bindings(&mut self, now: Instant) {
        let steps: Vec<(PodKey, BindingStep)> =
            self.waiting_bindings.iter().map(|(pod, waiting)| (pod.clone(), self.binding_step(waiting, now))).collect();
        let mut ready = Vec::new();
        for (pod, step) in steps {
            if matches!(step, BindingStep::Wait) {
                continue;
            }
            let Some(WaitingBinding { mut request, .. }) = self.waiting_bindings.remove(&pod) else { continue };
            match step {
                BindingStep::Wait => {}
                BindingStep::Bind => {
                    // The node may have offered anew since.
                    request.offer_uid = self.offers.get(&request.node).map(|own| own.uid.clone()).unwrap_or_default();
                    ready.push(request);
                }
                BindingStep::Restart => self.undo_waiting_binding(&request, now),
                BindingStep::Fail { message } => {
                    tracing::warn!(
                        %pod, uid = request.uid, node = request.node, message,
                        "devices of a pod cannot be used; they are given back, and it is scheduled again"
                    );
                    self.give_back_devices(&request);
                    self.undo_waiting_binding(&request, now);
                }
            }
        }
        if !ready.is_empty() {
            self.batches += 1;
            self.actions.push(Action::Bind(ready));
        }
    }

    fn binding_step(&self, waiting: &WaitingBinding, now: Instant) -> BindingStep {
        let WaitingBinding { request, deadline } = waiting;
        let cached = self.pods.get(&request.pod).filter(|cached| cached.view.uid == request.uid);
        if cached.is_none_or(|cached| cached.assumed.is_none() || cached.view.terminating) {
            return BindingStep::Restart;
        }
        match self.cluster.devices.binding_progress(&request.uid, &request.claims) {
            None => BindingStep::Restart,
            Some(BindingProgress::Ready) => BindingStep::Bind,
            Some(BindingProgress::Failed { message }) => {
                BindingStep::Fail { message: format!("device binding failed: {message}") }
            }
            Some(BindingProgress::Pending) if *deadline <= now => {
                BindingStep::Fail { message: "device binding timeout".to_owned() }
            }
            Some(BindingProgress::Pending) => BindingStep::Wait,
        }
    }

    fn give_back_devices(&mut self, request: &BindRequest) {
        for binding in &request.claims {
            if let Some(version) = self.cluster.devices.claim_version(&binding.claim) {
                let (claim, pod_uid) = (binding.claim.clone(), request.uid.clone());
                self.actions.push(Action::Deallocate { claim, version, pod_uid });
            }
        }
    }

    fn undo_waiting_binding(&mut self, request: &BindRequest, now: Instant) {
        if self.pods.get(&request.pod).is_some_and(|cached| cached.view.uid == request.uid) {
            self.undo_binding(&request.pod, now);
        }
    }

    pub(super) fn next_binding_deadline(&self) -> Option<Instant> {
        self.waiting_bindings.values().map(|waiting| waiting.deadline).min()
    }

    /// Finds the DeviceClasses that extended resources of the pod stand for. A resource that a node has itself is asked
    /// of nodes alone, unless a claim was made for it before that.
    pub(super) fn with_device_classes(&self, pod: PodView) -> PodView {
        if pod.extended_requests.is_empty() || pod.node.is_some() {
            return pod;
        }
        let is_on_nodes = |resource: &str| {
            self.cluster.nodes().any(|node| node.allocatable.get(resource).is_some_and(|own| *own > 0))
        };
        let resources = pod.extended_amounts.keys().filter(|resource| pod.has_extended_claim || !is_on_nodes(resource));
        let classes = resources
            .filter_map(|name| Some((name.clone(), self.cluster.devices.class_of_resource(name)?.to_owned())))
            .collect();
        let claim = ExtendedClaim::new(&pod.key.name, &pod.uid, &pod.extended_requests, &classes);
        pod.with_extended_claim(claim.map(Into::into))
    }

    /// Device classes or nodes changed: waiting pods with extended resources may have other rules now.
    pub(super) fn update_extended_pods(&mut self, now: Instant) {
        if !self.changes.devices && self.changes.nodes.is_empty() {
            return;
        }
        for key in self.pods_with_extended.clone() {
            let Some(cached) = self.pods.get(&key).filter(|cached| cached.assumed.is_none()) else { continue };
            let before = cached.view.clone();
            let pod = std::sync::Arc::new(self.with_device_classes(PodView::clone(&before)));
            if pod.spec == before.spec && pod.extended_claim == before.extended_claim {
                continue;
            }
            if let Some(cached) = self.pods.get_mut(&key) {
                cached.view = pod.clone();
            }
            self.cluster.update_pod(pod.clone());
            self.enqueue(&pod, now);
        }
    }
}
