//! Machines that are cut off stop their unique pods and nothing else; while servers are down, nothing stops.

use std::{fs, time::Duration};

use serde_json::{Value, json};

use crate::{
    harness::{Machines, eventually},
    services::lab::{Lab, now, set, signal},
};

/// After so long without contact a machine has stopped its unique pods, by the stock settings.
const PROMISE: f64 = 12.5;

/// Notes who it is, since when, and the time, ten times a second.
fn writer(lab: &Lab, file: &str) -> Value {
    let script = format!(
        "id=$(cat /proc/sys/kernel/random/uuid); n=0; \
         while :; do n=$((n+1)); echo $NAME $NODE $id $n $(date +%s.%N) >> /shared/{file}; sleep 0.1; done"
    );
    let mut pod = lab.container(&["sh".to_owned(), "-c".to_owned(), script]);
    pod["terminationGracePeriodSeconds"] = 1.into();
    pod
}

fn preferring(mut pod: Value, machine: &str) -> Value {
    let named = json!({ "key": "metadata.name", "operator": "In", "values": [machine] });
    let preferred = json!([{ "weight": 100, "preference": { "matchFields": [named] } }]);
    pod["affinity"] = json!({ "nodeAffinity": { "preferredDuringSchedulingIgnoredDuringExecution": preferred } });
    pod
}

#[derive(Clone, Debug)]
struct Note {
    pod: String,
    node: String,
    instance: String,
    time: f64,
}

fn notes(lab: &Lab, file: &str) -> Vec<Note> {
    let text = fs::read_to_string(lab.shared.join(file)).unwrap_or_default();
    let parse = |line: &str| {
        let [pod, node, instance, _, time] = line.split(' ').collect::<Vec<_>>()[..] else { return None };
        Some(Note { pod: pod.into(), node: node.into(), instance: instance.into(), time: time.parse().ok()? })
    };
    text.lines().filter_map(parse).collect()
}

fn last_time(lab: &Lab, file: &str, node: &str) -> f64 {
    notes(lab, file).iter().rev().find(|note| note.node == node).map_or(0.0, |note| note.time)
}

/// Whoever has begun to write in a pod's name is the last who does: nobody who wrote before it writes again.
#[track_caller]
fn assert_never_two(notes: &[Note]) {
    let pods: std::collections::BTreeSet<&str> = notes.iter().map(|note| note.pod.as_str()).collect();
    for pod in pods {
        let mut instances: Vec<&str> =
            notes.iter().filter(|note| note.pod == pod).map(|note| note.instance.as_str()).collect();
        instances.dedup();
        let distinct: std::collections::BTreeSet<&&str> = instances.iter().collect();
        assert_eq!(distinct.len(), instances.len(), "two instances of {pod} wrote at once: {instances:?}");
    }
}

fn restart_counts(lab: &Lab, app: &str) -> String {
    lab.kubectl(&format!("get pods -l app={app} -o jsonpath={{.items[*].status.containerStatuses[*].restartCount}}"))
}

/// A StatefulSet and a Deployment that would rather run on `a`, when they do and `a` has promised to stop the former.
fn started() -> Lab {
    let lab = Lab::of(Machines::joined(&["a", "b", "c"]));
    let mut db = set("StatefulSet", "db", 1, preferring(writer(&lab, "db"), "a"));
    db["spec"]["serviceName"] = "db".into();
    lab.create(&db);
    lab.create(&set("Deployment", "web", 1, preferring(writer(&lab, "web"), "a")));
    for app in ["db", "web"] {
        eventually("it runs on a", || (last_time(&lab, app, "a") > 0.0).then_some(()));
    }
    eventually("all machines have witnesses", || {
        let witnesses = r"jsonpath={.items[*].metadata.annotations.mainstay\.dev/witnesses}";
        let leases = lab.machines.kubectl(&["get", "leases", "-n", "kube-node-lease", "-o", witnesses], "");
        (leases.stdout.split_whitespace().count() == 3).then_some(())
    });
    lab
}

/// Until the pod has been silent for as long as it would never be while it runs.
#[track_caller]
fn wait_stopped(lab: &Lab, since: f64) {
    eventually("the unique pod has stopped on a", || {
        let stopped = last_time(lab, "db", "a") + 2.0 < now();
        (stopped || now() > since + 60.0).then_some(())
    });
    let last = last_time(lab, "db", "a");
    assert!(last < since + PROMISE, "it ran for {} s without contact", last - since);
}

