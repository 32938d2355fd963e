//! Admission: what completes, limits or refuses a write after its user was authorized and before it is committed.
//!
//! [`PLUGINS`] is the whole list, in the order in which plugins run. A create or update passes it twice, as upstream's
//! does: first every plugin completes or changes the object ([`admit_create`], [`admit_update`]; webhooks see what the
//! others did), then the result is validated, and then every plugin judges what will be stored ([`create`], [`update`]).
//!
//! A plugin that depends on another object, or takes something that is given out once (an
//! address, a port, a range), adds compares and operations to the transaction of the write itself: what it looked at
//! still holds at the moment of the commit, and there is no second write that could be lost.
//!
//! A plugin's error ends the request; later plugins do not run and nothing is written.

mod certificate_limit;
mod certificate_signers;
mod certificate_subject;
mod claim_resize;
mod default_pod_roles;
mod default_toleration_seconds;
mod dependencies;
mod device_admin_access;
mod event_rate_limit;
mod ingress_class;
mod klusters;
mod leader_terms;
mod limit_ranger;
pub mod matching;
mod mutating_policy;
mod namespace_lifecycle;
mod node_restriction;
mod pod_ranges;
mod pod_security;
mod policy;
mod policy_params;
mod priority;
mod rbac_escalation;
mod release_permissions;
mod resource_quota;
mod runtime_class;
mod service_account;
mod service_allocation;
mod storage_class;
mod token_uses;
mod validating_policy;
mod webhook;

use std::sync::Arc;

use async_trait::async_trait;
use http::HeaderMap;
use mainstay_api::descriptor::{Descriptor, Scale};
use mainstay_store::{Compare, Expect, Op};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::OwnedMutexGuard;

pub use self::{
    event_rate_limit::EventRates,
    pod_ranges::RangeReservations,
    pod_security::{Level, PodSecuritySettings},
    policy::{MatchConditionsCache, PolicyCache},
    resource_quota::QuotaLocks,
};
use crate::{
    api::{Api, Target},
    auth::User,
    fence::Fence,
    http::{query::Query, status::ApiResult, warnings::Warnings},
    objects::{guaranteed_update::Part, scale_view},
};

/// Kinds that plugins look at on every write, by group and plural.
pub const CACHED_KINDS: [(&str, &str); 10] = [
    ("", "limitranges"),
    ("", "namespaces"),
    ("", "resourcequotas"),
    ("admissionregistration.k8s.io", "mutatingadmissionpolicies"),
    ("admissionregistration.k8s.io", "mutatingadmissionpolicybindings"),
    ("admissionregistration.k8s.io", "mutatingwebhookconfigurations"),
    ("admissionregistration.k8s.io", "validatingwebhookconfigurations"),
    ("admissionregistration.k8s.io", "validatingadmissionpolicies"),
    ("admissionregistration.k8s.io", "validatingadmissionpolicybindings"),
    ("networking.k8s.io", "servicecidrs"),
];

/// Every plugin, in order: first those that may refuse whatever the object says, then those that complete it, last those
/// that take addresses for it.
const PLUGINS: [&dyn Plugin; 32] = [
    &namespace_lifecycle::NamespaceLifecycle,
    &node_restriction::NodeRestriction,
    &event_rate_limit::EventRateLimit,
    &rbac_escalation::RbacEscalation,
    &policy_params::PolicyParams,
    &release_permissions::ReleasePermissions,
    &certificate_subject::CertificateSubject,
    &certificate_limit::CertificateLimit,
    &certificate_signers::CertificateSigners,
    &service_account::ServiceAccount,
    &limit_ranger::LimitRanger,
    &priority::Priority,
    &default_toleration_seconds::DefaultTolerationSeconds,
    &default_pod_roles::DefaultPodRoles,
    &runtime_class::RuntimeClass,
    &storage_class::DefaultStorageClass,
    &claim_resize::PersistentVolumeClaimResize,
    &ingress_class::DefaultIngressClass,
    &pod_security::PodSecurity,
    &device_admin_access::DeviceAdminAccess,
    &dependencies::DependencyCycles,
    &mutating_policy::MutatingAdmissionPolicy::BeforeWebhooks,
    &webhook::MutatingAdmissionWebhook,
    &mutating_policy::MutatingAdmissionPolicy::AfterWebhooks,
    &validating_policy::ValidatingAdmissionPolicy,
    &webhook::ValidatingAdmissionWebhook,
    &klusters::KlusterAdmission,
    &resource_quota::ResourceQuota,
    &leader_terms::LeaderTerms,
    &token_uses::TokenUses,
    &service_allocation::ServiceAllocation,
    &pod_ranges::PodRanges,
];

