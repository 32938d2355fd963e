//! Claims of a StatefulSet: they outlive pods and the set unless its policy says otherwise.
//!
//! The policy is carried out by garbage collection: a claim that is to go with the set is owned by the
//! set, one that is to go with a pod that is scaled away is owned by that pod. Owners that
//! others gave a claim stay, and a claim that another controls is left alone.

use k8s_openapi::{
    api::core::v1::PersistentVolumeClaim,
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};

use super::desired::Retention;
use crate::objects::pod::Pod;

/// The owners a claim should have, if it has others.
pub fn owners(
    claim: &PersistentVolumeClaim,
    policy: Retention,
    set: &OwnerReference,
    pod: &Pod,
    condemned: bool,
) -> Option<Vec<OwnerReference>> {
    let before = claim.metadata.owner_references.clone().unwrap_or_default();
    let ours = |owner: &OwnerReference| owner.uid == set.uid || owner.uid == pod.uid();
    let mut owners: Vec<OwnerReference> = before.iter().filter(|owner| !ours(owner)).cloned().collect();
    if !owners.iter().any(|owner| owner.controller == Some(true)) {
        if policy.with_pod && condemned {
            owners.push(reference(pod));
        } else if policy.with_set {
            owners.push(set.clone());
        }
    }
    let same = |a: &[OwnerReference], b: &[OwnerReference]| a.len() == b.len() && a.iter().all(|one| b.contains(one));
    (!same(&before, &owners)).then_some(owners)
}

/// Whether it is about to vanish with an earlier pod of that name, so that a new pod must not use it.
pub fn is_going(claim: &PersistentVolumeClaim, pod: &str) -> bool {
    let mut owners = claim.metadata.owner_references.iter().flatten();
    claim.metadata.deletion_timestamp.is_some() || owners.any(|owner| owner.kind == "Pod" && owner.name == pod)
}

fn reference(pod: &Pod) -> OwnerReference {
    OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Pod".to_owned(),
        name: pod.name().to_owned(),
        uid: pod.uid().to_owned(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

/// A claim as its template has it, with the labels that the set selects by.
pub fn make(
    template: &PersistentVolumeClaim,
    name: &str,
    namespace: &str,
    selected: impl IntoIterator<Item = (String, String)>,
    owner: Option<OwnerReference>,
) -> PersistentVolumeClaim {
    let mut labels = template.metadata.labels.clone().unwrap_or_default();
    labels.extend(selected);
    PersistentVolumeClaim {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some(namespace.to_owned()),
            labels: Some(labels),
            annotations: template.metadata.annotations.clone(),
            finalizers: template.metadata.finalizers.clone(),
            owner_references: owner.map(|owner| vec![owner]),
            ..ObjectMeta::default()
        },
        spec: template.spec.clone(),
        status: None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn owner_reference(uid: &str, kind: &str, controller: bool) -> OwnerReference {
        OwnerReference {
            api_version: if kind == "Pod" { "v1" } else { "apps/v1" }.to_owned(),
            kind: kind.to_owned(),
            name: if kind == "Pod" { "web-0" } else { "web" }.to_owned(),
            uid: uid.to_owned(),
            controller: Some(controller),
            block_owner_deletion: Some(true),
        }
    }

    fn claim(owners: &[OwnerReference]) -> PersistentVolumeClaim {
        serde_json::from_value(json!({ "metadata": { "name": "data-web-0", "ownerReferences": owners } })).unwrap()
    }

    #[test]
    fn claims_go_with_whom_the_policy_says() {
        let pod: Pod = serde_json::from_value(json!({ "metadata": { "name": "web-0", "uid": "pod" } })).unwrap();
        let (set, by_pod) = (owner_reference("set", "StatefulSet", true), owner_reference("pod", "Pod", true));
        let other = owner_reference("other", "X", true);
        let retention = |with_set, with_pod| Retention { with_set, with_pod };
        for (before, policy, condemned, expected) in [
            (vec![], retention(false, false), true, None),
            (vec![], retention(true, false), false, Some(vec![set.clone()])),
            (vec![set.clone()], retention(true, false), true, None),
            (vec![], retention(false, true), false, None),
            (vec![], retention(false, true), true, Some(vec![by_pod.clone()])),
            (vec![set.clone()], retention(true, true), true, Some(vec![by_pod.clone()])),
            (vec![by_pod.clone()], retention(true, true), false, Some(vec![set.clone()])),
            (vec![set.clone()], retention(false, false), false, Some(vec![])),
            (vec![other.clone()], retention(true, true), true, None),
            (vec![other.clone(), set.clone()], retention(true, true), false, Some(vec![other.clone()])),
        ] {
            assert_eq!(owners(&claim(&before), policy, &set, &pod, condemned), expected, "{before:?} {policy:?}");
        }
    }

    #[test]
    fn a_claim_that_goes_with_an_earlier_pod_is_not_used_again() {
        assert!(!is_going(&claim(&[owner_reference("set", "StatefulSet", true)]), "web-0"));
        assert!(is_going(&claim(&[owner_reference("old", "Pod", true)]), "web-0"));
        let mut leaving = claim(&[]);
        leaving.metadata.deletion_timestamp =
            Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time("2026-01-01T00:00:00Z".parse().unwrap()));
        assert!(is_going(&leaving, "web-0"));
    }
}
