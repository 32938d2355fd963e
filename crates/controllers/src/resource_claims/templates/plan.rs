//! Which claims a pod lacks. Pure.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::{
    api::resource::v1::{ResourceClaim, ResourceClaimTemplate},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};

use super::super::{POD_CLAIM_NAME, owning_pod};
use crate::{
    names,
    objects::pod::{Pod, PodResourceClaim},
};

/// Room for the hyphen and five letters in a name of 63.
const LONGEST_BASE: usize = 57;
/// The most pods that use a claim at once.
const MAX_CONSUMERS: usize = 256;

pub struct World {
    pub pod: Arc<Pod>,
    /// The claims that the pod controls.
    pub owned: Vec<Arc<ResourceClaim>>,
    /// The templates that it names, as far as they exist.
    pub templates: BTreeMap<String, Arc<ResourceClaimTemplate>>,
    /// The claims that it names, as far as they exist.
    pub claims: BTreeMap<String, Arc<ResourceClaim>>,
    /// A name that no claim has, for each of the pod's claims.
    pub fresh_names: BTreeMap<String, String>,
}

/// Derived from the pod, so that whoever makes a claim a second time collides with the first.
pub fn names_of(pod: &Pod, is_taken: impl Fn(&str) -> bool) -> BTreeMap<String, String> {
    let name = |own: &PodResourceClaim| {
        let (base, seed) = (base_name(pod.name(), &own.name), format!("{}/{}", pod.uid(), own.name));
        Some((own.name.clone(), names::unused(&base, &seed, &is_taken).next()?))
    };
    pod.spec.resource_claims.iter().filter(|own| own.resource_claim_template_name.is_some()).filter_map(name).collect()
}

#[derive(Debug, PartialEq)]
pub enum Action {
    Create {
        pod_uid: String,
        pod_claim: String,
        claim: Box<ResourceClaim>,
    },
    /// Names of the pod's claims, and of the objects.
    WriteStatuses {
        pod_uid: String,
        statuses: Vec<(String, String)>,
    },
    /// Fenced by the version of the claim.
    Reserve {
        pod_uid: String,
        claim: Box<ResourceClaim>,
    },
    RecordFailure {
        pod_uid: String,
        pod_claim: String,
        why: String,
    },
}

pub fn plan(world: &World) -> Vec<Action> {
    let pod = &world.pod;
    if !pod.is_active() {
        return vec![];
    }
    let pod_uid = || pod.uid().to_owned();
    let (mut actions, mut statuses) = (Vec::new(), Vec::new());
    for own in &pod.spec.resource_claims {
        let Some(template_name) = &own.resource_claim_template_name else { continue };
        let recorded = pod.status.resource_claim_statuses.iter().find(|status| status.name == own.name);
        match recorded.map(|status| &status.resource_claim_name) {
            Some(None) => continue, // none is needed
            Some(Some(name)) if world.claims.get(name).is_some_and(|claim| is_for_pod(claim, pod)) => continue,
            Some(Some(_)) | None => {}
        }
        // Made before, and not recorded.
        let made = world.owned.iter().find(|claim| annotation(claim) == Some(&own.name));
        if let Some(name) = made.and_then(|claim| claim.metadata.name.clone()) {
            statuses.push((own.name.clone(), name));
            continue;
        }
        match world.templates.get(template_name) {
            Some(template) => {
                let claim = claim_from(template, pod, own, world.fresh_names.get(&own.name).cloned());
                statuses.push((own.name.clone(), claim.metadata.name.clone().unwrap_or_default()));
                actions.push(Action::Create {
                    pod_uid: pod_uid(),
                    pod_claim: own.name.clone(),
                    claim: Box::new(claim),
                });
            }
            None => {
                let resource = "resourceclaimtemplate.resource.k8s.io";
                let why = format!("resource claim template {template_name:?}: {resource} {template_name:?} not found");
                actions.push(Action::RecordFailure { pod_uid: pod_uid(), pod_claim: own.name.clone(), why });
            }
        }
    }
    if !statuses.is_empty() {
        actions.push(Action::WriteStatuses { pod_uid: pod_uid(), statuses });
    }
    if !pod.spec.node_name.is_empty() {
        let reservable = world.claims.values().filter(|claim| may_reserve(claim, pod));
        actions
            .extend(reservable.map(|claim| Action::Reserve { pod_uid: pod_uid(), claim: Box::new((**claim).clone()) }));
    }
    actions
}

