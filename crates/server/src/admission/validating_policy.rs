//! ValidatingAdmissionPolicy: writes are judged by the CEL expressions of policies that bindings put in force.
//!
//! Policies and bindings are those of the admission cache; a write is judged by what was committed before it. Objects of
//! `admissionregistration.k8s.io` themselves are exempt, so that a policy that refuses everything can be mended.

use async_trait::async_trait;
use mainstay_api::descriptor::Descriptor;
use serde_json::{Value, json};

use super::{
    Plugin, Request, TxnAdditions,
    matching::{self, Operation},
    policy::{
        CompiledPolicy, Evaluation, FoundParams, PolicyInputs, Write, describe_request, evaluate_policy, find_params,
    },
};
use crate::{
    http::status::{ApiError, ApiResult},
    objects::store_cache::CachedObject,
};

const POLICIES: &str = "validatingadmissionpolicies";
const BINDINGS: &str = "validatingadmissionpolicybindings";
const FAILURE_ANNOTATION: &str = "validation.policy.admission.k8s.io/validation_failure";

pub struct ValidatingAdmissionPolicy;

#[async_trait]
impl Plugin for ValidatingAdmissionPolicy {
    fn name(&self) -> &'static str {
        "ValidatingAdmissionPolicy"
    }

    fn handles(&self, d: &Descriptor) -> bool {
        d.group != "admissionregistration.k8s.io"
    }

    fn sees_scales(&self) -> bool {
        true
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

    async fn connect(&self, request: &Request<'_>, subresource: &str, options: &Value) -> ApiResult<()> {
        judge(request, Operation::Connect, subresource, Some(options), None).await
    }
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
    let write = Write::new(request, operation, subresource, object, old);
    for policy in &policies {
        judge_by_policy(&write, policy).await?;
    }
    Ok(())
}

async fn judge_by_policy(write: &Write<'_>, policy: &CachedObject) -> ApiResult<()> {
    let api = write.request.api;
    let Some(bound) = write.find_bindings(policy, BINDINGS) else { return Ok(()) };
    let compiled = api.policies.get(policy).await?;
    let (d, namespace) = (&bound.d, bound.namespace.as_deref());
    let (object, old) = (write.as_version(d, write.object), write.as_version(d, write.old));
    for binding in &bound.bindings {
        let judgement = Judgement { write, d, policy: &policy.value, binding: &binding.value, compiled: &compiled };
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
        let described = describe_request(request, &self.write.attributes_as(self.d), object);
        for params in &params {
            let inputs = PolicyInputs {
                object,
                old,
                request: &described,
                params: params.as_ref(),
                namespace: namespace.filter(|_| place.is_some()),
                decisions: &self.write.decisions,
                resource: self.write.resource_check(),
            };
            if let Some(evaluation) = self.evaluate(&inputs).await? {
                self.act(&evaluation)?;
            }
        }
        Ok(())
    }

    async fn evaluate(&self, inputs: &PolicyInputs<'_>) -> ApiResult<Option<Evaluation>> {
        self.write.with_decisions(&self.compiled.name, || evaluate_policy(self.compiled, inputs)).await
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
