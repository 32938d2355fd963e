//! Parts of a machine that are kept for roles: who gets them, what is shown, and what is refused.

use std::process::Command;

use serde_json::{Value, json};

use crate::harness::{Kubectl, Version, eventually};

const MESSAGE: &str = "{.status.conditions[?(@.type==\"PodScheduled\")].message}";

fn pod(name: &str, roles: Option<&str>, millis: i64) -> String {
    let annotations = roles.map_or(json!({}), |roles| json!({"k8s.mesosphere.io/roles": roles}));
    let container = json!({
        "name": "c", "image": "host", "command": ["sh", "-c", "trap 'exit 0' TERM; while :; do sleep 0.1; done"],
        "resources": {"requests": {"cpu": format!("{millis}m")}},
    });
    let spec = json!({"terminationGracePeriodSeconds": 1, "containers": [container]});
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "annotations": annotations}, "spec": spec})
        .to_string()
}

/// What is free of the cpu in each pool, in thousandths.
fn free(k: &Kubectl) -> Option<Vec<(String, i128)>> {
    let offer: Value = serde_json::from_str(&k.run("get offer here -o json").stdout).ok()?;
    let pools = offer["spec"]["pools"].as_array()?.iter();
    let pools = pools.map(|pool| {
        let amount = mainstay_api::quantity::Quantity::parse(pool["free"]["cpu"].as_str()?).ok()?;
        Some((pool["role"].as_str()?.to_owned(), amount.as_milli()))
    });
    pools.collect()
}

#[test]
fn a_pod_takes_from_the_pools_of_its_roles_and_keeps_what_it_took() {
    let cpus = i64::try_from(std::thread::available_parallelism().expect("cpus").get()).expect("a number");
    let public = cpus * 1000 - 100 - 500;
    let role = format!("public=cpu:{public}m,ports:31900-31910");
    let mut k = Kubectl::with_pods_and(Version::V1_32, &["--role", &role]);
    let pools =
        |rest: i64, own: i64| Some(vec![("*".to_owned(), i128::from(rest)), ("public".to_owned(), i128::from(own))]);
    eventually("the machine offers its pools", || (free(&k) == pools(500, public)).then_some(()));
    let shown = k.ok("get offers");
    assert!(
        shown.contains("*(cpu:500m") && shown.contains(&format!("public(cpu:{public}m)").replace("000m)", ")")),
        "{shown}"
    );

    // More than either pool has: half a cpu of the rest, and what is lacking of the role's.
    k.create(&pod("mixed", Some(" *, public,*"), 500 + public - 200));
    eventually("it runs", || (k.value("pod mixed", "{.status.phase}") == "Running").then_some(()));
    let recorded = k.value("pod mixed", "{.metadata.annotations.mainstay\\.dev/role-resources}");
    let recorded: Value = serde_json::from_str(&recorded).expect("what it takes of each pool");
    assert_eq!(recorded["*"]["cpu"], "500m");
    eventually("the pools shrink", || (free(&k) == pools(0, 200)).then_some(()));

    let waits = |name: &str, words: &str| {
        eventually(&format!("{name} waits because {words:?}"), || {
            let message = k.value(&format!("pod {name}"), MESSAGE);
            message.contains(words).then_some(())
        });
    };
    k.create(&pod("none", Some(""), 10));
    waits("none", "the pod may use no role of any node");
    k.create(&pod("odd", Some("batch"), 10));
    waits("odd", "here has nothing for the role batch");
    k.create(&pod("plain", None, 100));
    waits("plain", "here lacks 100m cpu: the role * has 0 cpu free");
    let why = k.cluster.mainstay("why", "pod/plain").ok();
    assert!(why.contains("the role * has 0 cpu free"), "{why}");
    let why = k.cluster.mainstay("why", "pod/none").ok();
    assert!(why.contains("may use no role") && why.contains("mainstay.dev/roles"), "{why}");
    k.create(&pod("own", Some("public"), 200));
    eventually("the rest of the role's pool is used", || {
        (k.value("pod own", "{.status.phase}") == "Running").then_some(())
    });

    // An agent that starts again finds the same: what was given is on the pods.
    k.cluster.kill();
    k.cluster.start_again();
    eventually("nothing is free again", || (free(&k) == pools(0, 0)).then_some(()));
    k.ok("delete pod mixed");
    eventually("both pools have their part back, and the plain pod takes of the rest", || {
        (free(&k) == pools(400, public - 200)).then_some(())
    });
    eventually("the plain pod runs", || (k.value("pod plain", "{.status.phase}") == "Running").then_some(()));
}

#[test]
fn stock_roles_are_a_setting_and_too_much_is_refused_with_the_flag() {
    let k = Kubectl::with_pods_and(Version::V1_32, &["--role", "batch=cpu:100m", "--default-pod-roles", "batch"]);
    eventually("the machine offers its pools", || free(&k));
    k.create(&pod("small", None, 50));
    eventually("it runs", || (k.value("pod small", "{.status.phase}") == "Running").then_some(()));
    assert_eq!(k.value("pod small", "{.metadata.annotations.mainstay\\.dev/roles}"), "batch");
    k.create(&pod("large", None, 200));
    eventually("a pod that is too large for the role waits", || {
        k.value("pod large", MESSAGE).contains("the role batch has 50m cpu free").then_some(())
    });

    let refused = |arguments: &[&str]| {
        let directory = tempfile::tempdir().expect("make a directory");
        let mut command = Command::new(env!("CARGO_BIN_EXE_mainstay"));
        command.args(["up", "--listen", "127.0.0.1:0", "--agent-port", "0", "--data-dir"]).arg(directory.path());
        let output = command.args(arguments).output().expect("run it");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "{arguments:?}: {text}");
        text
    };
    for (role, words) in [
        ("batch", "must be ROLE=RESOURCE:AMOUNT"),
        ("*=cpu:1", "the role * is what no other role has"),
        ("batch=pods:5", "\"pods\" cannot be reserved"),
        ("batch=cpu:100000", "--role reserves 100000 cpu in all, but this machine has"),
    ] {
        let text = refused(&["--role", role]);
        assert!(text.contains(words) && text.contains("--role"), "{text}");
    }
    let text = refused(&["--default-pod-roles", " ,"]);
    assert!(text.contains("must name at least one role") && text.contains("--default-pod-roles"), "{text}");
}