fn annotation(claim: &ResourceClaim) -> Option<&String> {
    claim.metadata.annotations.as_ref()?.get(POD_CLAIM_NAME)
}

fn is_for_pod(claim: &ResourceClaim, pod: &Pod) -> bool {
    owning_pod(claim).is_some_and(|(_, uid)| uid == pod.uid())
}

/// Allocated, not reserved for the pod, and open to more users.
fn may_reserve(claim: &ResourceClaim, pod: &Pod) -> bool {
    let Some(status) = claim.status.as_ref().filter(|status| status.allocation.is_some()) else { return false };
    let consumers = status.reserved_for.as_deref().unwrap_or_default();
    claim.metadata.deletion_timestamp.is_none()
        && consumers.len() < MAX_CONSUMERS
        && consumers.iter().all(|consumer| consumer.uid != pod.uid())
}

fn claim_from(
    template: &ResourceClaimTemplate,
    pod: &Pod,
    own: &PodResourceClaim,
    name: Option<String>,
) -> ResourceClaim {
    let spec = template.spec.clone().unwrap_or_default();
    let metadata = spec.metadata.unwrap_or_default();
    let mut annotations = metadata.annotations.unwrap_or_default();
    annotations.insert(POD_CLAIM_NAME.to_owned(), own.name.clone());
    ResourceClaim {
        metadata: ObjectMeta {
            name,
            annotations: Some(annotations),
            labels: metadata.labels,
            owner_references: Some(vec![OwnerReference {
                api_version: "v1".to_owned(),
                kind: "Pod".to_owned(),
                name: pod.name().to_owned(),
                uid: pod.uid().to_owned(),
                controller: Some(true),
                block_owner_deletion: Some(true),
            }]),
            ..ObjectMeta::default()
        },
        spec: spec.spec,
        status: None,
    }
}

