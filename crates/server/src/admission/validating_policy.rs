//! ValidatingAdmissionPolicy: writes are judged by the CEL expressions of policies that bindings put in force.
//!
//! Policies and bindings are those of the admission cache; a write is judged by what was committed before it. Objects of
//! `admissionregistration.k8s.io` themselves are exempt, so that a policy that refuses everything can be mended.

use std::{borrow::Cow, sync::Arc};

use async_trait::async_trait;
use mainstay_api::descriptor::Descriptor;
use mainstay_cel::AuthorizationCheck;
use serde_json::{Value, json};

use super::{
    Plugin, Request, TxnAdditions,
    matching::{self, Attributes, Operation},
    policy::{
        CompiledPolicy, DecisionCache, Evaluation, FoundParams, PolicyInputs, describe_request, evaluate_policy,
        find_params,
    },
};
use crate::{
    http::status::{ApiError, ApiResult},
    objects::{metadata, object, store_cache::CachedObject},
};

const POLICIES: &str = "validatingadmissionpolicies";
const BINDINGS: &str = "validatingadmissionpolicybindings";
const FAILURE_ANNOTATION: &str = "validation.policy.admission.k8s.io/validation_failure";
/// More decisions than one evaluation of a policy can pay for.
const MAX_CHECKS: usize = 1000;

pub struct ValidatingAdmissionPolicy;

#[async_trait]
impl Plugin for ValidatingAdmissionPolicy {
    fn name(&self) -> &'static str {
        "ValidatingAdmissionPolicy"
    }

    fn handles(&self, d: &Descriptor) -> bool {
        d.group != "admissionregistration.k8s.io"
    }

    async fn create(&self, request: &Request<'_>, object: &mut Value, _: &mut TxnAdditions) -> ApiResult<()> {
        judge(request, Operation::Create, "", Some(object), None).await
    }

    async fn update(
        &self,
        request: &Request<'_>,
        object: &mut Value,
        old: &Value,
        _: &mut TxnAdditions,
    ) -> ApiResult<()> {
        match matching::subresource_of(request.part) {
            Some(subresource) => judge(request, Operation::Update, subresource, Some(object), Some(old)).await,
            None => Ok(()),
        }
    }

    async fn delete(&self, request: &Request<'_>, old: &Value) -> ApiResult<()> {
        judge(request, Operation::Delete, "", None, Some(old)).await
    }

    async fn create_subresource(&self, request: &Request<'_>, subresource: &str, body: &Value) -> ApiResult<()> {
        judge(request, Operation::Create, subresource, Some(body), None).await
    }
}

/// A write with everything that policies may look at.
struct Write<'a> {
    request: &'a Request<'a>,
    operation: Operation,
    subresource: &'a str,
    object: Option<&'a Value>,
    old: Option<&'a Value>,
    name: &'a str,
    decisions: DecisionCache,
}

async fn judge(
    request: &Request<'_>,
    operation: Operation,
    subresource: &str,
    object: Option<&Value>,
    old: Option<&Value>,
) -> ApiResult<()> {
    let policies = request.api.admission_cache.list(POLICIES, None);
    if policies.is_empty() {
        return Ok(());
    }
    request.api.policies.retain(&policies);
    let name = match &*request.target.name {
        "" => object.and_then(|object| metadata::string_field(object, "name")).unwrap_or_default(),
        name => name,
    };
    let write = Write { request, operation, subresource, object, old, name, decisions: DecisionCache::default() };
    for policy in &policies {
        judge_by_policy(&write, policy).await?;
    }
    Ok(())
}

impl<'a> Write<'a> {
    fn attributes_as<'d>(&self, d: &'d Descriptor) -> Attributes<'d>
    where
        'a: 'd,
    {
        let namespace = self.request.target.namespace.as_deref();
        Attributes { operation: self.operation, d, subresource: self.subresource, namespace, name: self.name }
    }

    /// The version of the resource that the rules match: the request's own, or another in which the same objects are
    /// served (`matchPolicy: Equivalent`), so that no policy can be evaded by an older version.
    fn matched_version(&self, resources: &Value) -> Option<Arc<Descriptor>> {
        let own = &self.request.target.d;
        if matching::rules_match(resources, &self.attributes_as(own)) {
            return Some(own.clone());
        }
        if resources["matchPolicy"] == "Exact" {
            return None;
        }
        let served = self.request.api.served.current();
        let mut others = served.iter().filter(|d| d.storage == own.storage && d.api_version() != own.api_version());
        others.find(|d| matching::rules_match(resources, &self.attributes_as(d))).cloned()
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
    fn as_version<'v>(&self, d: &Descriptor, value: Option<&'v Value>) -> Option<Cow<'v, Value>> {
        let value = value?;
        let own = &self.request.target.d;
        if d.api_version() == own.api_version() || !self.subresource.is_empty() && self.operation == Operation::Create {
            return Some(Cow::Borrowed(value));
        }
        let stored = object::to_stored(own, value).ok()?;
        let mut converted: Value = serde_json::from_slice(stored.json()).ok()?;
        if let Some(conversion) = &d.conversion {
            conversion.try_to_served(&mut converted).ok()?;
        }
        converted["apiVersion"] = json!(d.api_version());
        Some(Cow::Owned(converted))
    }
}

