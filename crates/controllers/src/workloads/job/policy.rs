//! podFailurePolicy and successPolicy of a Job. Pure.

use k8s_openapi::api::{
    batch::v1::{PodFailurePolicy, PodFailurePolicyOnExitCodesRequirement, PodFailurePolicyRule, SuccessPolicy},
    core::v1::ContainerStatus,
};

use super::indexes::Indexes;
use crate::objects::pod::Pod;

/// What the failure of a pod means, should it fail.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum FailureAction {
    /// It counts towards the limits.
    #[default]
    Count,
    /// It is replaced and counts for nothing.
    Ignore,
    /// It counts, and its index is not tried again.
    FailIndex,
    /// It counts, and the whole Job fails for this reason.
    FailJob(String),
}

/// The first rule that fits decides; without one, the failure counts.
pub fn rule(policy: Option<&PodFailurePolicy>, pod: &Pod) -> FailureAction {
    let rules = policy.into_iter().flat_map(|policy| policy.rules.iter().enumerate());
    rules.into_iter().find_map(|(at, rule)| apply(at, rule, pod)).unwrap_or_default()
}

fn apply(at: usize, rule: &PodFailurePolicyRule, pod: &Pod) -> Option<FailureAction> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let (action, name) = (rule.action.as_str(), pod.name());
    let why = match &rule.on_exit_codes {
        Some(codes) => {
            let (container, code) = exited(codes, pod)?;
            format!(
                "Container {container} for pod {namespace}/{name} failed with exit code {code} matching {action} rule at index {at}"
            )
        }
        None => {
            let patterns = rule.on_pod_conditions.iter().flatten();
            let has = |type_: &str, status: &str| {
                pod.status.conditions.iter().any(|is| is.type_ == type_ && is.status == status)
            };
            let condition = patterns
                .into_iter()
                .find(|pattern| has(&pattern.type_, pattern.status.as_deref().unwrap_or("True")))?;
            format!("Pod {namespace}/{name} has condition {} matching {action} rule at index {at}", condition.type_)
        }
    };
    match action {
        "Ignore" => Some(FailureAction::Ignore),
        "Count" => Some(FailureAction::Count),
        "FailIndex" => Some(FailureAction::FailIndex),
        "FailJob" => Some(FailureAction::FailJob(why)),
        _ => None, // of a time to come: the next rule
    }
}

/// The first container whose end fits, and its exit code. An end without fault never does.
fn exited<'a>(codes: &PodFailurePolicyOnExitCodesRequirement, pod: &'a Pod) -> Option<(&'a str, i32)> {
    let code = |container: &ContainerStatus| Some(container.state.as_ref()?.terminated.as_ref()?.exit_code);
    let fits = |container: &&ContainerStatus| {
        let named = codes.container_name.as_deref().is_none_or(|name| name == container.name);
        let listed = |code: i32| codes.values.contains(&code);
        named
            && code(container).is_some_and(|code| match codes.operator.as_str() {
                "In" => code != 0 && listed(code),
                "NotIn" => code != 0 && !listed(code),
                _ => false,
            })
    };
    let containers = pod.status.container_statuses.iter().chain(&pod.status.init_container_statuses);
    containers.into_iter().find(fits).and_then(|container| Some((container.name.as_str(), code(container)?)))
}

