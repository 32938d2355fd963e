//! The `/scale` subresource: one number of an object, in one shape for all kinds.

use http::{Method, StatusCode};
use mainstay_api::{
    descriptor::Scale,
    field::{FieldError, Path},
};
use serde_json::{Value, json};

use super::{
    Call, apply,
    patch::{Patch, is_apply},
};
use crate::{
    api::Target,
    http::{
        reply,
        response_body::Response,
        status::{ApiError, ApiResult},
        warnings::Warnings,
        write_options::{self, WriteKind},
    },
    objects::{
        guaranteed_update::{Ownership, Part, UpdatedObject, guaranteed_update},
        metadata, object, request_object,
        scale_view::{self, DEFINITION, view},
    },
};

pub async fn scale(call: &Call<'_>, method: &Method) -> ApiResult<Response> {
    let Call { api, target, query, accepted, headers, body, .. } = call;
    let d = &target.d;
    let Some(paths) = &d.scale else { return Err(ApiError::no_such_path()) };
    if *method == Method::GET {
        let entry = api.existing(target).await?;
        let mut object = object::parse(d, &entry)?;
        object::set_version(&mut object, entry.modified);
        return Ok(reply::encoded(StatusCode::OK, accepted.encoding, &view(d, paths, &object)));
    }
    let writer = call.writer(Part::Scale);
    if *method == Method::PATCH && is_apply(headers) {
        let config = apply::configuration(call, &mut Warnings::default())?;
        let config = parent_configuration(target, paths, &config)?;
        let changed = apply::update_applied(call, Part::Scale, &writer, &config, &mut Warnings::default()).await?;
        return Ok(reply_with_scale(call, paths, changed));
    }
    let kind = if *method == Method::PATCH { WriteKind::Patch } else { WriteKind::Update };
    write_options::check(query, kind)?;
    let patch = if *method == Method::PATCH { Some(Patch::parse(d, headers, body)?) } else { None };
    let put = if patch.is_none() { Some(request_object::decode(headers, body)?.value) } else { None };
    let ownership = Ownership::Tracked(&writer);
    let changed = guaranteed_update(&call.admission(), Part::Scale, ownership, query.dry_run, |old| {
        let mut scale = match (&patch, &put) {
            (Some(patch), _) => {
                let mut scale = view(d, paths, old);
                patch.apply(api, DEFINITION, &mut scale)?;
                scale
            }
            (None, Some(put)) => put.clone(),
            (None, None) => return Err(ApiError::method_not_allowed()),
        };
        let cannot =
            |why: String| ApiError::bad_request(format!("Scale in version \"v1\" cannot be handled as a Scale: {why}"));
        api.schema.conform(DEFINITION, &mut scale).map_err(|error| cannot(error.to_string()))?;
        metadata::check_name(target, &mut scale)?;
        with_replicas(paths, old, &scale)
    })
    .await?;
    Ok(reply_with_scale(call, paths, changed))
}

fn reply_with_scale(call: &Call<'_>, paths: &Scale, changed: UpdatedObject) -> Response {
    let mut object = changed.object;
    object::set_version(&mut object, changed.revision);
    reply::encoded(StatusCode::OK, call.accepted.encoding, &view(&call.target.d, paths, &object))
}

/// What applying a Scale means for the object itself.
fn parent_configuration(target: &Target, paths: &Scale, scale: &Value) -> ApiResult<Value> {
    let version = scale["apiVersion"].as_str().unwrap_or_default();
    if version != "autoscaling/v1" || scale["kind"] != "Scale" {
        return Err(ApiError::bad_request(format!(
            "Incorrect version specified in apply patch. Specified patch version: {version}, expected: autoscaling/v1"
        )));
    }
    let mut config = json!({ "apiVersion": target.d.api_version(), "kind": target.d.kind, "metadata": {} });
    for field in ["name", "namespace", "uid", "resourceVersion"] {
        if let Some(given) = metadata::string_field(scale, field).filter(|given| !given.is_empty()) {
            config["metadata"][field] = json!(given);
        }
    }
    if let Some(replicas) = scale["spec"].get("replicas") {
        let at = paths.spec_replicas.steps().into_iter().fold(&mut config, |at, step| &mut at[step]);
        *at = replicas.clone();
    }
    Ok(config)
}

/// The object with the replicas of a Scale, fenced by the versions the Scale carries.
fn with_replicas(paths: &Scale, old: &Value, scale: &Value) -> ApiResult<Value> {
    let replicas = scale_view::wanted_replicas(scale);
    if replicas < 0 {
        let path = Path::new("spec").child("replicas");
        let error = FieldError::invalid(&path, replicas, "must be greater than or equal to 0");
        let name = metadata::string_field(old, "name").unwrap_or_default();
        return Err(ApiError::invalid_kind("autoscaling", "Scale", name, &error.into()));
    }
    let mut object = old.clone();
    scale_view::set_replicas(paths, &mut object, replicas);
    for field in ["uid", "resourceVersion"] {
        if let Some(given) = metadata::string_field(scale, field).filter(|v| !v.is_empty()) {
            object["metadata"][field] = json!(given);
        }
    }
    Ok(object)
}
