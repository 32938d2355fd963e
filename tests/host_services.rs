//! Services of programs that are not pods, on machines that are network namespaces. Takes root.

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::{PermissionsExt, chown},
    path::PathBuf,
};

use serde_json::{Value, json};

use crate::{
    harness::{
        Machines, PATIENCE,
        command::{Output, run},
        eventually,
    },
    services::lab::dig,
};

const DNS: &str = "10.96.0.10";
const SVC: &str = "mysql.host-services.svc.cluster.local";

fn definitions(machines: &Machines, machine: &str) -> PathBuf {
    machines.data(machine).join("services.d")
}

fn define(machines: &Machines, machine: &str, file: &str, definition: &Value) {
    let path = definitions(machines, machine).join(file);
    fs::write(&path, definition.to_string()).expect("write a definition");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("set its mode");
}

/// What `mainstay` says on a machine.
fn mainstay(machines: &Machines, machine: &str, arguments: &[&str]) -> Output {
    run(machines.mainstay(machine, arguments), &arguments.join(" "), "", PATIENCE)
}

/// What the DNS of a machine answers.
fn ask(machines: &Machines, machine: &str, question: &str) -> BTreeSet<String> {
    let output = machines.shell(machine, &format!("{} +short +time=2 @{DNS} {question}", dig())).stdout;
    output.lines().map(str::to_owned).collect()
}

#[track_caller]
fn answers(machines: &Machines, machine: &str, question: &str, expected: &[String]) {
    let expected: BTreeSet<String> = expected.iter().cloned().collect();
    let mut last = BTreeSet::new();
    eventually(&format!("on {machine}, {question} is {expected:?}"), || {
        last = ask(machines, machine, question);
        (last == expected).then_some(())
    });
}

/// How many instances are published.
fn machines_slices(machines: &Machines) -> usize {
    machines.kubectl(&["get", "endpointslices", "-n", "host-services", "-o", "name"], "").ok().lines().count()
}

fn address(machines: &Machines, machine: &str) -> String {
    machines.address(machine)
}

#[test]
fn programs_that_are_not_pods_have_names_tags_and_checks_and_leave_when_they_fail() {
    let mut machines = Machines::joined(&["a", "b"]);
    let healthy = machines.dir().join("healthy");
    fs::write(&healthy, "").expect("make it healthy");
    let check = json!({"script": format!("test -f {} || exit 2", healthy.display()), "interval": "1s"});
    let mysql = json!({"service": {"name": "mysql", "port": 3306, "tags": ["master"], "check": check}});
    define(&machines, "a", "mysql.json", &mysql);
    // On b the program itself tells, through the command line.
    let publish =
        ["service", "publish", "mysql", "--id", "mysql-b", "--port", "3307", "--tag", "replica", "--ttl", "300s"];
    mainstay(&machines, "b", &publish).ok();
    let (a, b) = (address(&machines, "a"), address(&machines, "b"));
    answers(&machines, "b", "mysql.service.consul", std::slice::from_ref(&a));
    mainstay(&machines, "b", &["service", "check", "mysql-b", "pass", "--output", "primed"]).ok();
    for machine in ["a", "b"] {
        answers(&machines, machine, "mysql.service.consul", &[a.clone(), b.clone()]);
        answers(&machines, machine, "master.mysql.service.consul", std::slice::from_ref(&a));
        answers(&machines, machine, "replica.mysql.service.consul", std::slice::from_ref(&b));
        answers(&machines, machine, "wire.mysql.service.consul", &[a.clone(), b.clone()]);
        answers(&machines, machine, SVC, &[a.clone(), b.clone()]);
        answers(&machines, machine, &format!("a.{SVC}"), std::slice::from_ref(&a));
        let back = ask(&machines, machine, &format!("-x {a}"));
        assert!(back.contains(&format!("a.{SVC}.")), "{back:?}");
        let srv = [("a", 3306), ("b", 3307)].map(|(node, port)| format!("0 50 {port} {node}.{SVC}."));
        answers(&machines, machine, &format!("{SVC} SRV"), &srv);
    }
    // JioCloud's list of addresses by interface, as the node itself may ask for it.
    let lines = mainstay(&machines, "a", &["machine", "cache-services"]).ok();
    assert_eq!(lines, format!("services::mysql::wire: [{a}, {b}]\n"));
    let shown = mainstay(&machines, "b", &["service", "list", "--json"]).ok();
    let shown: Value = serde_json::from_str(&shown).expect("JSON");
    assert_eq!(shown["services"][0]["checks"]["service:mysql-b"]["output"], "primed", "{shown}");

    // Unhealthy ones leave, on both machines; the other stays.
    fs::remove_file(&healthy).expect("break it");
    for machine in ["a", "b"] {
        answers(&machines, machine, "mysql.service.consul", std::slice::from_ref(&b));
    }
    assert_eq!(mainstay(&machines, "a", &["service", "check", "mysql"]).code, 1);
    assert_eq!(mainstay(&machines, "b", &["service", "check", "mysql-b"]).code, 0);
    assert_eq!(mainstay(&machines, "b", &["service", "check", "other"]).code, 1, "nobody knows it");
    assert_eq!(mainstay(&machines, "b", &["service", "check", "mysql-b", "well"]).code, 64);

    // While no server answers, the machine's own names follow all the same.
    machines.kill_server();
    fs::write(&healthy, "").expect("mend it");
    answers(&machines, "a", "mysql.service.consul", &[a.clone(), b.clone()]);
    define(&machines, "a", "redis.json", &json!({"name": "redis", "port": 6379}));
    answers(&machines, "a", "redis.service.consul", std::slice::from_ref(&a));
    machines.start_server();
    answers(&machines, "b", "mysql.service.consul", &[a.clone(), b.clone()]);
    answers(&machines, "b", "redis.service.consul", std::slice::from_ref(&a));

    // Taken back, ended and lost.
    mainstay(&machines, "b", &["service", "withdraw", "mysql-b"]).ok();
    answers(&machines, "a", "mysql.service.consul", std::slice::from_ref(&a));
    assert_eq!(mainstay(&machines, "b", &["service", "withdraw", "mysql-b"]).code, 1);
    machines.down("a");
    answers(&machines, "b", "mysql.service.consul", &[]);
    eventually("the Service goes with its last instance", || {
        machines.kubectl(&["get", "services", "-n", "host-services", "-o", "name"], "").ok().is_empty().then_some(())
    });
    define(&machines, "b", "web.json", &json!({"name": "web", "port": 80}));
    answers(&machines, "b", "web.service.consul", &[b]);
    eventually("it is published", || (machines_slices(&machines) == 1).then_some(()));
    machines.cut("b");
    eventually("what a lost machine published is gone", || (machines_slices(&machines) == 0).then_some(()));
}

