//! Converts a set of units, which may refer to each other, to manifests.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use mainstay_api::{
    needs,
    wellknown::{kubernetes, mainstay},
};
use serde_json::{Map, Value, json};

use crate::{
    UnitFile, UnitName,
    placement::{Placement, PlacementError},
    pod::{Lifetime, UnitPod, read_pod},
    unit_name::kubernetes_name,
    workload::{INSTANCE_LABEL, INSTANCE_VARIABLE, NAME_LABEL, Shape, Workload, instance_variable, kind},
};

/// On nodes, for units that name a machine by its id.
const MACHINE_ID_LABEL: &str = "mainstay.dev/machine-id";
const PRIORITY_CLASS: &str = "unit-replaces";
const DESCRIPTION: &str = "kubernetes.io/description";
/// What every machine of a cluster has, and no pod has to wait for.
const PLATFORM: [&str; 12] = [
    "docker.service",
    "docker.socket",
    "containerd.service",
    "etcd.service",
    "etcd2.service",
    "fleet.service",
    "flanneld.service",
    "network.target",
    "network-online.target",
    "basic.target",
    "sysinit.target",
    "local-fs.target",
];

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unit {
    pub name: UnitName,
    pub file: UnitFile,
}

/// Something of a unit that its manifest does not say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    pub unit: UnitName,
    pub line: Option<usize>,
    pub text: String,
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "{}:{line}: {}", self.unit, self.text),
            None => write!(f, "{}: {}", self.unit, self.text),
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Converted {
    pub manifests: Vec<Value>,
    pub notes: Vec<Note>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConvertError {
    #[error("{unit}: there is no ExecStart in [Service]")]
    NoStart { unit: UnitName },
    #[error("{unit}: line {line}: {name}: {why}")]
    Option { unit: UnitName, line: usize, name: String, why: String },
    #[error("{unit}")]
    Placement {
        unit: UnitName,
        #[source]
        source: PlacementError,
    },
    #[error("{unit} is a template; give instances of it, such as {prefix}@1")]
    Template { unit: UnitName, prefix: String },
    #[error("{unit} is given twice")]
    Twice { unit: UnitName },
    #[error("{first} and {second} would both be called {name:?}")]
    SameName { first: UnitName, second: UnitName, name: String },
    #[error("{unit}: nothing of its name is allowed in that of a Kubernetes object")]
    NoName { unit: UnitName },
}

/// Units that share a file: instances of one template, or one unit.
struct Group<'a> {
    units: Vec<&'a Unit>,
    placement: Placement,
    pod: UnitPod,
    shape: Shape,
    name: String,
    labels: Map<String, Value>,
}

pub fn convert(units: &[Unit]) -> Result<Converted, ConvertError> {
    let mut notes = Vec::new();
    let mut names = BTreeSet::new();
    for unit in units {
        if !names.insert(&unit.name) {
            return Err(ConvertError::Twice { unit: unit.name.clone() });
        }
        if unit.name.is_template() {
            return Err(ConvertError::Template { unit: unit.name.clone(), prefix: unit.name.prefix().to_owned() });
        }
    }
    let mut groups = Vec::new();
    for members in group(units, &mut notes) {
        groups.extend(plan_group(&members, &mut notes)?);
    }
    check_names(&groups)?;
    let mut manifests: Vec<Value> = Vec::new();
    if groups.iter().any(|group| !effective_replaces(group, &groups).is_empty()) {
        manifests.push(json!({
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": { "name": PRIORITY_CLASS },
            "value": 1000,
            "description": "Units that replace others on a machine.",
        }));
    }
    for group in &groups {
        manifests.extend(manifests_of_group(group, &groups, &mut notes));
    }
    notes.sort_by(|a, b| (&a.unit, a.line).cmp(&(&b.unit, b.line)));
    notes.dedup();
    Ok(Converted { manifests, notes })
}

/// Services by what they share: instances with the same options come together.
fn group<'a>(units: &'a [Unit], notes: &mut Vec<Note>) -> Vec<Vec<&'a Unit>> {
    let mut groups: Vec<Vec<&Unit>> = Vec::new();
    for unit in units {
        if unit.name.suffix() != "service" {
            let text = format!("a {} has no manifest; only services become pods", unit.name.suffix());
            notes.push(Note { unit: unit.name.clone(), line: None, text });
            continue;
        }
        let is_sibling = |group: &&mut Vec<&Unit>| {
            let first = group[0];
            unit.name.instance().is_some()
                && first.name.instance().is_some()
                && first.name.prefix() == unit.name.prefix()
                && first.file == unit.file
        };
        match groups.iter_mut().find(is_sibling) {
            Some(group) => group.push(unit),
            None => groups.push(vec![unit]),
        }
    }
    groups
}

