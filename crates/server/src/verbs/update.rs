//! PUT: replace an object, its status, or a namespace's finalizers.

use super::Call;
use crate::{
    http::{reply, response_body::Response, status::ApiResult, warnings::Warnings},
    objects::{
        guaranteed_update::{Part, guaranteed_update},
        metadata, request_object,
    },
};

pub async fn update(call: &Call<'_>, part: Part) -> ApiResult<Response> {
    let Call { api, target, query, accepted, row, headers, body, .. } = call;
    let d = &target.d;
    let mut warnings = Warnings::default();
    let decoded = request_object::decode(headers, body)?;
    let mut object = request_object::shape(d, api.schema, decoded, query.field_validation, &mut warnings)?;
    metadata::set_namespace(target, &mut object)?;
    metadata::check_name(target, &mut object)?;
    let changed = guaranteed_update(&call.admission(), part, query.dry_run, |_| Ok(object.clone())).await?;
    if part != Part::Status {
        warnings.extend(d.strategy.warnings(&changed.object)); // agents and controllers take no advice
    }
    let mut response = reply::object(d, *accepted, *row, &changed.wire, Some(changed.revision))?;
    warnings.write(response.headers_mut());
    Ok(response)
}
