//! Claims, slices and classes in few words; what is allocated, and why not.

mod properties;

use serde_json::{Value, json};

use super::{extended::ExtendedClaim, view::ClaimKey};
use crate::core::{
    Cluster,
    tests::fixtures::{cluster, node, pod, verdict},
    verdict::Verdict,
    view::PodView,
};

pub const DRIVER: &str = "gpu.example.com";

/// Nodes `n1`, `n2`… with the class `gpu`, which selects the devices of the driver.
pub fn stage(nodes: &[&str]) -> Cluster {
    let mut cluster = cluster(nodes.iter().map(|name| node(name, json!({}))));
    cluster.devices.is_listed = true;
    class(
        &mut cluster,
        "gpu",
        json!({ "selectors": [{ "cel": { "expression": format!("device.driver == '{DRIVER}'") } }] }),
    );
    cluster
}

pub fn class(cluster: &mut Cluster, name: &str, spec: Value) {
    cluster.devices.update_class(name, 0, serde_json::from_value(spec).unwrap());
}

/// One slice that is the whole pool of a node.
pub fn slice(cluster: &mut Cluster, node: &str, devices: Value) {
    let pool = json!({ "name": node, "generation": 1, "resourceSliceCount": 1 });
    slice_as(cluster, node, json!({ "driver": DRIVER, "nodeName": node, "pool": pool, "devices": devices }));
}

pub fn slice_as(cluster: &mut Cluster, name: &str, spec: Value) {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut version = DefaultHasher::new();
    spec.to_string().hash(&mut version);
    cluster.devices.update_slice(name, version.finish(), serde_json::from_value(spec).unwrap());
}

pub fn plain(names: &[&str]) -> Value {
    names.iter().map(|name| json!({ "name": name })).collect()
}

/// Version 1 of a claim.
pub fn claim(cluster: &mut Cluster, name: &str, devices: Value) {
    let claim = json!({
        "metadata": { "name": name, "namespace": "ns", "uid": format!("{name}-uid"), "resourceVersion": "1" },
        "spec": { "devices": devices },
    });
    cluster.devices.update_claim(&ClaimKey::new("ns", name), serde_json::from_value(claim).unwrap());
}

/// One request for devices of the class.
pub fn exactly(more: Value) -> Value {
    let mut request = json!({ "deviceClassName": "gpu" });
    request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    json!({ "requests": [{ "name": "r", "exactly": request }] })
}

pub fn using(name: &str, claims: &[&str]) -> PodView {
    let claims: Vec<Value> = claims.iter().map(|claim| json!({ "name": claim, "resourceClaimName": claim })).collect();
    pod(name, json!({ "spec": { "resourceClaims": claims } }))
}

/// Node and devices (`request=device`) that a pod gets, or why not.
pub fn outcome(cluster: &mut Cluster, pod: PodView) -> String {
    match verdict(cluster, pod) {
        Verdict::Place { node, claims, .. } => {
            let results = claims.iter().flat_map(|claim| claim.allocation.devices().to_vec());
            let devices: Vec<String> = results.map(|result| format!("{}={}", result.request, result.device)).collect();
            format!("{node}: {}", devices.join(" "))
        }
        Verdict::Preempt { .. } => "preempts".to_owned(),
        Verdict::Unschedulable(why) => why.to_string(),
    }
}

fn allocation_of(cluster: &mut Cluster, pod: PodView) -> Value {
    let Verdict::Place { claims, .. } = verdict(cluster, pod) else { panic!("it is placed") };
    serde_json::to_value(&*claims[0].allocation).unwrap()
}

