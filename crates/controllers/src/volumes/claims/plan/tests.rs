use serde_json::{Value, json};

use super::*;

fn from<T: k8s_openapi::serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn claim(extra: Value) -> PersistentVolumeClaim {
    let mut claim = json!({
        "metadata": {"name": "c", "namespace": "n", "uid": "u", "resourceVersion": "5", "finalizers": [CLAIM_PROTECTION]},
        "spec": {"storageClassName": "local-path", "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "5Gi"}}},
        "status": {"phase": "Pending"},
    });
    merge(&mut claim, &extra);
    from(claim)
}

fn merge(to: &mut Value, from: &Value) {
    match (to, from) {
        (Value::Object(to), Value::Object(from)) => {
            for (key, value) in from {
                merge(to.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (to, from) => *to = from.clone(),
    }
}

fn volume(name: &str, size: &str, extra: Value) -> PersistentVolume {
    let mut volume = json!({
        "metadata": {"name": name, "resourceVersion": "9"},
        "spec": {"storageClassName": "local-path", "accessModes": ["ReadWriteOnce"], "capacity": {"storage": size}},
    });
    merge(&mut volume, &extra);
    from(volume)
}

fn class(mode: &str, provisioner: &str) -> StorageClass {
    from(json!({
        "metadata": {"name": "local-path", "annotations": {DEFAULT_CLASS: "true"}},
        "provisioner": provisioner, "volumeBindingMode": mode, "reclaimPolicy": "Delete",
    }))
}

fn node() -> NodeInfo {
    NodeInfo {
        name: "here".to_owned(),
        labels: [("kubernetes.io/hostname".to_owned(), "here".to_owned())].into(),
        directory: Some("/data/volumes".to_owned()),
    }
}

fn pod(phase: &str) -> Pod {
    from(json!({
        "metadata": {"name": "p"}, "status": {"phase": phase},
        "spec": {"nodeName": "here", "containers": [], "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]},
    }))
}

/// Events, actions and status, in short.
fn short(plan: &Plan<Action, ClaimStatus>) -> Vec<String> {
    let action = |action: &Action| match action {
        Action::Take { volume, version, claim } => {
            format!("take {volume}@{version} for {}", claim.uid.clone().unwrap())
        }
        Action::Provision(volume) => format!("make {}", volume.metadata.name.clone().unwrap()),
        Action::Change(ClaimChange { finalizers, class, volume, .. }) => {
            let part = |name: &str, value: &Option<String>| value.as_ref().map(|value| format!(" {name}={value}"));
            let parts = [
                part("finalizers", &finalizers.as_ref().map(|all| all.join(","))),
                part("class", class),
                part("volume", volume),
            ];
            format!("change{}", parts.into_iter().flatten().collect::<String>())
        }
        Action::RecordEvent(note) => format!("event {}", note.reason),
    };
    plan.actions.iter().map(action).chain(plan.status.iter().map(|status| status.phase.to_owned())).collect()
}

#[test]
fn a_claim_waits_for_a_pod_and_then_gets_a_volume_on_its_machine() {
    let waiting = class("WaitForFirstConsumer", PROVISIONER);
    let mut world = World { claim: claim(json!({})), classes: vec![waiting], ..World::default() };
    assert_eq!(short(&plan(&world)), ["event WaitForFirstConsumer"]);
    world.node = Some(NodeInfo { directory: None, ..node() });
    assert_eq!(short(&plan(&world)), ["event ProvisioningFailed"]);
    world.node = Some(node());
    let plan_now = plan(&world);
    assert_eq!(short(&plan_now), ["make pvc-u", "event ProvisioningSucceeded"]);
    let Action::Provision(made) = &plan_now.actions[0] else { panic!("a volume") };
    let spec = made.spec.as_ref().unwrap();
    assert_eq!(spec.local.as_ref().unwrap().path, "/data/volumes/pvc-u");
    assert_eq!(spec.persistent_volume_reclaim_policy.as_deref(), Some("Delete"));
    assert!(matching::reaches(made, &node()) && !matching::reaches(made, &NodeInfo::default()));

    // The volume names the claim already; what is left is for the claim to name it.
    world.volumes = vec![(**made).clone()];
    assert_eq!(short(&plan(&world)), ["change volume=pvc-u"]);
    let bound = json!({"metadata": {"annotations": {BIND_COMPLETED: "yes"}}, "spec": {"volumeName": "pvc-u"}});
    world.claim = claim(bound.clone());
    assert_eq!(short(&plan(&world)), ["Bound"]);
    let mut done = bound;
    merge(
        &mut done,
        &json!({"status": {"phase": "Bound", "capacity": {"storage": "5Gi"}, "accessModes": ["ReadWriteOnce"]}}),
    );
    world.claim = claim(done);
    assert_eq!(short(&plan(&world)), Vec::<String>::new());
    // The node says when the filesystem has the volume's new size.
    world.volumes[0].spec.as_mut().unwrap().capacity =
        Some([("storage".to_owned(), Quantity("10Gi".to_owned()))].into());
    assert_eq!(short(&plan(&world)), Vec::<String>::new());
    world.volumes.clear();
    assert_eq!(short(&plan(&world)), ["Lost"]);
}

#[test]
fn the_smallest_volume_that_suits_is_taken() {
    let there = |value: &str| {
        json!({"spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
            {"key": "kubernetes.io/hostname", "operator": "In", "values": [value]},
        ]}]}}}})
    };
    let volumes = vec![
        volume("big", "50Gi", json!({})),
        volume("small", "1Gi", json!({})),
        volume("right", "6Gi", there("here")),
        volume("elsewhere", "5Gi", there("there")),
        volume("taken", "5Gi", json!({"spec": {"claimRef": {"namespace": "n", "name": "other", "uid": "x"}}})),
        volume("class", "5Gi", json!({"spec": {"storageClassName": "fast"}})),
        volume("modes", "5Gi", json!({"spec": {"accessModes": ["ReadOnlyMany"]}})),
        volume("block", "5Gi", json!({"spec": {"volumeMode": "Block"}})),
        volume("old", "5Gi", json!({"status": {"phase": "Released"}})),
    ];
    let classes = vec![class("WaitForFirstConsumer", PROVISIONER)];
    let mut world = World { claim: claim(json!({})), volumes, classes, node: Some(node()), ..World::default() };
    assert_eq!(short(&plan(&world)), ["take right@9 for u", "change volume=right"]);
    // One that was set aside for this claim comes before all others.
    world.volumes.push(volume("mine", "1Ti", json!({"spec": {"claimRef": {"namespace": "n", "name": "c"}}})));
    assert_eq!(short(&plan(&world)), ["take mine@9 for u", "change volume=mine"]);
    // A selector narrows it down.
    world.volumes.pop();
    world.claim = claim(json!({"spec": {"selector": {"matchLabels": {"disk": "ssd"}}}}));
    assert_eq!(short(&plan(&world)), ["event ProvisioningFailed"]);
    world.volumes.push(volume("ssd", "7Gi", json!({"metadata": {"labels": {"disk": "ssd"}}})));
    assert_eq!(short(&plan(&world)), ["take ssd@9 for u", "change volume=ssd"]);
}

