//! A world in which the plans of a DaemonSet come true, for its tests.

use std::{collections::BTreeMap, sync::Arc};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    api::{
        apps::v1::{ControllerRevision, DaemonSet, DaemonSetStatus},
        core::v1::PodTemplateSpec,
    },
    apimachinery::pkg::{apis::meta::v1::Time, util::intstr::IntOrString},
};
use serde_json::{Value, json};

use super::{
    new_names,
    node_fit::Verdict,
    plan::{Action, Desired, Update, World, plan},
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
pub struct Model {
    /// Pods of an image called `broken` never get ready.
    pub image: &'static str,
    pub unavailable: i32,
    pub surge: i32,
    pub on_delete: bool,
    pub min_ready: i32,
    pub nodes: BTreeMap<String, Verdict>,
    pub pauses: BTreeMap<String, Timestamp>,
    /// By name.
    pub pods: BTreeMap<String, Pod>,
    pub revisions: Vec<Arc<ControllerRevision>>,
    pub status: DaemonSetStatus,
    pub now: Timestamp,
    pub serial: u64,
}

impl Model {
    pub fn new(nodes: usize) -> Self {
        Self {
            image: "a",
            unavailable: 1,
            surge: 0,
            on_delete: false,
            min_ready: 0,
            nodes: (0..nodes).map(|n| (format!("m{n}"), Verdict::Runs)).collect(),
            pauses: BTreeMap::new(),
            pods: BTreeMap::new(),
            revisions: Vec::new(),
            status: DaemonSetStatus::default(),
            now: Timestamp::from_second(1_000_000).unwrap(),
            serial: 0,
        }
    }

    pub fn world(&self) -> World {
        let meta = json!({ "name": "log", "namespace": "ns", "uid": "set" });
        let kind = OwnerKind::new::<DaemonSet>("daemonset-controller");
        let owner = Owner::new(&kind, &serde_json::from_value(meta).unwrap());
        let template = json!({ "spec": { "containers": [{ "name": "c", "image": self.image }] } });
        let template: PodTemplateSpec = serde_json::from_value(template).unwrap();
        let wanted = RevisionRequest { owner: &owner, annotations: None, template: &template, collisions: 0 };
        let template_revision = controller_history::find_revision(&wanted, &self.revisions, |_| false);
        let mut pods: BTreeMap<String, Vec<Arc<Pod>>> = BTreeMap::new();
        for pod in self.pods.values() {
            pods.entry(pod.spec.node_name.clone()).or_default().push(Arc::new(pod.clone()));
        }
        let update = match self.on_delete {
            true => Update::OnDelete,
            false => {
                Update::Rolling { unavailable: IntOrString::Int(self.unavailable), surge: IntOrString::Int(self.surge) }
            }
        };
        World {
            want: Desired { generation: None, update, min_ready: self.min_ready, history: 10, leaving: false },
            names: new_names(&owner, self.nodes.keys(), |_| None, |name| self.pods.contains_key(name)),
            nodes: self.nodes.clone(),
            pods,
            pauses: self.pauses.clone(),
            revisions: self.revisions.clone(),
            template_revision,
            pod_claims: vec![],
            revision_claims: vec![],
            status: self.status.clone(),
        }
    }

    pub fn plan(&self) -> Plan<Action, DaemonSetStatus> {
        plan(&self.world(), self.now)
    }

    pub fn step(&mut self) -> Plan<Action, DaemonSetStatus> {
        let plan = self.plan();
        self.apply(&plan);
        plan
    }

    /// Goes on, with nodes that do their part, until nothing more happens.
    pub fn rest(&mut self) {
        for _ in 0..200 {
            let plan = self.step();
            let quiet = plan.actions.is_empty() && plan.status.is_none() && plan.requeue_at.is_none();
            if !self.work() && quiet {
                return;
            }
            self.pass(1);
        }
        panic!("it never rests: {:?}", self.plan());
    }

    /// As the API would: what does not fit what is there is refused.
    pub fn apply(&mut self, plan: &Plan<Action, DaemonSetStatus>) {
        for action in &plan.actions {
            self.serial += 1;
            match action {
                Action::Revise(Write::Create(revision)) => {
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
                Action::Revise(Write::Renumber { uid, number, .. }) => {
                    let known = self.revisions.iter_mut().find(|known| known.metadata.uid.as_ref() == Some(uid));
                    known.into_iter().for_each(|known| Arc::make_mut(known).revision = Some(*number));
                }
                Action::Revise(Write::Drop { uid, .. }) => {
                    self.revisions.retain(|known| known.metadata.uid.as_ref() != Some(uid));
                }
                Action::ClaimRevision(_) | Action::ClaimPod(_) => {}
                Action::Create { node, name, revision } => {
                    let image =
                        controller_history::template_of(&revision.0).unwrap().spec.unwrap().containers[0].image.clone();
                    let pod = json!({
                        "metadata": {
                            "name": name, "uid": format!("pod-{}", self.serial),
                            "resourceVersion": self.serial.to_string(), "creationTimestamp": Time(self.now),
                            "labels": { HASH: controller_history::hash(&revision.0) }, "annotations": { "image": image },
                        },
                        "spec": { "nodeName": node }, "status": { "phase": "Pending" },
                    });
                    self.pods.entry(name.clone()).or_insert_with(|| serde_json::from_value(pod).unwrap());
                }
                Action::Delete { name, uid, version, .. } => {
                    let observed = |pod: &Pod| {
                        let same = |version: &String| pod.metadata.resource_version.as_ref() == Some(version);
                        pod.uid() == uid && version.as_ref().is_none_or(same)
                    };
                    if self.pods.get(name).is_some_and(observed) {
                        self.evict(name);
                    }
                }
            }
        }
        if let Some(status) = &plan.status {
            self.status = status.clone();
        }
    }

    /// What nodes do. Says whether anything happened.
    pub fn work(&mut self) -> bool {
        let before = self.serial;
        for (name, pod) in self.pods.clone() {
            if pod.is_being_deleted() {
                self.finish(&name);
            } else if !pod.is_finished() && !pod.is_ready() && image(&pod) != "broken" {
                self.ready(&name);
            }
        }
        self.serial > before
    }

    fn change(&mut self, name: &str, status: Value) {
        self.serial += 1;
        let Some(pod) = self.pods.get_mut(name) else { return };
        pod.status = serde_json::from_value(status).unwrap();
        pod.metadata.resource_version = Some(self.serial.to_string());
    }

    pub fn ready(&mut self, name: &str) {
        let ready = json!({ "type": "Ready", "status": "True", "lastTransitionTime": Time(self.now) });
        self.change(name, json!({ "phase": "Running", "conditions": [ready] }));
    }

    pub fn break_down(&mut self, name: &str) {
        self.change(name, json!({ "phase": "Running" }));
    }

    pub fn end(&mut self, name: &str, phase: &str) {
        self.change(name, json!({ "phase": phase }));
    }

    pub fn evict(&mut self, name: &str) {
        self.serial += 1;
        if let Some(pod) = self.pods.get_mut(name).filter(|pod| !pod.is_being_deleted()) {
            pod.metadata.deletion_timestamp = Some(Time(self.now));
            pod.metadata.resource_version = Some(self.serial.to_string());
        }
    }

    pub fn finish(&mut self, name: &str) {
        self.serial += 1;
        self.pods.remove(name);
    }

    pub fn pass(&mut self, seconds: i64) {
        self.now += SignedDuration::from_secs(seconds);
    }

    /// The pods on a node, by name.
    pub fn on(&self, node: &str) -> Vec<String> {
        self.pods.values().filter(|pod| pod.spec.node_name == node).map(|pod| pod.name().to_owned()).collect()
    }

    pub fn images(&self) -> Vec<&str> {
        let mut pods: Vec<&Pod> = self.pods.values().collect();
        pods.sort_by_key(|pod| pod.spec.node_name.clone());
        pods.into_iter().map(image).collect()
    }

    pub fn serves(&self, pod: &Pod) -> bool {
        pod.is_active() && pod.available_at(self.min_ready).is_some_and(|at| at <= self.now)
    }
}

pub fn image(pod: &Pod) -> &str {
    pod.metadata.annotations.as_ref().and_then(|all| all.get("image")).map_or("", String::as_str)
}
