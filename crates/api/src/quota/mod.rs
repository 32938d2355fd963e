//! What a ResourceQuota counts: how much of each limited resource an object uses, and which quotas an object falls under.
//!
//! Admission charges a new object by these functions and the quota controller counts the existing ones by the same,
//! so that the two agree. Names, scopes and messages are upstream's.

mod pod;
mod scope;

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::Value;

pub use pod::missing_requirements;

use crate::{quantity::Quantity, wellknown::kubernetes::BETA_STORAGE_CLASS};

/// Amounts by the name that a quota limits them under: `pods`, `requests.cpu`, `count/deployments.apps`.
pub type Amounts = BTreeMap<String, Quantity>;

const STORAGE_CLASS: &str = ".storageclass.storage.k8s.io/";
const CLAIMS: &str = "persistentvolumeclaims";
const STORAGE: &str = "requests.storage";

/// A resource as quotas see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotaResource<'a> {
    pub group: &'a str,
    pub plural: &'a str,
}

/// Kinds that use more than one of themselves.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Evaluator {
    Pod,
    Service,
    Claim,
    Count,
}

impl QuotaResource<'_> {
    fn evaluator(&self) -> Evaluator {
        match (self.group, self.plural) {
            ("", "pods") => Evaluator::Pod,
            ("", "services") => Evaluator::Service,
            ("", CLAIMS) => Evaluator::Claim,
            _ => Evaluator::Count,
        }
    }

    /// `count/pods`, `count/deployments.apps`.
    pub fn count_name(&self) -> String {
        if self.group.is_empty() {
            format!("count/{}", self.plural)
        } else {
            format!("count/{}.{}", self.plural, self.group)
        }
    }

    /// Whether objects of this resource can use what is limited under that name.
    pub fn uses(&self, name: &str) -> bool {
        if name == self.count_name() {
            return true;
        }
        match self.evaluator() {
            Evaluator::Pod => pod::uses(name),
            Evaluator::Service => matches!(name, "services" | "services.nodeports" | "services.loadbalancers"),
            Evaluator::Claim => {
                matches!(name, CLAIMS | STORAGE)
                    || name.split_once(STORAGE_CLASS).is_some_and(|(_, what)| matches!(what, CLAIMS | STORAGE))
            }
            Evaluator::Count => self.has_old_name() && name == self.plural,
        }
    }

    /// Kinds that are also counted under their bare name.
    fn has_old_name(&self) -> bool {
        let kinds = ["configmaps", "replicationcontrollers", "resourcequotas", "secrets"];
        self.group.is_empty() && kinds.contains(&self.plural)
    }

    /// Whether an update of such an object can change what it uses.
    pub fn is_charged_on_update(&self) -> bool {
        self.evaluator() != Evaluator::Count
    }

    /// Whether only the number of objects matters, so that their metadata is enough to count them.
    pub fn is_counted_only(&self, names: &[String]) -> bool {
        let count = self.count_name();
        self.evaluator() == Evaluator::Count || !names.iter().any(|name| *name != count && self.uses(name))
    }

    /// How much of everything an object uses.
    pub fn usage(&self, object: &Value, now: Timestamp) -> Amounts {
        let one = Quantity::from_units(1);
        let mut usage = Amounts::from([(self.count_name(), one)]);
        match self.evaluator() {
            Evaluator::Pod => usage.extend(pod::usage(object, now)),
            Evaluator::Service => usage.extend(service_usage(object)),
            Evaluator::Claim => usage.extend(claim_usage(object)),
            Evaluator::Count if self.has_old_name() => drop(usage.insert(self.plural.to_owned(), one)),
            Evaluator::Count => {}
        }
        usage
    }

    /// Whether an object is within all scopes of a quota.
    pub fn in_scopes(&self, quota: &Value, object: &Value) -> bool {
        scope::requirements(quota).all(|requirement| match self.evaluator() {
            Evaluator::Pod => requirement.selects_pod(object),
            Evaluator::Claim => requirement.selects_claim(object),
            Evaluator::Service | Evaluator::Count => false,
        })
    }
}

fn service_usage(service: &Value) -> Amounts {
    let spec = &service["spec"];
    let ports = spec["ports"].as_array().map_or(&[][..], Vec::as_slice);
    let allocates = spec["allocateLoadBalancerNodePorts"].as_bool().unwrap_or(true);
    let with_port = ports.iter().filter(|port| port["nodePort"].as_i64().is_some_and(|number| number != 0)).count();
    let (node_ports, load_balancers) = match spec["type"].as_str() {
        Some("NodePort") => (ports.len(), 0),
        Some("LoadBalancer") if allocates => (ports.len(), 1),
        Some("LoadBalancer") => (with_port, 1),
        _ => (0, 0),
    };
    let amounts = [("services", 1), ("services.nodeports", node_ports), ("services.loadbalancers", load_balancers)];
    amounts.into_iter().map(|(name, count)| (name.to_owned(), Quantity::from_units(count as i64))).collect()
}

fn claim_usage(claim: &Value) -> Amounts {
    let amount = |list: &Value| list["storage"].as_str().and_then(|text| Quantity::parse(text).ok());
    let requested = amount(&claim["spec"]["resources"]["requests"]);
    let allocated = amount(&claim["status"]["allocatedResources"]);
    let storage = requested.max(allocated).unwrap_or_default();
    let one = Quantity::from_units(1);
    let mut usage = Amounts::from([(CLAIMS.to_owned(), one), (STORAGE.to_owned(), storage)]);
    let annotated = claim["metadata"]["annotations"][BETA_STORAGE_CLASS].as_str();
    let class = annotated.or_else(|| claim["spec"]["storageClassName"].as_str()).unwrap_or_default();
    if !class.is_empty() {
        usage.insert(format!("{class}{STORAGE_CLASS}{CLAIMS}"), one);
        usage.insert(format!("{class}{STORAGE_CLASS}{STORAGE}"), storage);
    }
    usage
}

/// Reads a resource list of an object.
pub fn parse_amounts(list: &Value) -> Amounts {
    let pairs = list.as_object().into_iter().flatten();
    pairs.filter_map(|(name, text)| Some((name.clone(), Quantity::parse(text.as_str()?).ok()?))).collect()
}

/// As messages list them: `cpu=1,pods=2`.
pub fn format_amounts(amounts: &Amounts) -> String {
    let pairs: Vec<String> = amounts.iter().map(|(name, amount)| format!("{name}={amount}")).collect();
    pairs.join(",")
}

#[cfg(test)]
mod tests;
