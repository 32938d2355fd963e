//! What is done to pods through subresources of their own: placing, evicting, resizing, debugging; and how they
//! are to be healed. The pods here are for a scheduler that does not exist, so that nobody else touches them.

use serde_json::{Value, json};

use crate::{
    harness::{Kubectl, eventually},
    with_each_kubectl,
};

fn pod(name: &str, more: &str) -> String {
    format!(
        "
apiVersion: v1
kind: Pod
metadata: {{name: {name}, labels: {{app: p}}}}
spec:
  schedulerName: nobody
  containers: [{{name: c, image: 'nginx:1', resources: {{requests: {{cpu: 100m}}, limits: {{cpu: 200m}}}}}}]
  {more}
"
    )
}

fn binding(name: &str, node: &str, uid: &str) -> String {
    json!({
        "apiVersion": "v1", "kind": "Binding", "metadata": {"name": name, "uid": uid},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    })
    .to_string()
}

fn post(k: &Kubectl, path: &str, body: &str) -> Result<Value, String> {
    let output = k.run_with(&format!("create --raw /api/v1/namespaces/default/{path} -f -"), body);
    if output.code == 0 { Ok(serde_json::from_str(&output.stdout).expect("a Status")) } else { Err(output.stderr) }
}

fn a_pod_is_placed_once(k: &Kubectl) {
    k.create(&pod("p", ""));
    let refused = post(k, "pods/p/binding", &binding("p", "n1", "someone-else")).unwrap_err();
    assert!(refused.contains("Precondition failed: UID in precondition: someone-else"), "{refused}");
    let text = post(k, "pods/p/binding", &binding("p", "n1", "")).expect("bind");
    assert_eq!((&text["status"], &text["code"]), (&json!("Success"), &json!(201)));
    assert_eq!(k.value("pod p", "{.spec.nodeName}"), "n1");
    assert_eq!(k.value("pod p", "{.status.conditions[?(@.type==\"PodScheduled\")].status}"), "True");
    assert_eq!(k.value("pod p", "{.metadata.generation}"), "1", "where it runs is not what was asked for");
    let refused = post(k, "pods/p/binding", &binding("p", "n2", "")).unwrap_err();
    assert!(
        refused
            .contains(r#"Operation cannot be fulfilled on pods/binding "p": pod p is already assigned to node "n1""#),
        "{refused}"
    );

    k.create(&pod("q", "schedulingGates: [{name: example.org/g}]"));
    let refused = post(k, "bindings", &binding("q", "n1", "")).unwrap_err();
    assert!(refused.contains("has non-empty .spec.schedulingGates"), "{refused}");
    k.create(&pod("r", ""));
    post(k, "bindings", &binding("r", "n1", "")).expect("bind by the old path");
    assert_eq!(k.value("pod r", "{.spec.nodeName}"), "n1");
    let refused = post(k, "pods/r/binding", &binding("other", "n1", "")).unwrap_err();
    assert!(refused.contains("name in URL does not match name in Binding object"), "{refused}");
    let nowhere = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "r"}, "target": {"kind": "Node"}});
    let refused = post(k, "pods/r/binding", &nowhere.to_string()).unwrap_err();
    assert!(refused.contains("target.name: Required value"), "{refused}");
}

fn evict(k: &Kubectl, name: &str, more: Value) -> Result<Value, String> {
    let mut eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}});
    eviction.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    post(k, &format!("pods/{name}/eviction"), &eviction.to_string())
}

fn an_eviction_asks_the_disruption_budget(k: &Kubectl) {
    let status = |name: &str, status: Value| {
        let path = format!("/api/v1/namespaces/default/pods/{name}");
        let mut object: Value = serde_json::from_str(&k.ok(&format!("get --raw {path}"))).unwrap();
        object["status"] = status;
        let output = k.run_with(&format!("replace --raw {path}/status -f -"), &object.to_string());
        assert!(output.code == 0, "{}", output.stderr);
    };
    k.create("apiVersion: v1\nkind: Node\nmetadata: {name: elsewhere}");
    for name in ["a", "b", "c"] {
        k.create(&pod(name, "nodeName: elsewhere"));
        let ready = json!([{"type": "Ready", "status": "True"}]);
        status(name, json!({"phase": "Running", "qosClass": "Burstable", "conditions": ready}));
    }
    k.create(
        "
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: b}
spec: {minAvailable: 2, selector: {matchLabels: {app: p}}}
",
    );
    let allowed = || k.value("pdb b", "{.status.disruptionsAllowed}");
    eventually("the budget is counted", || (allowed() == "1").then_some(()));
    assert_eq!(k.value("pdb b", "{.status.currentHealthy}/{.status.desiredHealthy}/{.status.expectedPods}"), "3/2/3");
    evict(k, "a", json!({"deleteOptions": {"dryRun": ["All"]}})).expect("a dry run");
    assert_eq!(k.value("pod a", "{.metadata.deletionTimestamp}"), "");
    assert_eq!(allowed(), "1");
    let text = evict(k, "a", json!({"deleteOptions": {"gracePeriodSeconds": 7}})).expect("evict");
    assert_eq!(text["code"], 201);
    assert_eq!(k.value("pod a", "{.metadata.deletionGracePeriodSeconds}"), "7");
    let evicted = r#"{.status.conditions[?(@.type=="DisruptionTarget")].reason}"#;
    assert_eq!(k.value("pod a", evicted), "EvictionByEvictionAPI");
    assert_eq!(allowed(), "0");
    let refused = evict(k, "b", json!({})).unwrap_err();
    assert!(refused.contains("Cannot evict pod as it would violate the pod's disruption budget."), "{refused}");
    assert_eq!(k.value("pod b", "{.metadata.deletionTimestamp}"), "");
    evict(k, "a", json!({})).expect("one that is going already takes nothing from anyone");
    status("c", json!({"phase": "Failed", "qosClass": "Burstable"}));
    evict(k, "c", json!({})).expect("one that has ended neither");
    assert!(evict(k, "none", json!({})).unwrap_err().contains("NotFound"));
}

