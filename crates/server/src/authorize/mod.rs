//! Authorization: which user may do what.
//!
//! [`authorize`] decides from the request alone: administrators may do everything, machines what
//! [`node`] says, machines about to join may ask for a certificate, and everyone with a name may ask which
//! kinds there are and who they are. What a machine may read depends on the pods that were placed on it; for
//! that the answer is a [`Relation`] to be looked up ([`relation`]). Roles and bindings will have their place here.

mod attributes;
mod node;
mod relation;

use mainstay_api::registry::Registry;

pub use self::{
    attributes::{Attributes, RequestTarget, ResourceAttributes},
    relation::{Relation, RelationKind},
};
use crate::{
    api::Api,
    auth::{BOOTSTRAPPERS, SERVICE_ACCOUNTS, User},
    documents::openapi::OpenApi,
    http::status::ApiResult,
};

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

    fn of(allowed: bool) -> Self {
        if allowed { Self::Allow } else { Self::NO }
    }
}

/// Decides, as far as the request alone tells.
pub fn authorize(registry: &Registry, user: &User, asked: &Attributes<'_>) -> Decision {
    if user.is_master() || is_open(user, asked) {
        return Decision::Allow;
    }
    let RequestTarget::Resource(resource) = &asked.target else { return Decision::NO };
    if let Some(name) = user.node_name() {
        return node::authorize(registry, name, asked.verb, resource);
    }
    let bootstrapping = resource.names("certificates.k8s.io", "certificatesigningrequests", None)
        && ["create", "get", "list", "watch"].contains(&asked.verb);
    Decision::of(bootstrapping && user.is_in(BOOTSTRAPPERS))
}

/// Decides, looking up what the answer depends on. `Err` says why not.
pub async fn decide(api: &Api, user: &User, asked: &Attributes<'_>) -> ApiResult<Result<(), String>> {
    Ok(match authorize(&api.registry, user, asked) {
        Decision::Allow => Ok(()),
        Decision::Deny(why) => Err(why),
        Decision::IfRelated(relation) => {
            let node = relation.node.clone();
            if is_related(api, &relation).await? {
                Ok(())
            } else {
                Err(format!("no relationship found between node '{node}' and this object"))
            }
        }
    })
}

/// Whether a node has to do with an object.
pub(crate) async fn is_related(api: &Api, relation: &Relation) -> ApiResult<bool> {
    relation::holds(api, relation).await
}

/// What everyone with a name may do: see which kinds there are and which version this is, and ask about
/// themselves. Service accounts may also see who issues their tokens.
fn is_open(user: &User, asked: &Attributes<'_>) -> bool {
    match &asked.target {
        RequestTarget::Discovery => asked.verb == "get",
        RequestTarget::Path(path) => {
            let path = path.trim_end_matches('/');
            let issuer = ["/openid/v1/jwks", "/.well-known/openid-configuration"].contains(&path);
            asked.verb == "get"
                && (path == "/version" || OpenApi::serves(path) || (issuer && user.is_in(SERVICE_ACCOUNTS)))
        }
        RequestTarget::Resource(resource) => {
            asked.verb == "create"
                && match &*resource.group {
                    "authentication.k8s.io" => resource.resource == "selfsubjectreviews",
                    "authorization.k8s.io" => {
                        ["selfsubjectaccessreviews", "selfsubjectrulesreviews"].contains(&&*resource.resource)
                    }
                    _ => false,
                }
        }
    }
}

#[cfg(test)]
mod tests;
