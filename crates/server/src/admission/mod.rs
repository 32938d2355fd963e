//! Admission: what completes, limits or refuses a write after its user was authorized and before it is committed.
//!
//! [`PLUGINS`] is the whole list, in the order in which plugins run. Each verb calls this module at one place, and each
//! call walks the list once. A plugin that depends on another object, or takes something that is given out once (an
//! address, a port, a range), adds compares and operations to the transaction of the write itself: what it looked at
//! still holds at the moment of the commit, and there is no second write that could be lost.
//!
//! A plugin's error ends the request; later plugins do not run and nothing is written.

mod certificate_limit;
mod certificate_signers;
mod certificate_subject;
mod event_rate_limit;
mod namespace_lifecycle;
mod node_restriction;
mod pod_ranges;
mod priority;
mod rbac_escalation;
mod runtime_class;
mod service_account;
mod service_allocation;
mod storage_class;

use std::{future, sync::Arc};

use futures::{FutureExt, future::BoxFuture};
use mainstay_api::descriptor::Descriptor;
use mainstay_store::{Compare, Expect, Op};
use serde_json::Value;
use tokio::sync::OwnedMutexGuard;

pub use self::event_rate_limit::EventRates;
use crate::{
    api::{Api, Target},
    auth::User,
    http::status::ApiResult,
    objects::guaranteed_update::Part,
};

/// Every plugin, in order: first those that may refuse whatever the object says, then those that complete it, last those
/// that take addresses for it.
const PLUGINS: [&dyn Plugin; 13] = [
    &namespace_lifecycle::NamespaceLifecycle,
    &node_restriction::NodeRestriction,
    &event_rate_limit::EventRateLimit,
    &rbac_escalation::RbacEscalation,
    &certificate_subject::CertificateSubject,
    &certificate_limit::CertificateLimit,
    &certificate_signers::CertificateSigners,
    &service_account::ServiceAccount,
    &priority::Priority,
    &runtime_class::RuntimeClass,
    &storage_class::DefaultStorageClass,
    &service_allocation::ServiceAllocation,
    &pod_ranges::PodRanges,
];

/// A write, as plugins see it.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    pub api: &'a Api,
    pub user: &'a User,
    pub target: &'a Target,
}

/// What plugins add to the transaction of a write.
#[derive(Default)]
pub struct TxnAdditions {
    pub compares: Vec<Compare>,
    pub ops: Vec<Op>,
    /// A lock that is held until the write is committed or given up.
    pub lock: Option<OwnedMutexGuard<()>>,
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
pub trait Plugin: Sync {
    /// For the log; upstream's name where it has this plugin.
    fn name(&self) -> &'static str;

    fn handles(&self, d: &Descriptor) -> bool;

    /// Create, before defaults and validation: sets fields that no client may choose.
    fn prepare_create(&self, _request: &Request<'_>, _object: &mut Value) {}

    /// Create, once the object is complete and valid.
    fn create<'a>(
        &'a self,
        _request: &'a Request<'a>,
        _object: &'a mut Value,
        _txn: &'a mut TxnAdditions,
    ) -> BoxFuture<'a, ApiResult<()>> {
        future::ready(Ok(())).boxed()
    }

    /// Update, the object as it was submitted: before fields that this request may not change are restored.
    fn review_update(&self, _request: &Request<'_>, _part: Part, _submitted: &Value, _old: &Value) -> ApiResult<()> {
        Ok(())
    }

    /// Update, once the object is complete and valid.
    fn update<'a>(
        &'a self,
        _request: &'a Request<'a>,
        _object: &'a mut Value,
        _old: &'a Value,
        _txn: &'a mut TxnAdditions,
    ) -> BoxFuture<'a, ApiResult<()>> {
        future::ready(Ok(())).boxed()
    }

    /// Delete, by the stored object that is to go.
    fn delete(&self, _request: &Request<'_>, _old: &Value) -> ApiResult<()> {
        Ok(())
    }

    /// What an object gives back when it is removed from the store.
    fn release(&self, _old: &Value) -> Vec<Op> {
        Vec::new()
    }

    /// POST to a subresource (`eviction`, `token`), by its body.
    fn create_subresource<'a>(
        &'a self,
        _request: &'a Request<'a>,
        _subresource: &'a str,
        _body: &'a Value,
    ) -> BoxFuture<'a, ApiResult<()>> {
        future::ready(Ok(())).boxed()
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

pub fn prepare_create(request: &Request<'_>, object: &mut Value) {
    for plugin in plugins_for(&request.target.d) {
        plugin.prepare_create(request, object);
    }
}

pub async fn create(request: &Request<'_>, object: &mut Value) -> ApiResult<TxnAdditions> {
    let mut txn = TxnAdditions::default();
    for plugin in plugins_for(&request.target.d) {
        log_refusal(plugin, request, plugin.create(request, object, &mut txn).await)?;
    }
    Ok(txn)
}

pub fn review_update(request: &Request<'_>, part: Part, submitted: &Value, old: &Value) -> ApiResult<()> {
    for plugin in plugins_for(&request.target.d) {
        log_refusal(plugin, request, plugin.review_update(request, part, submitted, old))?;
    }
    Ok(())
}

pub async fn update(request: &Request<'_>, object: &mut Value, old: &Value) -> ApiResult<TxnAdditions> {
    let mut txn = TxnAdditions::default();
    for plugin in plugins_for(&request.target.d) {
        log_refusal(plugin, request, plugin.update(request, object, old, &mut txn).await)?;
    }
    Ok(txn)
}

pub fn delete(request: &Request<'_>, old: &Value) -> ApiResult<()> {
    for plugin in plugins_for(&request.target.d) {
        log_refusal(plugin, request, plugin.delete(request, old))?;
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
