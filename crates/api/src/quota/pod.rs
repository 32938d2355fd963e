//! What a pod uses of a quota.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::{Amounts, parse_amounts};
use crate::{
    pod::is_terminal_phase,
    quantity::Quantity,
    validation::resources::{is_extended, is_huge_pages},
};

const NAMES: [&str; 10] = [
    "pods",
    "cpu",
    "memory",
    "ephemeral-storage",
    "requests.cpu",
    "requests.memory",
    "requests.ephemeral-storage",
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
];
/// If one of these is limited, every container must say how much it needs.
const REQUIRED: [&str; 6] = ["cpu", "memory", "requests.cpu", "requests.memory", "limits.cpu", "limits.memory"];

pub fn uses(name: &str) -> bool {
    let requested = name.strip_prefix("requests.");
    NAMES.contains(&name)
        || is_huge_pages(name)
        || requested.is_some_and(|name| is_huge_pages(name) || is_extended(name))
}

/// A pod that ended, or should have by now, uses nothing but its place in the store.
pub fn usage(pod: &Value, now: Timestamp) -> Amounts {
    if !is_charged(pod, now) {
        return Amounts::new();
    }
    let mut usage = named(&total(pod, "requests"), &total(pod, "limits"));
    usage.insert("pods".to_owned(), Quantity::from_units(1));
    usage
}

fn is_charged(pod: &Value, now: Timestamp) -> bool {
    let ended = pod["status"]["phase"].as_str().is_some_and(is_terminal_phase);
    let metadata = &pod["metadata"];
    let due = metadata["deletionTimestamp"].as_str().and_then(|text| text.parse::<Timestamp>().ok());
    let grace = metadata["deletionGracePeriodSeconds"].as_i64().map(SignedDuration::from_secs);
    let overdue = due.zip(grace).and_then(|(due, grace)| due.checked_add(grace).ok()).is_some_and(|end| now > end);
    !ended && !overdue
}

/// Requests and limits under the names that quotas limit them by.
fn named(requests: &Amounts, limits: &Amounts) -> Amounts {
    let mut usage = Amounts::new();
    for (name, amount) in requests {
        match name.as_str() {
            "cpu" | "memory" | "ephemeral-storage" => {
                usage.insert(name.clone(), *amount);
                usage.insert(format!("requests.{name}"), *amount);
            }
            _ if is_huge_pages(name) => {
                usage.insert(name.clone(), *amount);
                usage.insert(format!("requests.{name}"), *amount);
            }
            _ if is_extended(name) => drop(usage.insert(format!("requests.{name}"), *amount)),
            _ => {}
        }
    }
    for (name, amount) in limits {
        if matches!(name.as_str(), "cpu" | "memory" | "ephemeral-storage") {
            usage.insert(format!("limits.{name}"), *amount);
        }
    }
    usage
}

fn containers<'a>(pod: &'a Value, list: &str) -> impl Iterator<Item = &'a Value> {
    pod["spec"][list].as_array().into_iter().flatten()
}

fn add(to: &mut Amounts, more: &Amounts) {
    for (name, amount) in more {
        let sum = to.entry(name.clone()).or_default();
        *sum = *sum + *amount;
    }
}

fn raise(to: &mut Amounts, floor: &Amounts) {
    for (name, amount) in floor {
        let most = to.entry(name.clone()).or_insert(*amount);
        *most = amount.max(most).to_owned();
    }
}

/// Requests or limits of a pod as a whole: its containers beside its sidecars, or one init container beside the sidecars
/// before it, whichever is more; then what is set for the pod itself, and its overhead.
fn total(pod: &Value, field: &str) -> Amounts {
    let own = |container: &Value| parse_amounts(&container["resources"][field]);
    let (mut sidecars, mut peak) = (Amounts::new(), Amounts::new());
    for container in containers(pod, "initContainers") {
        let mut needed = own(container);
        if container["restartPolicy"] == "Always" {
            add(&mut sidecars, &needed);
            needed = sidecars.clone();
        } else {
            add(&mut needed, &sidecars);
        }
        raise(&mut peak, &needed);
    }
    let mut total = sidecars;
    containers(pod, "containers").for_each(|container| add(&mut total, &own(container)));
    raise(&mut total, &peak);
    total.extend(parse_amounts(&pod["spec"]["resources"][field]));
    let mut overhead = parse_amounts(&pod["spec"]["overhead"]);
    if field == "limits" {
        overhead.retain(|name, _| total.contains_key(name)); // what is not limited stays so
    }
    add(&mut total, &overhead);
    total
}

/// Why a pod cannot be counted against these names: containers that do not say how much they need.
pub fn missing_requirements(pod: &Value, names: &[String]) -> Option<String> {
    let required: Vec<&String> = names.iter().filter(|name| REQUIRED.contains(&name.as_str())).collect();
    let whole = &pod["spec"]["resources"];
    let of_pod = named(&parse_amounts(&whole["requests"]), &parse_amounts(&whole["limits"]));
    let mut missing: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for container in ["containers", "initContainers"].iter().flat_map(|list| containers(pod, list)) {
        let resources = &container["resources"];
        let given = named(&parse_amounts(&resources["requests"]), &parse_amounts(&resources["limits"]));
        for name in required.iter().filter(|name| !given.contains_key(**name) && !of_pod.contains_key(**name)) {
            missing.entry(name).or_default().insert(container["name"].as_str().unwrap_or_default());
        }
    }
    let texts: Vec<String> = missing
        .into_iter()
        .map(|(name, containers)| format!("{name} for: {}", containers.into_iter().collect::<Vec<_>>().join(",")))
        .collect();
    (!texts.is_empty()).then(|| format!("must specify {}", texts.join("; ")))
}