/// The workloads of units that share a file: one, if their pods allow it, or one each.
fn plan_group<'a>(units: &[&'a Unit], notes: &mut Vec<Note>) -> Result<Vec<Group<'a>>, ConvertError> {
    let read = |unit: &Unit| {
        let placement = Placement::read(&unit.file, &unit.name);
        placement.map_err(|source| ConvertError::Placement { unit: unit.name.clone(), source })
    };
    let placements = units.iter().map(|unit| read(unit)).collect::<Result<Vec<_>, _>>()?;
    let pods = units.iter().map(|unit| read_pod(unit, notes)).collect::<Result<Vec<_>, _>>()?;
    let first = units[0];
    let prefix = kubernetes_name(first.name.prefix());
    let label = |text: &str| Map::from_iter([(NAME_LABEL.to_owned(), json!(text))]);
    let group = |units: Vec<&'a Unit>, placement: &Placement, pod: UnitPod, shape: Shape| Group {
        units,
        placement: placement.clone(),
        pod,
        shape,
        name: prefix.clone(),
        labels: label(&prefix),
    };
    if placements[0].global {
        if pods[0].lifetime != Lifetime::Forever {
            let text = "a unit on every machine is started again whenever it ends".to_owned();
            notes.push(Note { unit: first.name.clone(), line: None, text });
        }
        return Ok(vec![group(units.to_vec(), &placements[0], pods[0].clone(), Shape::Global)]);
    }
    let same_place = placements.iter().all(|placement| *placement == placements[0]);
    if units.len() > 1 && same_place && pods[0].lifetime == Lifetime::Forever {
        if pods.iter().all(|pod| *pod == pods[0]) {
            let shape = Shape::Replicas(units.len());
            return Ok(vec![group(units.to_vec(), &placements[0], pods[0].clone(), shape)]);
        }
        if let (Some(start), Some(pod)) = (consecutive(units), indexed_pod(first)?) {
            let shape = Shape::Indexed { start, count: units.len() };
            return Ok(vec![group(units.to_vec(), &placements[0], pod, shape)]);
        }
    }
    let single = units.iter().zip(placements).zip(pods).map(|((unit, placement), pod)| {
        let mut group = group(vec![unit], &placement, pod, Shape::Single);
        if let Some(instance) = unit.name.instance() {
            group.name = kubernetes_name(unit.name.stem());
            group.labels.insert(INSTANCE_LABEL.to_owned(), json!(kubernetes_name(instance)));
        }
        group
    });
    Ok(single.collect())
}

/// The first number, if instances have numbers without a gap.
fn consecutive(units: &[&Unit]) -> Option<u32> {
    let mut numbers = Vec::new();
    for unit in units {
        let instance = unit.name.instance()?;
        numbers.push(instance.parse::<u32>().ok().filter(|number| number.to_string() == instance)?);
    }
    numbers.sort_unstable();
    let start = *numbers.first()?;
    let gapless = (start..).zip(&numbers).all(|(expected, number)| expected == *number);
    gapless.then_some(start)
}

/// The pod with a variable in place of the instance's name; none if that name is needed where a pod takes no variable.
fn indexed_pod(unit: &Unit) -> Result<Option<UnitPod>, ConvertError> {
    let reference = format!("$({INSTANCE_VARIABLE})");
    let renamed = Unit { name: unit.name.with_instance_text(&reference), file: unit.file.clone() };
    let mut pod = read_pod(&renamed, &mut Vec::new())?;
    let (mut elsewhere, mut has_variable) = (pod.spec.clone(), false);
    for list in ["containers", "initContainers"] {
        for container in pod.spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            let text = container.to_string();
            has_variable |= text.contains(&reference);
            let env = container.as_object_mut().expect("a container").entry("env").or_insert(json!([]));
            env.as_array_mut().expect("a list").insert(0, instance_variable());
        }
        let containers = elsewhere.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten();
        for container in containers.filter_map(Value::as_object_mut) {
            for field in ["command", "args", "env"] {
                container.remove(field);
            }
        }
    }
    let is_possible = has_variable
        && !elsewhere.to_string().contains(&reference)
        && pod.services.keys().all(|name| !name.contains("unit-instance"));
    Ok(is_possible.then_some(pod))
}

