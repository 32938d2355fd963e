//! A world in which the plans of a StatefulSet come true, for its tests.

use std::{collections::BTreeMap, sync::Arc};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    api::{
        apps::v1::{ControllerRevision, StatefulSet, StatefulSetStatus},
        core::v1::{PersistentVolumeClaim, PodTemplateSpec},
    },
    apimachinery::pkg::{apis::meta::v1::Time, util::intstr::IntOrString},
};
use serde_json::json;

use super::{
    claims,
    desired::{Desired, Order, Ordinal, Retention, Update},
    plan::{Action, POD_NAME, World, plan},
};
use crate::{
    objects::pod::Pod,
    runtime::Plan,
    workloads::{
        controller_history::{self, HASH, RevisionRequest, Write},
        controller_ref::{Owner, OwnerKind},
    },
};

#[derive(Clone, Debug)]
pub struct Spec {
    /// Pods of an image called `broken` never get ready.
    pub image: &'static str,
    pub replicas: i64,
    pub start: i64,
    pub order: Order,
    pub partition: i64,
    pub unavailable: Option<i32>,
    pub on_delete: bool,
    pub min_ready: i32,
    pub claims: bool,
    pub with_pod: bool,
    pub history: i32,
    pub leaving: bool,
    pub replace_unready: bool,
}

impl Default for Spec {
    fn default() -> Self {
        Self {
            image: "a",
            replicas: 3,
            start: 0,
            order: Order::OrderedReady,
            partition: 0,
            unavailable: None,
            on_delete: false,
            min_ready: 0,
            claims: false,
            with_pod: false,
            history: 10,
            leaving: false,
            replace_unready: false,
        }
    }
}

#[derive(Clone)]
pub struct Model {
    pub spec: Spec,
    pub pods: BTreeMap<Ordinal, Pod>,
    pub claims: BTreeMap<String, Arc<PersistentVolumeClaim>>,
    pub revisions: Vec<Arc<ControllerRevision>>,
    pub status: StatefulSetStatus,
    pub now: Timestamp,
    serial: u64,
}

impl Model {
    pub fn new(spec: Spec) -> Self {
        Self {
            spec,
            pods: BTreeMap::new(),
            claims: BTreeMap::new(),
            revisions: Vec::new(),
            status: StatefulSetStatus::default(),
            now: Timestamp::from_second(1_000_000).unwrap(),
            serial: 0,
        }
    }

    fn owner() -> Owner {
        let meta = json!({ "name": "web", "namespace": "ns", "uid": "set" });
        Owner::new(&OwnerKind::new::<StatefulSet>("statefulset-controller"), &serde_json::from_value(meta).unwrap())
    }

    fn template(&self) -> PodTemplateSpec {
        let template = json!({ "spec": { "containers": [{ "name": "c", "image": self.spec.image }] } });
        serde_json::from_value(template).unwrap()
    }

    /// What a controller sees now.
    pub fn world(&self) -> World {
        let (owner, template, spec) = (Self::owner(), self.template(), &self.spec);
        let wanted = RevisionRequest { owner: &owner, annotations: None, template: &template, collisions: 0 };
        let template_revision = controller_history::find_revision(&wanted, &self.revisions, |_| false);
        let current = self
            .revisions
            .iter()
            .find(|known| Some(controller_history::name(known)) == self.status.current_revision.as_deref());
        let update = match spec.on_delete {
            true => Update::OnDelete,
            false => Update::Rolling { partition: spec.partition, unavailable: spec.unavailable.map(IntOrString::Int) },
        };
        World {
            want: Desired {
                name: "web".into(),
                generation: None,
                start: spec.start,
                replicas: spec.replicas,
                order: spec.order,
                update,
                min_ready: spec.min_ready,
                retention: Retention { with_set: false, with_pod: spec.with_pod },
                claims: spec.claims.then(|| "data".to_owned()).into_iter().collect(),
                history: spec.history,
                replace_unready: spec.replace_unready,
                leaving: spec.leaving,
            },
            reference: owner.reference(),
            pods: self.pods.iter().map(|(ordinal, pod)| (*ordinal, Arc::new(pod.clone()))).collect(),
            claims: self.claims.clone(),
            revisions: self.revisions.clone(),
            current: current.unwrap_or(&template_revision.revision).clone(),
            template_revision,
            pod_claims: vec![],
            revision_claims: vec![],
            status: self.status.clone(),
        }
    }

