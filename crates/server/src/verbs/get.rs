//! GET of one object.

use crate::{
    api::{Api, Target},
    body::Response,
    negotiate::Accepted,
    object::Wire,
    query::{Query, Version},
    reply::{self, RowObject},
    status::{ApiError, ApiResult},
};

/// Reads are always as fresh as can be, so a `resourceVersion` matters only when it lies ahead.
pub async fn get(api: &Api, target: &Target, query: &Query, accepted: Accepted) -> ApiResult<Response> {
    let (entry, newest) = api.store.get(&target.key()).await?;
    if let Version::Of(wanted) = query.version
        && wanted > newest.0
    {
        return Err(ApiError::too_large_version(wanted, newest.0));
    }
    let entry = entry.ok_or_else(|| ApiError::not_found(&target.d, &target.name))?;
    let row = RowObject::parse(query.include_object.as_deref())?;
    Ok(reply::object(&target.d, accepted, row, &Wire::of(&target.d, &entry), Some(entry.modified)))
}
