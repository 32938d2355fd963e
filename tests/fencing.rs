//! Machines that are cut off stop their unique pods and nothing else; while servers are down, nothing stops.

use std::{fs, time::Duration};

use serde_json::{Value, json};

use crate::{
    harness::{LinkFault, Machines, eventually, machines::SERVER},
    services::lab::{Lab, now, set, signal},
};

/// After so long without contact a machine has stopped its unique pods, by the stock settings.
pub const PROMISE: f64 = 12.5;

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
pub struct Note {
    pub pod: String,
    pub node: String,
    pub instance: String,
    pub time: f64,
}

pub fn notes(lab: &Lab, file: &str) -> Vec<Note> {
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
pub fn assert_never_two(notes: &[Note]) {
    let pods: std::collections::BTreeSet<&str> = notes.iter().map(|note| note.pod.as_str()).collect();
    for pod in pods {
        let mut instances: Vec<&str> =
            notes.iter().filter(|note| note.pod == pod).map(|note| note.instance.as_str()).collect();
        instances.dedup();
        let distinct: std::collections::BTreeSet<&&str> = instances.iter().collect();
        assert_eq!(distinct.len(), instances.len(), "two instances of {pod} wrote at once: {instances:?}");
    }
}

pub fn restart_counts(lab: &Lab, app: &str) -> String {
    lab.kubectl(&format!("get pods -l app={app} -o jsonpath={{.items[*].status.containerStatuses[*].restartCount}}"))
}

/// A StatefulSet and a Deployment that would rather run on `a`, when they do and `a` has promised to stop the former.
pub fn started() -> Lab {
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

/// Until the pod has been silent on a machine for as long as it would never be while it runs.
#[track_caller]
pub fn wait_stopped(lab: &Lab, machine: &str, since: f64) {
    eventually(&format!("the unique pod has stopped on {machine}"), || {
        let stopped = last_time(lab, "db", machine) + 2.0 < now();
        (stopped || now() > since + 60.0).then_some(())
    });
    let last = last_time(lab, "db", machine);
    assert!(last < since + PROMISE, "it ran for {} s without contact", last - since);
}

#[test]
fn a_machine_that_is_cut_off_stops_its_unique_pods_and_nothing_else() {
    let lab = started();
    let cut = now();
    lab.machines.plug("a", false);
    wait_stopped(&lab, "a", cut);
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
    wait_stopped(&lab, "a", frozen);
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

#[derive(Clone, Copy, Debug)]
enum Fault {
    Cut,
    FreezeAgent,
    KillAgent,
    KillServer,
    FreezeServer,
    Link(LinkFault),
}

const FAULTS: [Fault; 9] = [
    Fault::Cut,
    Fault::FreezeAgent,
    Fault::KillAgent,
    Fault::KillServer,
    Fault::FreezeServer,
    Fault::Link(LinkFault::Deaf),
    Fault::Link(LinkFault::Mute),
    Fault::Link(LinkFault::Loss(30)),
    Fault::Link(LinkFault::Delay(Duration::from_millis(500))),
];

/// Has a machine or the server suffer a fault for so many seconds.
#[track_caller]
fn suffer(lab: &mut Lab, machine: &str, fault: Fault, seconds: f64) {
    let until = now() + seconds;
    let wait = || eventually_long("the fault has lasted", Duration::from_secs(60), || (now() > until).then_some(()));
    match fault {
        Fault::Cut => {
            lab.machines.plug(machine, false);
            wait();
            lab.machines.plug(machine, true);
        }
        Fault::FreezeAgent | Fault::FreezeServer => {
            let frozen = [lab.machines.pid(if matches!(fault, Fault::FreezeServer) { SERVER } else { machine })];
            signal("STOP", &frozen);
            wait();
            signal("CONT", &frozen);
        }
        Fault::KillAgent => {
            lab.machines.kill(machine);
            wait();
            lab.machines.start_agent(machine);
        }
        Fault::KillServer => {
            lab.machines.kill_server();
            wait();
            lab.machines.start_server();
        }
        Fault::Link(fault) => {
            let _link = lab.machines.impair(machine, fault);
            wait();
        }
    }
}

/// `MAINSTAY_FAULTS` faults in a row (3 if it is not set), drawn by `MAINSTAY_SEED`.
#[test]
fn no_two_of_a_unique_pod_ever_write_at_once_whatever_fails() {
    let number = |name: &str, stock: u64| std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(stock);
    let (faults, seed) = (number("MAINSTAY_FAULTS", 3), number("MAINSTAY_SEED", u64::from(std::process::id())));
    println!("MAINSTAY_SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let mut lab = started();
    for number in 0..faults {
        let machine = ["a", "b", "c"][random.usize(..3)];
        let lasts = random.f64() * 25.0 + 1.0;
        let fault = FAULTS[random.usize(..FAULTS.len())];
        println!("fault {number}: {fault:?} {machine} for {lasts:.1} s");
        suffer(&mut lab, machine, fault, lasts);
        if random.bool() {
            lab.machines.all_ready();
        }
        assert_never_two(&notes(&lab, "db"));
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
