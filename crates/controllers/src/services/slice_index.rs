//! Which Service an EndpointSlice belongs to, and the index of the slices of each Service.

use std::sync::Arc;

use k8s_openapi::api::discovery::v1::EndpointSlice;

use super::ServiceContext;
use crate::runtime::ObjectKey;

pub const SERVICE_NAME: &str = mainstay_api::wellknown::kubernetes::SERVICE_NAME;

/// The Service that a slice belongs to.
pub fn service_of(slice: &EndpointSlice) -> Option<ObjectKey> {
    let name = slice.metadata.labels.as_ref()?.get(SERVICE_NAME)?;
    Some(ObjectKey::new(slice.metadata.namespace.clone().unwrap_or_default(), name))
}

/// Keeps the index up to date.
pub fn keep(shared: &Arc<ServiceContext>) {
    let own = Arc::downgrade(shared);
    shared.caches().slices.on_change(move |change| {
        let Some(own) = own.upgrade() else { return };
        own.slices.set_group(change.key, || service_of(own.caches().slices.get(change.key).as_deref()?));
    });
}
