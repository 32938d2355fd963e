//! What keeps a namespace Terminating.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Namespace;

use super::{Cause, Explanation, text};

/// What was observed of a namespace.
#[derive(Clone, Debug, Default)]
pub struct NamespaceFacts {
    pub namespace: Namespace,
    /// Objects in it that are still there; only read if it is Terminating.
    pub remaining: Vec<RemainingObject>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemainingObject {
    /// `pods`, `deployments.apps`: as kubectl takes it.
    pub resource: String,
    pub name: String,
    pub finalizers: Vec<String>,
}

/// How many objects are named.
const SHOWN: usize = 10;

pub fn explain_namespace(facts: &NamespaceFacts, now: Timestamp) -> Explanation {
    let cause = namespace_cause(facts, now);
    cause.into_explanation(text::subject("namespace", &facts.namespace.metadata), Vec::new())
}

fn namespace_cause(facts: &NamespaceFacts, now: Timestamp) -> Cause {
    let meta = &facts.namespace.metadata;
    let name = text::name(meta);
    let Some(since) = text::age_of(meta.deletion_timestamp.as_ref(), now) else {
        let age = text::age_of(meta.creation_timestamp.as_ref(), now).unwrap_or_default();
        return Cause::new(format!("is Active; created {age} ago"));
    };
    let conditions = facts.namespace.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let failure = conditions.into_iter().find(|condition| {
        let kind = condition.type_.as_str();
        kind.starts_with("NamespaceDeletion") && kind.ends_with("Failure") && condition.status == "True"
    });
    // Objects with finalizers first: the others go by themselves.
    let with_finalizer = facts.remaining.iter().find(|object| !object.finalizers.is_empty());
    let mut cause = match (
        failure.and_then(|condition| condition.message.as_deref()),
        with_finalizer,
        facts.remaining.first(),
    ) {
        (Some(message), ..) => Cause::new(format!("is Terminating for {since}: {}", text::clause(message))),
        (None, Some(object), _) => {
            let RemainingObject { resource, name: object_name, finalizers } = object;
            let headline = format!(
                "is Terminating for {since}: {resource}/{object_name} has finalizer {}, which nobody has removed",
                finalizers.join(", ")
            );
            Cause::new(headline).next(
                format!("kubectl -n {name} patch {resource} {object_name} --type=merge -p '{{\"metadata\":{{\"finalizers\":null}}}}'"),
                "only if whoever set the finalizer is gone for good",
            )
        }
        (None, None, Some(_)) => {
            let objects = text::count(facts.remaining.len(), "object");
            Cause::new(format!("is Terminating for {since}: {objects} in it are still being deleted"))
        }
        (None, None, None) => {
            let own: Vec<&str> = facts
                .namespace
                .spec
                .iter()
                .flat_map(|spec| spec.finalizers.iter().flatten())
                .map(String::as_str)
                .collect();
            match own.as_slice() {
                [] => Cause::new(format!("is Terminating for {since}: it is about to go")),
                own => Cause::new(format!(
                    "is Terminating for {since}: it is empty, but spec.finalizers has {}",
                    own.join(", ")
                )),
            }
        }
    };
    for RemainingObject { resource, name, finalizers } in facts.remaining.iter().take(SHOWN) {
        let finalizers =
            if finalizers.is_empty() { String::new() } else { format!(", finalizers: {}", finalizers.join(", ")) };
        cause = cause.detail(format!("remains: {resource}/{name}{finalizers}"));
    }
    match facts.remaining.len().saturating_sub(SHOWN) {
        0 => cause,
        more => cause.detail(format!("and {more} more")),
    }
}
