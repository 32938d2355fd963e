//! Machines behind bad links: slow ones, those that lose packets, and those that pass packets one way only.

use std::time::Duration;

use serde_json::json;

use crate::{
    fencing::{assert_never_two, notes, restart_counts, started, wait_stopped},
    harness::{LinkFault, eventually},
    services::lab::{Lab, now, set},
};

#[track_caller]
fn writes(lab: &Lab, file: &str, what: &str, is_meant: impl Fn(&str) -> bool) {
    let since = now();
    eventually(what, || notes(lab, file).last().is_some_and(|note| note.time > since && is_meant(&note.node)));
}

#[test]
fn a_machine_that_only_hears_or_is_only_heard_is_lost_like_one_that_is_cut_off() {
    let lab = started();
    for fault in [LinkFault::Deaf, LinkFault::Mute] {
        let machine = notes(&lab, "db").last().expect("it runs").node.clone();
        let link = lab.machines.impair(&machine, fault);
        wait_stopped(&lab, &machine, now());
        writes(&lab, "db", &format!("{fault:?}: the unique pod runs elsewhere"), |node| node != machine);
        drop(link);
        lab.machines.all_ready();
        assert_never_two(&notes(&lab, "db"));
    }
}

#[test]
fn pods_run_and_start_on_a_machine_whose_link_is_slow_or_loses_packets() {
    let lab = started();
    for (app, fault) in [("slow", LinkFault::Delay(Duration::from_millis(250))), ("lossy", LinkFault::Loss(30))] {
        let _link = lab.machines.impair("a", fault);
        let mut pod = lab.container(&["sleep".to_owned(), "1000".to_owned()]);
        pod["nodeName"] = "a".into();
        pod["tolerations"] = json!([{ "operator": "Exists" }]);
        lab.create(&set("Deployment", app, 1, pod));
        eventually(&format!("{fault:?}: a pod starts there"), || (lab.ready_pods(app).len() == 1).then_some(()));
    }
    lab.machines.all_ready();
    writes(&lab, "db", "the unique pod runs", |_| true);
    assert_never_two(&notes(&lab, "db"));
    for app in ["db", "slow", "lossy"] {
        eventually("nothing was restarted", || (restart_counts(&lab, app) == "0").then_some(()));
    }
}
