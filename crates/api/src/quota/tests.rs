use serde_json::json;

use super::*;

const NOW: Timestamp = Timestamp::UNIX_EPOCH;
const PODS: QuotaResource<'_> = QuotaResource { group: "", plural: "pods" };
const CLAIM: QuotaResource<'_> = QuotaResource { group: "", plural: CLAIMS };

fn shown(resource: QuotaResource<'_>, object: &Value) -> String {
    format_amounts(&resource.usage(object, NOW))
}

#[test]
fn a_pod_uses_what_it_asks_for_at_its_worst_moment() {
    let asks = |requests: Value, limits: Value| json!({ "resources": { "requests": requests, "limits": limits } });
    let mut sidecar = asks(json!({ "cpu": "100m" }), json!({}));
    sidecar["restartPolicy"] = json!("Always");
    let pod = json!({ "spec": {
        "initContainers": [sidecar, asks(json!({ "cpu": "1" }), json!({ "memory": "3Gi" }))],
        "containers": [
            asks(json!({ "cpu": "250m", "memory": "1Gi", "example.com/gpu": "2" }), json!({ "memory": "1Gi" })),
            asks(json!({ "cpu": "250m", "hugepages-2Mi": "4Mi" }), json!({ "cpu": "1", "hugepages-2Mi": "4Mi" })),
        ],
        "overhead": { "cpu": "10m" },
    } });
    let expected = "count/pods=1,cpu=1110m,hugepages-2Mi=4Mi,limits.cpu=1010m,limits.memory=3Gi,memory=1Gi,pods=1,\
                    requests.cpu=1110m,requests.example.com/gpu=2,requests.hugepages-2Mi=4Mi,requests.memory=1Gi";
    assert_eq!(shown(PODS, &pod), expected);
    let mut ended = pod.clone();
    ended["status"]["phase"] = json!("Succeeded");
    assert_eq!(shown(PODS, &ended), "count/pods=1", "it is still in the store");
    let mut overdue = pod;
    overdue["metadata"] = json!({ "deletionTimestamp": "1969-12-31T23:59:00Z", "deletionGracePeriodSeconds": 30 });
    assert_eq!(shown(PODS, &overdue), "count/pods=1");
}

#[test]
fn services_and_claims_use_ports_and_storage() {
    let services = QuotaResource { group: "", plural: "services" };
    let service =
        |kind: &str| json!({ "spec": { "type": kind, "ports": [{ "port": 1 }, { "port": 2, "nodePort": 30000 }] } });
    let used = |count: &str| format!("count/services=1,services=1,{count}");
    assert_eq!(shown(services, &service("ClusterIP")), used("services.loadbalancers=0,services.nodeports=0"));
    assert_eq!(shown(services, &service("NodePort")), used("services.loadbalancers=0,services.nodeports=2"));
    assert_eq!(shown(services, &service("LoadBalancer")), used("services.loadbalancers=1,services.nodeports=2"));
    let mut without = service("LoadBalancer");
    without["spec"]["allocateLoadBalancerNodePorts"] = json!(false);
    assert_eq!(shown(services, &without), used("services.loadbalancers=1,services.nodeports=1"));
    let claim = json!({ "spec": { "storageClassName": "fast", "resources": { "requests": { "storage": "2Gi" } } } });
    let expected = "count/persistentvolumeclaims=1,fast.storageclass.storage.k8s.io/persistentvolumeclaims=1,\
                    fast.storageclass.storage.k8s.io/requests.storage=2Gi,persistentvolumeclaims=1,requests.storage=2Gi";
    assert_eq!(shown(CLAIM, &claim), expected);
}

#[test]
fn every_kind_can_be_counted() {
    let (secrets, custom) =
        (QuotaResource { group: "", plural: "secrets" }, QuotaResource { group: "example.com", plural: "widgets" });
    assert_eq!(shown(secrets, &json!({})), "count/secrets=1,secrets=1");
    assert_eq!(shown(custom, &json!({})), "count/widgets.example.com=1");
    assert!(custom.uses("count/widgets.example.com") && !custom.uses("widgets") && !custom.uses("count/widgets"));
    for name in ["pods", "requests.cpu", "hugepages-2Mi", "requests.hugepages-2Mi", "requests.example.com/gpu"] {
        assert!(PODS.uses(name) && !CLAIM.uses(name), "{name}");
    }
    assert!(!PODS.uses("requests.storage") && CLAIM.uses("requests.storage"));
    assert!(CLAIM.uses("fast.storageclass.storage.k8s.io/requests.storage"));
}

#[test]
fn containers_must_say_what_they_need_of_what_is_limited() {
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let given = json!({ "requests": { "cpu": "1" } });
    let pod =
        json!({ "spec": { "containers": [{ "name": "b" }, { "name": "a" }, { "name": "c", "resources": given }] } });
    assert_eq!(missing_requirements(&pod, &names(&["pods", "limits.ephemeral-storage"])), None);
    let words = missing_requirements(&pod, &names(&["limits.cpu", "requests.cpu"])).unwrap();
    assert_eq!(words, "must specify limits.cpu for: a,b,c; requests.cpu for: a,b");
}

#[test]
fn scopes_pick_pods_and_claims() {
    let scoped = |scope: &str| json!({ "spec": { "scopes": [scope] } });
    let selects = |scope: &str, operator: &str, values: Value| {
        json!({ "spec": { "scopeSelector": { "matchExpressions": [
            { "scopeName": scope, "operator": operator, "values": values },
        ] } } })
    };
    let crossing = json!({ "podAntiAffinity": { "preferredDuringSchedulingIgnoredDuringExecution": [
        { "weight": 1, "podAffinityTerm": { "namespaces": ["other"] } },
    ] } });
    let plain = json!({ "spec": {}, "status": { "qosClass": "Burstable" } });
    let other = json!({
        "spec": { "activeDeadlineSeconds": 5, "priorityClassName": "high", "affinity": crossing },
        "status": { "qosClass": "BestEffort" },
    });
    let class = |operator: &str, values: Value| selects("PriorityClass", operator, values);
    for (quota, of_plain, of_other) in [
        (json!({ "spec": {} }), true, true),
        (scoped("Terminating"), false, true),
        (scoped("NotTerminating"), true, false),
        (scoped("BestEffort"), false, true),
        (scoped("NotBestEffort"), true, false),
        (scoped("CrossNamespacePodAffinity"), false, true),
        (scoped("PriorityClass"), false, true),
        (class("In", json!(["high"])), false, true),
        (class("In", json!(["low"])), false, false),
        (class("NotIn", json!(["high"])), true, false),
        (class("DoesNotExist", json!([])), true, false),
    ] {
        assert_eq!(PODS.in_scopes(&quota, &plain), of_plain, "{quota}");
        assert_eq!(PODS.in_scopes(&quota, &other), of_other, "{quota}");
    }
    let claim = json!({ "spec": { "volumeAttributesClassName": "gold" } });
    assert!(CLAIM.in_scopes(&selects("VolumeAttributesClass", "In", json!(["gold"])), &claim));
    assert!(!CLAIM.in_scopes(&scoped("BestEffort"), &claim));
}
