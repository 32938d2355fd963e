//! Updates of stored objects: read, change, validate, admit, compare-and-set, and once more if somebody else was faster.
//!
//! Update, patch, scale, status, finalize and binding differ only in how they make the new object.

use mainstay_api::{
    descriptor::{Descriptor, StatusRule},
    field::{Errors, FieldError, Path},
    strategy::SpecPart,
    validation::meta,
};
use mainstay_store::{Compare, Entry, Expect, Op, Outcome, Revision, Txn};
use serde_json::Value;

use crate::{
    admission::{self, Request, TxnAdditions},
    api::Target,
    custom_resources,
    http::status::{ApiError, ApiResult},
    objects::{
        field_tracking::{self, FieldWriter},
        metadata,
        object::{self, Wire},
    },
};

/// Patches are tried against newer versions this often before the client is told.
const ATTEMPTS: usize = 5;

/// Which part of an object a request may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Everything but status, where that is separate.
    Main,
    Status,
    /// How many replicas it wants, through `/scale`.
    Scale,
    /// Whether a certificate that was asked for may be given: conditions of the status.
    Approval,
    /// `spec.finalizers` of a namespace.
    Finalize,
    /// One part of a pod's spec.
    Spec(SpecPart),
    /// Where a pod runs, with the condition that says so. Whoever makes the new object has judged it.
    Placement,
}

/// An object after an update.
pub struct UpdatedObject {
    /// In its served form.
    pub object: Value,
    pub wire: Wire,
    pub revision: Revision,
}

/// How a write changes who owns fields.
#[derive(Clone, Copy)]
pub enum Ownership<'a> {
    /// Not at all.
    Kept,
    /// What it changes belongs to whoever writes.
    Tracked(&'a FieldWriter),
    /// The new object says: it is the result of an apply.
    Applied,
}

/// Changes the stored object to what `make` makes of it.
pub async fn guaranteed_update(
    request: &Request<'_>,
    part: Part,
    ownership: Ownership<'_>,
    dry_run: bool,
    mut make: impl FnMut(&Value) -> ApiResult<Value>,
) -> ApiResult<UpdatedObject> {
    let request = &Request { part, dry_run, ..*request };
    let Request { api, target, .. } = request;
    let d = &target.d;
    for _ in 0..ATTEMPTS {
        let entry = api.existing(target).await?;
        let mut old = object::parse(d, &entry)?;
        object::set_version(&mut old, entry.modified);
        let mut object = make(&old)?;
        admission::review_update(request, &object, &old)?;
        object::clear_version(&mut old);
        check_preconditions(target, &object, &entry, &old)?;
        // What a request says of managers is read, not judged: upstream takes none of it rather than refusing it.
        let given = field_tracking::take_managed_fields(&mut object);
        let mut errors = complete_and_validate(d, part, &mut object, &old);
        let mut additions = TxnAdditions::default();
        admission::admit_update(request, &mut object, &old, &mut additions).await?;
        if additions.revalidate {
            errors = complete_and_validate(d, part, &mut object, &old);
        }
        if !errors.is_empty() {
            return Err(ApiError::invalid(d, &target.name, &errors));
        }
        custom_resources::set_status(api, d, &mut object);
        field_tracking::set_managed_fields(&mut object, given);
        match ownership {
            Ownership::Tracked(writer) if field_tracking::is_tracked(target) => {
                field_tracking::track_update(api, target, writer, &mut object, &old);
            }
            Ownership::Kept | Ownership::Tracked(_) => field_tracking::keep_managed_fields(&mut object, &old),
            Ownership::Applied => keep_times_if_equal(&mut object, &old),
        }
        if object == old {
            return Ok(UpdatedObject { wire: Wire::from_entry(d, &entry)?, revision: entry.modified, object });
        }
        admission::update(request, &mut object, &old, &mut additions).await?;
        let wire = object::to_stored(d, &object)?;
        if wire.json() == &entry.value {
            return Ok(UpdatedObject { wire: Wire::from_entry(d, &entry)?, revision: entry.modified, object });
        }
        let served = if d.conversion.is_some() { Wire::encode(&object) } else { wire.clone() };
        if dry_run {
            return Ok(UpdatedObject { wire: served, revision: entry.modified, object });
        }
        let key = entry.key.clone();
        let mut txn = Txn {
            compares: vec![Compare { key: key.clone(), expect: Expect::ModifiedAt(entry.modified) }],
            ops: Vec::new(),
        };
        if metadata::is_removable(d, &object) {
            txn.ops.push(Op::Delete { key });
            txn.ops.extend(admission::release(target, &old)); // what it would newly take, it does not
        } else {
            txn.ops.push(Op::Put { key, value: wire.json().clone() });
            txn.compares.extend(additions.compares);
            txn.ops.extend(additions.ops);
        }
        if let Outcome::Committed(revision) = api.commit(txn, request.fence).await? {
            return Ok(UpdatedObject { wire: served, revision, object });
        }
    }
    Err(ApiError::modified(d, &target.name))
}

