//! The graph of needs: one entry per workload, from the annotations and conditions of its pods. Pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
};

use k8s_openapi::api::core::v1::{Pod, PodCondition};
use kube::api::ObjectMeta;
use mainstay_api::{
    needs::{self, NeedTarget, Needs},
    pod::is_finished,
};

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WorkloadName {
    pub namespace: String,
    /// In small letters, as kubectl takes it.
    pub kind: String,
    pub name: String,
}

impl WorkloadName {
    pub fn from_meta(kind: &str, meta: &ObjectMeta) -> Self {
        let text = |field: &Option<String>| field.clone().unwrap_or_default();
        Self { namespace: text(&meta.namespace), kind: kind.to_owned(), name: text(&meta.name) }
    }

    fn text(&self) -> String {
        format!("{}/{}/{}", self.namespace, self.kind, self.name)
    }
}

#[derive(Default)]
pub struct NeedsGraph {
    workloads: BTreeMap<WorkloadName, WorkloadNeeds>,
}

#[derive(Default)]
struct WorkloadNeeds {
    pods: usize,
    /// How many of its pods wait.
    waiting: usize,
    /// By the name of what is needed: the need, and what is missing of it.
    needs: BTreeMap<String, (String, Option<String>)>,
    cycle: Option<String>,
}

impl NeedsGraph {
    pub fn new(pods: &[Pod], workload: impl Fn(&Pod) -> WorkloadName) -> Self {
        let mut graph = Self::default();
        for pod in pods.iter().filter(|pod| !is_finished(pod)) {
            let needs = Needs::from_annotations(&pod.metadata.annotations);
            if !needs.is_empty() {
                graph.workloads.entry(workload(pod)).or_default().add(pod, &needs);
            }
        }
        graph
    }

    /// A block for each workload.
    pub fn text(&self) -> String {
        if self.workloads.is_empty() {
            return format!("No pod needs anything: none has the annotation {}.\n", needs::ANNOTATION);
        }
        let mut text = String::new();
        for (name, WorkloadNeeds { pods, waiting, needs, cycle }) in &self.workloads {
            let state = match waiting {
                0 => format!("{pods} of {pods} pods have what they need"),
                waiting => format!("{waiting} of {pods} pods wait"),
            };
            let _ = writeln!(text, "{}: {state}", name.text());
            for (need, missing) in needs.values() {
                let state = missing.as_ref().map_or_else(|| "met".to_owned(), |missing| format!("not met: {missing}"));
                let _ = writeln!(text, "  {need}   {state}");
            }
            if let Some(cycle) = cycle {
                let _ = writeln!(text, "  can never start: {cycle}");
            }
        }
        text
    }

    /// For Graphviz: unmet needs are red.
    pub fn dot(&self) -> String {
        let mut text = "digraph needs {\n  rankdir=LR;\n  node [shape=box];\n".to_owned();
        let mut targets = BTreeSet::new();
        for (name, WorkloadNeeds { waiting, needs, .. }) in &self.workloads {
            let color = if *waiting > 0 { "red" } else { "black" };
            let _ = writeln!(text, "  {:?} [color={color}];", name.text());
            for (target, (need, missing)) in needs {
                let (target, color) =
                    (target_node(&name.namespace, target), if missing.is_some() { "red" } else { "black" });
                let _ = writeln!(text, "  {:?} -> {target:?} [label={need:?}, color={color}];", name.text());
                targets.insert(target);
            }
        }
        for target in targets.iter().filter(|target| self.workloads.keys().all(|name| name.text() != **target)) {
            let _ = writeln!(text, "  {target:?} [shape=ellipse];");
        }
        text.push_str("}\n");
        text
    }
}

/// Workloads of the namespace are the node of their own needs, too.
fn target_node(namespace: &str, target: &str) -> String {
    if target.contains('/') { format!("{namespace}/{target}") } else { target.to_owned() }
}

impl WorkloadNeeds {
    fn add(&mut self, pod: &Pod, needs: &Needs) {
        self.pods += 1;
        let message = condition(pod, needs::CONDITION)
            .filter(|condition| condition.status == "False")
            .map(|condition| condition.message.clone().unwrap_or_default());
        self.waiting += usize::from(message.is_some());
        let cycle = condition(pod, needs::CYCLE_CONDITION).filter(|condition| condition.status == "True");
        self.cycle = self.cycle.take().or_else(|| cycle.and_then(|condition| condition.message.clone()));
        for need in &needs.needs {
            let name = match &need.target {
                NeedTarget::Service { service, .. } => service.to_string(),
                target @ (NeedTarget::Workload { .. } | NeedTarget::Object { .. }) => target.to_string(),
            };
            let missing = message.as_deref().and_then(|message| missing(message, &name));
            let entry = self.needs.entry(name).or_insert_with(|| (need.to_string(), None));
            entry.1 = entry.1.take().or(missing);
        }
    }
}

fn condition<'a>(pod: &'a Pod, kind: &str) -> Option<&'a PodCondition> {
    pod.status.iter().flat_map(|status| status.conditions.iter().flatten()).find(|condition| condition.type_ == kind)
}

/// What the condition's message says of one need: `mysql: 0 of 1 ready, job/x: …`.
fn missing(message: &str, name: &str) -> Option<String> {
    let start = message.find(&format!("{name}: "))? + name.len() + 2;
    let rest = &message[start..];
    let end = rest.find([',', '(']).unwrap_or(rest.len());
    Some(rest[..end].trim().to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(name: &str, needs: &str, message: Option<&str>) -> Pod {
        let status = if message.is_some() { "False" } else { "True" };
        serde_json::from_value(json!({
            "metadata": { "name": name, "namespace": "a", "annotations": { needs::ANNOTATION: needs } },
            "status": { "conditions": [{ "type": needs::CONDITION, "status": status, "message": message }] },
        }))
        .unwrap()
    }

    #[test]
    fn the_needs_of_a_workload_are_shown_with_what_is_missing() {
        let pods = [
            pod("web", "api >= 2, job/migrate", Some("api: 1 of 2 ready, job/migrate: is not complete (since 2026)")),
            pod("api", "db", None),
            Pod::default(),
        ];
        let graph = NeedsGraph::new(&pods, |pod| WorkloadName::from_meta("pod", &pod.metadata));
        assert_eq!(
            graph.text(),
            "a/pod/api: 1 of 1 pods have what they need\n  db >= 1 ready   met\na/pod/web: 1 of 1 pods wait\n  \
             api >= 2 ready   not met: 1 of 2 ready\n  job/migrate   not met: is not complete\n"
        );
        let dot = graph.dot();
        assert!(dot.contains(r#""a/pod/web" -> "api" [label="api >= 2 ready", color=red];"#), "{dot}");
        assert!(dot.contains(r#""a/job/migrate" [shape=ellipse];"#), "{dot}");
        assert!(NeedsGraph::default().text().starts_with("No pod needs anything"));
    }
}