    pub fn plan(&self) -> Plan<Action, StatefulSetStatus> {
        plan(&self.world(), self.now)
    }

    /// Plans once and does it; returns what was planned.
    pub fn step(&mut self) -> Plan<Action, StatefulSetStatus> {
        let plan = self.plan();
        self.apply(&plan);
        plan
    }

    /// Goes on, with nodes that do their part, until nothing more happens.
    pub fn rest(&mut self) {
        for _ in 0..400 {
            let plan = self.step();
            let quiet = plan.actions.is_empty() && plan.status.is_none();
            if !self.machines() && quiet {
                return;
            }
            self.pass(1);
        }
        panic!("it never rests: {:?}", self.plan());
    }

    /// As the API would: what does not fit what is there is refused.
    pub fn apply(&mut self, plan: &Plan<Action, StatefulSetStatus>) {
        for action in &plan.actions {
            self.serial += 1;
            match action {
                Action::Revise(write) => self.revise(write),
                Action::ClaimRevision(_) | Action::ClaimPod(_) => {}
                Action::Retain { claim, owners, .. } => {
                    let claim = Arc::make_mut(self.claims.get_mut(claim).expect("it is there"));
                    claim.metadata.owner_references = Some(owners.clone());
                }
                Action::Create { ordinal, claims, revision } => {
                    claims.iter().for_each(|claim| self.claim(claim));
                    let revision = &revision.0;
                    let image =
                        controller_history::template_of(revision).unwrap().spec.unwrap().containers[0].image.clone();
                    let serial = self.serial;
                    self.pods.entry(*ordinal).or_insert_with(|| {
                        let pod = json!({ "metadata": {
                            "name": format!("web-{ordinal}"), "uid": format!("pod-{serial}"),
                            "resourceVersion": serial.to_string(), "annotations": { "image": image },
                            "labels": { HASH: controller_history::mark(revision), POD_NAME: format!("web-{ordinal}") },
                        }, "status": { "phase": "Pending" } });
                        serde_json::from_value(pod).unwrap()
                    });
                }
                Action::Supply { claims } => claims.iter().for_each(|(claim, _)| self.claim(claim)),
                Action::Name { ordinal, .. } => {
                    let pod = self.pods.get_mut(ordinal).expect("it is there");
                    pod.metadata.labels.get_or_insert_default().insert(POD_NAME.into(), format!("web-{ordinal}"));
                }
                Action::Delete { ordinal, uid, version, .. } => {
                    let observed = |pod: &Pod| {
                        pod.uid() == uid
                            && version
                                .as_ref()
                                .is_none_or(|version| pod.metadata.resource_version.as_ref() == Some(version))
                    };
                    if self.pods.get(ordinal).is_some_and(observed) {
                        self.evict(*ordinal);
                    }
                }
            }
        }
        if let Some(status) = &plan.status {
            self.status = status.clone();
        }
    }

    fn revise(&mut self, write: &Write) {
        match write {
            Write::Create(revision) => {
                let mut revision = (**revision).clone();
                revision.metadata.uid = Some(format!("revision-{}", self.serial));
                if !self
                    .revisions
                    .iter()
                    .any(|known| controller_history::name(known) == controller_history::name(&revision))
                {
                    self.revisions.push(Arc::new(revision));
                }
            }
            Write::Renumber { uid, number, .. } => {
                let known = self.revisions.iter_mut().find(|known| known.metadata.uid.as_ref() == Some(uid));
                known.into_iter().for_each(|known| Arc::make_mut(known).revision = Some(*number));
            }
            Write::Drop { uid, .. } => self.revisions.retain(|known| known.metadata.uid.as_ref() != Some(uid)),
        }
    }

