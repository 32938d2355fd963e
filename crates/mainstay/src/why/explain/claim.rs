//! Why a PersistentVolumeClaim is not bound, or does not go away.

use jiff::Timestamp;
use k8s_openapi::api::{
    core::v1::{Event, PersistentVolume, PersistentVolumeClaim},
    storage::v1::StorageClass,
};
use mainstay_api::wellknown::{
    finalizer::PVC_PROTECTION,
    kubernetes::{BETA_STORAGE_CLASS, DEFAULT_STORAGE_CLASS},
};

use super::{Cause, Explanation, text};

/// What was observed of a claim.
#[derive(Clone, Debug, Default)]
pub struct ClaimFacts {
    pub claim: PersistentVolumeClaim,
    pub events: Vec<Event>,
    pub classes: Vec<StorageClass>,
    /// The volume that `spec.volumeName` names, if there is one of that name.
    pub volume: Option<PersistentVolume>,
    /// Names of pods that use it.
    pub users: Vec<String>,
}

/// Events in which the binder and provisioners say why they fail.
const FAILURES: [&str; 3] = ["ProvisioningFailed", "FailedBinding", "ClaimMisbound"];

pub fn explain_claim(facts: &ClaimFacts, now: Timestamp) -> Explanation {
    let mut cause = claim_cause(facts, now);
    if !facts.users.is_empty() {
        cause = cause.detail(format!("used by {}", text::few(&facts.users)));
    }
    cause.into_explanation(text::subject("claim", &facts.claim.metadata), text::history(&facts.events, now))
}

pub(super) fn claim_cause(facts: &ClaimFacts, now: Timestamp) -> Cause {
    let meta = &facts.claim.metadata;
    let spec = facts.claim.spec.as_ref();
    let phase = facts.claim.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or("Pending");
    let volume = spec.and_then(|spec| spec.volume_name.as_deref()).unwrap_or_default();
    if meta.deletion_timestamp.is_some() {
        let protected = meta.finalizers.iter().flatten().any(|finalizer| finalizer == PVC_PROTECTION);
        return match text::finalizers(meta) {
            Some(_) if protected && !facts.users.is_empty() => {
                Cause::new(format!("is being deleted, but is in use by {}", text::few(&facts.users))).next(
                    format!("{} delete pod {}", text::kubectl(meta), facts.users.join(" ")),
                    "the claim goes with its last pod",
                )
            }
            Some(finalizers) => Cause::new(format!("is being deleted, but {finalizers}")),
            None => Cause::new("is being deleted"),
        };
    }
    match phase {
        "Bound" => Cause::new(format!("is bound to volume {volume:?}")),
        "Lost" => {
            Cause::new(format!("has lost its volume {volume:?}: the volume was deleted and its data may be gone"))
                .next(format!("{} delete pvc {}", text::kubectl(meta), text::name(meta)), "and create it anew")
        }
        _ if !volume.is_empty() && facts.volume.is_none() => {
            Cause::new(format!("is not bound: it asks for volume {volume:?}, which does not exist"))
                .next("kubectl get pv", "which volumes there are")
        }
        _ => unbound(facts, now),
    }
}

fn unbound(facts: &ClaimFacts, now: Timestamp) -> Cause {
    let meta = &facts.claim.metadata;
    let names: Vec<String> = facts.classes.iter().map(|class| text::name(&class.metadata).to_owned()).collect();
    let there_are =
        if names.is_empty() { "there is none".to_owned() } else { format!("there are: {}", text::few(&names)) };
    let annotated = meta.annotations.as_ref().and_then(|all| all.get(BETA_STORAGE_CLASS)).map(String::as_str);
    let requested = annotated.or(facts.claim.spec.as_ref().and_then(|spec| spec.storage_class_name.as_deref()));
    let failure = text::newest(&facts.events, &FAILURES).and_then(|event| event.message.as_deref()).map(text::clause);
    let Some(class_name) = requested.filter(|name| !name.is_empty()) else {
        let default = facts.classes.iter().any(|class| {
            class
                .metadata
                .annotations
                .as_ref()
                .and_then(|all| all.get(DEFAULT_STORAGE_CLASS))
                .is_some_and(|v| v == "true")
        });
        return match requested {
            Some(_) => {
                Cause::new("is not bound: storageClassName is empty, so it waits for a volume made by hand that fits")
                    .next("kubectl get pv", "which volumes there are")
            }
            None if !default => {
                Cause::new(format!("is not bound: it names no storage class and none is the default ({there_are})"))
                    .next(
                        format!("kubectl annotate storageclass NAME {DEFAULT_STORAGE_CLASS}=true"),
                        "makes a class the default",
                    )
            }
            None => Cause::new("is not bound: its default storage class is about to be filled in"),
        };
    };
    let Some(class) = facts.classes.iter().find(|class| text::name(&class.metadata) == class_name) else {
        return Cause::new(format!("is not bound: storage class {class_name:?} does not exist ({there_are})")).next(
            "kubectl get storageclass",
            "a claim's class cannot be changed: create the class, or the claim anew",
        );
    };
    let waits_for_pod = class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer");
    if waits_for_pod && facts.users.is_empty() {
        return Cause::new(format!(
            "is not bound: storage class {class_name:?} makes volumes when a pod uses the claim, and none does"
        ));
    }
    if let Some(message) = failure {
        return Cause::new(format!("is not bound: storage class {class_name:?}: {message}"));
    }
    if waits_for_pod {
        let user = &facts.users[0];
        return Cause::new(format!("is not bound: storage class {class_name:?} waits until pod {user} is scheduled"))
            .next(
                format!("mainstay why pod/{user} -n {}", meta.namespace.as_deref().unwrap_or_default()),
                "why it is not",
            );
    }
    let age = text::age_of(meta.creation_timestamp.as_ref(), now).unwrap_or_default();
    Cause::new(format!(
        "is not bound: it waits for provisioner {:?} of storage class {class_name:?} for {age}; is that running?",
        class.provisioner
    ))
}
