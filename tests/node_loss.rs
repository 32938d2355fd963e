//! A machine is lost: its pods run elsewhere, and what was replaced is stopped when it comes back.

use std::{
    fs,
    path::PathBuf,
    process::Command,
    time::{Duration, Instant},
};

use serde_json::json;

use crate::{
    harness::{Machines, command::run, eventually},
    services::lab::{Lab, set},
};

/// The machine of each pod of an app that is ready.
fn ready_on(lab: &Lab, app: &str) -> Vec<String> {
    let pods = lab.ready_pods(app);
    pods.iter().map(|pod| lab.value(&format!("pod {pod}"), "{.spec.nodeName}")).collect()
}

fn why(lab: &Lab, what: &str) -> String {
    let kubeconfig = lab.machines.data("server").join("admin.kubeconfig");
    let kubeconfig = kubeconfig.to_str().expect("a path");
    let command = lab.machines.mainstay("server", &["why", what, "--kubeconfig", kubeconfig]);
    run(command, "mainstay why", "", Duration::from_secs(20)).ok()
}

#[test]
fn pods_of_a_machine_that_loses_its_power_run_elsewhere() {
    let mut lab = Lab::of(Machines::joined(&["a", "b", "c"]));
    lab.kubectl("cordon b");
    lab.kubectl("cordon c");
    lab.create(&set("Deployment", "web", 1, lab.container(&["sleep".to_owned(), "1000".to_owned()])));
    let mut bare = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "bare" } });
    bare["spec"] = lab.container(&["sleep".to_owned(), "1000".to_owned()]);
    lab.create(&bare);
    eventually("it runs", || (ready_on(&lab, "web") == ["a"]).then_some(()));
    let first = lab.pods("web").remove(0);
    lab.kubectl("wait --for=condition=Ready pod/bare --timeout=20s");
    lab.kubectl("uncordon b");
    lab.kubectl("uncordon c");

    lab.machines.cut("a");
    let cut = Instant::now();
    let unknown = || lab.value("node a", r#"{.status.conditions[?(@.type=="Ready")].status}"#) == "Unknown";
    eventually("its conditions are unknown", || unknown().then_some(()));
    println!("unknown after {:?}", cut.elapsed());
    let elsewhere = eventually("another pod is ready", || {
        let machines = ready_on(&lab, "web");
        (machines.len() == 1 && machines[0] != "a").then(|| machines[0].clone())
    });
    println!("replaced after {:?} on {elsewhere}", cut.elapsed());
    assert!(cut.elapsed() >= Duration::from_secs(8), "nobody is lost for one late heartbeat");
    assert!(!lab.pods("web").contains(&first));
    eventually("the bare pod has failed", || (lab.value("pod bare", "{.status.reason}") == "NodeLost").then_some(()));
    assert_eq!(lab.value("pod bare", "{.status.phase}"), "Failed");

    let gone = why(&lab, &format!("pod/{first}"));
    assert!(
        gone.contains("its node a has been silent since") && gone.contains(&format!("runs on {elsewhere}")),
        "{gone}"
    );
    let failed = why(&lab, "pod/bare");
    assert!(failed.contains("NodeLost: Node a which was running pod bare"), "{failed}");
}

#[test]
fn a_machine_that_was_cut_off_stops_what_was_replaced_and_leaves_the_rest_untouched() {
    let lab = Lab::of(Machines::joined(&["a", "b", "c"]));
    for machine in ["b", "c"] {
        lab.kubectl(&format!("cordon {machine}"));
    }
    let pod = lab.container(&["sleep".to_owned(), "1000".to_owned()]);
    let mut patient = pod.clone();
    patient["tolerations"] = json!([{ "operator": "Exists", "effect": "NoExecute" }]);
    lab.create(&set("Deployment", "moves", 1, pod));
    lab.create(&set("Deployment", "stays", 1, patient));
    for app in ["moves", "stays"] {
        eventually("it runs", || (ready_on(&lab, app) == ["a"]).then_some(()));
    }
    let (moved, stayed) = (lab.pods("moves").remove(0), lab.pods("stays").remove(0));
    let containers = || lab.value(&format!("pod {stayed}"), "{.status.containerStatuses[0].containerID}");
    let before = containers();
    for machine in ["b", "c"] {
        lab.kubectl(&format!("uncordon {machine}"));
    }

    lab.machines.plug("a", false);
    eventually("it runs elsewhere", || {
        let machines = ready_on(&lab, "moves");
        (machines.len() == 1 && machines[0] != "a").then_some(())
    });
    eventually("the other is not ready", || {
        let ready = lab.value(&format!("pod {stayed}"), r#"{.status.conditions[?(@.type=="Ready")].status}"#);
        (ready == "False").then_some(())
    });
    lab.machines.plug("a", true);
    eventually("it is ready again", || (ready_on(&lab, "stays") == ["a"]).then_some(()));
    assert_eq!(lab.pods("stays"), std::slice::from_ref(&stayed));
    assert_eq!(containers(), before, "it was not touched");
    assert_eq!(lab.value(&format!("pod {stayed}"), "{.status.containerStatuses[0].restartCount}"), "0");
    eventually("what was replaced has ended", || {
        let running = crate::harness::host::of_instance(&lab.machines.data("a"));
        let is_of = |pid: &u32| {
            let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            String::from_utf8_lossy(&environment).contains(&format!("NAME={moved}"))
        };
        (!running.iter().any(is_of)).then_some(())
    });
}

/// A library to preload: whoever asks for the time of day gets it this many seconds off.
#[track_caller]
fn shifted_clock(machines: &Machines, seconds: i64) -> PathBuf {
    let (source, library) = (machines.dir().join("clock.c"), machines.dir().join(format!("clock{seconds}.so")));
    let code = r#"
        #define _GNU_SOURCE
        #include <sys/syscall.h>
        #include <time.h>
        #include <unistd.h>
        int clock_gettime(clockid_t clock, struct timespec *at) {
            int result = syscall(SYS_clock_gettime, clock, at);
            if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) at->tv_sec += SHIFT;
            return result;
        }
    "#;
    fs::write(&source, code).expect("write the source");
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", &format!("-DSHIFT=({seconds})"), "-o"]).arg(&library).arg(&source);
    assert!(compiler.status().expect("run cc").success(), "cc failed");
    library
}

#[test]
fn machines_whose_clocks_are_an_hour_off_join_run_pods_and_are_replaced_in_time() {
    let mut machines = Machines::wired(&["a", "b"]);
    machines.start_server();
    for (machine, seconds) in [("a", 3600), ("b", -3600)] {
        let library = shifted_clock(&machines, seconds);
        machines.set_environment(Some(("LD_PRELOAD", library.to_str().expect("a path"))));
        machines.start_agent(machine);
    }
    machines.set_environment(None);
    machines.all_ready();
    let mut lab = Lab::of(machines);
    lab.start_web("web", 2);
    let mut machines = ready_on(&lab, "web");
    machines.sort();
    assert_eq!(machines, ["a", "b"], "both take pods");
    // For longer than a machine may be silent.
    let until = Instant::now() + Duration::from_secs(12);
    while Instant::now() < until {
        assert_eq!(lab.kubectl("get nodes -o jsonpath={.items[*].spec.taints}"), "", "nobody is given up");
        assert_eq!(lab.kubectl("get pods -o jsonpath={.items[*].metadata.deletionTimestamp}"), "");
    }
    assert_eq!(lab.serves("web", 2).len(), 2);
    lab.machines.cut("a");
    eventually("all run on the other", || (ready_on(&lab, "web") == ["b", "b"]).then_some(()));
}
