//! PATCH with `application/apply-patch+yaml`: server-side apply.
//!
//! The configuration is merged into the stored object, or becomes the object if there is none. Both are tried anew if somebody else
//! was faster.

use http::StatusCode;
use mainstay_api::apply::{ApplyError, updater::Merged};
use serde_json::Value;

use super::{
    Call,
    create::{self, Creation},
};
use crate::{
    admission,
    api::{self, Target},
    authorize::{self, Attributes, RequestTarget, ResourceAttributes},
    http::{
        reply,
        response_body::Response,
        status::{ApiError, ApiResult},
        warnings::Warnings,
        write_options::{self, WriteKind},
    },
    objects::{
        field_tracking::{self, FieldWriter},
        guaranteed_update::{Ownership, Part, UpdatedObject, guaranteed_update},
        metadata, request_object,
    },
};

pub const MEDIA_TYPE: &str = "application/apply-patch+yaml";

/// How often an object that comes and goes under us is tried again.
const ATTEMPTS: usize = 8;

pub async fn apply(call: &Call<'_>, part: Part) -> ApiResult<Response> {
    let Call { api, target, accepted, row, .. } = call;
    let d = &target.d;
    let mut warnings = Warnings::default();
    let config = configuration(call, &mut warnings)?;
    check_kind(target, &config)?;
    let writer = call.writer(part);
    for _ in 0..ATTEMPTS {
        if part == Part::Main && api.store.get(&target.key()).await?.0.is_none() {
            match create_applied(call, &writer, &config, &mut warnings).await? {
                Creation::Created { wire, revision, warnings: advice } => {
                    warnings.extend(advice);
                    let mut response = reply::object(d, *accepted, *row, &wire, revision)?;
                    *response.status_mut() = StatusCode::CREATED;
                    warnings.write(response.headers_mut());
                    return Ok(response);
                }
                Creation::Taken | Creation::Overtaken => continue,
            }
        }
        let changed = match update_applied(call, part, &writer, &config, &mut warnings).await {
            Err(error) if part == Part::Main && error.code() == StatusCode::NOT_FOUND => continue,
            changed => changed?,
        };
        if part != Part::Status {
            warnings.extend(d.strategy.warnings(&changed.object));
        }
        let mut response = reply::object(d, *accepted, *row, &changed.wire, Some(changed.revision))?;
        warnings.write(response.headers_mut());
        return Ok(response);
    }
    Err(ApiError::modified(d, &target.name))
}

/// The configuration in the body, if the request's options allow to apply it.
pub fn configuration(call: &Call<'_>, warnings: &mut Warnings) -> ApiResult<Value> {
    write_options::check(&call.query, WriteKind::Apply)?;
    request_object::decode_configuration(&call.body, call.query.field_validation, warnings)
}

fn check_kind(target: &Target, config: &Value) -> ApiResult<()> {
    let d = &target.d;
    let (version, kind) = (config["apiVersion"].as_str(), config["kind"].as_str());
    if version != Some(&d.api_version()) {
        return Err(ApiError::bad_request(format!(
            "Incorrect version specified in apply patch. Specified patch version: {}, expected: {}",
            version.unwrap_or_default(),
            d.api_version()
        )));
    }
    if kind != Some(&d.kind) {
        let why = format!("no corresponding type for {}, Kind={}", d.api_version(), kind.unwrap_or_default());
        return Err(ApiError::untyped_configuration(d, config, &why));
    }
    Ok(())
}

