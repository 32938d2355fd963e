//! The graph of needs: workloads with needs, what they need, and the workloads behind that, from the annotations and conditions of pods. Pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
};

use k8s_openapi::api::core::v1::{Pod, PodCondition, Service};
use kube::api::ObjectMeta;
use mainstay_api::{
    needs::{self, NeedTarget, Needs, ServiceName},
    pod::is_finished,
};

use super::message::{find_missing, needed_name};

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
    ready: usize,
    /// How many of its pods wait.
    waiting: usize,
    /// By how they are written.
    needs: BTreeMap<String, NeedState>,
    cycle: Option<String>,
}

struct NeedState {
    /// As it was written.
    need: String,
    /// What is needed, wherever it is named: `shop/service/api`.
    node: String,
    missing: Option<String>,
    /// The workloads whose pods are the endpoints of the Service.
    behind: BTreeSet<WorkloadName>,
}

impl NeedsGraph {
    pub fn new(pods: &[Pod], services: &[Service], workload: impl Fn(&Pod) -> WorkloadName) -> Self {
        let pods: Vec<(&Pod, WorkloadName)> =
            pods.iter().filter(|pod| !is_finished(pod)).map(|pod| (pod, workload(pod))).collect();
        let mut graph = Self::default();
        for (pod, workload) in &pods {
            let needs = Needs::from_annotations(&pod.metadata.annotations);
            if !needs.is_empty() {
                graph.workloads.entry(workload.clone()).or_default().add_needs(pod, &needs);
            }
        }
        for (name, own) in &mut graph.workloads {
            for need in own.needs.values_mut() {
                need.behind = behind(&name.namespace, need, services, &pods);
            }
        }
        let behind: BTreeSet<WorkloadName> = graph
            .workloads
            .values()
            .flat_map(|own| own.needs.values())
            .flat_map(|need| need.behind.iter().cloned())
            .collect();
        for name in behind {
            graph.workloads.entry(name).or_default();
        }
        for (pod, workload) in &pods {
            if let Some(own) = graph.workloads.get_mut(workload) {
                own.pods += 1;
                own.ready += usize::from(condition(pod, "Ready").is_some_and(|ready| ready.status == "True"));
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
        for (name, own) in &self.workloads {
            let _ = writeln!(text, "{}: {}", name.text(), own.state());
            for NeedState { need, node, missing, behind } in own.needs.values() {
                let state = missing.as_ref().map_or_else(|| "met".to_owned(), |missing| format!("not met: {missing}"));
                let behind: Vec<String> = behind.iter().map(WorkloadName::text).filter(|name| name != node).collect();
                let of = if behind.is_empty() { String::new() } else { format!("   (of {})", behind.join(", ")) };
                let _ = writeln!(text, "  {need}   {state}{of}");
            }
            if let Some(cycle) = &own.cycle {
                let _ = writeln!(text, "  can never start: {cycle}");
            }
        }
        text
    }

    /// For Graphviz: unmet needs are red, and so are workloads that wait or are not ready. Dashed lines lead from a Service to the workloads behind it.
    pub fn dot(&self) -> String {
        let mut text = "digraph needs {\n  rankdir=LR;\n  node [shape=box];\n".to_owned();
        let color = |is_bad: bool| if is_bad { "red" } else { "black" };
        let (mut targets, mut behind) = (BTreeSet::new(), BTreeSet::new());
        for (name, own) in &self.workloads {
            let (name, state) = (name.text(), own.state());
            let is_bad = own.waiting > 0 || own.ready < own.pods || own.cycle.is_some();
            let label = format!("{name}\n{state}");
            let _ = writeln!(text, "  {name:?} [label={label:?}, color={}];", color(is_bad));
            for need in own.needs.values() {
                let color = color(need.missing.is_some());
                let _ = writeln!(text, "  {name:?} -> {:?} [label={:?}, color={color}];", need.node, need.need);
                targets.insert(&need.node);
                behind.extend(need.behind.iter().map(|workload| (&need.node, workload.text())));
            }
        }
        let is_workload = |node: &str| self.workloads.keys().any(|name| name.text() == node);
        for target in targets.iter().filter(|target| !is_workload(target)) {
            let _ = writeln!(text, "  {target:?} [shape=ellipse];");
        }
        for (target, workload) in behind.iter().filter(|(target, workload)| *target != workload) {
            let _ = writeln!(text, "  {target:?} -> {workload:?} [style=dashed];");
        }
        text.push_str("}\n");
        text
    }
}

/// The workloads whose pods the needed Services select, or the workload that is needed itself if it has pods.
fn behind(
    namespace: &str,
    need: &NeedState,
    services: &[Service],
    pods: &[(&Pod, WorkloadName)],
) -> BTreeSet<WorkloadName> {
    let Some(target) = need.need.parse::<Needs>().ok().and_then(|needs| needs.needs.into_iter().next()) else {
        return BTreeSet::new();
    };
    let NeedTarget::Service { service: wanted, .. } = target.target else {
        return pods.iter().map(|(_, name)| name).filter(|name| name.text() == need.node).cloned().collect();
    };
    let is_wanted = |meta: &ObjectMeta| {
        meta.name.as_deref() == Some(wanted.name())
            && wanted.namespace(namespace).is_none_or(|namespace| meta.namespace.as_deref() == Some(namespace))
    };
    let mut found = BTreeSet::new();
    for service in services.iter().filter(|service| is_wanted(&service.metadata)) {
        let selector = service.spec.as_ref().and_then(|spec| spec.selector.as_ref());
        let Some(selector) = selector.filter(|selector| !selector.is_empty()) else { continue };
        let is_selected = |pod: &Pod| {
            let labels = pod.metadata.labels.as_ref();
            pod.metadata.namespace == service.metadata.namespace
                && selector.iter().all(|(key, value)| labels.is_some_and(|labels| labels.get(key) == Some(value)))
        };
        found.extend(pods.iter().filter(|(pod, _)| is_selected(pod)).map(|(_, name)| name.clone()));
    }
    found
}

/// What a need of a pod of this namespace is of.
fn node(namespace: &str, target: &NeedTarget) -> String {
    match target {
        NeedTarget::Service { service: service @ ServiceName::InAnyNamespace(_), .. } => service.to_string(),
        NeedTarget::Service { service, .. } => {
            format!("{}/service/{}", service.namespace(namespace).unwrap_or(namespace), service.name())
        }
        target @ (NeedTarget::Workload { .. } | NeedTarget::Object { .. }) => format!("{namespace}/{target}"),
    }
}

impl WorkloadNeeds {
    fn state(&self) -> String {
        let Self { pods, ready, waiting, needs, .. } = self;
        match (needs.is_empty(), waiting) {
            (true, _) => format!("{ready} of {pods} pods ready"),
            (false, 0) => format!("{pods} of {pods} pods have what they need"),
            (false, waiting) => format!("{waiting} of {pods} pods wait"),
        }
    }

    fn add_needs(&mut self, pod: &Pod, needs: &Needs) {
        let message = condition(pod, needs::CONDITION)
            .filter(|condition| condition.status == "False")
            .map(|condition| condition.message.clone().unwrap_or_default());
        self.waiting += usize::from(message.is_some());
        let cycle = condition(pod, needs::CYCLE_CONDITION).filter(|condition| condition.status == "True");
        self.cycle = self.cycle.take().or_else(|| cycle.and_then(|condition| condition.message.clone()));
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        for need in &needs.needs {
            let name = needed_name(&need.target);
            let missing = message.as_deref().and_then(|message| find_missing(message, &name));
            // A Service may be needed in both states.
            let entry = self.needs.entry(need.to_string()).or_insert_with(|| NeedState {
                need: need.to_string(),
                node: node(namespace, &need.target),
                missing: None,
                behind: BTreeSet::new(),
            });
            entry.missing = entry.missing.take().or(missing);
        }
    }
}

fn condition<'a>(pod: &'a Pod, kind: &str) -> Option<&'a PodCondition> {
    pod.status.iter().flat_map(|status| status.conditions.iter().flatten()).find(|condition| condition.type_ == kind)
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

