//! GET of one object.

use super::Call;
use crate::{
    custom_resources::webhook_conversion,
    http::{
        query::Version,
        reply,
        response_body::Response,
        status::{ApiError, ApiResult},
    },
    objects::object::Wire,
};

/// Reads are always as fresh as can be, so a `resourceVersion` matters only when it lies ahead, or says that an old
/// version is better than none.
pub async fn get(call: &Call<'_>) -> ApiResult<Response> {
    let Call { api, target, query, accepted, row, .. } = call;
    let key = target.key();
    let (entry, newest) = match query.version {
        Version::Any => api.store.get_any(&key).await?,
        Version::Newest | Version::Of(_) => api.store.get(&key).await?,
    };
    if let Version::Of(wanted) = query.version
        && wanted > newest.0
    {
        return Err(ApiError::too_large_version(wanted, newest.0));
    }
    let entry = entry.ok_or_else(|| ApiError::not_found(&target.d, &target.name))?;
    webhook_conversion::prefetch(api, &target.d, std::slice::from_ref(&entry)).await?;
    let wire = Wire::from_entry(&target.d, &entry)?;
    reply::object(&target.d, *accepted, *row, &wire, Some(entry.modified))
}
