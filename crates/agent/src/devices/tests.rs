use serde_json::{Value, json};

use super::*;

fn pod(status: Value) -> Pod {
    serde_json::from_value(json!({
        "metadata": { "name": "web", "namespace": "ns", "uid": "u" },
        "spec": { "containers": [], "resourceClaims": [
            { "name": "gpu", "resourceClaimTemplateName": "t" }, { "name": "net", "resourceClaimName": "shared" },
        ] },
        "status": { "resourceClaimStatuses": status },
    }))
    .unwrap()
}

#[test]
fn claims_are_named_by_the_pod_or_by_its_status() {
    assert!(matches!(pod_claims(&pod(json!([]))), Err(DeviceError::NotCreated(name)) if name == "gpu"));
    let named = |claims: Vec<PodClaim>| claims.into_iter().map(|own| (own.name, own.claim)).collect::<Vec<_>>();
    let made = pod_claims(&pod(json!([{ "name": "gpu", "resourceClaimName": "web-gpu-x" }]))).unwrap();
    let pair = |name: &str, claim: &str| (name.to_owned(), claim.to_owned());
    assert_eq!(named(made), [pair("gpu", "web-gpu-x"), pair("net", "shared")]);
    let unneeded = pod_claims(&pod(json!([{ "name": "gpu" }]))).unwrap();
    assert_eq!(named(unneeded), [pair("net", "shared")]);
}

#[test]
fn a_claim_is_used_only_by_pods_that_it_is_reserved_for() {
    let judged = |of_template: bool, claim: Value| {
        let own = PodClaim { name: "gpu".into(), claim: "c".into(), of_template };
        judge_claim(&serde_json::from_value(claim).unwrap(), &own, &pod(json!([])))
    };
    let result = |driver: &str| json!({ "request": "r", "driver": driver, "pool": "p", "device": "d" });
    let mut skipped = result("remote.example.com");
    skipped["skipNodeOperations"] = json!(["*"]);
    let results = json!([result("a.example.com"), result("b.example.com"), skipped]);
    let status = |users: Value| json!({ "allocation": { "devices": { "results": results } }, "reservedFor": users });
    let own = json!([{ "resource": "pods", "name": "web", "uid": "u" }]);
    let claim = |status: Value| json!({ "metadata": { "name": "c" }, "spec": {}, "status": status });
    let drivers = judged(false, claim(status(own.clone()))).unwrap();
    assert_eq!(drivers.into_iter().collect::<Vec<_>>(), ["a.example.com", "b.example.com"]);
    assert_eq!(judged(true, claim(status(own))).unwrap_err(), "was not created for this pod");
    let other = json!([{ "resource": "pods", "name": "web", "uid": "before" }]);
    assert_eq!(judged(false, claim(status(other))).unwrap_err(), "is not reserved for this pod");
    assert_eq!(judged(false, claim(json!({}))).unwrap_err(), "is not allocated");
}

#[test]
fn extended_resources_are_a_claim_of_the_containers_that_request_them() {
    let mapping = |container: &str, request: &str| json!({ "containerName": container, "resourceName": "example.com/gpu", "requestName": request });
    let extended = json!({ "resourceClaimName": "web-extended-resources-x",
                           "requestMappings": [mapping("a", "container-0-request-0"), mapping("b", "container-1-request-0")] });
    let pod: Pod = serde_json::from_value(json!({
        "metadata": { "name": "web", "namespace": "ns", "uid": "u" },
        "spec": { "containers": [{ "name": "a" }, { "name": "b" }, { "name": "c" }] },
        "status": { "extendedResourceClaimStatus": extended },
    }))
    .unwrap();
    let claims = pod_claims(&pod).unwrap();
    assert_eq!((claims[0].claim.as_str(), claims[0].of_template), ("web-extended-resources-x", true));
    let requests = |nth: usize| {
        let claims = container_claims(&pod, &pod.spec.as_ref().unwrap().containers[nth]).unwrap();
        claims.into_iter().map(|own| own.request.unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(requests(0), ["container-0-request-0"]);
    assert_eq!(requests(1), ["container-1-request-0"]);
    assert!(requests(2).is_empty());
}
