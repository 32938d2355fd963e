//! DELETE: removes an object, or marks it for deletion until grace period and finalizers are done.

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use jiff::{SignedDuration, Timestamp};
use mainstay_api::{
    crd,
    descriptor::{Descriptor, Subresource},
    field::{FieldError, Path},
    pod::DEFAULT_TERMINATION_GRACE_SECONDS,
};
use mainstay_store::{Compare, Expect, Op, Outcome, Revision, Txn};
use serde_json::{Value, json};

use super::Call;
use crate::{
    admission::{self, Request},
    api::{self, Target},
    http::{
        query::{self, Query},
        reply,
        response_body::Response,
        status::{ApiError, ApiResult},
    },
    objects::{
        metadata,
        object::{self, Wire},
        request_object,
    },
};

const ORPHAN: &str = "orphan";
const FOREGROUND: &str = "foregroundDeletion";
const ATTEMPTS: usize = 8;

/// What becomes of dependents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Propagation {
    Orphan,
    Background,
    Foreground,
}

#[derive(Clone, Debug, Default)]
pub struct Options {
    pub grace: Option<i64>,
    pub propagation: Option<Propagation>,
    pub uid: Option<String>,
    pub version: Option<String>,
    pub dry_run: bool,
}

impl Options {
    /// From the query and, with precedence, a `DeleteOptions` body.
    pub fn parse(query: &Query, headers: &HeaderMap, body: &Bytes) -> ApiResult<Self> {
        let mut options = Self { grace: query.grace_period_seconds, dry_run: query.dry_run, ..Self::default() };
        let mut policy = query.propagation_policy.clone();
        let mut orphan = query.orphan_dependents;
        if !body.is_empty() {
            let value = request_object::decode(headers, body)?.value;
            if !value.is_null() && !value.is_object() {
                return Err(ApiError::bad_request("the body of a delete must be a DeleteOptions object"));
            }
            let text = |value: &Value| value.as_str().filter(|s| !s.is_empty()).map(str::to_owned);
            options.grace = value["gracePeriodSeconds"].as_i64().or(options.grace);
            policy = text(&value["propagationPolicy"]).or(policy);
            orphan = value["orphanDependents"].as_bool().or(orphan);
            options.uid = text(&value["preconditions"]["uid"]);
            options.version = text(&value["preconditions"]["resourceVersion"]);
            for directive in value["dryRun"].as_array().into_iter().flatten() {
                options.dry_run |= query::dry_run(directive.as_str().unwrap_or_default())?;
            }
        }
        options.propagation = propagation(policy.as_deref(), orphan)?;
        if options.grace.is_some_and(|grace| grace < 0) {
            options.grace = Some(1);
        }
        Ok(options)
    }
}

fn propagation(policy: Option<&str>, orphan: Option<bool>) -> ApiResult<Option<Propagation>> {
    let path = Path::new("propagationPolicy");
    let refuse = |error: FieldError| Err(ApiError::invalid_kind("meta.k8s.io", "DeleteOptions", "", &error.into()));
    match (policy, orphan) {
        (Some(_), Some(_)) => {
            refuse(FieldError::invalid(&path, policy, "orphanDependents and deletionPropagation cannot be both set"))
        }
        (Some("Orphan"), _) | (None, Some(true)) => Ok(Some(Propagation::Orphan)),
        (Some("Background"), _) | (None, Some(false)) => Ok(Some(Propagation::Background)),
        (Some("Foreground"), _) => Ok(Some(Propagation::Foreground)),
        (Some(other), _) => refuse(FieldError::not_supported(&path, other, &["Background", "Foreground", "Orphan"])),
        (None, None) => Ok(None),
    }
}

/// What a delete does to an object.
#[derive(Debug, PartialEq)]
enum Verdict {
    Remove,
    /// Keep it, marked like this.
    Mark(Value),
    /// It is already marked at least as strictly.
    Leave,
}

fn plan_delete(d: &Descriptor, old: &Value, options: &Options, now: Timestamp) -> Verdict {
    let mut object = old.clone();
    let undecided = !metadata::finalizers(old).any(|finalizer| [ORPHAN, FOREGROUND].contains(&finalizer));
    let stock = (d.orphans_by_default && undecided).then_some(Propagation::Orphan);
    set_dependents_finalizer(&mut object, options.propagation.or(stock));
    if let Some(finalizer) = d.deletion_finalizer.filter(|_| !old["metadata"]["deletionTimestamp"].is_string()) {
        add_finalizer(&mut object, finalizer);
        let (reason, message) = crd::status::DELETION_PENDING;
        crd::status::mark_terminating(&mut object, reason, message, now);
    }
    let grace = grace_period(d, old, options);
    let held = !metadata::has_no_finalizers(d, &object);
    let being_deleted = old["metadata"]["deletionTimestamp"].is_string();
    let granted = old["metadata"]["deletionGracePeriodSeconds"].as_i64().unwrap_or(0);
    if !held && grace == 0 {
        return Verdict::Remove;
    }
    if !being_deleted || grace < granted {
        let end = now.checked_add(SignedDuration::from_secs(grace)).unwrap_or(Timestamp::MAX);
        let metadata = &mut object["metadata"];
        metadata["deletionTimestamp"] = json!(end.to_string());
        metadata["deletionGracePeriodSeconds"] = json!(grace);
        if let Some(generation) = metadata["generation"].as_i64() {
            metadata["generation"] = json!(generation + 1);
        }
    }
    if d.has_subresource(Subresource::Finalize) {
        object["status"]["phase"] = json!("Terminating");
    }
    if object == *old { Verdict::Leave } else { Verdict::Mark(object) }
}

