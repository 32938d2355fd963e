//! LimitRanger: new pods get the default requests and limits of their namespace's LimitRanges, and pods and
//! PersistentVolumeClaims outside of their bounds are refused.
//!
//! Upstream's plugin, with its messages and its annotation that says what was set. Bounds are compared in thousandths,
//! the finest that resource lists store.

use std::collections::BTreeMap;

use async_trait::async_trait;
use mainstay_api::{
    descriptor::Descriptor,
    quantity::Quantity,
    quota::{Amounts, parse_amounts},
};
use serde_json::{Value, json};

use super::{Plugin, Request, TxnAdditions};
use crate::{
    http::status::{ApiError, ApiResult},
    objects::{guaranteed_update::Part, metadata, store_cache::CachedObject},
};

const ANNOTATION: &str = "kubernetes.io/limit-ranger";
/// The lists of containers that defaults and bounds apply to, as messages name them.
const CONTAINERS: [(&str, &str); 2] = [("containers", "container"), ("initContainers", "init container")];

pub struct LimitRanger;

#[async_trait]
impl Plugin for LimitRanger {
    fn name(&self) -> &'static str {
        "LimitRanger"
    }

    fn handles(&self, d: &Descriptor) -> bool {
        d.is_core("Pod") || d.is_core("PersistentVolumeClaim")
    }

    async fn admit_create(&self, request: &Request<'_>, object: &mut Value, txn: &mut TxnAdditions) -> ApiResult<()> {
        if request.target.d.is_core("Pod") {
            for range in limit_ranges(request) {
                txn.revalidate |= set_defaults(object, &range.value);
            }
        }
        Ok(())
    }

    async fn create(&self, request: &Request<'_>, object: &mut Value, _txn: &mut TxnAdditions) -> ApiResult<()> {
        check(request, object)
    }

    /// Of a pod, only a resize changes what it asks for.
    async fn update(
        &self,
        request: &Request<'_>,
        object: &mut Value,
        old: &Value,
        _txn: &mut TxnAdditions,
    ) -> ApiResult<()> {
        let is_pod = request.target.d.is_core("Pod");
        let changes_resources = if is_pod { matches!(request.part, Part::Spec(_)) } else { request.part == Part::Main };
        let is_deleted = old["metadata"]["deletionTimestamp"].is_string();
        if changes_resources && !is_deleted { check(request, object) } else { Ok(()) }
    }
}

fn limit_ranges(request: &Request<'_>) -> Vec<CachedObject> {
    let namespace = request.target.namespace.as_deref();
    namespace.map(|namespace| request.api.admission_cache.list("limitranges", Some(namespace))).unwrap_or_default()
}

fn check(request: &Request<'_>, object: &Value) -> ApiResult<()> {
    let d = &request.target.d;
    for range in limit_ranges(request) {
        let violations =
            if d.is_core("Pod") { check_pod(object, &range.value) } else { check_claim(object, &range.value) };
        if let Some(why) = aggregate(violations) {
            let name = metadata::string_field(object, "name").unwrap_or_default();
            return Err(ApiError::forbidden(d, name, &why));
        }
    }
    Ok(())
}

/// Several messages as upstream joins them.
fn aggregate(mut messages: Vec<String>) -> Option<String> {
    let mut unique = std::collections::BTreeSet::new();
    messages.retain(|message| unique.insert(message.clone()));
    match messages.as_slice() {
        [] => None,
        [one] => Some(one.clone()),
        many => Some(format!("[{}]", many.join(", "))),
    }
}

fn items<'a>(range: &'a Value, kind: &'a str) -> impl Iterator<Item = &'a Value> {
    range["spec"]["limits"].as_array().into_iter().flatten().filter(move |item| item["type"] == kind)
}