/// `<pod>-<claim>`; of long names both are cut in proportion, so that something of each stays.
fn base_name(pod: &str, claim: &str) -> String {
    let length = pod.len() + 1 + claim.len();
    if length <= LONGEST_BASE {
        return format!("{pod}-{claim}");
    }
    let cut = |name: &str| name[..name.len() * LONGEST_BASE / (length + 1)].trim_end_matches(['-', '.']).to_owned();
    format!("{}-{}", cut(pod), cut(claim))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(status: Value, node: &str) -> Arc<Pod> {
        let claims = json!([
            { "name": "gpu", "resourceClaimTemplateName": "one" },
            { "name": "net", "resourceClaimName": "shared" },
        ]);
        let pod = json!({
            "metadata": { "name": "web", "namespace": "ns", "uid": "u" },
            "spec": { "resourceClaims": claims, "nodeName": node },
            "status": { "phase": "Pending", "resourceClaimStatuses": status },
        });
        Arc::new(serde_json::from_value(pod).unwrap())
    }

    fn world(pod: Arc<Pod>) -> World {
        let template: ResourceClaimTemplate = serde_json::from_value(json!({
            "metadata": { "name": "one" },
            "spec": {
                "metadata": { "labels": { "a": "b" } },
                "spec": { "devices": { "requests": [{ "name": "r", "exactly": { "deviceClassName": "c" } }] } },
            },
        }))
        .unwrap();
        let templates = BTreeMap::from([("one".to_owned(), Arc::new(template))]);
        World { owned: vec![], templates, claims: BTreeMap::new(), fresh_names: names_of(&pod, |_| false), pod }
    }

    fn claim(name: &str, status: Value) -> Arc<ResourceClaim> {
        let owner = json!({ "apiVersion": "v1", "kind": "Pod", "name": "web", "uid": "u", "controller": true });
        let metadata = json!({ "name": name, "annotations": { POD_CLAIM_NAME: "gpu" }, "ownerReferences": [owner] });
        Arc::new(serde_json::from_value(json!({ "metadata": metadata, "spec": {}, "status": status })).unwrap())
    }

    #[test]
    fn a_claim_is_made_of_the_template_owned_by_the_pod_and_named_in_its_status() {
        let actions = plan(&world(pod(json!([]), "")));
        let [Action::Create { claim, pod_claim, .. }, Action::WriteStatuses { statuses, .. }] = &actions[..] else {
            panic!("{actions:?}")
        };
        let name = claim.metadata.name.clone().unwrap();
        assert!(name.starts_with("web-gpu-") && name.len() == 13, "{name}");
        assert_eq!((pod_claim.as_str(), statuses), ("gpu", &vec![("gpu".to_owned(), name.clone())]));
        assert_eq!(annotation(claim).unwrap(), "gpu");
        assert_eq!(claim.metadata.labels.as_ref().unwrap()["a"], "b");
        assert_eq!(owning_pod(claim), Some(("web", "u")));
        assert!(claim.spec.as_ref().unwrap().devices.is_some());
        let again = plan(&world(pod(json!([]), "")));
        assert_eq!(again, actions, "a repeated plan collides");
        assert_ne!(names_of(&pod(json!([]), ""), |other| other == name)["gpu"], name);
    }

    #[test]
    fn what_was_made_is_recorded_and_what_is_recorded_rests() {
        let mut made = world(pod(json!([]), ""));
        made.owned = vec![claim("web-gpu-x", json!({}))];
        let statuses = vec![("gpu".to_owned(), "web-gpu-x".to_owned())];
        assert_eq!(plan(&made), [Action::WriteStatuses { pod_uid: "u".to_owned(), statuses }]);
        let recorded = json!([{ "name": "gpu", "resourceClaimName": "web-gpu-x" }]);
        let mut rests = world(pod(recorded.clone(), ""));
        rests.claims.insert("web-gpu-x".to_owned(), claim("web-gpu-x", json!({})));
        assert_eq!(plan(&rests), []);
        assert_eq!(plan(&world(pod(json!([{ "name": "gpu" }]), ""))), [], "it was found that none is needed");
        let lost = plan(&world(pod(recorded, "")));
        assert!(matches!(&lost[..], [Action::Create { .. }, Action::WriteStatuses { .. }]), "{lost:?}");
    }

    #[test]
    fn a_missing_template_is_named() {
        let mut world = world(pod(json!([]), ""));
        world.templates.clear();
        let [Action::RecordFailure { why, .. }] = &plan(&world)[..] else { panic!("one event") };
        assert_eq!(why, r#"resource claim template "one": resourceclaimtemplate.resource.k8s.io "one" not found"#);
    }

    #[test]
    fn a_pod_that_was_bound_without_the_scheduler_is_added_to_allocated_claims() {
        let recorded = json!([{ "name": "gpu", "resourceClaimName": "web-gpu-x" }]);
        let mut bound = world(pod(recorded, "n1"));
        let free = claim("shared", json!({ "allocation": {} }));
        bound.claims.insert("web-gpu-x".to_owned(), claim("web-gpu-x", json!({})));
        bound.claims.insert("shared".to_owned(), free.clone());
        assert_eq!(plan(&bound), [Action::Reserve { pod_uid: "u".to_owned(), claim: Box::new((*free).clone()) }]);
        let users = json!([{ "resource": "pods", "name": "web", "uid": "u" }]);
        let used = claim("shared", json!({ "allocation": {}, "reservedFor": users }));
        bound.claims.insert("shared".to_owned(), used);
        assert_eq!(plan(&bound), []);
    }

    #[test]
    fn long_names_keep_something_of_both() {
        let name = base_name(&"p".repeat(63), &"c".repeat(63));
        assert!(name.len() <= LONGEST_BASE && name.contains("p-c"), "{name}");
    }
}