#[test]
fn a_claim_that_names_its_volume_gets_that_or_none() {
    let named = json!({"spec": {"volumeName": "pv"}});
    let mut world = World { claim: claim(named), ..World::default() };
    assert_eq!(short(&plan(&world)), Vec::<String>::new());
    world.volumes = vec![volume("pv", "5Gi", json!({}))];
    assert_eq!(short(&plan(&world)), ["take pv@9 for u"]);
    world.volumes = vec![volume("pv", "1Gi", json!({}))];
    assert_eq!(short(&plan(&world)), ["event VolumeMismatch"]);
    world.volumes =
        vec![volume("pv", "5Gi", json!({"spec": {"claimRef": {"namespace": "n", "name": "x", "uid": "y"}}}))];
    assert_eq!(short(&plan(&world)), ["event VolumeMismatch"]);
    world.volumes =
        vec![volume("pv", "5Gi", json!({"spec": {"claimRef": {"namespace": "n", "name": "c", "uid": "u"}}}))];
    assert_eq!(short(&plan(&world)), ["change volume=pv"]);
}

#[test]
fn claims_get_the_default_class_and_protection_and_others_are_left_to_their_provisioners() {
    let mut bare = claim(json!({"metadata": {"finalizers": []}}));
    bare.spec.as_mut().unwrap().storage_class_name = None;
    let mut world = World { claim: bare, classes: vec![class("Immediate", "other.io/x")], ..World::default() };
    assert_eq!(short(&plan(&world)), [format!("change finalizers={CLAIM_PROTECTION} class=local-path")]);
    world.classes.clear();
    assert_eq!(
        short(&plan(&world)),
        ["event FailedBinding".to_owned(), format!("change finalizers={CLAIM_PROTECTION}")]
    );
    world.claim = claim(json!({}));
    assert_eq!(short(&plan(&world)), ["event ProvisioningFailed"]);
    world.classes = vec![class("Immediate", "other.io/x")];
    assert_eq!(short(&plan(&world)), ["event ExternalProvisioning"]);
    world.classes = vec![class("Immediate", PROVISIONER)];
    assert_eq!(short(&plan(&world)), ["event WaitForFirstConsumer"]);
    world.claim = claim(json!({"spec": {"accessModes": ["ReadWriteMany"]}}));
    world.node = Some(node());
    assert_eq!(short(&plan(&world)), ["event ProvisioningFailed"]);
}

#[test]
fn a_claim_in_use_stays_until_its_pods_are_over() {
    let going =
        json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["x", CLAIM_PROTECTION]}});
    let mut world = World { claim: claim(going), pods: vec![pod("Running")], ..World::default() };
    assert_eq!(short(&plan(&world)), Vec::<String>::new());
    world.pods = vec![pod("Succeeded")];
    assert_eq!(short(&plan(&world)), [format!("change finalizers={CLAIM_PROTECTION}").replace(CLAIM_PROTECTION, "x")]);
    assert!(uses(&pod("Running"), "c") && !uses(&pod("Running"), "d"));
    world.claim = claim(json!({}));
    world.pods = vec![pod("Running")];
    assert_eq!(selected(&world).as_deref(), Some("here"));
}