fn check_names(groups: &[Group]) -> Result<(), ConvertError> {
    let mut names = BTreeMap::<&str, &UnitName>::new();
    for group in groups {
        let unit = &group.units[0].name;
        if group.name.is_empty() {
            return Err(ConvertError::NoName { unit: unit.clone() });
        }
        if let Some(first) = names.insert(&group.name, unit) {
            let (first, second) = (first.clone(), unit.clone());
            return Err(ConvertError::SameName { first, second, name: group.name.clone() });
        }
    }
    Ok(())
}

fn matching<'a>(groups: &'a [Group<'a>], globs: &[String]) -> Vec<&'a Group<'a>> {
    let matches = |group: &&Group| group.units.iter().any(|unit| globs.iter().any(|glob| unit.name.matches(glob)));
    groups.iter().filter(matches).collect()
}

/// What a group replaces, without those that replace it in turn.
fn effective_replaces<'a>(group: &Group, groups: &'a [Group<'a>]) -> Vec<&'a Group<'a>> {
    let replaces_back =
        |other: &Group| matching(groups, &other.placement.replaces).iter().any(|back| back.name == group.name);
    let others = matching(groups, &group.placement.replaces).into_iter();
    others.filter(|other| other.name != group.name && !replaces_back(other)).collect()
}

fn manifests_of_group(group: &Group, groups: &[Group], notes: &mut Vec<Note>) -> Vec<Value> {
    let unit = group.units[0];
    let mut note = |option: &str, text: &str| {
        let line = unit.file.options.iter().find(|candidate| candidate.name == option).map(|option| option.line);
        notes.push(Note { unit: unit.name.clone(), line, text: text.to_owned() });
    };
    let mut spec = group.pod.spec.clone();
    let affinity = affinity(group, groups, &mut note);
    if !affinity.is_empty() {
        spec["affinity"] = Value::Object(affinity);
    }
    if !effective_replaces(group, groups).is_empty() {
        spec["priorityClassName"] = json!(PRIORITY_CLASS);
    }
    let mut annotations = Map::new();
    if let Some(description) = unit.file.value("Unit", "Description") {
        annotations.insert(DESCRIPTION.to_owned(), json!(description.value));
    }
    let mut pod_annotations = Map::new();
    let needs = needs_of(group, groups, notes);
    if !needs.is_empty() {
        pod_annotations.insert(needs::ANNOTATION.to_owned(), json!(needs.join(", ")));
    }
    if !matching(groups, &group.placement.machine_of).is_empty() {
        pod_annotations.insert(mainstay::FOLLOW.to_owned(), json!("true"));
    }
    let mut manifests = Vec::new();
    for (name, ports) in &group.pod.services {
        let ports: Vec<_> = ports.iter().map(|port| json!({ "name": format!("port-{port}"), "port": port })).collect();
        manifests.push(json!({
            "apiVersion": "v1", "kind": "Service", "metadata": { "name": name },
            "spec": { "selector": group.labels, "ports": ports },
        }));
    }
    if matches!(group.shape, Shape::Indexed { .. }) && !group.pod.services.contains_key(&group.name) {
        manifests.push(json!({
            "apiVersion": "v1", "kind": "Service", "metadata": { "name": group.name },
            "spec": { "clusterIP": "None", "selector": group.labels },
        }));
    }
    let workload = Workload {
        name: group.name.clone(),
        labels: group.labels.clone(),
        annotations,
        pod_annotations,
        spec,
        shape: group.shape.clone(),
        lifetime: group.pod.lifetime,
    };
    manifests.push(workload.manifest());
    manifests
}