/// A write, as plugins see it.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    pub api: &'a Api,
    pub user: &'a User,
    pub target: &'a Target,
    /// Which part of the object an update may change; [`Part::Main`] for every other verb.
    pub part: Part,
    /// Nothing will be committed.
    pub dry_run: bool,
    pub query: &'a Query,
    pub notes: &'a Notes,
    /// The term of leadership under which the write was decided, if it depends on one.
    pub fence: Option<&'a Fence>,
}

#[cfg(test)]
impl<'a> Request<'a> {
    /// A create by a part of the server itself.
    pub(crate) fn for_test(api: &'a Api, target: &'a Target, query: &'a Query, notes: &'a Notes) -> Self {
        static USER: std::sync::LazyLock<User> = std::sync::LazyLock::new(|| User::internal("test"));
        Self { api, user: &USER, target, part: Part::Main, dry_run: false, query, notes, fence: None }
    }
}

/// The longest value of an audit annotation, in bytes, and the most annotations of a request.
const MAX_AUDIT_ANNOTATION: usize = 10 << 10;
const MAX_AUDIT_ANNOTATIONS: usize = 256;

/// What plugins say beside their verdict.
#[derive(Default)]
pub struct Notes {
    warnings: Mutex<Warnings>,
    /// Of the request's event in the audit log.
    audit_annotations: Mutex<Vec<(String, String)>>,
}

impl Notes {
    /// Advice for the client, sent with the answer unless the request fails.
    pub fn warn(&self, text: String) {
        self.warnings.lock().add(text);
    }

    /// For the audit log. Of a long value the beginning is logged, as by upstream, and of very many the first.
    pub fn annotate(&self, key: &str, mut value: String) {
        value.truncate(value.floor_char_boundary(MAX_AUDIT_ANNOTATION));
        let mut annotations = self.audit_annotations.lock();
        if annotations.len() < MAX_AUDIT_ANNOTATIONS {
            annotations.push((key.to_owned(), value));
        }
    }

    /// What is to be said in the audit log; taken once.
    pub fn take_audit_annotations(&self) -> Vec<(String, String)> {
        std::mem::take(&mut *self.audit_annotations.lock())
    }

    pub fn write(&self, headers: &mut HeaderMap) {
        std::mem::take(&mut *self.warnings.lock()).write(headers);
    }
}

/// What plugins add to the transaction of a write.
#[derive(Default)]
pub struct TxnAdditions {
    pub compares: Vec<Compare>,
    pub ops: Vec<Op>,
    /// Locks that are held until the write is committed or given up.
    pub locks: Vec<OwnedMutexGuard<()>>,
    /// The range of pod addresses that the write takes, reserved until then.
    pub pod_range: Option<pod_ranges::RangeReservation>,
    /// The object as mutating policies left it, if some of them run once more when others change it.
    pub after_policies: Option<Value>,
    /// A plugin changed the object such that defaults and validation must run anew.
    pub revalidate: bool,
}