/// What the configuration makes of an object.
fn merged(
    call: &Call<'_>,
    writer: &FieldWriter,
    part: Part,
    live: Option<&Value>,
    config: &Value,
) -> ApiResult<Merged> {
    let Call { api, target, query, .. } = call;
    let ignored = field_tracking::ignored_fields(api, &target.d, part);
    let force = query.force.unwrap_or(false);
    let merged =
        field_tracking::with_manager(api, target, writer, &ignored, |manager| manager.apply(live, config, force));
    merged.map_err(|error| match error {
        ApplyError::ManagedFieldsGiven => ApiError::bad_request(error.to_string()),
        ApplyError::Invalid(why) => ApiError::untyped_configuration(&target.d, config, &why),
        ApplyError::LiveManagers(why) => ApiError::internal(format!("failed to decode managed fields: {why}")),
        ApplyError::Conflicts(conflicts) => ApiError::apply_conflicts(&conflicts),
    })
}

/// Applies to the object that is stored.
pub async fn update_applied(
    call: &Call<'_>,
    part: Part,
    writer: &FieldWriter,
    config: &Value,
    warnings: &mut Warnings,
) -> ApiResult<UpdatedObject> {
    let Call { api, target, query, .. } = call;
    guaranteed_update(&call.admission(), part, Ownership::Applied, query.dry_run, |old| {
        let Merged { object, managed_fields } = merged(call, writer, part, Some(old), config)?;
        let mut object = object.unwrap_or_else(|| old.clone());
        // Nobody owns these, but they are what the apply insists on.
        for field in ["uid", "resourceVersion"] {
            if let Some(given) = metadata::string_field(config, field).filter(|given| !given.is_empty()) {
                object["metadata"][field] = Value::String(given.to_owned());
            }
        }
        let mut object = request_object::shape(&target.d, api.schema, object.into(), query.field_validation, warnings)?;
        metadata::set_namespace(target, &mut object)?;
        metadata::check_name(target, &mut object)?;
        if field_tracking::is_tracked(target) {
            field_tracking::set_managed_fields(&mut object, managed_fields);
        } else {
            field_tracking::keep_managed_fields(&mut object, old);
        }
        Ok(object)
    })
    .await
}

/// Makes the object that the configuration describes, as there is none.
async fn create_applied(
    call: &Call<'_>,
    writer: &FieldWriter,
    config: &Value,
    warnings: &mut Warnings,
) -> ApiResult<Creation> {
    let Call { api, target, query, .. } = call;
    let d = &target.d;
    if let Some(uid) = metadata::string_field(config, "uid").filter(|uid| !uid.is_empty()) {
        let why = format!("uid mismatch: the provided object specified uid {uid}, and no existing object was found");
        return Err(ApiError::conflict(d, &target.name, &why));
    }
    authorize_create(call).await?;
    let Merged { object, managed_fields } = merged(call, writer, Part::Main, None, config)?;
    let object = object.unwrap_or_else(|| config.clone());
    let mut object = request_object::shape(d, api.schema, object.into(), query.field_validation, warnings)?;
    metadata::set_namespace(target, &mut object)?;
    metadata::check_name(target, &mut object)?;
    metadata::initialize(d, &mut object, api::now());
    admission::prepare_create(&call.admission(), &mut object);
    let managed_fields = managed_fields.filter(|_| field_tracking::is_tracked(target));
    field_tracking::set_managed_fields(&mut object, managed_fields);
    create::attempt(call, &target.name, object, None).await
}

/// Whoever may patch may not thereby create.
async fn authorize_create(call: &Call<'_>) -> ApiResult<()> {
    let Call { api, user, target, .. } = call;
    let d = &target.d;
    let resource = ResourceAttributes {
        group: d.group.clone(),
        resource: d.plural.clone(),
        namespace: target.namespace.as_deref().map(Into::into),
        name: Some(target.name.as_str().into()),
        ..ResourceAttributes::default()
    };
    let asked = Attributes { verb: "create", target: RequestTarget::Resource(resource.clone()) };
    match authorize::decide(api, user, &asked).await? {
        Ok(_) => Ok(()),
        Err(why) => {
            let words = authorize::refusal(user, "create", &resource, &why);
            Err(ApiError::forbidden(d, &target.name, &words))
        }
    }
}
