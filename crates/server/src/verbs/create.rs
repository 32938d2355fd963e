//! POST: a new object.

use http::StatusCode;
use mainstay_api::{apply::set::FieldSet, descriptor::StatusRule, field::Errors, validation::meta};
use mainstay_store::{Compare, Expect, Op, Outcome, Revision, Txn};
use serde_json::{Value, json};

use super::Call;
use crate::{
    admission::{self, TxnAdditions},
    api::{self, Target},
    custom_resources,
    http::{
        reply,
        response_body::Response,
        status::{ApiError, ApiResult},
        warnings::Warnings,
        write_options::{self, WriteKind},
    },
    objects::{
        field_tracking::{self, FieldWriter},
        guaranteed_update::Part,
        keys, metadata,
        object::{self, Wire},
        request_object,
    },
};

/// How often a generated name, or a namespace that changes under us, is tried again.
const ATTEMPTS: usize = 8;

pub async fn create(call: &Call<'_>) -> ApiResult<Response> {
    let Call { api, target, query, accepted, row, headers, body, .. } = call;
    let d = &target.d;
    write_options::check(query, WriteKind::Create)?;
    let writer = call.writer(Part::Main);
    let mut warnings = Warnings::default();
    let mut name = String::new();
    for _ in 0..ATTEMPTS {
        // Decoded anew on the rare second attempt, rather than copied on every first one.
        let decoded = request_object::decode(headers, body)?;
        let mut object = request_object::shape(d, api.schema, decoded, query.field_validation, &mut warnings)?;
        metadata::set_namespace(target, &mut object)?;
        if metadata::string_field(&object, "resourceVersion").is_some_and(|v| !v.is_empty()) {
            return Err(ApiError::bad_request("resourceVersion should not be set on objects to be created"));
        }
        let generated = metadata::string_field(&object, "name").is_none_or(str::is_empty);
        let server_set = field_tracking::server_set_fields(d, &object);
        metadata::initialize(d, &mut object, api::now());
        admission::prepare_create(&call.admission(), &mut object);
        name = metadata::string_field(&object, "name").unwrap_or_default().to_owned();
        match attempt(call, &name, object, Some((&writer, &server_set))).await? {
            Creation::Created { wire, revision, warnings: advice } => {
                warnings.extend(advice);
                let mut response = reply::object(d, *accepted, *row, &wire, revision)?;
                *response.status_mut() = StatusCode::CREATED;
                warnings.write(response.headers_mut());
                return Ok(response);
            }
            Creation::Taken if !generated => return Err(ApiError::already_exists(d, &name)),
            Creation::Taken | Creation::Overtaken => {}
        }
    }
    let why = "the server was not able to generate a unique name for the object, or what it depends on keeps changing";
    Err(ApiError::conflict(d, &name, why))
}

/// What became of an attempt to create an object.
pub enum Creation {
    /// In its served form; without a revision if it was a dry run.
    Created { wire: Wire, revision: Option<Revision>, warnings: Vec<String> },
    /// The name is in use.
    Taken,
    /// Something the object depends on changed meanwhile.
    Overtaken,
}

/// Completes, admits and commits a new object. Its fields belong to the given writer, with the exception of those that the server
/// set; without one, the object itself says whose they are.
pub async fn attempt(
    call: &Call<'_>,
    name: &str,
    mut object: Value,
    writer: Option<(&FieldWriter, &FieldSet<'static>)>,
) -> ApiResult<Creation> {
    let Call { api, target, query, .. } = call;
    let d = &target.d;
    let given = field_tracking::take_managed_fields(&mut object);
    let (request, mut additions) = (call.admission(), TxnAdditions::default());
    let (mut errors, mut warnings) = complete(target, &mut object);
    admission::admit_create(&request, &mut object, &mut additions).await?;
    if additions.revalidate {
        (errors, warnings) = complete(target, &mut object);
    }
    field_tracking::set_managed_fields(&mut object, given);
    if !errors.is_empty() {
        return Err(ApiError::invalid(d, name, &errors));
    }
    if let Some((writer, server_set)) = writer {
        if field_tracking::is_tracked(target) {
            field_tracking::track_create(api, target, writer, &mut object, server_set);
        } else {
            field_tracking::set_managed_fields(&mut object, None);
        }
    }
    admission::create(&request, &mut object, &mut additions).await?;
    custom_resources::set_status(api, d, &mut object);
    let key = keys::key(d, target.namespace.as_deref(), name);
    let stored = object::to_stored(d, &object)?;
    let wire = if d.conversion.is_some() { Wire::encode(&object) } else { stored.clone() };
    let created = |revision| Creation::Created { wire, revision, warnings };
    if query.dry_run {
        let taken = api.store.get(&key).await?.0.is_some();
        return Ok(if taken { Creation::Taken } else { created(None) });
    }
    let mut txn = Txn {
        compares: vec![Compare { key: key.clone(), expect: Expect::Absent }],
        ops: vec![Op::Put { key, value: stored.json().clone() }],
    };
    txn.compares.extend(additions.compares);
    txn.ops.extend(additions.ops);
    Ok(match api.commit(txn, call.fence).await? {
        Outcome::Committed(revision) => created(Some(revision)),
        Outcome::Conflict { current } if current.first().is_some_and(Option::is_some) => Creation::Taken,
        Outcome::Conflict { .. } => Creation::Overtaken,
    })
}

/// Defaults, first status and judgement of a new object, with advice for its author.
fn complete(target: &Target, object: &mut Value) -> (Errors, Vec<String>) {
    let d = &target.d;
    if d.status == StatusRule::Separate
        && let Some(fields) = object.as_object_mut()
    {
        fields.remove("status");
    }
    let mut errors = Errors::new();
    meta::validate(object, d.namespaced(), d.name_rule, &mut errors);
    let (wrong, advice) = d.strategy.create_advised(object);
    errors.append(wrong);
    if d.generation {
        object["metadata"]["generation"] = json!(1);
    }
    (errors, advice)
}
