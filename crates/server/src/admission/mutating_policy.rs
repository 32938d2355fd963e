//! MutatingAdmissionPolicy: writes are changed by the CEL expressions of policies that bindings put in force.
//!
//! Policies run in the order of their names, before mutating webhooks, each on what the ones before made of the object. One with
//! `reinvocationPolicy: IfNeeded` runs once more if a later policy or a webhook changed the object. Matching, bindings, parameters and match
//! conditions are those of ValidatingAdmissionPolicy. As there, objects of `admissionregistration.k8s.io` are exempt.

use std::sync::Arc;

use async_trait::async_trait;
use mainstay_api::descriptor::Descriptor;
use serde_json::Value;

use super::{
    Plugin, Request, TxnAdditions,
    matching::{self, Operation},
    policy::{
        CompiledPolicy, FoundParams, PolicyInputs, Write, convert, describe_request, evaluate_mutation, find_params,
        matches,
    },
};
use crate::{
    http::status::{ApiError, ApiResult},
    objects::{guaranteed_update::Part, kind_types::KindType, scale_view, store_cache::CachedObject},
};

const POLICIES: &str = "mutatingadmissionpolicies";
const BINDINGS: &str = "mutatingadmissionpolicybindings";

/// The plugin is twice in the list of plugins: before the mutating webhooks and after them.
pub enum MutatingAdmissionPolicy {
    /// Runs all policies.
    BeforeWebhooks,
    /// Runs those policies once more that a webhook made necessary.
    AfterWebhooks,
}

#[async_trait]
impl Plugin for MutatingAdmissionPolicy {
    fn name(&self) -> &'static str {
        match self {
            Self::BeforeWebhooks => "MutatingAdmissionPolicy",
            Self::AfterWebhooks => "MutatingAdmissionPolicyReinvocation",
        }
    }

    fn handles(&self, d: &Descriptor) -> bool {
        d.group != "admissionregistration.k8s.io"
    }

    fn sees_scales(&self) -> bool {
        true
    }

    async fn admit_create(&self, request: &Request<'_>, object: &mut Value, txn: &mut TxnAdditions) -> ApiResult<()> {
        let write = MutatedWrite { request, operation: Operation::Create, subresource: "", old: None };
        self.run(&write, object, txn).await
    }

    async fn admit_update(
        &self,
        request: &Request<'_>,
        object: &mut Value,
        old: &Value,
        txn: &mut TxnAdditions,
    ) -> ApiResult<()> {
        let Some(subresource) = matching::subresource_of(request.part) else { return Ok(()) };
        let write = MutatedWrite { request, operation: Operation::Update, subresource, old: Some(old) };
        self.run(&write, object, txn).await
    }
}

impl MutatingAdmissionPolicy {
    async fn run(&self, write: &MutatedWrite<'_>, object: &mut Value, txn: &mut TxnAdditions) -> ApiResult<()> {
        match self {
            Self::BeforeWebhooks => write.run_policies(object, txn).await,
            Self::AfterWebhooks => write.reinvoke_policies(object, txn).await,
        }
    }
}

/// A write that one policy after the other changes.
struct MutatedWrite<'a> {
    request: &'a Request<'a>,
    operation: Operation,
    subresource: &'a str,
    old: Option<&'a Value>,
}

impl MutatedWrite<'_> {
    async fn run_policies(&self, object: &mut Value, txn: &mut TxnAdditions) -> ApiResult<()> {
        let policies = self.request.api.admission_cache.list(POLICIES, None);
        if policies.is_empty() {
            return Ok(());
        }
        self.request.api.mutating_policies.retain(&policies);
        let (mut reinvoked, mut last_change) = (Vec::new(), None);
        for (position, policy) in policies.iter().enumerate() {
            let Some((compiled, is_changed)) = self.apply_policy(policy, object).await? else { continue };
            if is_changed {
                last_change = Some(position);
            }
            if compiled.is_reinvoked {
                reinvoked.push((position, policy));
            }
        }
        for (position, policy) in &reinvoked {
            if last_change.is_some_and(|last| last > *position) {
                self.apply_policy(policy, object).await?;
            }
        }
        txn.revalidate |= last_change.is_some();
        if !reinvoked.is_empty() {
            txn.after_policies = Some(object.clone());
        }
        Ok(())
    }

    async fn reinvoke_policies(&self, object: &mut Value, txn: &mut TxnAdditions) -> ApiResult<()> {
        if txn.after_policies.take().is_none_or(|before_webhooks| before_webhooks == *object) {
            return Ok(());
        }
        for policy in self.request.api.admission_cache.list(POLICIES, None) {
            if policy.value["spec"]["reinvocationPolicy"] == "IfNeeded" {
                let applied = self.apply_policy(&policy, object).await?;
                txn.revalidate |= applied.is_some_and(|(_, is_changed)| is_changed);
            }
        }
        Ok(())
    }

    /// Whether a policy changed the object; nothing if it does not cover the write.
    async fn apply_policy(
        &self,
        policy: &CachedObject,
        object: &mut Value,
    ) -> ApiResult<Option<(Arc<CompiledPolicy>, bool)>> {
        let before = object.clone();
        let write = Write::new(self.request, self.operation, self.subresource, Some(&before), self.old);
        let Some(bound) = write.find_bindings(policy, BINDINGS) else { return Ok(None) };
        let compiled = self.request.api.mutating_policies.get(policy).await?;
        let d = &bound.d;
        let old = write.as_version(d, self.old);
        let Some(current) = write.as_version(d, Some(&before)) else { return Ok(None) };
        let mut current = current.into_owned();
        for binding in &bound.bindings {
            let mutating =
                PolicyInForce { write: &write, d, policy: &policy.value, binding: &binding.value, compiled: &compiled };
            mutating.mutate(&mut current, old.as_deref(), bound.namespace.as_deref()).await?;
        }
        let own = &self.request.target.d;
        let is_own = d.api_version() == own.api_version() || matching::other_kind(own, Some(&current)).is_some();
        let changed = match is_own {
            true => current,
            false => convert(d, own, &current).unwrap_or_else(|| before.clone()),
        };
        let is_changed = changed != before;
        *object = changed;
        Ok(Some((compiled, is_changed)))
    }
}

