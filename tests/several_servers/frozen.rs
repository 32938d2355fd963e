//! The server that leads is frozen, and goes on with what it was about to do when it thaws.

use serde_json::Value;

use super::{BOTH, LEASES, kubectl_at};
use crate::{
    harness::{
        Etcd, Machines, eventually,
        machines::{SECOND, SERVER},
    },
    services::lab::signal,
};

const REPLICAS: usize = 100;

/// etcd's revision, and that at which the term of a lease began, with its holder.
fn term(etcd: &Etcd, lease: &str) -> (u64, Option<(u64, String)>) {
    let key = format!("/mainstay/leaderterms/kube-system/{lease}");
    // Read first, so that the revision is not that of a term before the holder's.
    let holder = etcd.ctl(&["get", &key, "--print-value-only"]).expect("etcdctl get");
    let read = etcd.ctl(&["get", &key, "-w", "json"]).expect("etcdctl get");
    let found: Value = serde_json::from_str(&read).expect("JSON");
    let number = |value: &Value| value.as_u64().expect("a revision");
    let term = found["kvs"].get(0).map(|kv| (number(&kv["mod_revision"]), holder.trim().to_owned()));
    (number(&found["header"]["revision"]), term)
}

fn leads(machines: &Machines, etcd: &Etcd, server: &str) -> Option<Vec<u64>> {
    let own = format!("{}:6443", machines.address(server));
    let terms = LEASES.iter().map(|lease| term(etcd, lease).1.filter(|(_, holder)| *holder == own).map(|(at, _)| at));
    terms.collect()
}

fn count_pods(machines: &Machines, server: &str) -> usize {
    kubectl_at(machines, server, "get pods -l app=busy -o name").stdout.lines().count()
}

/// Every change of these kinds after a revision: the kind, the revision and the object.
fn changes_after(machines: &Machines, server: &str, revision: u64) -> Vec<(&'static str, u64, Value)> {
    let kinds = [
        ("pods", "/api/v1/pods"),
        ("events", "/api/v1/events"),
        ("configmaps", "/api/v1/configmaps"),
        ("serviceaccounts", "/api/v1/serviceaccounts"),
        ("replicasets", "/apis/apps/v1/replicasets"),
        ("deployments", "/apis/apps/v1/deployments"),
    ];
    let mut changes = Vec::new();
    for (kind, path) in kinds {
        let url = format!("{path}?watch=true&timeoutSeconds=1&resourceVersion={revision}");
        for line in kubectl_at(machines, server, &format!("get --raw {url}")).ok().lines() {
            let event: Value = serde_json::from_str(line).expect("an event");
            let version = event["object"]["metadata"]["resourceVersion"].as_str().expect("a version");
            changes.push((kind, version.parse().expect("a number"), event["object"].clone()));
        }
    }
    changes
}

#[test]
fn a_frozen_leader_writes_nothing_once_another_took_over_and_is_a_candidate_again() {
    let mut machines = Machines::wired(&[]);
    let etcd = machines.start_etcd();
    machines.start_server();
    let first = eventually("the first leads", || leads(&machines, &etcd, SERVER));
    machines.start_server_named(SECOND);

    // In the middle of its work.
    kubectl_at(&machines, SERVER, &format!("create deployment busy --image=host --replicas={REPLICAS}")).ok();
    eventually("it has begun", || (count_pods(&machines, SERVER) > 0).then_some(()));
    signal("STOP", &[machines.pid(SERVER)]);
    let second = eventually("the second leads", || leads(&machines, &etcd, SECOND));
    assert!(first.iter().zip(&second).all(|(first, second)| first < second), "{first:?} {second:?}");
    eventually("the second does the rest", || (count_pods(&machines, SECOND) == REPLICAS).then_some(()));

    // Now the first is alone, and it is not its turn.
    signal("STOP", &[machines.pid(SECOND)]);
    let mut before = 0;
    eventually("nothing is under way", || {
        let now = term(&etcd, LEASES[0]).0;
        (std::mem::replace(&mut before, now) == now).then_some(())
    });
    signal("CONT", &[machines.pid(SERVER)]);
    kubectl_at(&machines, SERVER, "create deployment late --image=host").ok();
    let third = eventually("the first leads again", || leads(&machines, &etcd, SERVER));
    eventually("and decides", || {
        let made = kubectl_at(&machines, SERVER, "get replicasets -l app=late -o name").ok();
        (!made.trim().is_empty()).then_some(())
    });
    let changes = changes_after(&machines, SERVER, before);
    let is_late = |object: &Value| object["metadata"]["name"] == "late" && object["kind"] == "Deployment";
    assert!(changes.iter().any(|(_, _, object)| is_late(object)), "users write as ever");
    for (kind, revision, object) in &changes {
        let is_users =
            is_late(object) && object["metadata"]["generation"] == 1 && object["status"] == serde_json::json!({});
        let began = *third.iter().min().expect("two terms");
        assert!(
            is_users || *revision > began,
            "written without holding a Lease: {kind} at {revision}, before {began}: {object:#}"
        );
    }

    // The second wakes up deposed, and both go on as they should.
    signal("CONT", &[machines.pid(SECOND)]);
    for server in BOTH {
        eventually(&format!("{server} knows that it was deposed"), || {
            machines.log(server).contains("stopped leading").then_some(())
        });
    }
    kubectl_at(&machines, SECOND, "scale deployment late --replicas=2").ok();
    eventually("what is written at the second is carried out", || {
        (kubectl_at(&machines, SECOND, "get pods -l app=late -o name").stdout.lines().count() == 2).then_some(())
    });
    assert_eq!(leads(&machines, &etcd, SERVER), Some(third), "who leads goes on to lead");
}