fn image_and_resources_change_in_place_and_count_generations(k: &Kubectl) {
    k.create(&pod("p", ""));
    assert_eq!(k.value("pod p", "{.metadata.generation}"), "1");
    k.ok("set image pod/p c=nginx:2");
    assert_eq!(k.value("pod p", "{.spec.containers[0].image} {.metadata.generation}"), "nginx:2 2");
    k.ok("label pod p x=y");
    assert_eq!(k.value("pod p", "{.metadata.generation}"), "2");
    let raise = r#"{"spec":{"containers":[{"name":"c","resources":{"limits":{"cpu":"300m"}}}]}}"#;
    let refused = k.refused(&format!("patch pod p -p '{raise}'"));
    assert!(refused.contains("pod updates may not change fields other than"), "{refused}");
    if !k.is_recent() {
        return;
    }
    k.ok(&format!("patch pod p --subresource=resize -p '{raise}'"));
    assert_eq!(k.value("pod p", "{.spec.containers[0].resources.limits.cpu} {.metadata.generation}"), "300m 3");
    let best_effort = r#"{"spec":{"containers":[{"name":"c","resources":{"requests":null,"limits":null}}]}}"#;
    let refused = k.refused(&format!("patch pod p --subresource=resize -p '{best_effort}'"));
    assert!(refused.contains("Pod QOS Class may not change as a result of resizing"), "{refused}");
    // Anything else in a resize is ignored.
    let other = r#"{"metadata":{"labels":{"n":"m"}},"spec":{"containers":[{"name":"c","image":"evil"}]}}"#;
    k.ok(&format!("patch pod p --subresource=resize -p '{other}'"));
    assert_eq!(k.value("pod p", "{.spec.containers[0].image}/{.metadata.labels.n}"), "nginx:2/");
}

fn debug_containers_are_added_and_stay(k: &Kubectl) {
    if !k.is_recent() {
        return; // speaks an older form of the subresource, which upstream took away
    }
    k.create(&pod("p", ""));
    k.ok("debug p --image=busybox -c d1 --profile=general -- sleep 1");
    let first = k.value("pod p", "{.spec.ephemeralContainers[0].name} {.spec.ephemeralContainers[0].imagePullPolicy}");
    assert_eq!(first, "d1 Always");
    k.ok("debug p --image=busybox -c d2 --target=c --profile=general -- sleep 1");
    assert_eq!(k.value("pod p", "{.spec.ephemeralContainers[*].name}"), "d1 d2");
    assert_eq!(k.value("pod p", "{.spec.ephemeralContainers[1].targetContainerName}"), "c");
    let path = "/api/v1/namespaces/default/pods/p";
    let mut changed: Value = serde_json::from_str(&k.ok(&format!("get --raw {path}"))).unwrap();
    changed["spec"]["ephemeralContainers"][0]["image"] = json!("other");
    let output = k.run_with(&format!("replace --raw {path}/ephemeralcontainers -f -"), &changed.to_string());
    assert!(output.code != 0 && output.stderr.contains("may not be changed"), "{}", output.stderr);
}

fn how_to_heal_is_checked_where_it_is_written(k: &Kubectl) {
    let bad = pod("p", "").replace("labels:", "annotations: {mainstay.dev/heal: 'hold=soon'}, labels:");
    let output = k.run_with("create -f -", &bad);
    let wanted = "metadata.annotations[mainstay.dev/heal]: Invalid value: \"hold=soon\": hold=soon is not understood: \
                  hold must be a time such as 30s, 10m or 1h";
    assert!(output.code != 0 && output.stderr.contains(wanted), "{}", output.stderr);
    let good = bad.replace("hold=soon", "hold=20s, budget=50%, restarts=3/5m");
    k.create(&good);
    let refused = k.refused("annotate pod p mainstay.dev/heal=restart=9 --overwrite");
    assert!(refused.contains("there is no setting \"restart\""), "{refused}");
    k.ok("create deployment d --image=nginx:1 --replicas=0");
    let refused = k.refused("annotate deployment d mainstay.dev/heal=budget=0");
    assert!(refused.contains("metadata.annotations[mainstay.dev/heal]"), "{refused}");
    let template = r#"{"spec":{"template":{"metadata":{"annotations":{"mainstay.dev/heal":"move=maybe"}}}}}"#;
    let refused = k.refused(&format!("patch deployment d -p '{template}'"));
    assert!(refused.contains("spec.template.metadata.annotations[mainstay.dev/heal]"), "{refused}");
}

with_each_kubectl!(
    a_pod_is_placed_once,
    an_eviction_asks_the_disruption_budget,
    image_and_resources_change_in_place_and_count_generations,
    debug_containers_are_added_and_stay,
    how_to_heal_is_checked_where_it_is_written,
);
