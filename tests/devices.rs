//! Dynamic resource allocation with pods that really run, and a driver of our own.

use serde_json::{Value, json};

use crate::{
    harness::{DeviceDriver, Kubectl, Version, eventually},
    restarts::until,
};

/// A node with a class and devices of a driver, of which each test has one of its own name.
struct Stage {
    k: Kubectl,
    driver: String,
}

impl Stage {
    fn set(driver: &str, devices: &[&str]) -> Self {
        let stage = Self { k: Kubectl::with_pods(Version::V1_32), driver: driver.to_owned() };
        let selector = format!("device.driver == '{driver}'");
        stage.create(json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": { "name": "test" },
            "spec": { "selectors": [{ "cel": { "expression": selector } }] },
        }));
        let node = stage.k.value("nodes", "{.items[0].metadata.name}");
        let devices: Vec<Value> = devices.iter().map(|name| json!({ "name": name })).collect();
        stage.create(json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": { "name": "devices" },
            "spec": { "driver": driver, "nodeName": node, "devices": devices,
                      "pool": { "name": node, "generation": 1, "resourceSliceCount": 1 } },
        }));
        stage
    }

    fn create(&self, object: Value) {
        self.k.create(&object.to_string());
    }

    fn start_driver(&self) -> DeviceDriver {
        let driver = DeviceDriver::start(&self.k.cluster, &self.driver);
        eventually("the driver is registered", || driver.is_registered().then_some(()));
        driver
    }

    fn claim(&self, name: &str) {
        self.create(json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": { "name": name }, "spec": spec(),
        }));
    }

    fn template(&self, name: &str) {
        self.create(json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": { "name": name },
            "spec": { "spec": spec() },
        }));
    }

    /// A pod that shows what it was given, and stays.
    fn pod(&self, name: &str, claim: Value) {
        let mut claim = claim;
        claim["name"] = json!("own");
        let script = "echo $DEVICE_GPU; ls -l /dev/$DEVICE_GPU; exec sleep 1000";
        let container = |name: &str, script: &str, claims: Value| json!({ "name": name, "image": "host", "command": ["sh", "-c", script], "resources": { "claims": claims } });
        self.create(json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name },
            "spec": {
                "terminationGracePeriodSeconds": 1, "resourceClaims": [claim],
                "containers": [
                    container("c", script, json!([{ "name": "own" }])),
                    container("without", "echo \"none:$DEVICE_GPU\"; exec sleep 1000", json!([])),
                ],
            },
        }));
    }

    fn until_running(&self, pod: &str) {
        until(&self.k, &format!("pod {pod}"), "{.status.phase}", "Running");
    }

    /// The device that a running pod sees.
    fn device(&self, pod: &str) -> String {
        self.until_running(pod);
        let log = eventually("it printed what it has", || {
            let log = self.k.ok(&format!("logs {pod} -c c"));
            (log.lines().count() == 2).then_some(log)
        });
        let lines: Vec<&str> = log.lines().collect();
        assert!(lines[1].starts_with("crw"), "a device node: {log}");
        let other = eventually("the other container printed", || {
            let log = self.k.ok(&format!("logs {pod} -c without"));
            (!log.is_empty()).then_some(log)
        });
        assert_eq!(other, "none:", "a container that names no claim gets no device");
        lines[0].to_owned()
    }

    fn users(&self, claim: &str) -> String {
        self.k.value(&format!("resourceclaim {claim}"), "{.status.reservedFor[*].name}")
    }

    fn events(&self, pod: &str, reason: &str) -> String {
        let selector = format!("--field-selector=involvedObject.name={pod},reason={reason}");
        self.k.ok(&format!("get events {selector} -o jsonpath={{.items[*].message}}"))
    }
}

fn spec() -> Value {
    json!({ "devices": { "requests": [{ "name": "gpu", "exactly": { "deviceClassName": "test" } }] } })
}

