//! PUT: replace an object, its status, or a namespace's finalizers.

use serde_json::json;

use super::Call;
use crate::{
    http::{
        reply,
        response_body::Response,
        status::ApiResult,
        warnings::Warnings,
        write_options::{self, WriteKind},
    },
    objects::{
        field_tracking,
        guaranteed_update::{Ownership, Part, guaranteed_update},
        metadata, request_object,
    },
};

pub async fn update(call: &Call<'_>, part: Part) -> ApiResult<Response> {
    let Call { api, target, query, accepted, row, headers, body, .. } = call;
    let d = &target.d;
    write_options::check(query, WriteKind::Update)?;
    let mut warnings = Warnings::default();
    let decoded = request_object::decode(headers, body)?;
    let clears_managers = request_object::has_empty_managed_fields(&decoded.value);
    let mut object = request_object::shape(d, api.schema, decoded, query.field_validation, &mut warnings)?;
    metadata::set_namespace(target, &mut object)?;
    metadata::check_name(target, &mut object)?;
    if clears_managers {
        field_tracking::set_managed_fields(&mut object, Some(json!([])));
    }
    let writer = call.writer(part);
    let ownership = Ownership::Tracked(&writer);
    let changed = guaranteed_update(&call.admission(), part, ownership, query.dry_run, |_| Ok(object.clone())).await?;
    if part != Part::Status {
        warnings.extend(d.strategy.warnings(&changed.object)); // agents and controllers take no advice
    }
    let mut response = reply::object(d, *accepted, *row, &changed.wire, Some(changed.revision))?;
    warnings.write(response.headers_mut());
    Ok(response)
}
