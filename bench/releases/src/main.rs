//! How long a step of a Release of many machines takes to plan, and questions about all of them to answer.
//!
//! Both the time that passed and that on a processor: where others compute as well, the longest step is the one during which they did.
//!
//! `cargo run --release -p bench-releases -- [MACHINES]`

use std::time::{Duration, Instant};

use jiff::Timestamp;
use kube::core::ObjectList;
use mainstay_api::{machine::Machine, release::Release};
use mainstay_machines::{
    machine_list::decode_list,
    questions::{VERSION_EXPIRY, machines_by_version},
    release::{MachineView, ReleaseWorld, plan},
};
use nix::time::{ClockId, clock_gettime};
use serde_json::json;

fn main() {
    let count: usize = std::env::args().nth(1).and_then(|count| count.parse().ok()).unwrap_or(10_000);
    let mut machines: Vec<Machine> = (0..count).map(machine).collect();
    let waves: Vec<_> = (1..=20).map(|wave| json!({"upTo": format!("{}%", wave * 5)})).collect();
    let spec = json!({"version": "v2", "selector": {}, "waves": waves, "maxUnavailable": "5%"});
    let mut release: Release =
        serde_json::from_value(json!({"metadata": {"name": "all"}, "spec": spec})).expect("a Release");
    let (mut longest, mut total, mut steps) = (Duration::ZERO, Duration::ZERO, 0);
    let mut longest_on_processor = Duration::ZERO;
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
        let (began, used) = (Instant::now(), time_on_processor());
        let planned = plan(&world, now);
        let took = began.elapsed();
        longest_on_processor = longest_on_processor.max(time_on_processor().saturating_sub(used));
        (longest, total, steps) = (longest.max(took), total + took, steps + 1);
        let is_complete = planned.status.phase == "Complete";
        release.status = Some(planned.status);
        if is_complete {
            break;
        }
        let asked: std::collections::HashSet<String> = planned.moves.into_iter().map(|own| own.machine).collect();
        machines.iter_mut().filter(|machine| asked.contains(machine.name())).for_each(arrive);
    }
    let mean = total / steps;
    println!(
        "{count} machines in waves of 5 %: {steps} steps, {mean:?} each, at most {longest:?}; on a processor at most {longest_on_processor:?}"
    );
    let began = Instant::now();
    let versions = machines_by_version(&machines, Timestamp::now() - VERSION_EXPIRY).len();
    println!("running-versions: {versions} in {:?}", began.elapsed());
    measure_decoding(&machines);
}

/// A list as the server sends it, which also says who wrote which fields, decoded whole and as far as questions are about it.
fn measure_decoding(machines: &[Machine]) {
    let fields = |own: serde_json::Value| json!({"f:status": own});
    let state = json!({".": {}, "f:message": {}, "f:since": {}, "f:state": {}});
    let agent = fields(
        json!({"f:provisioned": state, "f:configured": state, "f:validated": state, "f:version": {"f:running": {}, "f:wanted": {}}}),
    );
    let controller = fields(json!({"f:conditions": {".": {}, "k:{\"type\":\"Accounted\"}": state}, "f:seen": state}));
    let people =
        json!({"f:metadata": {"f:labels": {".": {}, "f:rack": {}}}, "f:spec": {"f:expected": {}, "f:version": {}}});
    let entries: Vec<_> = [agent, controller, people]
        .iter()
        .map(|fields| {
            json!({
                "manager": "mainstay", "operation": "Update", "apiVersion": "mainstay.dev/v1", "time": "2026-01-01T00:00:00Z",
                "fieldsType": "FieldsV1", "fieldsV1": fields,
            })
        })
        .collect();
    let items: Vec<_> = machines
        .iter()
        .map(|machine| {
            let mut object = json!(machine);
            object["metadata"]["managedFields"] = json!(entries);
            object
        })
        .collect();
    let text =
        json!({"kind": "MachineList", "apiVersion": "mainstay.dev/v1", "metadata": {}, "items": items}).to_string();
    drop(items);
    let began = Instant::now();
    let whole: ObjectList<Machine> = serde_json::from_str(&text).expect("a list");
    let whole = (whole.items.len(), began.elapsed()).1;
    let began = Instant::now();
    let facts = decode_list(&text).expect("a list").machines.len();
    println!(
        "a list of {} bytes decoded: whole in {whole:?}, what questions are about ({facts}) in {:?}",
        text.len(),
        began.elapsed()
    );
}

/// What the kernel says of this thread.
fn time_on_processor() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map(Duration::from).unwrap_or_default()
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
