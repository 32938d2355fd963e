//! NamespaceLifecycle: objects are created only in namespaces that exist and are not being deleted, and the namespaces
//! that every cluster has cannot be deleted.
//!
//! The namespace becomes a compare of the transaction: one that starts to terminate at the same moment makes the create
//! try again, and then refuse.

use std::sync::Arc;

use async_trait::async_trait;
use mainstay_api::{descriptor::Descriptor, wellknown::namespace};
use mainstay_store::{Compare, Entry, Expect};
use serde_json::Value;

use super::{Plugin, Request, TxnAdditions};
use crate::{
    http::status::{ApiError, ApiResult},
    objects::{keys, metadata, object},
};

const IMMORTAL: [&str; 3] = [namespace::DEFAULT, namespace::SYSTEM, namespace::PUBLIC];

pub struct NamespaceLifecycle;

#[async_trait]
impl Plugin for NamespaceLifecycle {
    fn name(&self) -> &'static str {
        "NamespaceLifecycle"
    }

    fn handles(&self, d: &Descriptor) -> bool {
        d.namespaced() || d.is_core("Namespace")
    }

    async fn admit_create(&self, request: &Request<'_>, object: &mut Value, txn: &mut TxnAdditions) -> ApiResult<()> {
        let target = request.target;
        if let Some(namespace) = target.namespace.as_deref().filter(|_| target.d.namespaced()) {
            let name = metadata::string_field(object, "name").unwrap_or_default();
            let entry = active_namespace(request, namespace, name).await?;
            txn.compares.push(Compare { key: entry.key.clone(), expect: Expect::ModifiedAt(entry.modified) });
        }
        Ok(())
    }

    async fn delete(&self, request: &Request<'_>, _old: &Value) -> ApiResult<()> {
        let target = request.target;
        if target.d.is_core("Namespace") && IMMORTAL.contains(&target.name.as_str()) {
            return Err(ApiError::forbidden(&target.d, &target.name, "this namespace may not be deleted"));
        }
        Ok(())
    }
}

async fn active_namespace(request: &Request<'_>, namespace: &str, name: &str) -> ApiResult<Arc<Entry>> {
    let Request { api, target, .. } = request;
    let Some(namespaces) = api.registry.find("", "v1", "namespaces") else {
        return Err(ApiError::internal("namespaces are not served"));
    };
    let (entry, _) = api.store.get(&keys::key(namespaces, None, namespace)).await?;
    let entry = entry.ok_or_else(|| ApiError::not_found(namespaces, namespace))?;
    let phase = namespaces.selectable.iter().position(|field| field.label == "status.phase");
    let terminating = object::with_selector_fields(namespaces, &entry, |fields| {
        phase.and_then(|at| fields.fields.get(at)).is_some_and(|phase| &**phase == "Terminating")
    })?;
    if terminating { Err(ApiError::namespace_terminating(&target.d, name, namespace)) } else { Ok(entry) }
}