/// Whether what succeeded so far is enough, and by which rule.
pub fn content(policy: Option<&SuccessPolicy>, completions: usize, succeeded: &Indexes) -> Option<String> {
    if succeeded.is_empty() {
        return None;
    }
    let rules = &policy?.rules;
    let at = rules.iter().position(|rule| {
        let enough = |count: usize| rule.succeeded_count.is_some_and(|wanted| i64::from(wanted) <= count as i64);
        match &rule.succeeded_indexes {
            Some(text) => {
                let wanted = Indexes::parse(text, completions);
                let have = wanted.overlap(succeeded);
                !wanted.is_empty() && (have == wanted.len() || enough(have))
            }
            None => enough(succeeded.len()),
        }
    })?;
    Some(format!("Matched rules at index {at}"))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod() -> Pod {
        let ended = |name: &str, code: i32| json!({ "name": name, "ready": false, "restartCount": 0, "image": "", "imageID": "", "state": { "terminated": { "exitCode": code } } });
        let pod = json!({
            "metadata": { "name": "p", "namespace": "ns" },
            "status": {
                "phase": "Failed",
                "conditions": [{ "type": "DisruptionTarget", "status": "True" }],
                "containerStatuses": [ended("main", 42), ended("side", 0)],
                "initContainerStatuses": [ended("init", 3)],
            },
        });
        serde_json::from_value(pod).unwrap()
    }

    fn ruled(rules: Value) -> FailureAction {
        let policy: PodFailurePolicy = serde_json::from_value(json!({ "rules": rules })).unwrap();
        rule(Some(&policy), &pod())
    }

    #[test]
    fn the_first_rule_that_fits_decides() {
        let codes = |operator: &str, values: &[i32]| json!({ "operator": operator, "values": values });
        let of =
            |container: &str, values: &[i32]| json!({ "containerName": container, "operator": "In", "values": values });
        let disrupted = json!([{ "type": "DisruptionTarget", "status": "True" }]);
        let main = "Container main for pod ns/p failed with exit code 42 matching FailJob rule at index 0";
        let disruption = "Pod ns/p has condition DisruptionTarget matching FailJob rule at index 1";
        for (rules, expected) in [
            (json!([]), FailureAction::Count),
            (
                json!([{ "action": "FailJob", "onExitCodes": codes("In", &[42]) }]),
                FailureAction::FailJob(main.to_owned()),
            ),
            (json!([{ "action": "Ignore", "onExitCodes": codes("In", &[1]) }]), FailureAction::Count),
            (json!([{ "action": "Ignore", "onExitCodes": codes("NotIn", &[1]) }]), FailureAction::Ignore),
            (json!([{ "action": "Ignore", "onExitCodes": codes("NotIn", &[42, 3]) }]), FailureAction::Count),
            (json!([{ "action": "FailIndex", "onExitCodes": of("init", &[3]) }]), FailureAction::FailIndex),
            (json!([{ "action": "Ignore", "onExitCodes": of("init", &[42]) }]), FailureAction::Count),
            (
                json!([
                    { "action": "Ignore", "onExitCodes": of("side", &[1]) },
                    { "action": "FailJob", "onPodConditions": disrupted },
                ]),
                FailureAction::FailJob(disruption.to_owned()),
            ),
            (
                json!([
                    { "action": "Count", "onPodConditions": disrupted },
                    { "action": "FailJob", "onExitCodes": codes("In", &[42]) },
                ]),
                FailureAction::Count,
            ),
            (
                json!([{ "action": "Ignore", "onPodConditions": [{ "type": "DisruptionTarget", "status": "False" }] }]),
                FailureAction::Count,
            ),
        ] {
            assert_eq!(ruled(rules.clone()), expected, "{rules}");
        }
        assert_eq!(rule(None, &pod()), FailureAction::Count);
    }

    #[test]
    fn a_job_may_be_content_early() {
        for (rules, succeeded, expected) in [
            (json!([{ "succeededCount": 2 }]), "1,3", Some(0)),
            (json!([{ "succeededCount": 3 }]), "1,3", None),
            (json!([{ "succeededIndexes": "0-2" }]), "0-2", Some(0)),
            (json!([{ "succeededIndexes": "0-2" }]), "0,1,5", None),
            (json!([{ "succeededIndexes": "0-2", "succeededCount": 1 }]), "1", Some(0)),
            (json!([{ "succeededIndexes": "0-2", "succeededCount": 1 }]), "7", None),
            (json!([{ "succeededIndexes": "5" }, { "succeededCount": 1 }]), "7", Some(1)),
            (json!([{ "succeededCount": 0 }]), "", None),
        ] {
            let policy: SuccessPolicy = serde_json::from_value(json!({ "rules": rules })).unwrap();
            let found = content(Some(&policy), 10, &Indexes::parse(succeeded, 10));
            assert_eq!(found, expected.map(|at| format!("Matched rules at index {at}")), "{rules} {succeeded}");
        }
        assert_eq!(content(None, 10, &Indexes::parse("0-9", 10)), None);
    }
}
