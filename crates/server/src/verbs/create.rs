//! POST: a new object.

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use mainstay_api::{field::Errors, rules::meta};
use mainstay_store::{Compare, Expect, Op, Outcome, Txn};
use serde_json::{Value, json};

use crate::{
    admission,
    api::{self, Api, Target},
    body::Response,
    incoming, keys, metadata,
    negotiate::Accepted,
    object,
    query::Query,
    reply::{self, RowObject},
    status::{ApiError, ApiResult},
    warnings::Warnings,
};

/// How often a generated name, or a namespace that changes under us, is tried again.
const ATTEMPTS: usize = 8;

pub async fn create(
    api: &Api,
    target: &Target,
    query: &Query,
    accepted: Accepted,
    headers: &HeaderMap,
    body: &Bytes,
) -> ApiResult<Response> {
    let d = &target.d;
    let mut warnings = Warnings::default();
    let decoded = incoming::decode(headers, body)?;
    let mut template = incoming::shape(d, api.schema, decoded, query.field_validation, &mut warnings)?;
    metadata::place(target, &mut template)?;
    if metadata::text(&template, "resourceVersion").is_some_and(|v| !v.is_empty()) {
        return Err(ApiError::bad_request("resourceVersion should not be set on objects to be created"));
    }
    let generated = metadata::text(&template, "name").is_none_or(str::is_empty);
    for attempt in 1.. {
        let mut object = template.clone();
        metadata::begin(d, &mut object, api::now());
        let name = metadata::text(&object, "name").unwrap_or_default().to_owned();
        let errors = complete(target, &mut object);
        if !errors.is_empty() {
            return Err(ApiError::invalid(d, &name, &errors));
        }
        let key = keys::key(d, target.namespace.as_deref(), &name);
        let admitted = admission::create(api, target, &name, &mut object).await?;
        let wire = object::to_stored(d, &object);
        let mut txn = Txn {
            compares: vec![Compare { key: key.clone(), expect: Expect::Absent }],
            ops: vec![Op::Put { key: key.clone(), value: wire.json().clone() }],
        };
        txn.compares.extend(admitted.compares);
        txn.ops.extend(admitted.ops);
        let (taken, revision) = if query.dry_run {
            (api.store.get(&key).await?.0.is_some(), None)
        } else {
            match api.store.commit(txn).await? {
                Outcome::Committed(revision) => (false, Some(revision)),
                Outcome::Conflict { current } => (current.first().is_some_and(Option::is_some), None),
            }
        };
        if !taken && (query.dry_run || revision.is_some()) {
            warnings.extend(d.strategy.warnings(&object));
            let row = RowObject::parse(query.include_object.as_deref())?;
            let served = if d.conversion.is_some() { object::Wire::encode(&object) } else { wire };
            let mut response = reply::object(d, accepted, row, &served, revision);
            *response.status_mut() = StatusCode::CREATED;
            warnings.write(response.headers_mut());
            return Ok(response);
        }
        let last = attempt >= ATTEMPTS;
        match (taken, generated) {
            (true, false) => return Err(ApiError::already_exists(d, &name)),
            (true, true) if last => {
                let why = "the server was not able to generate a unique name for the object";
                return Err(ApiError::conflict(d, &name, why));
            }
            (false, _) if last => return Err(ApiError::conflict(d, &name, "what it depends on keeps changing")),
            _ => {}
        }
    }
    unreachable!("the loop returns on its last attempt")
}

/// Defaults, first status and judgement of a new object.
fn complete(target: &Target, object: &mut Value) -> Errors {
    let d = &target.d;
    if d.status == mainstay_api::descriptor::StatusRule::Separate
        && let Some(fields) = object.as_object_mut()
    {
        fields.remove("status");
    }
    let mut errors = Errors::new();
    meta::validate(object, d.namespaced(), d.name_rule, &mut errors);
    errors.extend(d.strategy.create(object));
    if d.generation {
        object["metadata"]["generation"] = json!(1);
    }
    errors
}