/// One policy, put in force by one binding, for one write.
struct PolicyInForce<'a> {
    write: &'a Write<'a>,
    /// The version of the resource that the policy matched.
    d: &'a Descriptor,
    policy: &'a Value,
    binding: &'a Value,
    compiled: &'a CompiledPolicy,
}

/// What expressions see beside the object, for one parameter.
struct ParamInputs<'a> {
    old: Option<&'a Value>,
    described: &'a Value,
    params: Option<&'a Value>,
    namespace: Option<&'a Value>,
}

impl PolicyInForce<'_> {
    /// Lets every mutation change the object, for every parameter.
    async fn mutate(&self, object: &mut Value, old: Option<&Value>, namespace: Option<&Value>) -> ApiResult<()> {
        let request = self.write.request;
        let place = request.target.namespace.as_deref();
        let params = match find_params(request.api, self.policy, self.binding, place).await? {
            FoundParams::NotUsed => vec![None],
            FoundParams::Objects(objects) => objects.into_iter().map(Some).collect(),
            FoundParams::Allowed => return Ok(()),
            FoundParams::Failed(why) => return self.fail(&why),
        };
        let described = describe_request(request, &self.write.attributes_as(self.d), Some(object));
        let namespace = namespace.filter(|_| place.is_some());
        for params in &params {
            let beside = ParamInputs { old, described: &described, params: params.as_ref(), namespace };
            // What fails is left out as a whole.
            let mut changed = object.clone();
            let name = &self.compiled.name;
            let is_matched = || matches(self.compiled, &self.inputs(&beside, &changed));
            match self.write.with_decisions(name, is_matched).await? {
                Ok(true) => {}
                Ok(false) => continue,
                Err(why) => {
                    self.fail(&why)?;
                    continue;
                }
            }
            match self.run_mutations(&mut changed, &beside).await? {
                Ok(()) => *object = changed,
                Err(why) => self.fail(&why)?,
            }
        }
        Ok(())
    }

    fn inputs<'i>(&'i self, beside: &ParamInputs<'i>, object: &'i Value) -> PolicyInputs<'i> {
        PolicyInputs {
            object: Some(object),
            old: beside.old,
            request: beside.described,
            params: beside.params,
            namespace: beside.namespace,
            decisions: &self.write.decisions,
            resource: self.write.resource_check(),
        }
    }

    async fn run_mutations(&self, object: &mut Value, beside: &ParamInputs<'_>) -> ApiResult<Result<(), String>> {
        let api = self.write.request.api;
        let is_scale = self.write.request.part == Part::Scale;
        let (definition, ty) = match is_scale {
            true => (scale_view::DEFINITION, KindType::builtin(api.schema, scale_view::DEFINITION)),
            false => (&*self.d.schema, KindType::root(api.schema, self.d)),
        };
        for mutation in &self.compiled.mutations {
            let evaluate = || evaluate_mutation(self.compiled, mutation, &self.inputs(beside, object), ty);
            let mut changed = match self.write.with_decisions(&self.compiled.name, evaluate).await? {
                Ok(changed) => changed,
                Err(why) => return Ok(Err(why)),
            };
            if let Err(error) = api.schema.conform(definition, &mut changed) {
                return Ok(Err(error.to_string()));
            }
            for field in ["name", "namespace", "uid"] {
                if changed["metadata"][field] != object["metadata"][field] {
                    return Ok(Err(format!("the policy changed metadata.{field}")));
                }
            }
            *object = changed;
        }
        Ok(Ok(()))
    }

    /// Refuses the write, unless the policy's failures are ignored.
    fn fail(&self, why: &str) -> ApiResult<()> {
        if !self.compiled.fails_closed {
            return Ok(());
        }
        let (policy, binding) = (&self.compiled.name, self.binding["metadata"]["name"].as_str().unwrap_or_default());
        let why = format!("policy '{policy}' with binding '{binding}' denied request: {why}");
        Err(ApiError::denied_by_policy(&self.write.request.target.d, self.write.name, &why, "Invalid"))
    }
}
