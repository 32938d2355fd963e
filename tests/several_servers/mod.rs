//! Two servers on one etcd, all of them real processes, and machines that run pods for both.

mod endpoints;
mod etcd;
mod frozen;
mod hanging;
mod takeover;
mod together;

use crate::{
    harness::{
        Etcd, Machines, PATIENCE,
        command::Output,
        eventually,
        machines::{OUTSIDE, SECOND, SERVER},
    },
    services::lab::Lab,
};

const BOTH: [&str; 2] = [SERVER, SECOND];
/// What the servers' work is decided by.
const LEASES: [&str; 2] = ["mainstay-controllers", "mainstay-scheduler"];

/// One etcd, two servers on it, and the machines `a` and `b`. The first server leads.
struct Pair {
    lab: Lab,
    etcd: Etcd,
}

impl Pair {
    #[track_caller]
    fn start() -> Self {
        let mut machines = Machines::wired(&["a", "b"]);
        let etcd = machines.start_etcd();
        machines.start_server();
        // One is started with one server and learns of the other, one is started with a server that does not exist.
        machines.start_agent("a");
        machines.start_agent_at("b", &format!("https://{OUTSIDE}:7,https://{OUTSIDE}:6443"));
        let pair = Self { lab: Lab::of(machines), etcd };
        eventually("the first server leads", || LEASES.iter().all(|lease| pair.leads(SERVER, lease)).then_some(()));
        let Self { mut lab, etcd } = pair;
        lab.machines.start_server_named(SECOND);
        lab.machines.all_ready();
        Self { lab, etcd }
    }

    /// Whether this server holds the lease, as the one says that is asked.
    fn leads(&self, server: &str, lease: &str) -> bool {
        let holder = ["get", "lease", lease, "-n", "kube-system", "-o", "jsonpath={.spec.holderIdentity}"];
        self.lab.machines.kubectl(&holder, "").stdout == format!("{}:6443", self.lab.machines.address(server))
    }

    /// What a server says to this.
    #[track_caller]
    fn kubectl_at(&self, server: &str, line: &str) -> String {
        kubectl_at(&self.lab.machines, server, line).ok().trim_end().to_owned()
    }
}

#[track_caller]
fn kubectl_at(machines: &Machines, server: &str, line: &str) -> Output {
    machines.kubectl_at(server, &line.split(' ').collect::<Vec<_>>(), "", PATIENCE)
}