#[test]
fn devices_are_given_out_once_and_come_back() {
    let mut stage = stage(&["n1"]);
    slice(&mut stage, "n1", plain(&["a", "b"]));
    for name in ["x", "y", "z"] {
        claim(&mut stage, name, exactly(json!({})));
    }
    assert_eq!(outcome(&mut stage, using("p", &["x"])), "n1: r=a");
    assert_eq!(outcome(&mut stage, using("q", &["y"])), "n1: r=b");
    let why = outcome(&mut stage, using("s", &["z"]));
    assert!(why.starts_with("0/1 nodes are available: 1 cannot allocate all claims."), "{why}");
    let detail = "n1 if a device were free for request r of claim ns/z (1 wanted, 2 selected, 0 of them free); \
                  would fit when devices are freed or added.";
    assert!(why.ends_with(detail), "{why}");
    assert!(stage.devices.forget_pod("q-uid"));
    assert_eq!(outcome(&mut stage, using("s", &["z"])), "n1: r=b");
}

#[test]
fn what_has_to_exist_first_is_named() {
    let mut stage = stage(&["n1"]);
    claim(&mut stage, "x", json!({ "requests": [{ "name": "r", "exactly": { "deviceClassName": "none" } }] }));
    let why = outcome(&mut stage, using("p", &["x"]));
    assert!(why.contains("request r: device class none does not exist"), "{why}");
    let why = outcome(&mut stage, using("p", &["y"]));
    assert!(why.contains(r#"resourceclaim.resource.k8s.io "y" not found"#), "{why}");
    let made = json!({ "metadata": { "uid": "c", "resourceVersion": "1" } });
    stage.devices.update_claim(&ClaimKey::new("ns", "made"), serde_json::from_value(made).unwrap());
    let statuses = json!([{ "name": "gpu", "resourceClaimName": "made" }]);
    let of_template = pod(
        "p",
        json!({
            "spec": { "resourceClaims": [{ "name": "gpu", "resourceClaimTemplateName": "t" }] },
            "status": { "resourceClaimStatuses": statuses },
        }),
    );
    let why = outcome(&mut stage, of_template);
    assert!(why.contains("ResourceClaim ns/made was not created for pod ns/p (pod is not owner)"), "{why}");
    stage.devices.is_listed = false;
    assert!(outcome(&mut stage, using("p", &["x"])).contains("not listed yet"));
}

#[test]
fn selectors_see_attributes_and_capacity_and_errors_are_told() {
    let mut stage = stage(&["n1"]);
    let devices = json!([
        { "name": "small", "attributes": { "model": { "string": "a" }, "driverVersion": { "version": "1.2.3" } },
          "capacity": { "memory": { "value": "8Gi" } } },
        { "name": "large", "attributes": { "model": { "string": "b" }, "driverVersion": { "version": "2.0.0" } },
          "capacity": { "memory": { "value": "40Gi" } } },
    ]);
    slice(&mut stage, "n1", devices);
    let mut select = |expression: String| {
        let name = format!("c{}", expression.len());
        claim(&mut stage, &name, exactly(json!({ "selectors": [{ "cel": { "expression": expression } }] })));
        let found = outcome(&mut stage, using(&name, &[&name]));
        stage.devices.forget_pod(&format!("{name}-uid"));
        stage.remove_pod(&using(&name, &[]).key);
        found
    };
    let model = |model: &str| format!("device.attributes['{DRIVER}'].model == '{model}'");
    assert_eq!(select(model("b")), "n1: r=large");
    let large = "device.capacity['gpu.example.com'].memory.compareTo(quantity('10Gi')) > 0";
    assert_eq!(select(large.to_owned()), "n1: r=large");
    let old = format!("device.attributes['{DRIVER}'].driverVersion.isLessThan(semver('2.0.0'))");
    assert_eq!(select(old), "n1: r=small");
    let why = select(format!("device.attributes['{DRIVER}'].speed > 10"));
    assert!(why.contains("1 claim ns/c") && why.contains("request r: selector #1: CEL runtime error: "), "{why}");
}

#[test]
fn a_pool_is_used_when_all_slices_of_its_newest_generation_are_there() {
    let mut stage = stage(&["n1"]);
    let part = |generation: i64, count: i64, devices: &[&str]| {
        let pool = json!({ "name": "p", "generation": generation, "resourceSliceCount": count });
        json!({ "driver": DRIVER, "nodeName": "n1", "pool": pool, "devices": plain(devices) })
    };
    claim(&mut stage, "x", exactly(json!({})));
    claim(&mut stage, "all", exactly(json!({ "allocationMode": "All" })));
    slice_as(&mut stage, "s1", part(1, 1, &["old"]));
    slice_as(&mut stage, "s2", part(2, 2, &["new-a"]));
    assert!(outcome(&mut stage, using("p", &["x"])).contains("cannot allocate all claims"));
    let why = outcome(&mut stage, using("p", &["all"]));
    let busy =
        "claim ns/all, request r: asks for all devices, but resource pool gpu.example.com/p is currently being updated";
    assert!(why.contains(busy), "{why}");
    slice_as(&mut stage, "s3", part(2, 2, &["new-b"]));
    assert_eq!(outcome(&mut stage, using("p", &["x"])), "n1: r=new-a", "the old generation does not count");
    slice_as(&mut stage, "s3", part(2, 2, &["new-a"]));
    let why = outcome(&mut stage, using("q", &["all"]));
    assert!(why.contains("is invalid: duplicate device name new-a"), "{why}");
}

#[test]
fn all_devices_are_all_or_none() {
    let mut stage = stage(&["n1", "n2"]);
    slice(&mut stage, "n1", plain(&["a", "b"]));
    slice(&mut stage, "n2", plain(&[]));
    claim(&mut stage, "one", exactly(json!({})));
    claim(&mut stage, "all", exactly(json!({ "allocationMode": "All" })));
    assert_eq!(outcome(&mut stage, using("p", &["all"])), "n1: r=a r=b");
    assert!(outcome(&mut stage, using("q", &["one"])).contains("2 cannot allocate all claims"));
    stage.devices.forget_pod("p-uid");
    stage.remove_pod(&using("p", &[]).key);
    assert_eq!(outcome(&mut stage, using("q", &["one"])), "n1: r=a");
    assert!(outcome(&mut stage, using("p", &["all"])).contains("2 selected, 1 of them free"));
}

#[test]
fn constraints_hold_over_all_requests_they_name_and_choices_are_taken_back() {
    let mut stage = stage(&["n1"]);
    let on = |name: &str, numa: i64| json!({ "name": name, "attributes": { "numa": { "int": numa } } });
    slice(&mut stage, "n1", json!([on("a", 0), on("b", 1), on("c", 1), { "name": "d" }]));
    let two = |constraint: Value| {
        let mut devices = exactly(json!({ "count": 2 }));
        devices["constraints"] = json!([constraint]);
        devices
    };
    claim(&mut stage, "same", two(json!({ "matchAttribute": "gpu.example.com/numa" })));
    claim(&mut stage, "other", two(json!({ "distinctAttribute": "gpu.example.com/numa" })));
    claim(&mut stage, "none", two(json!({ "requests": ["x"], "matchAttribute": "gpu.example.com/numa" })));
    assert_eq!(outcome(&mut stage, using("p", &["same"])), "n1: r=b r=c");
    let why = outcome(&mut stage, using("q", &["other"]));
    assert!(why.contains("none of those satisfy all requests and constraints"), "{why}");
    assert_eq!(outcome(&mut stage, using("q", &["none"])), "n1: r=a r=d");
}

#[test]
fn the_first_alternative_that_can_be_satisfied_is_taken_with_its_configuration() {
    let mut stage = stage(&["n1"]);
    slice(&mut stage, "n1", plain(&["a", "b"]));
    let opaque = |text: &str| json!({ "driver": DRIVER, "parameters": { "mode": text } });
    class(&mut stage, "tuned", json!({ "config": [{ "opaque": opaque("class") }] }));
    let devices = json!({
        "requests": [{ "name": "gpu", "firstAvailable": [
            { "name": "many", "deviceClassName": "gpu", "count": 3 },
            { "name": "few", "deviceClassName": "tuned", "count": 1 },
        ] }],
        "config": [
            { "requests": ["gpu/many"], "opaque": opaque("many") },
            { "requests": ["gpu"], "opaque": opaque("gpu") },
            { "opaque": opaque("every") },
        ],
    });
    claim(&mut stage, "x", devices);
    let allocation = allocation_of(&mut stage, using("p", &["x"]));
    assert_eq!(allocation["devices"]["results"][0]["request"], "gpu/few");
    let sources: Vec<(&str, &str)> = allocation["devices"]["config"]
        .as_array()
        .unwrap()
        .iter()
        .map(|config| (config["source"].as_str().unwrap(), config["opaque"]["parameters"]["mode"].as_str().unwrap()))
        .collect();
    assert_eq!(sources, [("FromClass", "class"), ("FromClaim", "gpu"), ("FromClaim", "every")]);
    let field = &allocation["nodeSelector"]["nodeSelectorTerms"][0]["matchFields"][0];
    assert_eq!((&field["key"], &field["values"][0]), (&json!("metadata.name"), &json!("n1")));
}

#[test]
fn administrative_access_uses_nothing_and_needs_nothing_free() {
    let mut stage = stage(&["n1"]);
    slice(&mut stage, "n1", plain(&["a"]));
    claim(&mut stage, "x", exactly(json!({})));
    claim(&mut stage, "admin", exactly(json!({ "adminAccess": true, "allocationMode": "All" })));
    claim(&mut stage, "y", exactly(json!({})));
    let allocation = allocation_of(&mut stage, using("watcher", &["admin"]));
    assert_eq!(allocation["devices"]["results"][0]["adminAccess"], true);
    assert_eq!(outcome(&mut stage, using("p", &["x"])), "n1: r=a");
    assert!(outcome(&mut stage, using("q", &["y"])).contains("cannot allocate all claims"));
}

#[test]
fn tainted_devices_need_a_toleration() {
    let mut stage = stage(&["n1"]);
    let taint = json!([{ "key": "broken", "value": "yes", "effect": "NoSchedule" }]);
    slice(&mut stage, "n1", json!([{ "name": "a", "taints": taint }, { "name": "b" }]));
    claim(&mut stage, "x", exactly(json!({ "count": 2 })));
    let tolerations = json!([{ "key": "broken", "operator": "Exists" }]);
    claim(&mut stage, "y", exactly(json!({ "count": 2, "tolerations": tolerations })));
    let rule = json!({ "deviceSelector": { "device": "b" }, "taint": { "key": "broken", "effect": "NoExecute" } });
    assert!(outcome(&mut stage, using("p", &["x"])).contains("2 selected, 1 of them free"));
    stage.devices.update_taint_rule("rule", serde_json::from_value(rule).unwrap());
    assert!(outcome(&mut stage, using("p", &["x"])).contains("2 selected, 0 of them free"));
    let allocation = allocation_of(&mut stage, using("p", &["y"]));
    assert_eq!(allocation["devices"]["results"][1]["tolerations"][0]["key"], "broken");
}

#[test]
fn partitions_share_the_counters_of_their_pool() {
    let mut stage = stage(&["n1"]);
    let pool = json!({ "name": "n1", "generation": 1, "resourceSliceCount": 2 });
    let counters = json!([{ "name": "mem", "counters": { "memory": { "value": "40Gi" } } }]);
    slice_as(&mut stage, "c", json!({ "driver": DRIVER, "nodeName": "n1", "pool": pool, "sharedCounters": counters }));
    let part = |name: &str, memory: &str| json!({ "name": name, "consumesCounters": [{ "counterSet": "mem", "counters": { "memory": { "value": memory } } }] });
    let devices = json!([part("whole", "40Gi"), part("half-0", "20Gi"), part("half-1", "20Gi")]);
    slice_as(&mut stage, "d", json!({ "driver": DRIVER, "nodeName": "n1", "pool": pool, "devices": devices }));
    claim(&mut stage, "two", exactly(json!({ "count": 2 })));
    claim(&mut stage, "one", exactly(json!({})));
    assert_eq!(outcome(&mut stage, using("p", &["two"])), "n1: r=half-0 r=half-1");
    assert!(outcome(&mut stage, using("q", &["one"])).contains("cannot allocate all claims"));
}

#[test]
fn a_device_that_may_be_shared_is_shared_as_far_as_its_capacity_goes() {
    let mut stage = stage(&["n1"]);
    let device =
        json!({ "name": "nic", "allowMultipleAllocations": true, "capacity": { "bandwidth": { "value": "10G" } } });
    slice(&mut stage, "n1", json!([device]));
    for name in ["x", "y", "z"] {
        claim(&mut stage, name, exactly(json!({ "capacity": { "requests": { "bandwidth": "4G" } } })));
    }
    let first = allocation_of(&mut stage, using("p", &["x"]));
    let second = allocation_of(&mut stage, using("q", &["y"]));
    let (first, second) = (&first["devices"]["results"][0], &second["devices"]["results"][0]);
    assert_eq!((&first["device"], &first["consumedCapacity"]["bandwidth"]), (&json!("nic"), &json!("4G")));
    assert_ne!(first["shareID"], second["shareID"]);
    assert!(outcome(&mut stage, using("s", &["z"])).contains("cannot allocate all claims"));
}

#[test]
fn network_devices_bind_to_the_nodes_they_can_be_used_from() {
    let mut stage = stage(&["n1", "n2"]);
    let pool = json!({ "name": "net", "generation": 1, "resourceSliceCount": 1 });
    let hostname = json!({ "key": "kubernetes.io/hostname", "operator": "In", "values": ["n2"] });
    let selector = json!({ "nodeSelectorTerms": [{ "matchExpressions": [hostname] }] });
    let spec = json!({ "driver": DRIVER, "nodeSelector": selector, "pool": pool, "devices": plain(&["a"]) });
    slice_as(&mut stage, "net", spec);
    claim(&mut stage, "x", exactly(json!({})));
    let allocation = allocation_of(&mut stage, using("p", &["x"]));
    assert_eq!(allocation["nodeSelector"], selector);
    // A second pod goes where the claim can be used.
    assert_eq!(outcome(&mut stage, using("q", &["x"])), "n2: r=a");
    let elsewhere = pod(
        "s",
        json!({ "spec": {
        "nodeSelector": { "kubernetes.io/hostname": "n1" },
        "resourceClaims": [{ "name": "x", "resourceClaimName": "x" }],
    } }),
    );
    let why = outcome(&mut stage, elsewhere);
    assert!(why.contains("1 resourceclaim not available on the node"), "{why}");
}

#[test]
fn a_search_without_end_is_given_up() {
    let mut stage = stage(&["n1"]);
    // 40 devices with 40 values: no 20 of them have the same, and no choice shows that early.
    let devices: Vec<Value> = (0..40)
        .map(|nth| json!({ "name": format!("d{nth}"), "attributes": { "a": { "int": nth % 20 }, "b": { "int": nth / 20 } } }))
        .collect();
    slice(&mut stage, "n1", json!(devices));
    let mut devices = exactly(json!({ "count": 12 }));
    devices["requests"].as_array_mut().unwrap().push(json!({
        "name": "s", "exactly": { "deviceClassName": "gpu", "count": 12 },
    }));
    devices["constraints"] = json!([{ "distinctAttribute": "gpu.example.com/a" }]);
    claim(&mut stage, "x", devices);
    let begun = std::time::Instant::now();
    let why = outcome(&mut stage, using("p", &["x"]));
    assert!(why.contains("the search for devices was given up"), "{why}");
    assert!(begun.elapsed().as_secs() < 5);
}

#[test]
fn an_assumption_ends_when_the_api_shows_the_claim_allocated() {
    let mut stage = stage(&["n1"]);
    slice(&mut stage, "n1", plain(&["a"]));
    claim(&mut stage, "x", exactly(json!({})));
    claim(&mut stage, "y", exactly(json!({})));
    let allocation = allocation_of(&mut stage, using("p", &["x"]));
    let key = ClaimKey::new("ns", "x");
    let at = |version: u64, status: Value| {
        let claim = json!({
            "metadata": { "uid": "x-uid", "resourceVersion": version.to_string() },
            "spec": { "devices": exactly(json!({})) }, "status": status,
        });
        serde_json::from_value(claim).unwrap()
    };
    // The finalizer was set: nothing is written yet, and the device stays assumed.
    assert!(stage.devices.update_claim(&key, at(2, json!({}))));
    assert!(outcome(&mut stage, using("q", &["y"])).contains("cannot allocate"));
    let users = json!([{ "resource": "pods", "name": "p", "uid": "p-uid" }]);
    assert!(stage.devices.update_claim(&key, at(3, json!({ "allocation": allocation, "reservedFor": users }))));
    assert!(!stage.devices.forget_pod("p-uid"), "nothing is assumed any more");
    assert!(outcome(&mut stage, using("q", &["y"])).contains("cannot allocate"));
    assert!(!stage.devices.update_claim(&key, at(2, json!({}))), "older than what is known");
    // Deallocated by the controller.
    assert!(stage.devices.update_claim(&key, at(4, json!({}))));
    assert_eq!(outcome(&mut stage, using("q", &["y"])), "n1: r=a");
}

#[test]
fn a_claim_that_only_its_pod_uses_can_be_deallocated() {
    let mut stage = stage(&["n1"]);
    let selector = json!({ "nodeSelectorTerms": [{ "matchFields": [
        { "key": "metadata.name", "operator": "In", "values": ["gone"] },
    ] }] });
    let allocated = |users: Value| {
        let result = json!({ "request": "r", "driver": DRIVER, "pool": "gone", "device": "a" });
        json!({
            "metadata": { "uid": "x-uid", "resourceVersion": "7" }, "spec": { "devices": exactly(json!({})) },
            "status": { "allocation": { "devices": { "results": [result] }, "nodeSelector": selector }, "reservedFor": users },
        })
    };
    let key = ClaimKey::new("ns", "x");
    let user = |pod: &str| json!({ "resource": "pods", "name": pod, "uid": format!("{pod}-uid") });
    let own = allocated(json!([user("p")]));
    stage.devices.update_claim(&key, serde_json::from_value(own).unwrap());
    let why = outcome(&mut stage, using("p", &["x"]));
    assert!(why.contains("1 resourceclaim not available on the node"), "{why}");
    assert_eq!(stage.devices.deallocatable(&using("p", &["x"])), Some((key, 7)));
    assert_eq!(stage.devices.deallocatable(&using("q", &["x"])), None, "p uses it");
}

#[test]
fn devices_with_binding_conditions_are_taken_last_and_say_what_is_waited_for() {
    let mut stage = stage(&["n1"]);
    let waiting = json!({ "name": "far", "bindsToNode": true, "bindingConditions": ["Attached"],
                          "bindingFailureConditions": ["Broken"] });
    let pool = |name: &str, devices: Value| {
        json!({ "driver": DRIVER, "allNodes": true, "devices": devices,
                "pool": { "name": name, "generation": 1, "resourceSliceCount": 1 } })
    };
    slice_as(&mut stage, "a", pool("a", json!([waiting])));
    slice_as(&mut stage, "b", pool("b", plain(&["near"])));
    for name in ["x", "y"] {
        claim(&mut stage, name, exactly(json!({})));
    }
    assert_eq!(outcome(&mut stage, using("p", &["x"])), "n1: r=near", "although its pool comes later");
    let allocation = allocation_of(&mut stage, using("q", &["y"]));
    let result = &allocation["devices"]["results"][0];
    assert_eq!((&result["device"], &result["bindingConditions"]), (&json!("far"), &json!(["Attached"])));
    assert_eq!(result["bindingFailureConditions"], json!(["Broken"]));
    let field = &allocation["nodeSelector"]["nodeSelectorTerms"][0]["matchFields"][0];
    assert_eq!(field["values"], json!(["n1"]), "bindsToNode");
}

#[test]
fn a_claim_whose_device_failed_is_given_back() {
    let mut stage = stage(&["n1"]);
    slice(&mut stage, "n1", plain(&["a"]));
    let condition = json!({ "type": "Broken", "status": "True", "reason": "R", "message": "",
                            "lastTransitionTime": "2026-01-01T00:00:00Z" });
    let id = json!({ "driver": DRIVER, "pool": "n1", "device": "a" });
    let with = |more: Value| {
        let mut id = id.clone();
        id.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        id
    };
    let results = json!([with(json!({ "request": "r", "bindingConditions": ["Attached"],
                                      "bindingFailureConditions": ["Broken"] }))]);
    let failed = json!({
        "metadata": { "name": "x", "namespace": "ns", "uid": "x-uid", "resourceVersion": "7" },
        "spec": { "devices": exactly(json!({})) },
        "status": { "allocation": { "devices": { "results": results } }, "devices": [with(json!({ "conditions": [condition] }))],
                    "reservedFor": [{ "resource": "pods", "name": "p", "uid": "p-uid" }] },
    });
    stage.devices.update_claim(&ClaimKey::new("ns", "x"), serde_json::from_value(failed).unwrap());
    let pod = using("p", &["x"]);
    let why = outcome(&mut stage, pod.clone());
    assert!(why.starts_with("0/1 nodes are available: 1 resourceclaim not available on the node."), "{why}");
    assert_eq!(stage.devices.deallocatable(&pod), Some((ClaimKey::new("ns", "x"), 7)));
}

#[test]
fn an_extended_resource_is_a_claim_of_its_class() {
    let mut stage = stage(&["n1"]);
    slice(&mut stage, "n1", plain(&["a", "b", "c"]));
    class(&mut stage, "named", json!({ "extendedResourceName": "example.com/gpu" }));
    stage.devices.update_class(
        "newer",
        5,
        serde_json::from_value(json!({ "extendedResourceName": "example.com/gpu" })).unwrap(),
    );
    assert_eq!(stage.devices.class_of_resource("example.com/gpu"), Some("newer"));
    assert_eq!(stage.devices.class_of_resource("deviceclass.resource.kubernetes.io/gpu"), Some("gpu"));
    assert_eq!(stage.devices.class_of_resource("example.com/tpu"), None);
    let extended = |name: &str| {
        let requests = json!({ "cpu": "1", "deviceclass.resource.kubernetes.io/gpu": "2" });
        let pod =
            pod(name, json!({ "spec": { "containers": [{ "name": "c", "resources": { "requests": requests } }] } }));
        let classes = [("deviceclass.resource.kubernetes.io/gpu".to_owned(), "gpu".to_owned())].into();
        let claim = ExtendedClaim::new(name, &pod.uid, &pod.extended_requests, &classes);
        pod.with_extended_claim(claim.map(Into::into))
    };
    let first = extended("p");
    assert!(!first.spec.requests.contains_key("deviceclass.resource.kubernetes.io/gpu"), "the node need not have it");
    assert_eq!(outcome(&mut stage, first), "n1: container-0-request-1=a container-0-request-1=b");
    let why = outcome(&mut stage, extended("q"));
    assert!(why.contains("2 wanted, 3 selected, 1 of them free"), "{why}");
    let without = extended("q").with_extended_claim(None);
    assert_eq!(without.spec.requests["deviceclass.resource.kubernetes.io/gpu"], 2, "as it was");
}