    fn claim(&mut self, name: &str) {
        let made = claims::make(&PersistentVolumeClaim::default(), name, "ns", [], None);
        self.claims.entry(name.to_owned()).or_insert_with(|| Arc::new(made));
    }

    /// What nodes do: pods that leave are gone, the others get ready. Says whether anything happened.
    pub fn machines(&mut self) -> bool {
        let leaving: Vec<Ordinal> =
            self.pods.iter().filter(|(_, pod)| pod.is_being_deleted()).map(|(at, _)| *at).collect();
        let starting =
            |pod: &Pod| !pod.is_being_deleted() && !pod.is_finished() && !pod.is_ready() && image(pod) != "broken";
        let starting: Vec<Ordinal> = self.pods.iter().filter(|(_, pod)| starting(pod)).map(|(at, _)| *at).collect();
        leaving.iter().for_each(|ordinal| self.finish(*ordinal));
        starting.iter().for_each(|ordinal| self.ready(*ordinal));
        let settling =
            self.pods.values().any(|pod| pod.available_at(self.spec.min_ready).is_some_and(|at| at > self.now));
        !leaving.is_empty() || !starting.is_empty() || settling
    }

    fn change(&mut self, ordinal: Ordinal, status: serde_json::Value) {
        self.serial += 1;
        let Some(pod) = self.pods.get_mut(&ordinal) else { return };
        pod.status = serde_json::from_value(status).unwrap();
        pod.metadata.resource_version = Some(self.serial.to_string());
    }

    pub fn ready(&mut self, ordinal: Ordinal) {
        let ready = json!({ "type": "Ready", "status": "True", "lastTransitionTime": Time(self.now) });
        self.change(ordinal, json!({ "phase": "Running", "conditions": [ready] }));
    }

    pub fn break_down(&mut self, ordinal: Ordinal) {
        let ready = json!({ "type": "Ready", "status": "False", "lastTransitionTime": Time(self.now) });
        self.change(ordinal, json!({ "phase": "Running", "conditions": [ready] }));
        let pod = self.pods.get_mut(&ordinal).expect("it is there");
        pod.metadata.annotations.get_or_insert_default().insert("image".into(), "broken".into());
    }

    pub fn end(&mut self, ordinal: Ordinal, phase: &str) {
        self.change(ordinal, json!({ "phase": phase }));
    }

    /// Somebody deletes a pod, gracefully.
    pub fn evict(&mut self, ordinal: Ordinal) {
        self.serial += 1;
        if let Some(pod) = self.pods.get_mut(&ordinal).filter(|pod| !pod.is_being_deleted()) {
            pod.metadata.deletion_timestamp = Some(Time(self.now));
            pod.metadata.resource_version = Some(self.serial.to_string());
        }
    }

    pub fn finish(&mut self, ordinal: Ordinal) {
        self.pods.remove(&ordinal);
    }

    pub fn strip(&mut self, ordinal: Ordinal) {
        self.pods.get_mut(&ordinal).unwrap().metadata.labels.as_mut().unwrap().remove(POD_NAME);
    }

    pub fn lose_claims(&mut self) {
        self.claims.clear();
    }

    pub fn pass(&mut self, seconds: i64) {
        self.now += SignedDuration::from_secs(seconds);
    }

    pub fn images(&self) -> Vec<&str> {
        self.pods.values().map(image).collect()
    }
}

pub fn image(pod: &Pod) -> &str {
    pod.metadata.annotations.as_ref().and_then(|all| all.get("image")).map_or("", String::as_str)
}