/// Sets what containers leave out; says whether anything was set.
fn set_defaults(pod: &mut Value, range: &Value) -> bool {
    let mut set = Vec::new();
    for (list, what) in CONTAINERS {
        let containers = pod["spec"].get_mut(list).and_then(Value::as_array_mut);
        for container in containers.into_iter().flatten() {
            let name = container["name"].as_str().unwrap_or_default().to_owned();
            for (field, from, word) in [("requests", "defaultRequest", "request"), ("limits", "default", "limit")] {
                let missing = set_missing(container, field, range, from);
                if !missing.is_empty() {
                    set.push(format!("{} {word} for {what} {name}", missing.join(", ")));
                }
            }
        }
    }
    if !set.is_empty() {
        pod["metadata"]["annotations"][ANNOTATION] = json!(format!("LimitRanger plugin set: {}", set.join("; ")));
    }
    !set.is_empty()
}

/// Names of the resources that were set, in order.
fn set_missing(container: &mut Value, field: &str, range: &Value, from: &str) -> Vec<String> {
    let mut defaults: BTreeMap<&String, &Value> = BTreeMap::new();
    for item in items(range, "Container") {
        defaults.extend(item[from].as_object().into_iter().flatten());
    }
    let mut names = Vec::new();
    for (name, quantity) in defaults {
        if container["resources"][field].get(name).is_none() {
            container["resources"][field][name] = quantity.clone();
            names.push(name.clone());
        }
    }
    names
}

/// What somebody asks for: requests and limits by resource.
#[derive(Default)]
struct Demand {
    requests: Amounts,
    limits: Amounts,
}

impl Demand {
    fn from_resources(resources: &Value) -> Self {
        Self { requests: parse_amounts(&resources["requests"]), limits: parse_amounts(&resources["limits"]) }
    }
}

fn containers<'a>(pod: &'a Value, list: &str) -> impl Iterator<Item = &'a Value> {
    pod["spec"][list].as_array().into_iter().flatten()
}

fn check_pod(pod: &Value, range: &Value) -> Vec<String> {
    let mut violations = Vec::new();
    for item in items(range, "Container") {
        for container in CONTAINERS.iter().flat_map(|(list, _)| containers(pod, list)) {
            violations.extend(check_bounds("Container", item, &Demand::from_resources(&container["resources"])));
        }
    }
    for item in items(range, "Pod") {
        violations.extend(check_bounds("Pod", item, &pod_demand(pod)));
    }
    violations
}

fn check_claim(claim: &Value, range: &Value) -> Vec<String> {
    const KIND: &str = "PersistentVolumeClaim";
    let demand = Demand { requests: parse_amounts(&claim["spec"]["resources"]["requests"]), limits: Amounts::new() };
    let mut violations = Vec::new();
    for item in items(range, KIND) {
        violations
            .extend(parse_amounts(&item["min"]).iter().filter_map(|(name, min)| below_min(KIND, name, min, &demand)));
        violations.extend(parse_amounts(&item["max"]).iter().filter_map(|(name, max)| {
            let bound = format!("maximum {name} usage per {KIND} is {max}");
            match demand.requests.get(name) {
                None => Some(format!("{bound}.  No request is specified")),
                Some(request) if request > max => Some(format!("{bound}, but request is {request}")),
                Some(_) => None,
            }
        }));
    }
    violations
}

/// What a pod asks for as a whole. A resource counts only if every container names it: otherwise nobody knows how much
/// the pod uses. An init container counts where it asks for more than all containers together.
fn pod_demand(pod: &Value) -> Demand {
    let all: Vec<Demand> = containers(pod, "containers").map(|c| Demand::from_resources(&c["resources"])).collect();
    let mut demand =
        Demand { requests: sum(all.iter().map(|d| &d.requests)), limits: sum(all.iter().map(|d| &d.limits)) };
    for container in containers(pod, "initContainers") {
        let own = Demand::from_resources(&container["resources"]);
        for (total, own) in [(&mut demand.requests, own.requests), (&mut demand.limits, own.limits)] {
            for (name, amount) in own {
                let total = total.entry(name).or_insert(amount);
                *total = amount.max(*total);
            }
        }
    }
    demand
}

fn sum<'a>(lists: impl Iterator<Item = &'a Amounts> + Clone) -> Amounts {
    let names = lists.clone().flat_map(|list| list.keys());
    let total = |name: &String| {
        lists.clone().map(|list| list.get(name).copied()).try_fold(Quantity::default(), |sum, own| Some(sum + own?))
    };
    names.filter_map(|name| Some((name.clone(), total(name)?))).collect()
}