#[test]
fn a_machine_that_is_cut_off_stops_its_unique_pods_and_nothing_else() {
    let lab = started();
    let cut = now();
    lab.machines.plug("a", false);
    wait_stopped(&lab, cut);
    eventually("the ordinary pod runs on", || (last_time(&lab, "web", "a") > cut + PROMISE + 1.0).then_some(()));

    lab.machines.plug("a", true);
    let back = now();
    lab.machines.all_ready();
    eventually("the unique pod runs again, here or elsewhere", || {
        notes(&lab, "db").last().is_some_and(|note| note.time > back).then_some(())
    });
    assert_never_two(&notes(&lab, "db"));
    eventually("one pod of each is left", || {
        let counts = [restart_counts(&lab, "db"), restart_counts(&lab, "web")];
        (counts == ["0", "0"]).then_some(())
    });
}

#[test]
fn nothing_stops_while_all_servers_are_down() {
    let mut lab = started();
    let before = notes(&lab, "db").last().map(|note| note.instance.clone());
    let killed = now();
    lab.machines.kill_server();
    eventually_long("the unique pod has run for long without any server", Duration::from_secs(90), || {
        let last = notes(&lab, "db").last().cloned()?;
        assert!(last.time + 5.0 > now(), "it stopped {} s after the server", last.time - killed);
        (last.time > killed + 3.0 * PROMISE).then_some(())
    });
    lab.machines.start_server();
    lab.machines.all_ready();
    let back = now();
    eventually("the unique pod runs on", || {
        notes(&lab, "db").last().is_some_and(|note| note.time > back + PROMISE).then_some(())
    });
    assert_eq!(notes(&lab, "db").last().map(|note| note.instance.clone()), before);
    assert_never_two(&notes(&lab, "db"));
    assert_eq!([restart_counts(&lab, "db"), restart_counts(&lab, "web")], ["0", "0"]);
}

#[test]
fn a_frozen_agent_fences_all_the_same_and_goes_on_when_it_is_thawed() {
    let lab = started();
    let frozen = now();
    signal("STOP", &[lab.machines.pid("a")]);
    wait_stopped(&lab, frozen);
    eventually("the ordinary pod runs on", || (last_time(&lab, "web", "a") > frozen + PROMISE + 1.0).then_some(()));
    signal("CONT", &[lab.machines.pid("a")]);
    let thawed = now();
    eventually("the unique pod runs again, here or elsewhere", || {
        notes(&lab, "db").last().is_some_and(|note| note.time > thawed).then_some(())
    });
    assert_never_two(&notes(&lab, "db"));
    eventually("no restart is counted", || (restart_counts(&lab, "db") == "0").then_some(()));
}

#[test]
fn an_agent_that_is_started_again_soon_costs_nothing() {
    let mut lab = started();
    let before = notes(&lab, "db").last().map(|note| note.instance.clone());
    lab.machines.kill("a");
    lab.machines.start_agent("a");
    let restarted = now();
    eventually("the unique pod runs on", || {
        notes(&lab, "db").last().is_some_and(|note| note.time > restarted + PROMISE + 2.0).then_some(())
    });
    assert_eq!(notes(&lab, "db").last().map(|note| note.instance.clone()), before);
    assert_eq!(restart_counts(&lab, "db"), "0");
}

/// `MAINSTAY_FAULTS` faults in a row (3 if it is not set), drawn by `MAINSTAY_SEED`.
#[test]
fn no_two_of_a_unique_pod_ever_write_at_once_whatever_fails() {
    let number = |name: &str, stock: u64| std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(stock);
    let (faults, seed) = (number("MAINSTAY_FAULTS", 3), number("MAINSTAY_SEED", u64::from(std::process::id())));
    println!("MAINSTAY_SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let mut lab = started();
    for fault in 0..faults {
        let machine = ["a", "b", "c"][random.usize(..3)];
        let began = now();
        let lasts = random.f64() * 25.0 + 1.0;
        let kind = random.usize(..4);
        println!("fault {fault}: {} {machine} for {lasts:.1} s", ["cut", "freeze", "kill", "server down"][kind]);
        match kind {
            0 => lab.machines.plug(machine, false),
            1 => signal("STOP", &[lab.machines.pid(machine)]),
            2 => lab.machines.kill(machine),
            _ => lab.machines.kill_server(),
        }
        eventually_long("the fault has lasted", Duration::from_secs(60), || (now() > began + lasts).then_some(()));
        match kind {
            0 => lab.machines.plug(machine, true),
            1 => signal("CONT", &[lab.machines.pid(machine)]),
            2 => lab.machines.start_agent(machine),
            _ => lab.machines.start_server(),
        }
        if random.bool() {
            lab.machines.all_ready();
        }
    }
    lab.machines.all_ready();
    let healed = now();
    eventually_long("the unique pod writes in the end", Duration::from_secs(90), || {
        notes(&lab, "db").last().is_some_and(|note| note.time > healed).then_some(())
    });
    assert_never_two(&notes(&lab, "db"));
}

#[track_caller]
fn eventually_long<T>(what: &str, patience: Duration, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = std::time::Instant::now() + patience;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(std::time::Instant::now() < deadline, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(100));
    }
}
