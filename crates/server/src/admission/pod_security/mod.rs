//! PodSecurity: pods must meet the Pod Security Standard of their namespace.
//!
//! Upstream's plugin with its labels (`pod-security.kubernetes.io/enforce`, `-warn`, `-audit`, each with a version), modes
//! and messages. Versions are accepted and shown; every version is judged by the checks of the latest. Stock is enforce
//! `baseline` and warn `restricted` ([`PodSecuritySettings`]); the namespaces of the system itself are `privileged`
//! unless they are labelled. Workloads are never refused for their templates, only warned about.

mod baseline;
mod checks;
mod policy;
mod restricted;

use async_trait::async_trait;
use mainstay_api::{
    descriptor::Descriptor,
    field::{Errors, FieldError, Path},
    strategy::SpecPart,
};
use mainstay_store::List;
use serde_json::Value;

pub use self::policy::{Level, PodSecuritySettings};
use self::{checks::violations, policy::Policy};
use super::{Plugin, Request, TxnAdditions};
use crate::{
    http::status::{ApiError, ApiResult},
    objects::{guaranteed_update::Part, keys, metadata, object},
};

/// How many pods are looked at when a namespace becomes stricter.
const MOST_PODS: usize = 3000;
/// How many different violations of existing pods are named.
const MOST_WARNINGS: usize = 30;

pub struct PodSecurity;

#[async_trait]
impl Plugin for PodSecurity {
    fn name(&self) -> &'static str {
        "PodSecurity"
    }

    fn handles(&self, d: &Descriptor) -> bool {
        d.is_core("Pod") || d.is_core("Namespace") || template(d).is_some()
    }

    async fn create(&self, request: &Request<'_>, object: &mut Value, _txn: &mut TxnAdditions) -> ApiResult<()> {
        if request.target.d.is_core("Namespace") {
            return check_labels(request, object);
        }
        check(request, object)
    }

    async fn update(
        &self,
        request: &Request<'_>,
        object: &mut Value,
        old: &Value,
        _txn: &mut TxnAdditions,
    ) -> ApiResult<()> {
        let d = &request.target.d;
        match request.part {
            Part::Main if d.is_core("Namespace") => {
                check_labels(request, object)?;
                warn_of_existing_pods(request, object, old).await
            }
            Part::Main if d.is_core("Pod") && images(object) == images(old) => Ok(()),
            Part::Main | Part::Spec(SpecPart::EphemeralContainers) => check(request, object),
            _ => Ok(()),
        }
    }
}

/// Where a workload has its pod template.
fn template(d: &Descriptor) -> Option<&'static str> {
    match (&*d.group, &*d.kind) {
        ("apps", "Deployment" | "ReplicaSet" | "StatefulSet" | "DaemonSet")
        | ("batch", "Job")
        | ("", "ReplicationController") => Some("/spec/template"),
        ("batch", "CronJob") => Some("/spec/jobTemplate/spec/template"),
        ("", "PodTemplate") => Some("/template"),
        _ => None,
    }
}

fn images(pod: &Value) -> Vec<&Value> {
    let lists = ["initContainers", "containers"].iter().filter_map(|list| pod["spec"][list].as_array());
    lists.flatten().map(|container| &container["image"]).collect()
}

fn namespace_policy(request: &Request<'_>, name: &str) -> Policy {
    let namespace = request.api.admission_cache.get("namespaces", name);
    let labels = namespace.as_ref().map_or(&Value::Null, |namespace| &namespace.value["metadata"]["labels"]);
    Policy::from_labels(labels, &request.api.settings.pod_security.for_namespace(name)).0
}

/// Judges a pod, or the template of a workload.
fn check(request: &Request<'_>, object: &Value) -> ApiResult<()> {
    let d = &request.target.d;
    let policy = namespace_policy(request, request.target.namespace.as_deref().unwrap_or_default());
    let pod = match template(d) {
        Some(path) => object.pointer(path).unwrap_or(&Value::Null),
        None => {
            let violations = violations(policy.enforce.level, object);
            if !violations.is_empty() {
                let name = metadata::string_field(object, "name").unwrap_or_default();
                let why = format!("violates PodSecurity \"{}\": {}", policy.enforce, checks::details(&violations));
                return Err(ApiError::forbidden(d, name, &why));
            }
            object
        }
    };
    let would = |mode| format!("would violate PodSecurity \"{mode}\": ");
    let found = violations(policy.warn.level, pod);
    if !found.is_empty() {
        request.notes.warn(would(&policy.warn) + &checks::details(&found));
    }
    let found = violations(policy.audit.level, pod);
    if !found.is_empty() {
        let text = would(&policy.audit) + &checks::details(&found);
        request.notes.annotate("pod-security.kubernetes.io/audit-violations", text);
    }
    Ok(())
}

/// Refuses labels that mean nothing.
fn check_labels(request: &Request<'_>, namespace: &Value) -> ApiResult<()> {
    let labels = &namespace["metadata"]["labels"];
    let (_, wrong) = Policy::from_labels(labels, &request.api.settings.pod_security.for_namespace(""));
    let path = Path::new("metadata").child("labels");
    let mut errors = Errors::new();
    for (label, value, detail) in wrong {
        errors.push(FieldError::invalid(&path.key(&label), value.as_str(), detail));
    }
    let name = metadata::string_field(namespace, "name").unwrap_or_default();
    if errors.is_empty() { Ok(()) } else { Err(ApiError::invalid(&request.target.d, name, &errors)) }
}

/// Pods that run already stay; whoever makes a namespace stricter learns which of them could not be created any more.
async fn warn_of_existing_pods(request: &Request<'_>, namespace: &Value, old: &Value) -> ApiResult<()> {
    let name = request.target.name.as_str();
    let stock = request.api.settings.pod_security.for_namespace(name);
    let policy = |namespace: &Value| Policy::from_labels(&namespace["metadata"]["labels"], &stock).0.enforce;
    let (new, before) = (policy(namespace), policy(old));
    if new.level <= before.level {
        return Ok(());
    }
    let Some(d) = request.api.registry.find("", "v1", "pods") else { return Ok(()) };
    let prefix = keys::prefix(d, Some(name));
    let listing = request.api.store.list(List { prefix: &prefix, limit: Some(MOST_PODS), ..List::default() }).await?;
    let mut by_reasons: Vec<(String, Vec<String>)> = Vec::new();
    for entry in &listing.entries {
        let pod = object::parse(d, entry)?;
        let found = violations(new.level, &pod);
        if found.is_empty() {
            continue;
        }
        let reasons = checks::reasons(&found);
        let pod_name = metadata::string_field(&pod, "name").unwrap_or_default().to_owned();
        match by_reasons.iter_mut().find(|(known, _)| *known == reasons) {
            Some((_, pods)) => pods.push(pod_name),
            None => by_reasons.push((reasons, vec![pod_name])),
        }
    }
    if by_reasons.is_empty() {
        return Ok(());
    }
    request
        .notes
        .warn(format!("existing pods in namespace {name:?} violate the new PodSecurity enforce level \"{new}\""));
    for (reasons, pods) in by_reasons.into_iter().take(MOST_WARNINGS) {
        request.notes.warn(match pods.as_slice() {
            [first] => format!("{first}: {reasons}"),
            [first, _] => format!("{first} (and 1 other pod): {reasons}"),
            [first, others @ ..] => format!("{first} (and {} other pods): {reasons}", others.len()),
            [] => continue,
        });
    }
    Ok(())
}