fn check_bounds(kind: &str, item: &Value, demand: &Demand) -> Vec<String> {
    let (min, max, ratio) =
        (parse_amounts(&item["min"]), parse_amounts(&item["max"]), parse_amounts(&item["maxLimitRequestRatio"]));
    let min = min.iter().filter_map(|(name, min)| below_min(kind, name, min, demand));
    let max = max.iter().filter_map(|(name, max)| above_max(kind, name, max, demand));
    let ratio = ratio.iter().filter_map(|(name, ratio)| above_ratio(kind, name, ratio, demand));
    min.chain(max).chain(ratio).collect()
}

fn below_min(kind: &str, name: &str, min: &Quantity, demand: &Demand) -> Option<String> {
    let bound = format!("minimum {name} usage per {kind} is {min}");
    match (demand.requests.get(name), demand.limits.get(name)) {
        (None, _) => Some(format!("{bound}.  No request is specified")),
        (Some(request), _) if request < min => Some(format!("{bound}, but request is {request}")),
        (_, Some(limit)) if limit < min => Some(format!("{bound}, but limit is {limit}")),
        _ => None,
    }
}

fn above_max(kind: &str, name: &str, max: &Quantity, demand: &Demand) -> Option<String> {
    let bound = format!("maximum {name} usage per {kind} is {max}");
    match (demand.limits.get(name), demand.requests.get(name)) {
        (None, _) => Some(format!("{bound}.  No limit is specified")),
        (Some(limit), _) if limit > max => Some(format!("{bound}, but limit is {limit}")),
        (_, Some(request)) if request > max => Some(format!("{bound}, but request is {request}")),
        _ => None,
    }
}

