//! A write as policies see it: which of them and of their bindings cover it, in which version of the resource.

use std::{borrow::Cow, sync::Arc};

use mainstay_api::descriptor::Descriptor;
use mainstay_cel::AuthorizationCheck;
use serde_json::{Value, json};

use super::DecisionCache;
use crate::{
    admission::{
        Request,
        matching::{self, Attributes, Operation},
    },
    http::status::{ApiError, ApiResult},
    objects::{metadata, object, store_cache::CachedObject},
};

/// More decisions than one evaluation of a policy can pay for.
const MAX_CHECKS: usize = 1000;

/// A write with everything that policies may look at.
pub struct Write<'a> {
    pub request: &'a Request<'a>,
    pub operation: Operation,
    pub subresource: &'a str,
    pub object: Option<&'a Value>,
    pub old: Option<&'a Value>,
    pub name: &'a str,
    pub decisions: DecisionCache,
}

/// What puts a policy in force for a write.
pub struct BoundPolicy<'a> {
    /// The version of the resource that the policy matched.
    pub d: Arc<Descriptor>,
    pub bindings: Vec<CachedObject>,
    pub namespace: Option<Cow<'a, Value>>,
}

impl<'a> Write<'a> {
    pub fn new(
        request: &'a Request<'a>,
        operation: Operation,
        subresource: &'a str,
        object: Option<&'a Value>,
        old: Option<&'a Value>,
    ) -> Self {
        let name = match &*request.target.name {
            "" => object.and_then(|object| metadata::string_field(object, "name")).unwrap_or_default(),
            name => name,
        };
        Self { request, operation, subresource, object, old, name, decisions: DecisionCache::default() }
    }

    pub fn attributes_as<'d>(&self, d: &'d Descriptor) -> Attributes<'d>
    where
        'a: 'd,
    {
        let namespace = self.request.target.namespace.as_deref();
        Attributes { operation: self.operation, d, subresource: self.subresource, namespace, name: self.name }
    }

    /// The version of the resource that the rules match: the request's own, or another in which the same objects are
    /// served (`matchPolicy: Equivalent`), so that no policy can be evaded by an older version.
    fn matched_version(&self, resources: &Value) -> Option<Arc<Descriptor>> {
        let (served, own) = (self.request.api.served.current(), &self.request.target.d);
        matching::matched_version(&served, own, &resources["matchPolicy"], |d| {
            matching::rules_match(resources, &self.attributes_as(d))
        })
    }

    /// The namespace of the object, or the object itself if it is one.
    fn namespace(&self) -> Option<Cow<'a, Value>> {
        let target = self.request.target;
        if target.d.is_core("Namespace") {
            return self.object.or(self.old).map(Cow::Borrowed);
        }
        let namespace = target.namespace.as_deref()?;
        let cached = self.request.api.admission_cache.get("namespaces", namespace)?;
        Some(Cow::Owned((*cached.value).clone()))
    }

    /// An object of this write as another version serves it.
    pub fn as_version<'v>(&self, d: &Descriptor, value: Option<&'v Value>) -> Option<Cow<'v, Value>> {
        let value = value?;
        let own = &self.request.target.d;
        let is_body = !self.subresource.is_empty() && self.operation == Operation::Create;
        if d.api_version() == own.api_version() || is_body || matching::other_kind(own, Some(value)).is_some() {
            return Some(Cow::Borrowed(value));
        }
        convert(own, d, value).map(Cow::Owned)
    }

    /// The bindings of a policy that cover this write, and the version of the resource that the policy matched; nothing if
    /// the policy does not cover it, or nobody put it in force.
    pub fn find_bindings(&self, policy: &CachedObject, plural: &str) -> Option<BoundPolicy<'a>> {
        let constraints = &policy.value["spec"]["matchConstraints"];
        let d = self.matched_version(constraints)?;
        if !matching::object_matches(constraints, self.object, self.old) {
            return None;
        }
        let name = policy.value["metadata"]["name"].as_str().unwrap_or_default();
        let mut bindings = self.request.api.admission_cache.list(plural, None);
        bindings.retain(|binding| {
            let resources = &binding.value["spec"]["matchResources"];
            binding.value["spec"]["policyName"] == name
                && self.matched_version(resources).is_some()
                && matching::object_matches(resources, self.object, self.old)
        });
        if bindings.is_empty() {
            return None;
        }
        let namespace = self.namespace();
        if !matching::namespace_matches(constraints, namespace.as_deref()) {
            return None;
        }
        bindings.retain(|binding| {
            matching::namespace_matches(&binding.value["spec"]["matchResources"], namespace.as_deref())
        });
        Some(BoundPolicy { d, bindings, namespace })
    }

    /// What `authorizer.requestResource` asks about.
    pub fn resource_check(&self) -> AuthorizationCheck {
        let asked = &self.request.target;
        AuthorizationCheck {
            group: (*asked.d.group).into(),
            resource: (*asked.d.plural).into(),
            subresource: self.subresource.into(),
            namespace: asked.namespace.as_deref().unwrap_or_default().into(),
            name: self.name.into(),
            ..AuthorizationCheck::default()
        }
    }

    /// Evaluates until no decision of the authorizers is missing.
    pub async fn with_decisions<T>(
        &self,
        policy: &str,
        mut evaluate: impl FnMut() -> Result<T, Arc<AuthorizationCheck>>,
    ) -> ApiResult<T> {
        for _ in 0..MAX_CHECKS {
            let check = match evaluate() {
                Ok(evaluated) => return Ok(evaluated),
                Err(check) => check,
            };
            self.decisions.look_up(self.request, &check).await;
        }
        Err(ApiError::internal(format!("policy {policy:?} asks for too many authorization checks")))
    }
}

/// An object of one version of a resource as another version serves it.
pub fn convert(from: &Descriptor, to: &Descriptor, value: &Value) -> Option<Value> {
    let stored = object::to_stored(from, value).ok()?;
    let mut converted: Value = serde_json::from_slice(stored.json()).ok()?;
    if let Some(conversion) = &to.conversion {
        conversion.try_to_served(&mut converted).ok()?;
    }
    converted["apiVersion"] = json!(to.api_version());
    Some(converted)
}
