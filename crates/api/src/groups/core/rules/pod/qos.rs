//! How a pod fares when its machine runs short.

use k8s_openapi::api::core::v1::{PodSpec, ResourceRequirements};

use crate::{
    quantity::Quantity as Amount,
    validation::{check::list, resources},
};

const COMPUTE: [&str; 2] = ["cpu", "memory"];

/// `Guaranteed`, `Burstable` or `BestEffort`.
pub fn qos_class(spec: &PodSpec) -> &'static str {
    let whole = spec.resources.as_ref().filter(|resources| {
        COMPUTE
            .iter()
            .any(|name| amount(&resources.limits, name).is_some() || amount(&resources.requests, name).is_some())
    });
    let all: Vec<Option<&ResourceRequirements>> = match whole {
        // Resources of the whole pod decide.
        Some(whole) => vec![Some(whole)],
        None => spec
            .containers
            .iter()
            .chain(list(&spec.init_containers))
            .map(|container| container.resources.as_ref())
            .collect(),
    };
    if all.iter().all(|resources| asks_nothing(*resources)) {
        "BestEffort"
    } else if all.iter().all(|resources| is_pinned(*resources)) {
        "Guaranteed"
    } else {
        "Burstable"
    }
}

/// The amount of a resource; zero is as good as not saying.
fn amount(list: &Option<resources::ResourceList>, name: &str) -> Option<Amount> {
    resources::find(list, name).filter(|amount| *amount > Amount::default())
}

fn asks_nothing(resources: Option<&ResourceRequirements>) -> bool {
    resources.is_none_or(|resources| {
        COMPUTE
            .iter()
            .all(|name| amount(&resources.limits, name).is_none() && amount(&resources.requests, name).is_none())
    })
}

/// Both resources limited, and all of the limit requested.
fn is_pinned(resources: Option<&ResourceRequirements>) -> bool {
    resources.is_some_and(|resources| {
        COMPUTE.iter().all(|name| match (amount(&resources.limits, name), amount(&resources.requests, name)) {
            (Some(limit), Some(request)) => limit == request,
            (Some(_), None) => true,
            (None, _) => false,
        })
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_class_follows_from_requests_and_limits() {
        let full = json!({"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "1000m", "memory": "1Gi"}});
        let cases = [
            (json!({"containers": [{}]}), "BestEffort"),
            (json!({"containers": [{"resources": {"requests": {"cpu": "0"}}}]}), "BestEffort"),
            (json!({"containers": [{"resources": {"requests": {"cpu": "1"}}}]}), "Burstable"),
            (json!({"containers": [{"resources": full}]}), "Guaranteed"),
            (json!({"containers": [{"resources": full}, {}]}), "Burstable"),
            (json!({"containers": [{"resources": full}], "initContainers": [{}]}), "Burstable"),
            (json!({"containers": [{}], "resources": full}), "Guaranteed"),
            (json!({"containers": [{"resources": {"limits": {"x.io/gpu": "1"}}}]}), "BestEffort"),
        ];
        for (spec, expected) in cases {
            let typed: PodSpec = serde_json::from_value(spec.clone()).expect("a pod spec");
            assert_eq!(qos_class(&typed), expected, "{spec}");
        }
    }
}