    fn service(name: &str, app: &str) -> Service {
        serde_json::from_value(json!({
            "metadata": { "name": name, "namespace": "a" }, "spec": { "selector": { "app": app } },
        }))
        .unwrap()
    }

    #[test]
    fn the_needs_of_a_workload_are_shown_with_what_is_missing_and_who_is_behind_it() {
        let mut database = pod("db-0", "", None);
        database.metadata.annotations = None;
        let mut pods = [
            pod(
                "web",
                "api >= 2, job/migrate, pi",
                Some("api: 1 of 2 ready, job/migrate: is not complete (since 2026)"),
            ),
            pod("api", "db", None),
            database,
            Pod::default(),
        ];
        for pod in &mut pods[..3] {
            let app = pod.metadata.name.clone().unwrap_or_default();
            pod.metadata.labels = Some([("app".to_owned(), app)].into());
        }
        let services = [service("api", "api"), service("db", "db-0"), service("web", "nobody")];
        let graph = NeedsGraph::new(&pods, &services, |pod| WorkloadName::from_meta("pod", &pod.metadata));
        assert_eq!(
            graph.text(),
            "a/pod/api: 1 of 1 pods have what they need\n  db >= 1 ready   met   (of a/pod/db-0)\na/pod/db-0: 0 of 1 pods ready\n\
             a/pod/web: 1 of 1 pods wait\n  api >= 2 ready   not met: 1 of 2 ready   (of a/pod/api)\n  \
             job/migrate   not met: is not complete\n  pi >= 1 ready   met\n"
        );
        let dot = graph.dot();
        for line in [
            r#""a/pod/web" -> "a/service/api" [label="api >= 2 ready", color=red];"#,
            r#""a/service/api" -> "a/pod/api" [style=dashed];"#,
            r#""a/pod/api" -> "a/service/db" [label="db >= 1 ready", color=black];"#,
            r#""a/service/db" -> "a/pod/db-0" [style=dashed];"#,
            r#""a/pod/db-0" [label="a/pod/db-0\n0 of 1 pods ready", color=red];"#,
            r#""a/job/migrate" [shape=ellipse];"#,
        ] {
            assert!(dot.contains(line), "{line}: {dot}");
        }
        assert!(NeedsGraph::default().text().starts_with("No pod needs anything"));
    }
}
