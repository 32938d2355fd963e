//! Pods that wait for a machine say why, go the moment they can, and give way to what is more important.

use crate::harness::{Kubectl, Version, eventually};

fn pod(name: &str, spec: &str, container: &str) -> String {
    format!(
        "
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  terminationGracePeriodSeconds: 1
  {spec}
  containers:
  - {{name: c, image: host, command: [sh, -c, 'trap \"exit 0\" TERM; while :; do sleep 0.1; done'], {container}}}
"
    )
}

fn asking(name: &str, spec: &str, cpu: &str) -> String {
    pod(name, spec, &format!("resources: {{requests: {{cpu: '{cpu}'}}}}"))
}

fn why(k: &Kubectl, name: &str, of: &str) -> String {
    let path = "{.status.conditions[?(@.type==\"PodScheduled\")].message}";
    eventually(&format!("{name} waits because of {of:?}"), || {
        let output = k.value(&format!("pod {name}"), path);
        output.contains(of).then_some(output)
    })
}

fn runs(k: &Kubectl, name: &str) {
    eventually(&format!("{name} runs"), || {
        (k.value(&format!("pod {name}"), "{.status.phase}") == "Running").then_some(())
    });
}

fn placed(k: &Kubectl, name: &str) {
    eventually(&format!("{name} is placed"), || {
        (k.value(&format!("pod {name}"), "{.spec.nodeName}") == "here").then_some(())
    });
}

#[test]
fn a_pod_that_does_not_fit_says_why_and_whether_it_ever_will() {
    let k = Kubectl::with_pods(Version::V1_32);
    k.create(&asking("big", "", "640"));
    let output = why(&k, "big", "0/1 nodes are available: 1 Insufficient cpu.");
    assert!(output.contains("no node has 640 cpu"), "{output}");
    k.create(&asking("picky", "nodeSelector: {disk: ssd}", "10m"));
    why(&k, "picky", "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector.");
    let described = eventually("describe tells", || {
        let described = k.ok("describe pod picky");
        described.contains("FailedScheduling").then_some(described)
    });
    assert!(described.contains("default-scheduler"), "{described}");
    assert!(described.contains("Unschedulable") || described.contains("PodScheduled"), "{described}");

    // Told the same by mainstay itself, reason by reason.
    let reported = k.cluster.mainstay("why", "pod/big").ok();
    assert!(reported.starts_with("pod default/big fits on no node: Insufficient cpu\n"), "{reported}");
    for part in ["no node has 640 cpu", "FailedScheduling", "next: kubectl get offers"] {
        assert!(reported.contains(part), "{part:?} in\n{reported}");
    }

    k.ok("label node here disk=ssd");
    placed(&k, "picky");
    runs(&k, "picky");
    let reported = k.cluster.mainstay("why", "picky").ok();
    assert!(reported.starts_with("pod default/picky runs on here at "), "{reported}");
    let history: Vec<&str> = reported.lines().filter(|line| line.contains(" ago  ")).collect();
    let at = |reason: &str| {
        history.iter().position(|line| line.contains(reason)).unwrap_or_else(|| panic!("{reason} in {reported}"))
    };
    assert!(at("FailedScheduling") < at("Scheduled: Successfully assigned"), "{reported}");

    let nobody = k.cluster.mainstay("why", "pod/nobody");
    assert_eq!(nobody.code, 1, "{nobody}");
    assert!(nobody.stderr.contains("there is no pod \"nobody\" in namespace \"default\""), "{nobody}");

    k.ok("delete pod big --wait=true");
    let queue = k.ok("get --raw /debug/scheduler/podqueue");
    assert!(!queue.contains("default/big"), "it left the queue at once: {queue}");
}

#[test]
fn taints_cordons_and_host_ports_keep_pods_away_until_they_are_gone() {
    let k = Kubectl::with_pods(Version::V1_32);
    k.ok("taint node here team=a:NoSchedule");
    k.create(&asking("outsider", "", "10m"));
    why(&k, "outsider", "1 node(s) had untolerated taint {team: a}");
    k.create(&asking("insider", "tolerations: [{key: team, operator: Exists}]", "10m"));
    runs(&k, "insider");
    k.ok("taint node here team-");
    runs(&k, "outsider");

    k.ok("cordon here");
    let port = "ports: [{containerPort: 80, hostPort: 28080}]";
    k.create(&pod("first", "", port));
    why(&k, "first", "1 node(s) were unschedulable");
    k.ok("uncordon here");
    runs(&k, "first");
    k.create(&pod("second", "", port));
    let output = why(&k, "second", "1 node(s) didn't have free ports for the requested pod ports");
    assert!(output.contains("host port 28080 on here is taken by default/first"), "{output}");
    k.ok("delete pod first --wait=true");
    runs(&k, "second");
}

#[test]
fn the_more_important_pod_gets_the_room_of_the_less_important() {
    let k = Kubectl::with_pods(Version::V1_32);
    k.create("apiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\nmetadata: {name: high}\nvalue: 1000\n");
    let millis = |text: &str| match text.strip_suffix('m') {
        Some(millis) => millis.parse::<u32>().unwrap(),
        None => text.parse::<u32>().unwrap() * 1000,
    };
    let most = format!("{}m", millis(&k.value("node here", "{.status.allocatable.cpu}")) * 2 / 3);
    k.create(&asking("low", "", &most));
    runs(&k, "low");
    k.create(&asking("equal", "", &most));
    why(&k, "equal", "1 Insufficient cpu");
    k.create(&asking("high", "priorityClassName: high", &most));
    assert_eq!(k.value("pod high", "{.spec.priority}"), "1000");
    runs(&k, "high");
    assert!(k.run("get pod low").refused().contains("not found"));
    let events = k.ok("get events --field-selector involvedObject.name=low");
    assert!(events.contains("Preempted"), "{events}");
    why(&k, "equal", "1 Insufficient cpu");
    k.ok("delete pod high --wait=true");
    runs(&k, "equal");
    let unknown = k.run_with("create -f -", &asking("odd", "priorityClassName: missing", "10m")).refused();
    assert!(unknown.contains("no PriorityClass with name missing was found"), "{unknown}");
}

