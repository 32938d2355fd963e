//! Which pods of a node a drain evicts, leaves or refuses to touch, by kubectl's rules. Pure.

use k8s_openapi::api::core::v1::Pod;
use mainstay_api::wellknown::kubernetes::MIRROR_POD;

/// What the user agreed to lose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Consent {
    /// Pods that nobody replaces.
    pub bare_pods: bool,
    /// Data of `emptyDir` volumes.
    pub empty_dir_data: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Disposition {
    Evict,
    /// It belongs to the node.
    Leave(LeaveReason),
    /// It would be lost, or its data.
    Refuse(RefuseReason),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaveReason {
    DaemonSet,
    StaticPod,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefuseReason {
    NoController,
    EmptyDirData,
}

impl LeaveReason {
    pub fn text(self) -> &'static str {
        match self {
            Self::DaemonSet => "of a DaemonSet",
            Self::StaticPod => "a static pod of the node",
        }
    }
}

impl RefuseReason {
    pub fn text(self) -> &'static str {
        match self {
            Self::NoController => "nobody would replace it (use --force to override)",
            Self::EmptyDirData => "it has data in an emptyDir volume (use --delete-emptydir-data to override)",
        }
    }
}

pub fn judge(pod: &Pod, consent: Consent) -> Disposition {
    if pod.metadata.annotations.as_ref().is_some_and(|annotations| annotations.contains_key(MIRROR_POD)) {
        return Disposition::Leave(LeaveReason::StaticPod);
    }
    let finished = matches!(phase(pod), "Succeeded" | "Failed");
    match controller(pod) {
        Some(("DaemonSet", _)) => return Disposition::Leave(LeaveReason::DaemonSet),
        None if !consent.bare_pods && !finished => return Disposition::Refuse(RefuseReason::NoController),
        _ => {}
    }
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    if !consent.empty_dir_data && !finished && volumes.into_iter().any(|volume| volume.empty_dir.is_some()) {
        return Disposition::Refuse(RefuseReason::EmptyDirData);
    }
    Disposition::Evict
}

fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

/// Kind and name of its controller.
pub fn controller(pod: &Pod) -> Option<(&str, &str)> {
    let owners = pod.metadata.owner_references.iter().flatten();
    owners.filter(|owner| owner.controller == Some(true)).map(|owner| (owner.kind.as_str(), owner.name.as_str())).next()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(owner: Option<&str>, more: Value) -> Pod {
        let owners: Vec<Value> = owner
            .map(|kind| json!({ "apiVersion": "v1", "kind": kind, "name": "o", "uid": "u", "controller": true }))
            .into_iter()
            .collect();
        let mut pod = json!({
            "metadata": { "name": "p", "ownerReferences": owners },
            "spec": { "containers": [] }, "status": { "phase": "Running" },
        });
        for (key, value) in more.as_object().unwrap() {
            pod[key].as_object_mut().unwrap().extend(value.as_object().unwrap().clone());
        }
        serde_json::from_value(pod).unwrap()
    }

    #[test]
    fn pods_are_judged_as_kubectl_judges_them() {
        let none = Consent::default();
        let data = json!({ "spec": { "volumes": [{ "name": "d", "emptyDir": {} }] } });
        let done =
            json!({ "status": { "phase": "Succeeded" }, "spec": { "volumes": [{ "name": "d", "emptyDir": {} }] } });
        let mirror = json!({ "metadata": { "annotations": { MIRROR_POD: "x" } } });
        for (owner, more, consent, expected) in [
            (Some("ReplicaSet"), json!({}), none, Disposition::Evict),
            (Some("DaemonSet"), data.clone(), none, Disposition::Leave(LeaveReason::DaemonSet)),
            (None, mirror, none, Disposition::Leave(LeaveReason::StaticPod)),
            (None, json!({}), none, Disposition::Refuse(RefuseReason::NoController)),
            (None, json!({}), Consent { bare_pods: true, ..none }, Disposition::Evict),
            (Some("ReplicaSet"), data.clone(), none, Disposition::Refuse(RefuseReason::EmptyDirData)),
            (Some("ReplicaSet"), data, Consent { empty_dir_data: true, ..none }, Disposition::Evict),
            (None, done, none, Disposition::Evict),
        ] {
            assert_eq!(judge(&pod(owner, more.clone()), consent), expected, "{owner:?} {more}");
        }
    }
}