fn above_ratio(kind: &str, name: &str, most: &Quantity, demand: &Demand) -> Option<String> {
    let bound = format!("{name} max limit to request ratio per {kind} is {most}");
    let given = |amounts: &Amounts| amounts.get(name).map(|amount| amount.as_milli()).filter(|milli| *milli != 0);
    let Some(request) = given(&demand.requests) else {
        return Some(format!("{bound}, but no request is specified or request is 0"));
    };
    let Some(limit) = given(&demand.limits) else {
        return Some(format!("{bound}, but no limit is specified or limit is 0"));
    };
    let ratio = limit as f64 / request as f64;
    (ratio * 1000.0 > most.as_milli() as f64).then(|| format!("{bound}, but provided ratio is {ratio:.6}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(item: Value) -> Value {
        json!({ "spec": { "limits": [item] } })
    }

    fn pod(containers: Value, init: Value) -> Value {
        json!({ "metadata": { "name": "p" }, "spec": { "containers": containers, "initContainers": init } })
    }

    fn cpu(request: &str, limit: &str) -> Value {
        json!({ "name": "c", "resources": { "requests": { "cpu": request }, "limits": { "cpu": limit } } })
    }

    #[test]
    fn containers_get_the_defaults_they_lack_and_the_annotation_names_them() {
        let range = range(json!({
            "type": "Container", "default": { "cpu": "500m", "memory": "512Mi" }, "defaultRequest": { "cpu": "100m" },
        }));
        let own = json!({ "name": "own", "resources": { "limits": { "cpu": "2", "memory": "1Gi" }, "requests": { "cpu": "1" } } });
        let mut pod =
            pod(json!([{ "name": "a" }, own]), json!([{ "name": "i", "resources": { "requests": { "cpu": "1" } } }]));
        assert!(set_defaults(&mut pod, &range));
        let limits = json!({ "cpu": "500m", "memory": "512Mi" });
        let expected = json!({ "requests": { "cpu": "100m" }, "limits": limits });
        assert_eq!(pod["spec"]["containers"][0]["resources"], expected);
        assert_eq!(pod["spec"]["containers"][1], own);
        assert_eq!(
            pod["spec"]["initContainers"][0]["resources"],
            json!({ "requests": { "cpu": "1" }, "limits": limits })
        );
        let says = "LimitRanger plugin set: cpu request for container a; cpu, memory limit for container a; \
                    cpu, memory limit for init container i";
        assert_eq!(pod["metadata"]["annotations"][ANNOTATION], says);
        assert!(!set_defaults(&mut pod, &range), "nothing is left to set");
    }

    #[test]
    fn a_pod_and_its_containers_stay_within_bounds() {
        let container = |item: Value| {
            let mut item = item;
            item["type"] = json!("Container");
            range(item)
        };
        let whole = |item: Value| {
            let mut item = item;
            item["type"] = json!("Pod");
            range(item)
        };
        let min = || json!({ "min": { "cpu": "100m" } });
        let max = || json!({ "max": { "cpu": "1" } });
        let ratio = || json!({ "maxLimitRequestRatio": { "cpu": "2" } });
        for (range, containers, expected) in [
            (container(min()), json!([cpu("100m", "1")]), None),
            (
                container(min()),
                json!([cpu("50m", "1")]),
                Some("minimum cpu usage per Container is 100m, but request is 50m"),
            ),
            (container(min()), json!([{}]), Some("minimum cpu usage per Container is 100m.  No request is specified")),
            (container(max()), json!([cpu("1", "1")]), None),
            (
                container(max()),
                json!([cpu("1", "1001m")]),
                Some("maximum cpu usage per Container is 1, but limit is 1001m"),
            ),
            (container(max()), json!([{}]), Some("maximum cpu usage per Container is 1.  No limit is specified")),
            (container(ratio()), json!([cpu("500m", "1")]), None),
            (
                container(ratio()),
                json!([cpu("400m", "1")]),
                Some("cpu max limit to request ratio per Container is 2, but provided ratio is 2.500000"),
            ),
            (
                container(ratio()),
                json!([{}]),
                Some("cpu max limit to request ratio per Container is 2, but no request is specified or request is 0"),
            ),
            (whole(max()), json!([cpu("500m", "500m"), cpu("500m", "500m")]), None),
            (
                whole(max()),
                json!([cpu("500m", "500m"), cpu("500m", "600m")]),
                Some("maximum cpu usage per Pod is 1, but limit is 1100m"),
            ),
            (whole(max()), json!([cpu("1", "1"), {}]), Some("maximum cpu usage per Pod is 1.  No limit is specified")),
        ] {
            let found = aggregate(check_pod(&pod(containers.clone(), json!([])), &range));
            assert_eq!(found.as_deref(), expected, "{range} {containers}");
        }
        let init = pod(json!([cpu("1", "1")]), json!([cpu("2", "2")]));
        let found = aggregate(check_pod(&init, &whole(max()))).unwrap();
        assert_eq!(found, "maximum cpu usage per Pod is 1, but limit is 2", "one init container can be too much");
        let both = aggregate(check_pod(
            &pod(json!([{}, {}]), json!([])),
            &container(json!({
                "min": { "cpu": "1" }, "max": { "cpu": "1" },
            })),
        ));
        let each = "minimum cpu usage per Container is 1.  No request is specified, maximum cpu usage per Container is 1.  \
                    No limit is specified";
        assert_eq!(both.unwrap(), format!("[{each}]"), "each message once");
    }

    #[test]
    fn claims_are_bounded_by_what_they_request() {
        let range =
            range(json!({ "type": "PersistentVolumeClaim", "min": { "storage": "1Gi" }, "max": { "storage": "5Gi" } }));
        let claim = |size: &str| json!({ "spec": { "resources": { "requests": { "storage": size } } } });
        assert!(check_claim(&claim("2Gi"), &range).is_empty());
        assert_eq!(
            check_claim(&claim("10Gi"), &range),
            ["maximum storage usage per PersistentVolumeClaim is 5Gi, but request is 10Gi"]
        );
        assert_eq!(
            check_claim(&claim("512Mi"), &range),
            ["minimum storage usage per PersistentVolumeClaim is 1Gi, but request is 512Mi"]
        );
    }
}
