//! Faults of a machine's link: packets that are dropped in one direction or by chance, or that arrive late.

use std::{path::Path, time::Duration};

use super::{
    Following, Machines,
    machines::{SERVER, ip},
    tool,
};
use crate::services::lab::program;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LinkFault {
    /// The machine sends, and nothing arrives from others.
    Deaf,
    /// The machine receives, and nothing that it sends arrives.
    Mute,
    /// So many packets of a hundred are lost, in each direction.
    Loss(u8),
    /// Every packet takes so much longer, in each direction.
    Delay(Duration),
}

/// A link with a fault, until this is dropped.
pub struct FaultyLink<'a> {
    machines: &'a Machines,
    machine: String,
    slow_wire: Option<Following>,
    /// Namespaces in which packets are dropped.
    tables: Vec<String>,
}

impl Machines {
    #[track_caller]
    pub fn impair(&self, machine: &str, fault: LinkFault) -> FaultyLink<'_> {
        let mut link = FaultyLink { machines: self, machine: machine.to_owned(), slow_wire: None, tables: Vec::new() };
        let (arriving, leaving) = match fault {
            LinkFault::Deaf => (Some("drop".to_owned()), None),
            LinkFault::Mute => (None, Some("drop".to_owned())),
            LinkFault::Loss(percent) => {
                let some = format!("numgen random mod 100 < {percent} drop");
                (Some(some.clone()), Some(some))
            }
            LinkFault::Delay(delay) => {
                link.slow_wire = Some(self.start_slow_wire(machine, delay));
                (None, None)
            }
        };
        // Where packets come in, on either side: whoever sends them does not notice.
        for (rule, place, interface) in
            [(arriving, machine, "wire".to_owned()), (leaving, SERVER, format!("to-{machine}"))]
        {
            let Some(rule) = rule else { continue };
            let chain = format!(r#"{{ type filter hook ingress device "{interface}" priority -500; }}"#);
            let table = format!("netdev faulty-{machine}");
            let line = format!("add table {table}; add chain {table} c {chain}; add rule {table} c {rule}");
            self.shell(place, &format!("{} '{line}'", nft())).ok();
            link.tables.push(place.to_owned());
        }
        link
    }

    /// Between the machine's wire and the bridge comes a pair of interfaces and a program that waits.
    #[track_caller]
    fn start_slow_wire(&self, machine: &str, delay: Duration) -> Following {
        let server = self.namespace(SERVER);
        ip(&format!("-n {server} link add name slow-{machine} type veth peer name fast-{machine}"));
        ip(&format!("-n {server} link set fast-{machine} master wire up"));
        ip(&format!("-n {server} link set slow-{machine} promisc on up"));
        ip(&format!("-n {server} link set to-{machine} nomaster promisc on"));
        let mut command = self.on(SERVER, &tool("venv/bin/python"));
        command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/harness/slow_wire.py"));
        command.args([format!("to-{machine}"), format!("slow-{machine}"), delay.as_secs_f64().to_string()]);
        let mut slow_wire = Following::start(command, "slow_wire.py");
        slow_wire.until("that it passes frames on", |line| line == "passes frames on");
        slow_wire
    }
}

fn nft() -> String {
    program("nftables", "usr/sbin/nft")
}

impl Drop for FaultyLink<'_> {
    fn drop(&mut self) {
        let (server, machine) = (self.machines.namespace(SERVER), &self.machine);
        if let Some(slow_wire) = self.slow_wire.take() {
            drop(slow_wire);
            ip(&format!("-n {server} link del slow-{machine}"));
            ip(&format!("-n {server} link set to-{machine} promisc off master wire"));
        }
        for place in &self.tables {
            self.machines.shell(place, &format!("{} delete table netdev faulty-{machine}", nft())).ok();
        }
    }
}