#[test]
fn a_bad_file_is_named_with_its_field_and_disturbs_no_other() {
    let machines = Machines::joined(&["a"]);
    define(&machines, "a", "good.json", &json!({"name": "good", "port": 80}));
    define(&machines, "a", "bad.json", &json!({"name": "bad", "check": {"script": "true", "intervall": "1s"}}));
    define(&machines, "a", "foreign.json", &json!({"name": "foreign"}));
    chown(definitions(&machines, "a").join("foreign.json"), Some(65_534), None).expect("give it away");
    define(&machines, "a", "open.json", &json!({"name": "open"}));
    let open = definitions(&machines, "a").join("open.json");
    fs::set_permissions(open, fs::Permissions::from_mode(0o666)).expect("open it");
    answers(&machines, "a", "good.service.consul", &[address(&machines, "a")]);
    let list = eventually("all files are judged", || {
        let list = mainstay(&machines, "a", &["service", "list"]);
        (list.stdout.lines().count() == 4).then_some(list)
    });
    assert_eq!(list.code, 1, "{list}");
    for expected in [
        "good: passing",
        "bad.json: check.intervall: is not understood",
        "foreign.json: is not trusted: it belongs to another user than root",
        "open.json: is not trusted: it may be written by its group or others",
    ] {
        assert!(list.stdout.contains(expected), "{list}");
    }
    for name in ["bad", "foreign", "open"] {
        assert_eq!(ask(&machines, "a", &format!("{name}.service.consul")), BTreeSet::new());
    }
    eventually("the event names file and field", || {
        let events = machines.kubectl(&["get", "events", "-A", "-o", "jsonpath={.items[*].message}"], "").ok();
        events.contains("services.d/bad.json: check.intervall: is not understood").then_some(())
    });
    assert_eq!(mainstay(&machines, "a", &["service", "publish", "No_Name"]).code, 1);
    assert_eq!(mainstay(&machines, "a", &["service", "publish"]).code, 64);

    // Roles without a check, as JioCloud publishes them; mended files count at once.
    define(&machines, "a", "bad.json", &json!({"name": "bad", "check": {"script": "true", "interval": "1s"}}));
    mainstay(&machines, "a", &["machine", "publish-service", "controller"]).ok();
    for name in ["bad", "controller"] {
        answers(&machines, "a", &format!("{name}.service.consul"), &[address(&machines, "a")]);
    }

    let slices = machines.kubectl(&["get", "endpointslices", "-n", "host-services", "-o", "json"], "").ok();
    let slices: Value = serde_json::from_str(&slices).expect("JSON");
    assert_eq!(slices["items"].as_array().map(Vec::len), Some(3), "{slices}");
}
