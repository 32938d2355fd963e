//! Nobody grants what they do not hold: writes of roles and bindings are limited to the writer's own rights.
//!
//! Upstream's checks of its RBAC storage, with their words. A role may contain what its writer may do, or anything if the
//! writer has the verb `escalate` on it; a binding may refer to a role whose rules its writer holds, or to any if the
//! writer has the verb `bind` on it. A ClusterRole that aggregates others, or did so before the write, may come to contain anything, so it
//! takes all rights. The labels of a ClusterRole decide which others get its rules: whoever changes them grants these. Only
//! writes that change nothing but what the garbage collector needs are not looked at.

use async_trait::async_trait;
use mainstay_api::descriptor::Descriptor;
use serde_json::Value;

use super::{Plugin, Request, TxnAdditions};
use crate::{
    authorize::{
        self, Attributes, RequestTarget, ResourceAttributes,
        rbac::{PolicyRule, RoleKey, count_rights, missing, quoted_list},
    },
    http::status::{ApiError, ApiResult},
    objects::metadata,
};

const GROUP: &str = "rbac.authorization.k8s.io";
/// Roles that give more single rights than this take a writer with `escalate` or `bind`: comparing each with what the writer
/// holds would take the server's time. The largest bootstrap role gives about 2,000.
const MAX_COMPARED: usize = 100_000;
/// Of very many rights that are not held only the first are named.
const MAX_NAMED: usize = 100;
/// What the garbage collector writes, and the server with every write.
const MAY_CHANGE: [&str; 5] = ["finalizers", "generation", "managedFields", "ownerReferences", "resourceVersion"];

pub struct RbacEscalation;

#[async_trait]
impl Plugin for RbacEscalation {
    fn name(&self) -> &'static str {
        "RbacEscalation"
    }

    fn handles(&self, d: &Descriptor) -> bool {
        d.group == GROUP
    }

    async fn create(&self, request: &Request<'_>, object: &mut Value, _txn: &mut TxnAdditions) -> ApiResult<()> {
        review(request, object, None).await
    }

    async fn update(
        &self,
        request: &Request<'_>,
        object: &mut Value,
        old: &Value,
        _txn: &mut TxnAdditions,
    ) -> ApiResult<()> {
        if grants_nothing(object, old) { Ok(()) } else { review(request, object, Some(old)).await }
    }
}

/// Whether a change is of nothing but what does not say who may do what.
fn grants_nothing(object: &Value, old: &Value) -> bool {
    let rest = |object: &Value| {
        let mut rest = object.clone();
        if let Some(metadata) = rest["metadata"].as_object_mut() {
            metadata.retain(|field, _| !MAY_CHANGE.contains(&field.as_str()));
        }
        rest
    };
    rest(object) == rest(old)
}

async fn review(request: &Request<'_>, object: &Value, old: Option<&Value>) -> ApiResult<()> {
    if request.user.is_master() {
        return Ok(());
    }
    let (d, namespace) = (&request.target.d, request.target.namespace.as_deref());
    let name = metadata::string_field(object, "name").unwrap_or_default();
    let refuse = |why: &str| ApiError::forbidden(d, name, why);
    let role_ref = &object["roleRef"];
    let granted = if role_ref.is_object() {
        let in_cluster = role_ref["kind"] == "ClusterRole";
        let role = RoleKey {
            namespace: namespace.filter(|_| !in_cluster).map(str::to_owned),
            name: role_ref["name"].as_str().unwrap_or_default().to_owned(),
        };
        let plural = if in_cluster { "clusterroles" } else { "roles" };
        if may(request, "bind", plural, namespace, &role.name).await? {
            return Ok(());
        }
        authorize::role_rules(request.api, &role).map_err(|_| ApiError::not_found_kind(GROUP, plural, &role.name))?
    } else {
        if may(request, "escalate", &d.plural, namespace, name).await? {
            return Ok(());
        }
        let mut rules: Vec<PolicyRule> = serde_json::from_value(object["rules"].clone()).unwrap_or_default();
        let aggregates = |role: &Value| role["aggregationRule"].is_object();
        if aggregates(object) || old.is_some_and(aggregates) {
            rules.extend(PolicyRule::full_authority());
        }
        rules
    };
    let rights = count_rights(&granted);
    if rights > MAX_COMPARED {
        return Err(refuse(&format!(
            "its rules combine to {rights} single rights; at most {MAX_COMPARED} can be compared with those of user {:?}",
            request.user.name
        )));
    }
    let (held, unresolved) = authorize::rules_for(request.api, request.user, namespace);
    let lacking = missing(&held, &granted);
    if lacking.is_empty() {
        return Ok(());
    }
    let mut lines: Vec<String> = lacking.iter().map(PolicyRule::to_string).collect();
    lines.sort();
    if lines.len() > MAX_NAMED {
        let more = lines.len() - MAX_NAMED;
        lines.truncate(MAX_NAMED);
        lines.push(format!("and {more} more"));
    }
    let (user, groups) = (&request.user.name, quoted_list(&request.user.groups));
    let mut why = format!(
        "user {user:?} (groups={groups}) is attempting to grant RBAC permissions not currently held:\n{}",
        lines.join("\n")
    );
    if !unresolved.is_empty() {
        why.push_str("; resolution errors: ");
        why.push_str(&unresolved);
    }
    Err(refuse(&why))
}

async fn may(request: &Request<'_>, verb: &str, plural: &str, namespace: Option<&str>, name: &str) -> ApiResult<bool> {
    let target = ResourceAttributes {
        group: GROUP.into(),
        resource: plural.into(),
        namespace: namespace.map(Into::into),
        name: Some(name.into()),
        ..ResourceAttributes::default()
    };
    let asked = Attributes { verb, target: RequestTarget::Resource(target) };
    Ok(authorize::decide(request.api, request.user, &asked).await?.is_ok())
}