#[test]
fn pods_get_the_devices_of_their_claims_and_templates_and_give_them_back() {
    let stage = Stage::set("templates.example.com", &["dev-0", "dev-1"]);
    let driver = stage.start_driver();
    stage.template("each");
    for pod in ["a", "b"] {
        stage.pod(pod, json!({ "resourceClaimTemplateName": "each" }));
    }
    let mut devices = [stage.device("a"), stage.device("b")];
    devices.sort();
    assert_eq!(devices, ["dev-0", "dev-1"]);
    let claim = stage.k.value("pod a", "{.status.resourceClaimStatuses[0].resourceClaimName}");
    assert!(claim.starts_with("a-own-"), "{claim}");
    assert_eq!(stage.users(&claim), "a");
    assert_eq!(driver.prepared().len(), 2);

    // A third waits for a device, says so, and gets the one that becomes free.
    stage.pod("late", json!({ "resourceClaimTemplateName": "each" }));
    eventually("it says what it waits for", || {
        stage.events("late", "FailedScheduling").contains("cannot allocate all claims").then_some(())
    });
    let why = stage.k.cluster.mainstay("why", "pod/late").ok();
    assert!(why.contains("cannot allocate all claims"), "{why}");
    let freed = stage.device("a");
    stage.k.ok("delete pod a");
    assert_eq!(stage.device("late"), freed);
    eventually("the claim of a is gone", || {
        stage.k.run(&format!("get resourceclaim {claim}")).code.ne(&0).then_some(())
    });
    assert_eq!(driver.calls(), (3, 1));
    stage.k.ok("delete pod b late");
    eventually("everything is unprepared", || driver.prepared().is_empty().then_some(()));
}

#[test]
fn a_claim_is_shared_by_pods_and_unprepared_after_the_last() {
    let stage = Stage::set("shared.example.com", &["dev-0"]);
    let driver = stage.start_driver();
    stage.claim("shared");
    for pod in ["a", "b"] {
        stage.pod(pod, json!({ "resourceClaimName": "shared" }));
    }
    assert_eq!((stage.device("a"), stage.device("b")), ("dev-0".to_owned(), "dev-0".to_owned()));
    assert_eq!(driver.prepared(), ["shared"]);
    stage.k.ok("delete pod a");
    eventually("a's reservation ends", || (stage.users("shared") == "b").then_some(()));
    assert_eq!(driver.prepared(), ["shared"], "b still uses it");
    stage.k.ok("delete pod b");
    eventually("it is unprepared", || driver.prepared().is_empty().then_some(()));
    eventually("it is deallocated", || {
        stage.k.value("resourceclaim shared", "{.status.allocation}").is_empty().then_some(())
    });
    assert_eq!(stage.k.value("resourceclaim shared", "{.metadata.finalizers}"), "");
}

#[test]
fn a_pod_waits_for_a_driver_that_is_dead_and_outlives_its_agent() {
    let mut stage = Stage::set("dead.example.com", &["dev-0"]);
    stage.claim("only");
    stage.pod("a", json!({ "resourceClaimName": "only" }));
    eventually("the pod says what it lacks", || {
        let events = stage.events("a", "FailedPrepareDynamicResources");
        events.contains("DRA driver dead.example.com is not registered on this node").then_some(())
    });
    assert_eq!(stage.k.value("pod a", "{.status.phase}"), "Pending");
    let driver = stage.start_driver();
    assert_eq!(stage.device("a"), "dev-0");

    // The agent dies with the driver; both come back, and know what is prepared.
    let calls = driver.calls();
    stage.k.cluster.kill();
    stage.k.cluster.start_again();
    eventually("the driver is registered with the new agent", || driver.is_registered().then_some(()));
    stage.until_running("a");
    assert_eq!(driver.calls(), calls, "what is prepared is not prepared again");
    drop(driver);
    stage.k.ok("delete pod a --wait=false");
    eventually("the pod waits for its driver", || {
        let log = stage.k.cluster.log();
        log.contains("dead.example.com is not registered").then_some(())
    });
    let driver = stage.start_driver();
    stage.k.ok("wait --for=delete pod/a --timeout=60s");
    assert_eq!(driver.calls(), (0, 1), "a driver that has just started is told, too");
}