#[test]
fn preemption_deletes_no_more_pods_than_it_needs() {
    let k = Kubectl::with_pods(Version::V1_32);
    k.create("apiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\nmetadata: {name: high}\nvalue: 1000\n");
    let allocatable = k.value("node here", "{.status.allocatable.cpu}");
    let millis: u32 = match allocatable.strip_suffix('m') {
        Some(millis) => millis.parse().unwrap(),
        None => allocatable.parse::<u32>().unwrap() * 1000,
    };
    for name in ["a", "b", "c"] {
        k.create(&asking(name, "", &format!("{}m", millis * 26 / 100)));
        runs(&k, name);
    }
    k.create(&asking("high", "priorityClassName: high", &format!("{}m", millis * 30 / 100)));
    runs(&k, "high");
    let left = k.ok("get pods -o name");
    assert_eq!(left.lines().count(), 3, "one made room: {left}");
    let events = eventually("its event appears", || {
        Some(k.ok("get events --field-selector reason=Preempted -o name")).filter(|events| !events.is_empty())
    });
    assert_eq!(events.lines().count(), 1, "{events}");
}

#[test]
fn a_runtime_class_says_where_its_pods_run_and_what_they_cost() {
    let k = Kubectl::with_pods(Version::V1_32);
    k.create(
        "
apiVersion: node.k8s.io/v1
kind: RuntimeClass
metadata: {name: small}
handler: mainstay
overhead: {podFixed: {cpu: 10m}}
scheduling: {nodeSelector: {disk: ssd}, tolerations: [{key: team, operator: Exists}]}
",
    );
    k.create(&asking("classy", "runtimeClassName: small", "10m"));
    let spec = k.value("pod classy", "{.spec.overhead.cpu} {.spec.nodeSelector.disk} {.spec.tolerations[0].key}");
    assert_eq!(spec, "10m ssd team");
    why(&k, "classy", "didn't match Pod's node affinity/selector");
    k.ok("label node here disk=ssd");
    runs(&k, "classy");
    let refused = |spec: &str| k.run_with("create -f -", &asking("odd", spec, "10m")).refused();
    let missing = refused("runtimeClassName: missing");
    assert!(
        missing.contains("pods \"odd\" is forbidden: pod rejected: RuntimeClass \"missing\" not found"),
        "{missing}"
    );
    let contradiction = refused("runtimeClassName: small\n  nodeSelector: {disk: hdd}");
    assert!(contradiction.contains("conflict: runtimeClass.scheduling.nodeSelector[disk] = ssd"), "{contradiction}");
}

#[test]
fn the_scheduler_can_be_queried_and_configured() {
    let k = Kubectl::with_pods(Version::V1_32);
    k.create(&asking("p", "", "10m"));
    runs(&k, "p");
    k.create(&asking("waits", "", "640"));
    why(&k, "waits", "Insufficient cpu");
    let raw = |path: &str| k.ok(&format!("get --raw /debug/{path}"));
    let queue = raw("scheduler/podqueue");
    assert_eq!(queue.split('\t').count(), 3, "pod, deadline, delay: {queue}");
    assert!(queue.starts_with("default/waits\t"), "{queue}");
    assert!(raw("scheduler/podstore").contains("default/p\there\tplaced\t"));
    let tasks = raw("registry/tasks");
    assert!(tasks.starts_with("task_count=1\n") && tasks.contains("\tdefault/p\tplaced\there"), "{tasks}");
    assert_eq!(raw("actions/requestExplicit"), "");
    assert_eq!(raw("actions/requestImplicit"), "");
    eventually("everything is compared", || {
        let metrics = k.ok("get --raw /metrics");
        metrics.contains("mainstay_scheduler_reconciliation_executed_total{kind=\"Explicit\"} 1").then_some(())
    });
    assert_eq!(raw("actions/kamikaze"), "here\nOK");
    k.create(&asking("after", "", "10m"));
    runs(&k, "after"); // the machine offers itself again
    assert_eq!(k.value("pod p", "{.status.containerStatuses[0].restartCount}"), "0", "what runs, runs on");
    let metrics = k.ok("get --raw /metrics");
    for name in ["offers_received_total", "offers_used_total", "bind_latency_seconds_count"] {
        assert!(metrics.contains(&format!("mainstay_scheduler_{name}")), "{name}");
    }
    for line in
        ["scheduler_pending_pods{queue=\"unschedulable\"} 1", "scheduler_schedule_attempts_total{result=\"scheduled\"}"]
    {
        assert!(metrics.contains(line), "{line}");
    }
    assert!(k.refused("get --raw /debug/scheduler/nothing").contains("NotFound"));
    let machine = k.refused("get --raw /debug/scheduler/podqueue --as system:node:here --as-group system:nodes");
    assert!(machine.contains("Forbidden") || machine.contains("forbidden"), "{machine}");
}