impl TxnAdditions {
    /// Claims a key that nobody else may hold.
    fn claim(&mut self, key: String, value: Vec<u8>) {
        let key: Arc<str> = key.into();
        self.compares.push(Compare { key: key.clone(), expect: Expect::Absent });
        self.ops.push(Op::Put { key, value: value.into() });
    }
}

/// One admission plugin. Every method is optional; the one of a verb runs only for kinds that the plugin handles.
#[async_trait]
pub trait Plugin: Sync {
    /// For the log; upstream's name where it has this plugin.
    fn name(&self) -> &'static str;

    fn handles(&self, d: &Descriptor) -> bool;

    /// Whether an update through `/scale` is shown to it as upstream shows it: as a Scale, not as the object that is scaled.
    fn sees_scales(&self) -> bool {
        false
    }

    /// Create, before defaults and validation: sets fields that no client may choose.
    fn prepare_create(&self, _request: &Request<'_>, _object: &mut Value) {}

    /// Create, once the object has its defaults and before it is validated: completes or changes it.
    async fn admit_create(&self, _: &Request<'_>, _object: &mut Value, _: &mut TxnAdditions) -> ApiResult<()> {
        Ok(())
    }

    /// Create, once the object is complete and valid.
    async fn create(&self, _: &Request<'_>, _object: &mut Value, _: &mut TxnAdditions) -> ApiResult<()> {
        Ok(())
    }

    /// Update, the object as it was submitted: before fields that this request may not change are restored.
    fn review_update(&self, _request: &Request<'_>, _submitted: &Value, _old: &Value) -> ApiResult<()> {
        Ok(())
    }

    /// Update, once the object has its defaults and before it is validated: completes or changes it.
    async fn admit_update(
        &self,
        _: &Request<'_>,
        _object: &mut Value,
        _old: &Value,
        _: &mut TxnAdditions,
    ) -> ApiResult<()> {
        Ok(())
    }

    /// Update, once the object is complete and valid.
    async fn update(&self, _: &Request<'_>, _object: &mut Value, _old: &Value, _: &mut TxnAdditions) -> ApiResult<()> {
        Ok(())
    }

    /// Delete, by the stored object that is to go.
    async fn delete(&self, _request: &Request<'_>, _old: &Value) -> ApiResult<()> {
        Ok(())
    }

    /// What an object gives back when it is removed from the store.
    fn release(&self, _old: &Value) -> Vec<Op> {
        Vec::new()
    }

    /// POST to a subresource (`eviction`, `token`), by its body.
    async fn create_subresource(&self, _: &Request<'_>, _subresource: &str, _body: &Value) -> ApiResult<()> {
        Ok(())
    }

    /// A stream or proxied request to the object (`exec`, `attach`, `portforward`, `proxy`), by its options.
    async fn connect(&self, _: &Request<'_>, _subresource: &str, _options: &Value) -> ApiResult<()> {
        Ok(())
    }
}

fn plugins_for(d: &Descriptor) -> impl Iterator<Item = &'static dyn Plugin> {
    PLUGINS.into_iter().filter(|plugin| plugin.handles(d))
}

/// Logs which plugin refused a write; the client gets the reason alone.
fn log_refusal<T>(plugin: &dyn Plugin, request: &Request<'_>, result: ApiResult<T>) -> ApiResult<T> {
    result.inspect_err(|error| {
        let (resource, name) = (&*request.target.d.plural, &*request.target.name);
        tracing::debug!(plugin = plugin.name(), resource, name, reason = error.message(), "admission refused a write");
    })
}

/// A write through `/scale` as two Scales.
struct ShownScales<'a> {
    paths: &'a Scale,
    new: Value,
    old: Value,
}

fn shown_scales<'a>(
    plugin: &dyn Plugin,
    request: &Request<'a>,
    object: &Value,
    old: &Value,
) -> Option<ShownScales<'a>> {
    let d = &request.target.d;
    let paths = d.scale.as_ref().filter(|_| request.part == Part::Scale && plugin.sees_scales())?;
    Some(ShownScales { paths, new: scale_view::view(d, paths, object), old: scale_view::view(d, paths, old) })
}