#[test]
fn a_container_gets_the_devices_of_its_extended_resources_and_reports_their_health() {
    let stage = Stage::set("extended.example.com", &["dev-0", "dev-1"]);
    let driver = stage.start_driver();
    stage.create(json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": { "name": "extended" },
        "spec": { "extendedResourceName": "example.com/gpu", "selectors": [{ "cel": { "expression": "device.driver == 'extended.example.com'" } }] },
    }));
    // By its node, not by its variable: a shell drops variables whose names have hyphens, as this request has.
    let script = "echo /dev/dev-*; exec sleep 1000";
    let container = |name: &str, resources: Value| json!({ "name": name, "image": "host", "command": ["sh", "-c", script], "resources": resources });
    let pod = |name: &str, count: &str| {
        json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name },
            "spec": { "terminationGracePeriodSeconds": 1, "containers": [
                container("c", json!({ "limits": { "example.com/gpu": count } })), container("without", json!({})),
            ] },
        })
    };
    stage.create(pod("web", "1"));
    stage.until_running("web");
    let devices_of = |container: &str| {
        eventually("it printed what it has", || {
            let log = stage.k.ok(&format!("logs web -c {container}"));
            (!log.is_empty()).then(|| log.trim().to_owned())
        })
    };
    assert_eq!(devices_of("c"), "/dev/dev-0");
    assert_eq!(devices_of("without"), "/dev/dev-*", "it asked for none");
    let claim = stage.k.value("pod web", "{.status.extendedResourceClaimStatus.resourceClaimName}");
    assert!(claim.starts_with("web-extended-resources-"), "{claim}");
    assert_eq!(stage.users(&claim), "web");

    // Its health is what the driver says.
    let node = stage.k.value("nodes", "{.items[0].metadata.name}");
    let health = "{.status.containerStatuses[0].allocatedResourcesStatus[0].resources[0].health}";
    until(&stage.k, "pod web", health, "Unknown");
    driver.report_health(&node, "dev-0", true, "");
    until(&stage.k, "pod web", health, "Healthy");
    driver.report_health(&node, "dev-0", false, "too many errors");
    until(&stage.k, "pod web", health, "Unhealthy");
    let status = stage.k.value("pod web", "{.status.containerStatuses[0].allocatedResourcesStatus[0]}");
    assert!(status.contains(&format!("claim:{claim}/container-0-request-0")), "{status}");
    assert!(status.contains("too many errors"), "{status}");
    assert_eq!(stage.k.value("pod web", "{.status.containerStatuses[0].restartCount}"), "0");

    // Both are taken together or not at all, and come back.
    stage.create(pod("both", "2"));
    eventually("it waits", || {
        stage.events("both", "FailedScheduling").contains("cannot allocate all claims").then_some(())
    });
    stage.k.ok("delete pod web");
    stage.until_running("both");
    eventually("the claim of web is gone", || {
        stage.k.run(&format!("get resourceclaim {claim}")).code.ne(&0).then_some(())
    });
    drop(driver);
    until(&stage.k, "pod both", health, "Unknown");
}

#[test]
fn a_pod_waits_until_its_device_is_attached() {
    let stage = Stage::set("fabric.example.com", &[]);
    let _driver = stage.start_driver();
    let device = json!({ "name": "far", "bindsToNode": true, "bindingConditions": ["Attached"], "bindingFailureConditions": ["Broken"] });
    stage.create(json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": { "name": "fabric" },
        "spec": { "driver": "fabric.example.com", "allNodes": true, "devices": [device],
                  "pool": { "name": "fabric", "generation": 1, "resourceSliceCount": 1 } },
    }));
    stage.claim("remote");
    stage.pod("a", json!({ "resourceClaimName": "remote" }));
    eventually("it says what it waits for", || {
        stage.events("a", "BindingConditionsPending").contains("waiting for binding conditions").then_some(())
    });
    assert_eq!(stage.users("remote"), "a");
    assert_eq!(stage.k.value("pod a", "{.spec.nodeName}"), "");
    let condition = json!({ "type": "Attached", "status": "True", "reason": "Done", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z" });
    let devices =
        json!([{ "driver": "fabric.example.com", "pool": "fabric", "device": "far", "conditions": [condition] }]);
    let patch = json!({ "status": { "devices": devices } }).to_string();
    stage.k.ok(&format!("patch resourceclaim remote --subresource=status --type=merge -p '{patch}'"));
    assert_eq!(stage.device("a"), "far");
}