/// Only what runs on a node ends gracefully; anything else has nothing to wait for.
fn grace_period(d: &Descriptor, old: &Value, options: &Options) -> i64 {
    if !d.graceful_deletion {
        return 0;
    }
    let unplaced = old["spec"]["nodeName"].as_str().is_none_or(str::is_empty);
    let finished = old["status"]["phase"].as_str().is_some_and(mainstay_api::pod::is_terminal_phase);
    if unplaced || finished {
        return 0;
    }
    let stock =
        old["spec"]["terminationGracePeriodSeconds"].as_i64().unwrap_or(DEFAULT_TERMINATION_GRACE_SECONDS).max(0);
    let granted = old["metadata"]["deletionGracePeriodSeconds"].as_i64();
    // A second delete may shorten the grace that was granted, never lengthen it.
    match (options.grace, granted) {
        (Some(asked), Some(granted)) => asked.min(granted),
        (Some(asked), None) => asked,
        (None, Some(granted)) => granted,
        (None, None) => stock,
    }
}

fn add_finalizer(object: &mut Value, finalizer: &str) {
    let mut finalizers: Vec<&str> = metadata::finalizers(object).collect();
    if !finalizers.contains(&finalizer) {
        finalizers.push(finalizer);
        object["metadata"]["finalizers"] = json!(finalizers);
    }
}

fn set_dependents_finalizer(object: &mut Value, propagation: Option<Propagation>) {
    let (add, drop): (Option<&str>, &[&str]) = match propagation {
        None => return,
        Some(Propagation::Orphan) => (Some(ORPHAN), &[FOREGROUND]),
        Some(Propagation::Foreground) => (Some(FOREGROUND), &[ORPHAN]),
        Some(Propagation::Background) => (None, &[ORPHAN, FOREGROUND]),
    };
    let mut finalizers: Vec<String> =
        metadata::finalizers(object).filter(|f| !drop.contains(f)).map(str::to_owned).collect();
    if let Some(add) = add.filter(|add| !finalizers.iter().any(|f| f == add)) {
        finalizers.push(add.to_owned());
    }
    if finalizers.is_empty() {
        if let Some(metadata) = object["metadata"].as_object_mut() {
            metadata.remove("finalizers");
        }
    } else {
        object["metadata"]["finalizers"] = json!(finalizers);
    }
}

/// An object after a delete: gone, or still there with its mark.
pub struct DeleteOutcome {
    pub object: Value,
    pub wire: Wire,
    pub revision: Revision,
    pub gone: bool,
}

pub async fn delete_one(request: &Request<'_>, options: &Options) -> ApiResult<DeleteOutcome> {
    let request = &Request { dry_run: options.dry_run, ..*request };
    let Request { api, target, .. } = request;
    let d = &target.d;
    for _ in 0..ATTEMPTS {
        let entry = api.existing(target).await?;
        let old = object::parse(d, &entry)?;
        check_preconditions(target, options, &old, entry.modified)?;
        admission::delete(request, &old).await?;
        let (object, gone) = match plan_delete(d, &old, options, api::now()) {
            Verdict::Remove => (old.clone(), true),
            Verdict::Mark(object) => (object, false),
            Verdict::Leave => {
                let wire = Wire::from_entry(d, &entry)?;
                return Ok(DeleteOutcome { object: old, wire, revision: entry.modified, gone: false });
            }
        };
        let wire = object::to_stored(d, &object)?;
        let served = if d.conversion.is_some() { Wire::encode(&object) } else { wire.clone() };
        if options.dry_run {
            return Ok(DeleteOutcome { object, wire: served, revision: entry.modified, gone });
        }
        let key = entry.key.clone();
        let mut txn = Txn {
            compares: vec![Compare { key: key.clone(), expect: Expect::ModifiedAt(entry.modified) }],
            ops: vec![if gone { Op::Delete { key } } else { Op::Put { key, value: wire.json().clone() } }],
        };
        if gone {
            txn.ops.extend(admission::release(target, &old));
        }
        if let Outcome::Committed(revision) = api.commit(txn, request.fence).await? {
            return Ok(DeleteOutcome { object, wire: served, revision, gone });
        }
    }
    Err(ApiError::modified(d, &target.name))
}

