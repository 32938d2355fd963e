//! `up --demo` runs to its end and shows what the README says.

use crate::harness::{Cluster, eventually};

#[test]
fn the_demo_runs_to_its_end_and_loses_no_call() {
    let cluster = Cluster::with_pods(&["--demo"]);
    let log = eventually("the demo ends", || Some(cluster.log()).filter(|log| log.contains("Try next")));
    for part in [
        "Demo: three web servers",
        "Hello from demo-web-0",
        "Hello from demo-web-1",
        "Hello from demo-web-2",
        "Service demo-web stands for all three at",
        "Killing demo-web-",
        "answers again after",
        "exit code 137",
        "event: HealRestart",
        "Replacing all three at once",
        "calls answered, 0 failed",
        "export KUBECONFIG=",
        "Ctrl-C leaves the pods running",
    ] {
        assert!(log.contains(part), "{part:?} is missing in\n{log}");
    }
}