/// An apply that changes nothing but when it was leaves the object as it is.
fn keep_times_if_equal(object: &mut Value, old: &Value) {
    let without_times = |managed: &Value| {
        let entries = managed.as_array().into_iter().flatten().cloned();
        let mut entries: Vec<Value> = entries.collect();
        for entry in entries.iter_mut().filter_map(Value::as_object_mut) {
            entry.remove("time");
        }
        entries.sort_by_cached_key(Value::to_string);
        entries
    };
    let of = |object: &Value| object["metadata"].get("managedFields").cloned();
    let new = of(object);
    if without_times(new.as_ref().unwrap_or(&Value::Null)) == without_times(&old["metadata"]["managedFields"]) {
        field_tracking::keep_managed_fields(object, old);
        if object != old {
            field_tracking::set_managed_fields(object, new);
        }
    }
}

fn check_preconditions(target: &Target, object: &Value, entry: &Entry, old: &Value) -> ApiResult<()> {
    let d = &target.d;
    match metadata::string_field(object, "resourceVersion").filter(|v| !v.is_empty()) {
        // Definitions and their objects are replaced only by who knows what they replace.
        None if d.custom.is_some() || custom_resources::is_definition(d) => {
            let path = Path::new("metadata").child("resourceVersion");
            let error = FieldError::invalid(&path, "", "must be specified for an update");
            return Err(ApiError::invalid(d, &target.name, &error.into()));
        }
        None => {}
        Some(version) => match version.parse::<u64>() {
            Ok(version) if version == entry.modified.0 => {}
            Ok(_) => return Err(ApiError::modified(d, &target.name)),
            Err(_) => {
                return Err(ApiError::bad_request(format!(
                    "metadata.resourceVersion: Invalid value: {version:?}: must be the number a server gave"
                )));
            }
        },
    }
    if let (Some(given), Some(stored)) = (metadata::string_field(object, "uid"), metadata::string_field(old, "uid"))
        && !given.is_empty()
        && given != stored
    {
        let why = format!("Precondition failed: UID in precondition: {given}, UID in object meta: {stored}");
        return Err(ApiError::conflict(d, &target.name, &why));
    }
    Ok(())
}

/// Completes the new object from the old one and says what is wrong with it.
fn complete_and_validate(d: &Descriptor, part: Part, object: &mut Value, old: &Value) -> Errors {
    metadata::carry_over(object, old);
    object::clear_version(object);
    let mut errors = Errors::new();
    match part {
        Part::Main | Part::Scale => {
            if d.status != StatusRule::Absent {
                replace(object, old, "status");
            }
            errors.append(d.strategy.update(object, old));
            metadata::count_generation(d, object, old);
        }
        Part::Status => {
            let given = object.as_object_mut().map(std::mem::take).unwrap_or_default();
            let ours = given.into_iter().filter(|(field, _)| field == "metadata" || field == "status");
            let theirs = old.as_object().into_iter().flatten();
            let theirs = theirs.filter(|(field, _)| *field != "metadata" && *field != "status");
            *object = theirs.map(|(field, value)| (field.clone(), value.clone())).chain(ours).collect();
            for field in ["labels", "ownerReferences", "finalizers"] {
                replace(&mut object["metadata"], &old["metadata"], field);
            }
            if d.custom.is_some() {
                replace(&mut object["metadata"], &old["metadata"], "annotations");
            }
            errors.append(d.strategy.update_status(object, old));
        }
        Part::Approval => {
            let conditions = object["status"].get("conditions").cloned();
            replace(object, old, "spec");
            replace(object, old, "status");
            set(&mut object["status"], "conditions", conditions);
            errors.append(d.strategy.update_status(object, old));
        }
        Part::Spec(part) => {
            errors.append(d.strategy.update_part(part, object, old));
            replace(object, old, "status");
            metadata::count_generation(d, object, old);
        }
        Part::Placement => return errors, // not what anyone desires: no new generation
        Part::Finalize => {
            let finalizers = object["spec"].get("finalizers").cloned();
            *object = old.clone();
            set(&mut object["spec"], "finalizers", finalizers);
        }
    }
    meta::validate_update(object, old, &mut errors);
    errors
}

fn replace(object: &mut Value, from: &Value, field: &str) {
    set(object, field, from.get(field).cloned());
}

fn set(object: &mut Value, field: &str, value: Option<Value>) {
    match value {
        Some(value) => object[field] = value,
        None => {
            if let Some(fields) = object.as_object_mut() {
                fields.remove(field);
            }
        }
    }
}