fn check_preconditions(target: &Target, options: &Options, old: &Value, version: Revision) -> ApiResult<()> {
    let failed = |what: &str, wanted: &str, actual: &str| {
        let why = format!("Precondition failed: {what} in precondition: {wanted}, {what} in object meta: {actual}");
        Err(ApiError::conflict(&target.d, &target.name, &why))
    };
    if let Some(uid) = &options.uid {
        let actual = metadata::string_field(old, "uid").unwrap_or_default();
        if uid != actual {
            return failed("UID", uid, actual);
        }
    }
    match &options.version {
        Some(wanted) if *wanted != version.to_string() => failed("ResourceVersion", wanted, &version.to_string()),
        _ => Ok(()),
    }
}

pub async fn delete(call: &Call<'_>) -> ApiResult<Response> {
    let Call { target, query, accepted, row, headers, body, .. } = call;
    let options = Options::parse(query, headers, body)?;
    let deleted = delete_one(&call.admission(), &options).await?;
    let d = &target.d;
    if deleted.gone && !d.returns_deleted {
        let mut details = json!({ "name": target.name, "kind": d.plural, "uid": deleted.object["metadata"]["uid"] });
        if !d.group.is_empty() {
            details["group"] = json!(d.group);
        }
        let status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details,
        });
        return Ok(reply::encoded(StatusCode::OK, accepted.encoding, &status));
    }
    reply::object(d, *accepted, *row, &deleted.wire, Some(deleted.revision))
}

#[cfg(test)]
mod tests {
    use super::*;
    use mainstay_api::registry::Registry;

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    fn planned(plural: &str, old: Value, options: Options) -> Verdict {
        let registry = Registry::builtin();
        plan_delete(registry.find("", "v1", plural).expect(plural), &old, &options, NOW)
    }

    fn running_pod() -> Value {
        json!({"kind": "Pod", "metadata": {"name": "p"}, "spec": {"nodeName": "n", "terminationGracePeriodSeconds": 20}})
    }

    #[test]
    fn what_nothing_holds_goes_at_once() {
        assert_eq!(planned("configmaps", json!({"metadata": {}}), Options::default()), Verdict::Remove);
        let unplaced = json!({"kind": "Pod", "metadata": {}, "spec": {"terminationGracePeriodSeconds": 20}});
        assert_eq!(planned("pods", unplaced, Options::default()), Verdict::Remove);
    }

    #[test]
    fn a_running_pod_gets_its_grace() {
        let Verdict::Mark(marked) = planned("pods", running_pod(), Options::default()) else { panic!("not marked") };
        assert_eq!(marked["metadata"]["deletionGracePeriodSeconds"], 20);
        assert_eq!(marked["metadata"]["deletionTimestamp"], "1970-01-01T00:00:20Z");
        assert_eq!(planned("pods", running_pod(), Options { grace: Some(0), ..Options::default() }), Verdict::Remove);
    }

    #[test]
    fn a_second_delete_shortens_grace_and_never_lengthens_it() {
        let Verdict::Mark(marked) = planned("pods", running_pod(), Options::default()) else { panic!("not marked") };
        let longer = Options { grace: Some(60), ..Options::default() };
        assert_eq!(planned("pods", marked.clone(), longer), Verdict::Leave);
        let shorter = Options { grace: Some(5), ..Options::default() };
        let Verdict::Mark(again) = planned("pods", marked.clone(), shorter) else { panic!("not marked") };
        assert_eq!(again["metadata"]["deletionGracePeriodSeconds"], 5);
        assert_eq!(planned("pods", marked, Options::default()), Verdict::Leave);
    }

    #[test]
    fn propagation_becomes_a_finalizer() {
        let old = json!({"metadata": {"finalizers": ["x/keep", "orphan"]}});
        let foreground = Options { propagation: Some(Propagation::Foreground), ..Options::default() };
        let Verdict::Mark(marked) = planned("configmaps", old, foreground) else { panic!("not marked") };
        assert_eq!(marked["metadata"]["finalizers"], json!(["x/keep", "foregroundDeletion"]));
        let background = Options { propagation: Some(Propagation::Background), ..Options::default() };
        let old = json!({"metadata": {"finalizers": ["foregroundDeletion"]}});
        assert_eq!(planned("configmaps", old, background), Verdict::Remove);
    }

    #[test]
    fn a_replication_controller_leaves_its_pods_unless_told_otherwise() {
        let old = json!({"metadata": {}});
        let Verdict::Mark(marked) = planned("replicationcontrollers", old.clone(), Options::default()) else {
            panic!("not marked")
        };
        assert_eq!(marked["metadata"]["finalizers"], json!(["orphan"]));
        let background = Options { propagation: Some(Propagation::Background), ..Options::default() };
        assert_eq!(planned("replicationcontrollers", old, background), Verdict::Remove);
    }

    #[test]
    fn a_namespace_terminates_first() {
        let old = json!({"kind": "Namespace", "metadata": {}, "spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"}});
        let Verdict::Mark(marked) = planned("namespaces", old, Options::default()) else { panic!("not marked") };
        assert_eq!(marked["status"]["phase"], "Terminating");
        assert!(marked["metadata"]["deletionTimestamp"].is_string());
    }
}