pub fn prepare_create(request: &Request<'_>, object: &mut Value) {
    for plugin in plugins_for(&request.target.d) {
        plugin.prepare_create(request, object);
    }
}

pub async fn admit_create(request: &Request<'_>, object: &mut Value, txn: &mut TxnAdditions) -> ApiResult<()> {
    for plugin in plugins_for(&request.target.d) {
        log_refusal(plugin, request, plugin.admit_create(request, object, txn).await)?;
    }
    Ok(())
}

pub async fn create(request: &Request<'_>, object: &mut Value, txn: &mut TxnAdditions) -> ApiResult<()> {
    for plugin in plugins_for(&request.target.d) {
        log_refusal(plugin, request, plugin.create(request, object, txn).await)?;
    }
    Ok(())
}

pub fn review_update(request: &Request<'_>, submitted: &Value, old: &Value) -> ApiResult<()> {
    for plugin in plugins_for(&request.target.d) {
        log_refusal(plugin, request, plugin.review_update(request, submitted, old))?;
    }
    Ok(())
}

pub async fn admit_update(
    request: &Request<'_>,
    object: &mut Value,
    old: &Value,
    txn: &mut TxnAdditions,
) -> ApiResult<()> {
    for plugin in plugins_for(&request.target.d) {
        let admitted = match shown_scales(plugin, request, object, old) {
            None => plugin.admit_update(request, object, old, txn).await,
            Some(mut shown) => {
                let admitted = plugin.admit_update(request, &mut shown.new, &shown.old, txn).await;
                scale_view::set_replicas(shown.paths, object, scale_view::wanted_replicas(&shown.new));
                admitted
            }
        };
        log_refusal(plugin, request, admitted)?;
    }
    Ok(())
}

pub async fn update(request: &Request<'_>, object: &mut Value, old: &Value, txn: &mut TxnAdditions) -> ApiResult<()> {
    for plugin in plugins_for(&request.target.d) {
        let judged = match shown_scales(plugin, request, object, old) {
            None => plugin.update(request, object, old, txn).await,
            Some(mut shown) => plugin.update(request, &mut shown.new, &shown.old, txn).await,
        };
        log_refusal(plugin, request, judged)?;
    }
    Ok(())
}

pub async fn delete(request: &Request<'_>, old: &Value) -> ApiResult<()> {
    for plugin in plugins_for(&request.target.d) {
        log_refusal(plugin, request, plugin.delete(request, old).await)?;
    }
    Ok(())
}

/// What the removal of an object gives back, as operations of the transaction that removes it.
pub fn release(target: &Target, old: &Value) -> Vec<Op> {
    plugins_for(&target.d).flat_map(|plugin| plugin.release(old)).collect()
}

pub async fn create_subresource(request: &Request<'_>, subresource: &str, body: &Value) -> ApiResult<()> {
    for plugin in plugins_for(&request.target.d) {
        log_refusal(plugin, request, plugin.create_subresource(request, subresource, body).await)?;
    }
    Ok(())
}

pub async fn connect(request: &Request<'_>, subresource: &str, options: &Value) -> ApiResult<()> {
    for plugin in plugins_for(&request.target.d) {
        log_refusal(plugin, request, plugin.connect(request, subresource, options).await)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plugins_that_may_refuse_run_before_those_that_take_addresses() {
        let names: Vec<&str> = PLUGINS.iter().map(|plugin| plugin.name()).collect();
        assert_eq!(names[..2], ["NamespaceLifecycle", "NodeRestriction"]);
        assert_eq!(names[names.len() - 2..], ["ServiceAllocation", "PodRanges"]);
        let unique: std::collections::BTreeSet<&str> = names.iter().copied().collect();
        assert_eq!(unique.len(), names.len(), "{names:?}");
    }
}
