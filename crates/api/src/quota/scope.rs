//! Scopes of a quota: which pods and claims it counts.

use serde_json::Value;

/// One scope that an object must be within.
pub struct Requirement<'a> {
    scope: &'a str,
    operator: &'a str,
    values: &'a Value,
}

/// `spec.scopes` and `spec.scopeSelector` of a quota.
pub fn requirements(quota: &Value) -> impl Iterator<Item = Requirement<'_>> {
    let spec = &quota["spec"];
    let scopes = spec["scopes"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let plain = scopes.map(|scope| Requirement { scope, operator: "Exists", values: &Value::Null });
    let selected = spec["scopeSelector"]["matchExpressions"].as_array().into_iter().flatten();
    let selected = selected.map(|expression| Requirement {
        scope: expression["scopeName"].as_str().unwrap_or_default(),
        operator: expression["operator"].as_str().unwrap_or_default(),
        values: &expression["values"],
    });
    plain.chain(selected)
}

impl Requirement<'_> {
    pub fn selects_pod(&self, pod: &Value) -> bool {
        let spec = &pod["spec"];
        let terminating = spec["activeDeadlineSeconds"].as_i64().is_some_and(|seconds| seconds >= 0);
        let best_effort = pod["status"]["qosClass"] == "BestEffort";
        match self.scope {
            "Terminating" => terminating,
            "NotTerminating" => !terminating,
            "BestEffort" => best_effort,
            "NotBestEffort" => !best_effort,
            "PriorityClass" => self.selects_value(spec["priorityClassName"].as_str().unwrap_or_default()),
            "CrossNamespacePodAffinity" => has_cross_namespace_affinity(spec),
            _ => false,
        }
    }

    pub fn selects_claim(&self, claim: &Value) -> bool {
        let class = claim["spec"]["volumeAttributesClassName"].as_str().unwrap_or_default();
        self.scope == "VolumeAttributesClass" && self.selects_value(class)
    }

    /// Empty means that the object has none.
    fn selects_value(&self, value: &str) -> bool {
        let listed = || self.values.as_array().is_some_and(|values| values.iter().any(|own| own == value));
        match self.operator {
            "Exists" => !value.is_empty(),
            "DoesNotExist" => value.is_empty(),
            "In" => !value.is_empty() && listed(),
            "NotIn" => !listed(),
            _ => false,
        }
    }
}

fn has_cross_namespace_affinity(spec: &Value) -> bool {
    let crosses = |term: &Value| {
        term["namespaces"].as_array().is_some_and(|names| !names.is_empty()) || term["namespaceSelector"].is_object()
    };
    ["podAffinity", "podAntiAffinity"].iter().any(|kind| {
        let affinity = &spec["affinity"][kind];
        let required = affinity["requiredDuringSchedulingIgnoredDuringExecution"].as_array();
        let preferred = affinity["preferredDuringSchedulingIgnoredDuringExecution"].as_array();
        required.into_iter().flatten().any(crosses)
            || preferred.into_iter().flatten().any(|weighted| crosses(&weighted["podAffinityTerm"]))
    })
}
