//! The workload around the pod of a unit or of several instances of one: Deployment, StatefulSet, DaemonSet or Job.

use serde_json::{Map, Value, json};

use crate::pod::Lifetime;

pub(crate) const NAME_LABEL: &str = "app.kubernetes.io/name";
pub(crate) const INSTANCE_LABEL: &str = "app.kubernetes.io/instance";
/// Set for containers of a StatefulSet that was made of numbered instances, in place of `%i`.
pub(crate) const INSTANCE_VARIABLE: &str = "UNIT_INSTANCE";

/// How units that share a file become one or several workloads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// A unit by itself, or an instance that differs from the others.
    Single,
    /// Instances whose pods do not differ.
    Replicas(usize),
    /// Instances with consecutive numbers that differ in arguments and environment alone.
    Indexed { start: u32, count: usize },
    /// On every machine.
    Global,
}

pub(crate) struct Workload {
    pub name: String,
    pub labels: Map<String, Value>,
    pub annotations: Map<String, Value>,
    pub pod_annotations: Map<String, Value>,
    pub spec: Value,
    pub shape: Shape,
    pub lifetime: Lifetime,
}

impl Workload {
    pub fn kind(&self) -> &'static str {
        kind(&self.shape, self.lifetime)
    }

    pub fn manifest(self) -> Value {
        let kind = self.kind();
        let mut metadata = json!({ "name": self.name, "labels": self.labels });
        if !self.annotations.is_empty() {
            metadata["annotations"] = Value::Object(self.annotations);
        }
        let mut pod = json!({ "metadata": { "labels": self.labels }, "spec": self.spec });
        if !self.pod_annotations.is_empty() {
            pod["metadata"]["annotations"] = Value::Object(self.pod_annotations);
        }
        let selector = json!({ "matchLabels": self.labels });
        let spec = match kind {
            "Job" => {
                let once = self.lifetime == Lifetime::Once;
                pod["spec"]["restartPolicy"] = json!(if once { "Never" } else { "OnFailure" });
                let mut spec = json!({ "backoffLimit": if once { 0 } else { i32::MAX }, "template": pod });
                if once {
                    // A lost machine is no failure of the unit's.
                    spec["podFailurePolicy"] = json!({ "rules": [{ "action": "Ignore", "onPodConditions": [{ "type": "DisruptionTarget" }] }] });
                }
                spec
            }
            "DaemonSet" => json!({ "selector": selector, "template": pod }),
            "StatefulSet" => {
                let Shape::Indexed { start, count } = self.shape else {
                    unreachable!("only numbered instances are a StatefulSet")
                };
                json!({
                    "replicas": count,
                    "ordinals": { "start": start },
                    "podManagementPolicy": "Parallel",
                    "serviceName": self.name,
                    "selector": selector,
                    "template": pod,
                })
            }
            _ => {
                let replicas = if let Shape::Replicas(count) = self.shape { count } else { 1 };
                // A unit runs once: the old one ends before the new one starts.
                let strategy = match replicas {
                    1 => json!({ "type": "Recreate" }),
                    _ => json!({ "type": "RollingUpdate", "rollingUpdate": { "maxSurge": 0, "maxUnavailable": 1 } }),
                };
                json!({ "replicas": replicas, "strategy": strategy, "selector": selector, "template": pod })
            }
        };
        let api_version = if kind == "Job" { "batch/v1" } else { "apps/v1" };
        json!({ "apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": spec })
    }
}

pub(crate) fn kind(shape: &Shape, lifetime: Lifetime) -> &'static str {
    match (shape, lifetime) {
        (Shape::Global, _) => "DaemonSet",
        (Shape::Indexed { .. }, _) => "StatefulSet",
        (Shape::Replicas(_), _) | (Shape::Single, Lifetime::Forever) => "Deployment",
        (Shape::Single, Lifetime::UntilSuccess | Lifetime::Once) => "Job",
    }
}

/// The container's variable that has the number of the instance.
pub(crate) fn instance_variable() -> Value {
    let path = "metadata.labels['apps.kubernetes.io/pod-index']";
    json!({ "name": INSTANCE_VARIABLE, "valueFrom": { "fieldRef": { "fieldPath": path } } })
}
