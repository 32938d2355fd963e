use super::*;
use crate::why::explain::{
    ClaimFacts, NamespaceFacts, NodeFacts, RemainingObject, ServiceFacts, explain_claim, explain_namespace,
    explain_node, explain_service,
};

fn service(spec: Value) -> ServiceFacts {
    let service = object(json!({ "metadata": { "name": "web", "namespace": "ns" }, "spec": spec }));
    ServiceFacts { service, ..ServiceFacts::default() }
}

fn service_headline(facts: &ServiceFacts) -> String {
    explain_service(facts, now()).lines().next().unwrap().trim_start_matches("service ns/web ").to_owned()
}

#[test]
fn a_service_says_why_it_has_no_endpoints() {
    assert!(service_headline(&service(json!({}))).starts_with("has no endpoints: it has no selector"));
    let alias = service(json!({ "type": "ExternalName", "externalName": "example.org" }));
    assert_eq!(service_headline(&alias), "has no endpoints: it is an alias of example.org in DNS (ExternalName)");

    let mut mistyped = service(json!({ "selector": { "app": "web" } }));
    mistyped.other_labels = vec![object(json!({ "app": "wbe", "x": "y" }))];
    let text = explain_service(&mistyped, now());
    assert!(
        text.starts_with("service ns/web has no endpoints: no pod has the labels app=web\n  pods here have app=wbe\n"),
        "{text}"
    );
}

#[test]
fn a_target_port_that_no_container_has_is_named() {
    let mut facts = service(json!({ "selector": { "app": "web" }, "ports": [{ "port": 80, "targetPort": "http" }] }));
    let ports = json!([{ "containerPort": 80, "name": "web" }]);
    facts.pods = vec![object(json!({ "metadata": {}, "spec": { "containers": [{ "name": "c", "ports": ports }] } }))];
    let expected = "has no endpoints for port 80: no container of its pods has a TCP port named \"http\"";
    assert_eq!(service_headline(&facts), expected);
}

#[test]
fn ready_endpoints_are_counted() {
    let mut facts = service(json!({ "selector": { "app": "web" } }));
    let endpoints =
        json!([{ "addresses": ["10.0.0.1"] }, { "addresses": ["10.0.0.2"], "conditions": { "ready": false } }]);
    facts.slices = vec![object(json!({ "metadata": {}, "addressType": "IPv4", "endpoints": endpoints }))];
    assert_eq!(service_headline(&facts), "has 1 ready endpoint");
}

fn claim(spec: Value, classes: Value) -> ClaimFacts {
    let claim = object(
        json!({ "metadata": { "name": "data", "namespace": "ns", "creationTimestamp": "2026-01-01T00:58:00Z" }, "spec": spec }),
    );
    ClaimFacts { claim, classes: object(classes), ..ClaimFacts::default() }
}

fn claim_headline(facts: &ClaimFacts) -> String {
    explain_claim(facts, now()).headline
}

#[test]
fn a_claim_says_why_it_is_not_bound() {
    let local = json!({ "metadata": { "name": "local-path" }, "provisioner": "p", "volumeBindingMode": "WaitForFirstConsumer" });
    let missing = claim(json!({ "storageClassName": "gp3" }), json!([local]));
    assert_eq!(claim_headline(&missing), "is not bound: storage class \"gp3\" does not exist (there are: local-path)");
    let none = claim(json!({}), json!([local]));
    assert!(claim_headline(&none).contains("names no storage class and none is the default"));
    let mut unused = claim(json!({ "storageClassName": "local-path" }), json!([local]));
    assert!(claim_headline(&unused).ends_with("makes volumes when a pod uses the claim, and none does"));
    unused.users = vec!["db-0".to_owned()];
    assert!(claim_headline(&unused).ends_with("waits until pod db-0 is scheduled"));
    let volume = claim(json!({ "volumeName": "v1" }), json!([]));
    assert_eq!(claim_headline(&volume), "is not bound: it asks for volume \"v1\", which does not exist");
    let external = json!({ "metadata": { "name": "gp3" }, "provisioner": "ebs.csi.aws.com" });
    let waits = claim(json!({ "storageClassName": "gp3" }), json!([external]));
    assert!(
        claim_headline(&waits).contains("it waits for provisioner \"ebs.csi.aws.com\""),
        "{}",
        claim_headline(&waits)
    );
}

#[test]
fn a_claim_in_use_is_not_deleted() {
    let mut facts = claim(json!({}), json!([]));
    facts.claim.metadata.deletion_timestamp = Some(object(json!("2026-01-01T00:59:00Z")));
    facts.claim.metadata.finalizers = Some(vec!["kubernetes.io/pvc-protection".to_owned()]);
    facts.users = vec!["db-0".to_owned()];
    assert_eq!(claim_headline(&facts), "is being deleted, but is in use by db-0");
}

#[test]
fn a_node_says_why_it_is_not_ready_or_takes_no_pods() {
    let node = |status: &str, message: &str, unschedulable: bool| NodeFacts {
        node: object(
            json!({ "metadata": { "name": "n1" }, "spec": { "unschedulable": unschedulable }, "status": { "conditions": [
            { "type": "Ready", "status": status, "message": message, "lastTransitionTime": "2026-01-01T00:59:00Z" },
        ] } }),
        ),
        offers: true,
        ..NodeFacts::default()
    };
    let headline = |facts: &NodeFacts| explain_node(facts, now()).headline;
    assert_eq!(headline(&node("True", "", false)), "is ready");
    assert_eq!(headline(&node("True", "", true)), "is ready, but cordoned: it gets no new pods");
    assert_eq!(
        headline(&node("False", "container runtime is down: x", false)),
        "is not ready: container runtime is down: x for 1m0s"
    );
    let mut silent = node("Unknown", "Kubelet stopped posting node status.", false);
    silent.renewed = Some(object(json!("2026-01-01T00:58:00.000000Z")));
    assert_eq!(headline(&silent), "is not ready: its agent has been silent for 1m0s");
    assert_eq!(explain_node(&silent, now()).details, ["its agent renewed its lease 2m0s ago"]);
    let without_offer = NodeFacts { offers: false, ..node("True", "", false) };
    assert!(headline(&without_offer).starts_with("is ready, but offers nothing"));
}

#[test]
fn a_terminating_namespace_names_what_keeps_it() {
    let namespace = |deletion: Value| {
        object(
            json!({ "metadata": { "name": "ns", "deletionTimestamp": deletion }, "spec": { "finalizers": ["kubernetes"] } }),
        )
    };
    let active = NamespaceFacts { namespace: namespace(json!(null)), remaining: vec![] };
    assert!(explain_namespace(&active, now()).headline.starts_with("is Active"));
    let left = |name: &str, finalizers: &[&str]| RemainingObject {
        resource: "configmaps".to_owned(),
        name: name.to_owned(),
        finalizers: finalizers.iter().map(|&finalizer| finalizer.to_owned()).collect(),
    };
    let remaining = vec![left("plain", &[]), left("held", &["example.com/hold"])];
    let facts = NamespaceFacts { namespace: namespace(json!("2026-01-01T00:59:00Z")), remaining };
    let explanation = explain_namespace(&facts, now());
    assert_eq!(
        explanation.headline,
        "is Terminating for 1m0s: configmaps/held has finalizer example.com/hold, which nobody has removed"
    );
    assert_eq!(
        explanation.details,
        ["remains: configmaps/plain", "remains: configmaps/held, finalizers: example.com/hold"]
    );
}
