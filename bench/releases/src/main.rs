//! How long a step of a Release of many machines takes to plan, and questions about all of them to answer.
//!
//! `cargo run --release -p bench-releases -- [MACHINES]`

use std::time::{Duration, Instant};

use jiff::Timestamp;
use mainstay_api::{machine::Machine, release::Release};
use mainstay_machines::{
    questions::machines_by_version,
    release::{MachineView, ReleaseWorld, plan},
};
use serde_json::json;

fn main() {
    let count: usize = std::env::args().nth(1).and_then(|count| count.parse().ok()).unwrap_or(10_000);
    let mut machines: Vec<Machine> = (0..count).map(machine).collect();
    let waves: Vec<_> = (1..=20).map(|wave| json!({"upTo": format!("{}%", wave * 5)})).collect();
    let spec = json!({"version": "v2", "selector": {}, "waves": waves, "maxUnavailable": "5%"});
    let mut release: Release =
        serde_json::from_value(json!({"metadata": {"name": "all"}, "spec": spec})).expect("a Release");
    let (mut longest, mut total, mut steps) = (Duration::ZERO, Duration::ZERO, 0);
    loop {
        let now = Timestamp::now();
        let views: Vec<_> = machines.iter().map(|machine| MachineView { machine, takes_pods: true }).collect();
        let world = ReleaseWorld {
            release: &release,
            machines: &views,
            workloads: &[],
            overlap: None,
            problem: None,
            gates: &[],
        };
        let began = Instant::now();
        let planned = plan(&world, now);
        let took = began.elapsed();
        (longest, total, steps) = (longest.max(took), total + took, steps + 1);
        let is_complete = planned.status.phase == "Complete";
        release.status = Some(planned.status);
        if is_complete {
            break;
        }
        let asked: std::collections::HashSet<String> = planned.moves.into_iter().map(|own| own.machine).collect();
        machines.iter_mut().filter(|machine| asked.contains(machine.name())).for_each(arrive);
    }
    println!("{count} machines in waves of 5 %: {steps} steps, {:?} each, at most {longest:?}", total / steps);
    let began = Instant::now();
    let versions = machines_by_version(&machines, Timestamp::now()).len();
    println!("running-versions: {versions} in {:?}", began.elapsed());
}

fn machine(number: usize) -> Machine {
    let state = json!({"state": "success", "since": "2026-01-01T00:00:00Z"});
    let status = json!({"seen": state, "configured": state, "validated": state, "version": {"running": "v1"}});
    let object = json!({"metadata": {"name": format!("m{number:05}")}, "status": status});
    serde_json::from_value(object).expect("a Machine")
}

/// The machine does as it was asked.
fn arrive(machine: &mut Machine) {
    machine.spec.version = Some("v2".to_owned());
    if let Some(version) = machine.status.as_mut().and_then(|status| status.version.as_mut()) {
        (version.running, version.wanted) = (Some("v2".to_owned()), Some("v2".to_owned()));
    }
}