async fn judge_by_policy(write: &Write<'_>, policy: &CachedObject) -> ApiResult<()> {
    let constraints = &policy.value["spec"]["matchConstraints"];
    let Some(d) = write.matched_version(constraints) else { return Ok(()) };
    if !matching::object_matches(constraints, write.object, write.old) {
        return Ok(());
    }
    let api = write.request.api;
    let name = policy.value["metadata"]["name"].as_str().unwrap_or_default();
    let bindings = api.admission_cache.list(BINDINGS, None);
    let bindings: Vec<&CachedObject> = bindings
        .iter()
        .filter(|binding| binding.value["spec"]["policyName"] == name)
        .filter(|binding| {
            let resources = &binding.value["spec"]["matchResources"];
            write.matched_version(resources).is_some() && matching::object_matches(resources, write.object, write.old)
        })
        .collect();
    if bindings.is_empty() {
        return Ok(());
    }
    let namespace = write.namespace();
    let namespace = namespace.as_deref();
    if !matching::namespace_matches(constraints, namespace) {
        return Ok(());
    }
    let compiled = api.policies.get(policy).await?;
    let (object, old) = (write.as_version(&d, write.object), write.as_version(&d, write.old));
    for binding in bindings {
        if !matching::namespace_matches(&binding.value["spec"]["matchResources"], namespace) {
            continue;
        }
        let judgement = Judgement { write, d: &d, policy: &policy.value, binding: &binding.value, compiled: &compiled };
        judgement.run(object.as_deref(), old.as_deref(), namespace).await?;
    }
    Ok(())
}

/// One policy, put in force by one binding, for one write.
struct Judgement<'a> {
    write: &'a Write<'a>,
    /// The version of the resource that the policy matched.
    d: &'a Descriptor,
    policy: &'a Value,
    binding: &'a Value,
    compiled: &'a CompiledPolicy,
}

impl Judgement<'_> {
    async fn run(&self, object: Option<&Value>, old: Option<&Value>, namespace: Option<&Value>) -> ApiResult<()> {
        let request = self.write.request;
        let place = request.target.namespace.as_deref();
        let params = match find_params(request.api, self.policy, self.binding, place).await? {
            FoundParams::NotUsed => vec![None],
            FoundParams::Objects(objects) => objects.into_iter().map(Some).collect(),
            FoundParams::Allowed => return Ok(()),
            FoundParams::Failed(why) if self.compiled.fails_closed => return self.refuse(&why, "Invalid"),
            FoundParams::Failed(_) => return Ok(()),
        };
        let attributes = self.write.attributes_as(self.d);
        let described = describe_request(request, &attributes);
        let asked = &request.target;
        let resource = AuthorizationCheck {
            group: (*asked.d.group).into(),
            resource: (*asked.d.plural).into(),
            subresource: self.write.subresource.into(),
            namespace: asked.namespace.as_deref().unwrap_or_default().into(),
            name: self.write.name.into(),
            ..AuthorizationCheck::default()
        };
        for params in &params {
            let inputs = PolicyInputs {
                object,
                old,
                request: &described,
                params: params.as_ref(),
                namespace: namespace.filter(|_| place.is_some()),
                decisions: &self.write.decisions,
                resource: resource.clone(),
            };
            if let Some(evaluation) = self.evaluate(&inputs).await? {
                self.act(&evaluation)?;
            }
        }
        Ok(())
    }

    async fn evaluate(&self, inputs: &PolicyInputs<'_>) -> ApiResult<Option<Evaluation>> {
        for _ in 0..MAX_CHECKS {
            let check = match evaluate_policy(self.compiled, inputs) {
                Ok(evaluation) => return Ok(evaluation),
                Err(check) => check,
            };
            self.write.decisions.look_up(self.write.request, &check).await;
        }
        Err(ApiError::internal(format!("policy {:?} asks for too many authorization checks", self.compiled.name)))
    }

    fn act(&self, evaluation: &Evaluation) -> ApiResult<()> {
        let notes = self.write.request.notes;
        for (key, value) in &evaluation.audit_annotations {
            notes.annotate(key, value.clone());
        }
        let (policy, binding) = (&self.compiled.name, self.binding_name());
        let actions: Vec<&str> = self.binding["spec"]["validationActions"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        for failure in &evaluation.failures {
            if actions.contains(&"Warn") {
                let message = &failure.message;
                notes.warn(format!(
                    "Validation failed for ValidatingAdmissionPolicy '{policy}' with binding '{binding}': {message}"
                ));
            }
            if actions.contains(&"Audit") {
                let record = json!([{
                    "message": failure.message,
                    "policy": policy,
                    "binding": binding,
                    "expressionIndex": failure.expression_index,
                    "validationActions": actions,
                }]);
                notes.annotate(FAILURE_ANNOTATION, record.to_string());
            }
        }
        match evaluation.failures.first() {
            Some(failure) if actions.contains(&"Deny") => self.refuse(&failure.message, &failure.reason),
            _ => Ok(()),
        }
    }

    fn binding_name(&self) -> &str {
        self.binding["metadata"]["name"].as_str().unwrap_or_default()
    }

    fn refuse(&self, message: &str, reason: &str) -> ApiResult<()> {
        let (policy, binding) = (&self.compiled.name, self.binding_name());
        let why = format!("ValidatingAdmissionPolicy '{policy}' with binding '{binding}' denied request: {message}");
        Err(ApiError::denied_by_policy(&self.write.request.target.d, self.write.name, &why, reason))
    }
}
