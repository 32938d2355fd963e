//! PUT: replace an object, its status, or a namespace's finalizers.

use bytes::Bytes;
use http::HeaderMap;

use crate::{
    api::{Api, Target},
    body::Response,
    change::{Part, change},
    incoming, metadata,
    negotiate::Accepted,
    query::Query,
    reply::{self, RowObject},
    status::ApiResult,
    warnings::Warnings,
};

pub async fn update(
    api: &Api,
    target: &Target,
    part: Part,
    query: &Query,
    accepted: Accepted,
    headers: &HeaderMap,
    body: &Bytes,
) -> ApiResult<Response> {
    let d = &target.d;
    let row = RowObject::parse(query.include_object.as_deref())?;
    let mut warnings = Warnings::default();
    let decoded = incoming::decode(headers, body)?;
    let mut object = incoming::shape(d, api.schema, decoded, query.field_validation, &mut warnings)?;
    metadata::place(target, &mut object)?;
    metadata::check_name(target, &mut object)?;
    let changed = change(api, target, part, query.dry_run, |_| Ok(object.clone())).await?;
    warnings.extend(d.strategy.warnings(&changed.object));
    let mut response = reply::object(d, accepted, row, &changed.wire, Some(changed.revision));
    warnings.write(response.headers_mut());
    Ok(response)
}