fn affinity(group: &Group, groups: &[Group], note: &mut impl FnMut(&str, &str)) -> Map<String, Value> {
    let placement = &group.placement;
    let mut affinity = Map::new();
    let mut expressions: Vec<Value> = Vec::new();
    if let Some(id) = &placement.machine_id {
        expressions.push(json!({ "key": MACHINE_ID_LABEL, "operator": "In", "values": [id] }));
        note(
            "MachineID",
            &format!("label the node with this machine id: kubectl label node NAME {MACHINE_ID_LABEL}={id}"),
        );
    }
    for (key, values) in &placement.metadata {
        expressions.push(json!({ "key": key, "operator": "In", "values": values }));
    }
    if !expressions.is_empty() {
        let terms = json!({ "nodeSelectorTerms": [{ "matchExpressions": expressions }] });
        affinity.insert("nodeAffinity".into(), json!({ "requiredDuringSchedulingIgnoredDuringExecution": terms }));
    }
    for (_, pair) in &placement.ignored {
        note("MachineMetadata", &format!("{pair:?} is no KEY=VALUE and is ignored, as fleet does"));
    }
    let beside = |groups: &[&Group]| -> Vec<Value> {
        let term = |group: &&Group| json!({ "labelSelector": { "matchLabels": group.labels }, "topologyKey": kubernetes::HOSTNAME });
        groups.iter().map(term).collect()
    };
    let targets = matching(groups, &placement.machine_of);
    if !placement.machine_of.is_empty() && targets.is_empty() {
        note("MachineOf", "names none of the units given, and is not translated");
    }
    if !targets.is_empty() {
        let terms = beside(&targets);
        affinity.insert("podAffinity".into(), json!({ "requiredDuringSchedulingIgnoredDuringExecution": terms }));
    }
    let (others, option) = if placement.replaces.is_empty() {
        // The unit itself is excepted, but not other instances of it.
        let is_other = |other: &&Group| other.name != group.name || other.units.len() > 1;
        (matching(groups, &placement.conflicts).into_iter().filter(is_other).collect(), "Conflicts")
    } else {
        (effective_replaces(group, groups), "Replaces")
    };
    if others.is_empty() && !(placement.conflicts.is_empty() && placement.replaces.is_empty()) {
        note(option, "matches no other of the units given (or both replace each other), and is not translated");
    }
    if !others.is_empty() {
        let terms = beside(&others);
        affinity.insert("podAntiAffinity".into(), json!({ "requiredDuringSchedulingIgnoredDuringExecution": terms }));
    }
    affinity
}

/// Units that this one requires and starts after, as needs; everything else that `[Unit]` says of others is noted.
fn needs_of(group: &Group, groups: &[Group], notes: &mut Vec<Note>) -> Vec<String> {
    let unit = group.units[0];
    let mut needs = BTreeSet::new();
    let words =
        |option: &crate::UnitOption| -> Vec<String> { option.value.split_whitespace().map(str::to_owned).collect() };
    let after: BTreeSet<String> = unit.file.values("Unit", "After").into_iter().flat_map(&words).collect();
    for option in unit.file.options.iter().filter(|option| option.section == "Unit") {
        let mut note = |text: String| notes.push(Note { unit: unit.name.clone(), line: Some(option.line), text });
        match option.name.as_str() {
            "Description" | "Documentation" | "DefaultDependencies" => {}
            "Requires" | "BindsTo" | "Requisite" => {
                for name in words(option).iter().filter(|name| !PLATFORM.contains(&name.as_str())) {
                    let target = groups.iter().find(|group| group.units.iter().any(|unit| unit.name.as_str() == name));
                    match target {
                        Some(target) if after.contains(name) && target.name != group.name => {
                            let kind = kind(&target.shape, target.pod.lifetime).to_lowercase();
                            needs.insert(format!("{kind}/{}", target.name));
                        }
                        Some(_) => note(format!("{}={name}: is not translated without After={name}", option.name)),
                        None => {
                            note(format!("{}={name}: is none of the units given, and is not translated", option.name))
                        }
                    }
                }
            }
            "After" | "Wants" => {
                for name in words(option).iter().filter(|name| !PLATFORM.contains(&name.as_str())) {
                    let required = ["Requires", "BindsTo", "Requisite"].iter().any(|option| {
                        unit.file.values("Unit", option).into_iter().any(|option| words(option).contains(name))
                    });
                    if !required {
                        note(format!("{}={name}: pods start in no order; use Requires if it is needed", option.name));
                    }
                }
            }
            _ => note(format!("{}={}: is not translated", option.name, option.value)),
        }
    }
    needs.into_iter().collect()
}

#[cfg(test)]
mod tests;
