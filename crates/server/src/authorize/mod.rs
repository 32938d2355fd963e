//! Authorization: which user may do what.
//!
//! Upstream's chain: members of `system:masters` may do everything; then the [`node`] authorizer is asked, then
//! [`rbac`], and before it, for the controllers of the cloud, [`kluster_secrets`]. The first that allows decides. What a node may read depends on the pods that were placed on it; for that the
//! node authorizer answers with a [`Relation`] to be looked up ([`relation`]).

mod attributes;
mod kluster_secrets;
mod node;
pub mod rbac;
mod relation;

use mainstay_api::registry::Registry;

use self::rbac::{Grant, PolicyRule, RoleKey, RoleNotFound};
pub use self::{
    attributes::{Attributes, RequestTarget, ResourceAttributes},
    relation::{Relation, RelationKind},
};
use crate::{api::Api, auth::User, http::status::ApiResult};

/// What the node authorizer finds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    Allow,
    /// Allowed if a pod on this machine refers to the object.
    IfRelated(Relation),
    /// With what is to be said about it beyond that it is not allowed.
    Deny(String),
}

impl Decision {
    const NO: Self = Self::Deny(String::new());

    fn no(why: impl Into<String>) -> Self {
        Self::Deny(why.into())
    }

    fn allow_if(allowed: bool) -> Self {
        if allowed { Self::Allow } else { Self::NO }
    }
}

/// Why somebody may do something, or why not; both may be empty.
pub type Verdict = Result<String, String>;

/// Decides whether a user may do something.
pub async fn decide(api: &Api, user: &User, asked: &Attributes<'_>) -> ApiResult<Verdict> {
    if user.is_master() {
        return Ok(Ok(String::new()));
    }
    let by_node = node_verdict(api, user, asked).await?;
    let Err(node_reason) = by_node else { return Ok(by_node) };
    if kluster_secrets::allows(api, user, asked).await? {
        return Ok(Ok("a Kluster of the namespace has this Secret".to_owned()));
    }
    let namespace = asked.namespace();
    let by_rules = api.rbac.read(|policy| policy.find_grant(user, namespace, |rule| rule.allows(asked)));
    Ok(by_rules.map(Grant::into_text).map_err(|not_found| {
        let rules_reason = if not_found.is_empty() { String::new() } else { format!("RBAC: {}", joined(&not_found)) };
        let reasons: Vec<String> =
            [node_reason, rules_reason].into_iter().filter(|reason| !reason.is_empty()).collect();
        reasons.join("\n")
    }))
}

/// Whether roles, or membership in `system:masters`, allow it; what nodes may do by themselves does not count.
pub fn is_granted_by_role(api: &Api, user: &User, asked: &Attributes<'_>) -> bool {
    let by_role =
        || api.rbac.read(|policy| policy.find_grant(user, asked.namespace(), |rule| rule.allows(asked)).is_ok());
    user.is_master() || by_role()
}

async fn node_verdict(api: &Api, user: &User, asked: &Attributes<'_>) -> ApiResult<Verdict> {
    Ok(match authorize_node(&api.registry, user, asked) {
        Decision::Allow => Ok(String::new()),
        Decision::Deny(why) => Err(why),
        Decision::IfRelated(relation) if is_related(api, &relation).await? => Ok(String::new()),
        Decision::IfRelated(relation) => {
            Err(format!("no relationship found between node '{}' and this object", relation.node))
        }
    })
}

/// Decides what a node may do, as far as the request alone tells.
fn authorize_node(registry: &Registry, user: &User, asked: &Attributes<'_>) -> Decision {
    match (user.node_name(), &asked.target) {
        (Some(name), RequestTarget::Resource(resource)) => node::authorize(registry, name, asked.verb, resource),
        _ => Decision::NO,
    }
}

/// Whether a node has to do with an object.
pub(crate) async fn is_related(api: &Api, relation: &Relation) -> ApiResult<bool> {
    relation::holds(api, relation).await
}

/// Everything a user may do in a namespace by rules, and what kept the list from being whole.
pub fn rules_for(api: &Api, user: &User, namespace: Option<&str>) -> (Vec<PolicyRule>, String) {
    let (mut rules, not_found) = api.rbac.read(|policy| policy.rules_for(user, namespace));
    if user.is_master() {
        rules.extend(PolicyRule::full_authority());
    }
    (rules, joined(&not_found))
}

/// The rules of a role.
pub fn role_rules(api: &Api, role: &RoleKey) -> Result<Vec<PolicyRule>, RoleNotFound> {
    api.rbac.read(|policy| policy.role_rules(role).map(|rules| rules.to_vec()))
}

/// Upstream's words for what somebody may not do.
pub fn refusal(user: &User, verb: &str, resource: &ResourceAttributes<'_>, why: &str) -> String {
    let place = match &resource.namespace {
        Some(namespace) => format!("in the namespace {namespace:?}"),
        None => "at the cluster scope".to_owned(),
    };
    let (full, group) = (resource.full_resource(), &resource.group);
    let words = format!("User {:?} cannot {verb} resource {full:?} in API group {group:?} {place}", user.name);
    if why.is_empty() { words } else { format!("{words}: {why}") }
}

/// Several errors as Go's `errors.NewAggregate` shows them.
fn joined(errors: &[RoleNotFound]) -> String {
    let texts: Vec<String> = errors.iter().map(RoleNotFound::to_string).collect();
    match texts.as_slice() {
        [] => String::new(),
        [one] => one.clone(),
        several => format!("[{}]", several.join(", ")),
    }
}

#[cfg(test)]
mod tests;
