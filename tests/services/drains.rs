//! Pods that are replaced under load, and lose no request.

use std::time::{Duration, Instant};

use serde_json::json;

use super::lab::{Lab, curl, now, signal};
use crate::harness::{Following, Machines, eventually, tool};

/// For so long one restart follows another.
const STORM: Duration = Duration::from_secs(45);

#[test]
fn rolling_restarts_under_load_fail_no_request() {
    let lab = Lab::new(&["a", "b", "c"]);
    let address = lab.start_service("web", json!({}));
    lab.start_web("web", 3);
    let url = format!("http://{address}/");
    lab.start_load("load", "c", 4, Duration::from_secs(15), &[&url]);
    let began = Instant::now();
    let mut restarts = 0;
    while began.elapsed() < STORM {
        lab.kubectl("rollout restart deployment web");
        lab.kubectl("rollout status deployment web --timeout=60s");
        restarts += 1;
    }
    lab.serves("web", 3);
    lab.answered("load", 50);
    let (requests, failures) = (lab.requests("load"), lab.failures("load", 0.0));
    let slowest = requests.iter().map(|request| request.took).fold(0.0, f64::max);
    println!("{restarts} restarts, {} requests, slowest {slowest} s", requests.len());
    assert!(restarts >= 3, "{restarts} restarts");
    assert!(
        failures.is_empty(),
        "{} of {} failed in {restarts} restarts: {failures:#?}",
        failures.len(),
        requests.len()
    );
}

/// A pod behind a Service on one machine, and another machine that sends to it.
fn one_pod(lab: &Lab, app: &str, grace: u64) -> (String, String) {
    let address = lab.start_service(app, json!({}));
    lab.start_web_with(app, 1, json!({ "terminationGracePeriodSeconds": grace }));
    let pod = lab.pods(app).remove(0);
    let here = lab.value(&format!("pod {pod}"), "{.spec.nodeName}");
    let away = lab.machines.names().find(|name| **name != here).expect("another machine").to_owned();
    let call = format!("{} http://{address}/", curl());
    eventually("the other machine sends to it", || lab.on(&away, &call).stdout.starts_with(&pod).then_some(()));
    (pod, away)
}

/// A machine that does not say that it has stopped sending keeps the pod from being asked to stop.
#[test]
fn a_pod_is_asked_to_stop_only_once_no_machine_sends_to_it() {
    let lab = Lab::of(Machines::joined_with(&["a", "b"], &["--drain-timeout", "20s"]));
    let (pod, away) = one_pod(&lab, "web", 40);
    let mut follow = lab.machines.on("server", &tool("bin/kubectl-1.32"));
    follow.arg("--kubeconfig").arg(lab.machines.data("server").join("admin.kubeconfig"));
    let drained = r#"{.metadata.name}={.status.conditions[?(@.type=="mainstay.dev/Drained")].status}{"\n"}"#;
    follow.args(["get", "pods", "-l", "app=web", "--watch", "-o", &format!("jsonpath={drained}")]);
    let mut observed = Following::start(follow, "kubectl get pods --watch");
    observed.until("the pod", |line| line.starts_with(&pod));

    signal("STOP", &[lab.machines.pid(&away)]);
    lab.kubectl(&format!("delete pod {pod} --wait=false"));
    let deleted = now();
    // It has to be given time in which nothing is to happen.
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(lab.stopped_at(&pod), None, "it is not asked to stop while a machine may send to it");
    signal("CONT", &[lab.machines.pid(&away)]);
    observed.until("that the pod is drained", |line| *line == format!("{pod}=True"));
    let stopped = eventually("it is asked to stop", || lab.stopped_at(&pod));
    assert!(stopped - deleted >= 3.0, "{} s after it was deleted", stopped - deleted);
}

#[test]
fn a_machine_that_never_answers_holds_up_a_pod_for_a_time_and_no_longer_than_half_its_grace() {
    let lab = Lab::of(Machines::joined_with(&["a", "b"], &["--drain-timeout", "5s"]));
    let (patient, away) = one_pod(&lab, "patient", 40);
    let (hasty, other) = one_pod(&lab, "hasty", 4);
    let machines = [lab.machines.pid(&away), lab.machines.pid(&other)];
    // The time of a deletion is stored in whole seconds: up to one of them is lost.
    for (pod, machine, soonest) in [(&patient, machines[0], 4.0), (&hasty, machines[1], 1.0)] {
        signal("STOP", &[machine]);
        let deleted = now();
        lab.kubectl(&format!("delete pod {pod} --wait=false"));
        let stopped = eventually("it is asked to stop", || lab.stopped_at(pod));
        signal("CONT", &[machine]);
        let took = stopped - deleted;
        // One that is asked at all is asked before the end of its grace: then it would be killed.
        assert!(took >= soonest, "{pod}: {took} s after it was deleted");
    }
}
