//! PolicyParams: who has a policy read objects as its parameters has to be able to read them himself.
//!
//! Otherwise the right to write policies would be the right to read every Secret, since a policy's messages may say what is in its parameters.
//! Upstream's checks of ValidatingAdmissionPolicies, MutatingAdmissionPolicies and their bindings, with its words: a policy takes the right to get
//! all objects of its `paramKind`, a binding the right to get or list what its `paramRef` is about. What a write does not change is not looked at.

use async_trait::async_trait;
use mainstay_api::{
    descriptor::Descriptor,
    field::{FieldError, Path},
};
use serde_json::Value;

use super::{Plugin, Request, TxnAdditions};
use crate::{
    authorize::{self, Attributes, RequestTarget, ResourceAttributes},
    http::status::{ApiError, ApiResult},
    objects::metadata,
};

const ALL: &str = "*";

pub struct PolicyParams;

#[async_trait]
impl Plugin for PolicyParams {
    fn name(&self) -> &'static str {
        "PolicyParams"
    }

    fn handles(&self, d: &Descriptor) -> bool {
        d.group == "admissionregistration.k8s.io" && (is_policy(d) || policies_of_binding(d).is_some())
    }

    async fn create(&self, request: &Request<'_>, object: &mut Value, _: &mut TxnAdditions) -> ApiResult<()> {
        check(request, object).await
    }

    async fn update(
        &self,
        request: &Request<'_>,
        object: &mut Value,
        old: &Value,
        _: &mut TxnAdditions,
    ) -> ApiResult<()> {
        let unchanged =
            ["paramKind", "paramRef", "policyName"].iter().all(|field| object["spec"][*field] == old["spec"][*field]);
        if unchanged { Ok(()) } else { check(request, object).await }
    }
}

fn is_policy(d: &Descriptor) -> bool {
    ["ValidatingAdmissionPolicy", "MutatingAdmissionPolicy"].contains(&&*d.kind)
}

fn policies_of_binding(d: &Descriptor) -> Option<&'static str> {
    match &*d.kind {
        "ValidatingAdmissionPolicyBinding" => Some("validatingadmissionpolicies"),
        "MutatingAdmissionPolicyBinding" => Some("mutatingadmissionpolicies"),
        _ => None,
    }
}

async fn check(request: &Request<'_>, object: &Value) -> ApiResult<()> {
    if request.user.is_master() {
        return Ok(());
    }
    let spec = &object["spec"];
    let (field, words) = match policies_of_binding(&request.target.d) {
        None if spec["paramKind"].is_object() => {
            let target = ResourceAttributes {
                namespace: Some(ALL.into()),
                name: Some(ALL.into()),
                ..resource_of(request, &spec["paramKind"])
            };
            if may(request, "get", target).await? {
                return Ok(());
            }
            let text = |field: &str| spec["paramKind"][field].as_str().unwrap_or_default();
            let (user, kind, version) = (&request.user.name, text("kind"), text("apiVersion"));
            let words = "must have \"get\" permission on all objects of the referenced paramKind";
            ("paramKind", format!("user {user:?} {words} (kind={kind}, apiVersion={version})"))
        }
        Some(policies) if spec["paramRef"].is_object() => {
            let policy = request.api.admission_cache.get(policies, spec["policyName"].as_str().unwrap_or_default());
            let kind = policy.map(|policy| policy.value["spec"]["paramKind"].clone()).unwrap_or_default();
            let given = |field: &str| {
                spec["paramRef"][field].as_str().filter(|text| !text.is_empty()).map(|text| text.to_owned().into())
            };
            let (name, namespace) = (given("name"), given("namespace"));
            let verb = if name.is_some() { "get" } else { "list" };
            if may(request, verb, ResourceAttributes { namespace, name, ..resource_of(request, &kind) }).await? {
                return Ok(());
            }
            let user = &request.user.name;
            (
                "paramRef",
                format!("user {user:?} does not have {verb:?} permission on the object referenced by paramRef"),
            )
        }
        _ => return Ok(()),
    };
    let error = FieldError::forbidden(&Path::new("spec").child(field), words);
    let name = metadata::string_field(object, "name").unwrap_or_default();
    Err(ApiError::invalid(&request.target.d, name, &error.into()))
}

/// The resource that a `paramKind` names; any, if nobody knows which that is.
fn resource_of(request: &Request<'_>, kind: &Value) -> ResourceAttributes<'static> {
    let Some(version) = kind["apiVersion"].as_str() else {
        return ResourceAttributes { group: ALL.into(), resource: ALL.into(), ..ResourceAttributes::default() };
    };
    let (group, version) = version.split_once('/').unwrap_or(("", version));
    let found = request.api.served.find_kind(group, version, kind["kind"].as_str().unwrap_or_default());
    let resource = found.map_or(ALL.to_owned(), |d| d.plural.to_string());
    ResourceAttributes { group: group.to_owned().into(), resource: resource.into(), ..ResourceAttributes::default() }
}

async fn may(request: &Request<'_>, verb: &str, target: ResourceAttributes<'_>) -> ApiResult<bool> {
    let asked = Attributes { verb, target: RequestTarget::Resource(target) };
    Ok(authorize::decide(request.api, request.user, &asked).await?.is_ok())
}
