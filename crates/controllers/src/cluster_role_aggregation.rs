//! ClusterRole aggregation: a ClusterRole with an `aggregationRule` has the rules of all ClusterRoles that it selects.
//!
//! Rules that people write into such a role themselves are replaced, as upstream does. Roles are taken in the order of
//! their names, so that every reconcile comes to the same result.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule};
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams},
};
use mainstay_api::selector::Labels;
use serde_json::json;

use crate::{
    runtime::{ApiError, Context, Controller, Limits, ObjectKey, Plan, Runnable, error},
    workloads::controller_ref::{selector, selects},
};

pub struct ClusterRoleAggregation {
    context: Arc<Context>,
}

pub fn controller(context: &Arc<Context>) -> Runnable {
    let queue = context.queue::<ClusterRoleAggregation>();
    context.caches.cluster_roles.on_change({
        let (queue, context) = (queue.clone(), context.clone());
        move |change| {
            queue.add(change.key.clone());
            for role in context.caches.cluster_roles.all() {
                if role.aggregation_rule.is_some() {
                    queue.add(ObjectKey::from_meta(&role.metadata));
                }
            }
        }
    });
    context.runnable(Arc::new(ClusterRoleAggregation { context: context.clone() }), queue, Limits::default())
}

pub struct World {
    aggregated: Arc<ClusterRole>,
    all: Vec<Arc<ClusterRole>>,
}

#[derive(Debug, PartialEq)]
pub struct SetRules {
    rules: Vec<PolicyRule>,
    version: String,
}

fn plan(world: &World) -> Plan<SetRules, ()> {
    let World { aggregated, all } = world;
    let Some(aggregation) = &aggregated.aggregation_rule else { return Plan::default() };
    let selectors: Vec<Labels> = aggregation.cluster_role_selectors.iter().flatten().map(selector).collect();
    let mut selected: Vec<&Arc<ClusterRole>> = all.iter().filter(|role| is_selected(role, &selectors)).collect();
    selected.retain(|role| role.metadata.name != aggregated.metadata.name);
    selected.sort_by_key(|role| role.name_any());
    let mut rules: Vec<PolicyRule> = Vec::new();
    for rule in selected.iter().flat_map(|role| role.rules.iter().flatten()) {
        if !rules.contains(rule) {
            rules.push(rule.clone());
        }
    }
    if aggregated.rules.as_deref().unwrap_or_default() == rules {
        return Plan::default();
    }
    Plan::act([SetRules { rules, version: aggregated.resource_version().unwrap_or_default() }])
}

fn is_selected(role: &ClusterRole, selectors: &[Labels]) -> bool {
    selectors.iter().any(|selector| selects(selector, &role.metadata))
}

impl Controller for ClusterRoleAggregation {
    const NAME: &'static str = "cluster_role_aggregation";
    type Key = ObjectKey;
    type World = World;
    type Action = SetRules;
    type Outcome = ();
    type Status = ();

    async fn observe(&self, key: &ObjectKey) -> Result<Option<World>, ApiError> {
        let roles = &self.context.caches.cluster_roles;
        Ok(roles.get(key).map(|aggregated| World { aggregated, all: roles.all() }))
    }

    fn plan(world: &World, _now: Timestamp) -> Plan<SetRules, ()> {
        plan(world)
    }

    async fn apply(&self, key: &ObjectKey, SetRules { rules, version }: SetRules) -> Result<(), ApiError> {
        let roles: Api<ClusterRole> = Api::all(self.context.client.clone());
        let change = json!({ "metadata": { "resourceVersion": version }, "rules": rules });
        match roles.patch(&key.name, &PatchParams::default(), &Patch::Merge(change)).await {
            Ok(role) => self.context.caches.cluster_roles.wrote(role),
            Err(error) if error::is_not_found(&error, &key.name) => {}
            Err(error) => return Err(ApiError::new(format!("set the rules of cluster role {}", key.name), error)),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn role(name: &str, labels: Value, verbs: &[&str]) -> Arc<ClusterRole> {
        let rules: Vec<Value> =
            verbs.iter().map(|verb| json!({ "apiGroups": [""], "resources": ["pods"], "verbs": [verb] })).collect();
        Arc::new(
            serde_json::from_value(json!({ "metadata": { "name": name, "labels": labels }, "rules": rules })).unwrap(),
        )
    }

    fn sum(rules: &[&str]) -> Arc<ClusterRole> {
        let mut sum = ClusterRole::clone(&role("sum", json!({ "to-sum": "true" }), rules));
        let selectors = json!({ "clusterRoleSelectors": [
            { "matchLabels": { "to-sum": "true" } }, { "matchExpressions": [{ "key": "extra", "operator": "Exists" }] },
        ] });
        sum.aggregation_rule = Some(serde_json::from_value(selectors).unwrap());
        sum.metadata.resource_version = Some("7".to_owned());
        Arc::new(sum)
    }

    fn verbs(plan: &Plan<SetRules, ()>) -> Vec<&str> {
        plan.actions.iter().flat_map(|set| &set.rules).flat_map(|rule| &rule.verbs).map(String::as_str).collect()
    }

    #[test]
    fn a_role_is_the_sum_of_those_it_selects_without_itself() {
        let parts = [
            role("b", json!({ "to-sum": "true" }), &["list", "get"]),
            role("a", json!({ "extra": "" }), &["get"]),
            role("other", json!({}), &["delete"]),
        ];
        let with = |own: &[&str]| {
            let aggregated = sum(own);
            let all = parts.iter().cloned().chain([aggregated.clone()]).collect();
            plan(&World { aggregated, all })
        };
        let planned = with(&["delete"]);
        assert_eq!(verbs(&planned), ["get", "list"], "in the order of names, each once, what people wrote replaced");
        assert_eq!(planned.actions[0].version, "7");
        assert!(with(&["get", "list"]).actions.is_empty(), "nothing is written twice");
    }

    #[test]
    fn ordinary_roles_are_left_alone() {
        let plain = role("a", json!({}), &["get"]);
        assert!(plan(&World { aggregated: plain.clone(), all: vec![plain] }).actions.is_empty());
    }
}
