//! GET of one object.

use super::Call;
use crate::{
    body::Response,
    object::Wire,
    query::Version,
    reply,
    status::{ApiError, ApiResult},
};

/// Reads are always as fresh as can be, so a `resourceVersion` matters only when it lies ahead.
pub async fn get(call: &Call<'_>) -> ApiResult<Response> {
    let Call { api, target, query, accepted, row, .. } = call;
    let (entry, newest) = api.store.get(&target.key()).await?;
    if let Version::Of(wanted) = query.version
        && wanted > newest.0
    {
        return Err(ApiError::too_large_version(wanted, newest.0));
    }
    let entry = entry.ok_or_else(|| ApiError::not_found(&target.d, &target.name))?;
    Ok(reply::object(&target.d, *accepted, *row, &Wire::of(&target.d, &entry), Some(entry.modified)))
}
