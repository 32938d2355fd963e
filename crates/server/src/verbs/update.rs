//! PUT: replace an object, its status, or a namespace's finalizers.

use super::Call;
use crate::{
    body::Response,
    change::{Part, change},
    incoming, metadata, node_restriction, reply,
    status::ApiResult,
    warnings::Warnings,
};

pub async fn update(call: &Call<'_>, part: Part) -> ApiResult<Response> {
    let Call { api, user, target, query, accepted, row, headers, body, .. } = call;
    let d = &target.d;
    let mut warnings = Warnings::default();
    let decoded = incoming::decode(headers, body)?;
    let mut object = incoming::shape(d, api.schema, decoded, query.field_validation, &mut warnings)?;
    metadata::place(target, &mut object)?;
    metadata::check_name(target, &mut object)?;
    let changed = change(api, target, part, query.dry_run, |old| {
        node_restriction::update(user, target, part, &object, old)?;
        Ok(object.clone())
    })
    .await?;
    if part != Part::Status {
        warnings.extend(d.strategy.warnings(&changed.object)); // machines and controllers take no advice
    }
    let mut response = reply::object(d, *accepted, *row, &changed.wire, Some(changed.revision));
    warnings.write(response.headers_mut());
    Ok(response)
}
