//! Several machines, each a network namespace: one wire, a server or two, an agent each.
//!
//! The servers' namespace holds the wire and runs no agent, so that a client there is one from outside. No machine has a default route.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use mainstay_testing::Daemon;
use tempfile::TempDir;

use super::{
    PATIENCE,
    command::{Output, run},
    etcd::Etcd,
    eventually, host, tool,
};

/// Where the server listens, and from where clients outside the cluster come.
pub const OUTSIDE: &str = "198.51.100.1";
pub const SERVER: &str = "server";
/// Another server on the same etcd, with an address of its own.
pub const SECOND: &str = "second";
const SECOND_ADDRESS: &str = "198.51.100.101";

static NEXT: AtomicU32 = AtomicU32::new(0);

pub struct Machines {
    id: String,
    dir: TempDir,
    names: Vec<String>,
    flags: Vec<String>,
    /// More flags for every server.
    server_flags: Vec<String>,
    /// Variables for what is started from now on.
    environment: Vec<(&'static str, String)>,
    token: String,
    /// Which server kubectl asks.
    asked: &'static str,
    running: BTreeMap<String, Daemon>,
}

#[track_caller]
pub(super) fn ip(arguments: &str) {
    let mut command = Command::new("ip");
    command.args(arguments.split_whitespace());
    run(command, &format!("ip {arguments}"), "", PATIENCE).ok();
}

impl Machines {
    /// A server, and machines that have joined it.
    #[track_caller]
    pub fn joined(names: &[&str]) -> Self {
        Self::joined_with(names, &[])
    }

    /// With more flags for every agent.
    #[track_caller]
    pub fn joined_with(names: &[&str], flags: &[&str]) -> Self {
        let mut machines = Self::wired(names);
        machines.flags = flags.iter().map(|&flag| flag.to_owned()).collect();
        machines.start_server();
        for name in names {
            machines.start_agent(name);
        }
        machines.all_ready();
        machines
    }

    /// The wire, and nothing that runs.
    #[track_caller]
    pub fn wired(names: &[&str]) -> Self {
        let id = format!("{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let machines = Self {
            id,
            dir: tempfile::Builder::new().prefix("mainstay-test-").tempdir().expect("make a directory"),
            names: names.iter().map(|&name| name.to_owned()).collect(),
            flags: Vec::new(),
            server_flags: Vec::new(),
            environment: Vec::new(),
            token: String::new(),
            asked: SERVER,
            running: BTreeMap::new(),
        };
        let server = machines.namespace(SERVER);
        ip(&format!("netns add {server}"));
        ip(&format!("-n {server} link set lo up"));
        ip(&format!("-n {server} link add wire type bridge"));
        ip(&format!("-n {server} addr add {OUTSIDE}/24 dev wire"));
        ip(&format!("-n {server} link set wire up"));
        names.iter().for_each(|name| machines.plug_in(name));
        machines
    }

    /// A real etcd where servers are, which all of them will use.
    #[track_caller]
    pub fn start_etcd(&mut self) -> Etcd {
        let etcd = Etcd::start_within("bin/etcd-3.5", Some(self.namespace(SERVER)));
        let flags = ["--store".to_owned(), etcd.flag(), "--encryption-provider-config".to_owned(), etcd.key_file()];
        self.server_flags = flags.into();
        etcd
    }

    #[track_caller]
    fn plug_in(&self, machine: &str) {
        let (server, own) = (self.namespace(SERVER), self.namespace(machine));
        ip(&format!("netns add {own}"));
        ip(&format!("-n {own} link set lo up"));
        ip(&format!("-n {server} link add name to-{machine} type veth peer name wire netns {own}"));
        ip(&format!("-n {server} link set to-{machine} master wire up"));
        ip(&format!("-n {own} addr add {}/24 dev wire", self.address(machine)));
        ip(&format!("-n {own} link set wire up"));
    }

    #[track_caller]
    pub fn start_server(&mut self) {
        self.start_server_named(SERVER);
    }

    #[track_caller]
    pub fn start_server_named(&mut self, server: &'static str) {
        let (listen, flags) = (format!("{}:6443", self.address(server)), self.server_flags.clone());
        if server == SECOND {
            ip(&format!("-n {} addr replace {SECOND_ADDRESS}/24 dev wire", self.namespace(SERVER)));
        }
        let mut arguments = vec!["server", "--listen", &listen];
        arguments.extend(flags.iter().map(String::as_str));
        self.start(server, &arguments);
        eventually("the server answers", || {
            let answer = self.kubectl_at(server, &["get", "--raw", "/readyz"], "", PATIENCE);
            (answer.code == 0).then_some(())
        });
        if self.token.is_empty() {
            let made = self.mainstay(SERVER, &["token", "create"]);
            self.token = run(made, "mainstay token create", "", PATIENCE).ok().trim().to_owned();
        }
    }

    #[track_caller]
    pub fn start_agent(&mut self, machine: &str) {
        self.start_agent_at(machine, &format!("https://{OUTSIDE}:6443"));
    }

    /// With more flags for this agent.
    #[track_caller]
    pub fn start_agent_with(&mut self, machine: &str, flags: &[&str]) {
        let common = self.flags.clone();
        self.flags.extend(flags.iter().map(|&flag| flag.to_owned()));
        self.start_agent(machine);
        self.flags = common;
    }

    /// An agent that is started with these servers.
    #[track_caller]
    pub fn start_agent_at(&mut self, machine: &str, server: &str) {
        let (address, token) = (self.address(machine), self.token.clone());
        let mut arguments = vec!["agent", "--server", server, "--token", &token];
        // A test machine's disk may be nearly full without that being what is tested.
        arguments.extend(["--node-name", machine, "--node-ip", &address, "--evict-disk", "0"]);
        let flags = self.flags.clone();
        arguments.extend(flags.iter().map(String::as_str));
        self.start(machine, &arguments);
    }

    #[track_caller]
    pub fn all_ready(&self) {
        eventually("all machines are ready", || {
            let ready = r#"jsonpath={.items[*].status.conditions[?(@.type=="Ready")].status}"#;
            let output = self.kubectl(&["get", "nodes", "-o", ready], "").stdout;
            (output.split_whitespace().filter(|status| *status == "True").count() == self.names.len()).then_some(())
        });
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(String::as_str)
    }

    /// The address of a machine or a server on the wire.
    #[track_caller]
    pub fn address(&self, machine: &str) -> String {
        match machine {
            SERVER => return OUTSIDE.to_owned(),
            SECOND => return SECOND_ADDRESS.to_owned(),
            _ => {}
        }
        let number = self.names.iter().position(|name| name == machine).expect("a machine of this name");
        format!("198.51.100.{}", number + 2)
    }

    pub fn namespace(&self, machine: &str) -> String {
        let place = if machine == SECOND { SERVER } else { machine };
        format!("mainstay-{}-{place}", self.id)
    }

    pub fn data(&self, machine: &str) -> PathBuf {
        self.dir.path().join(machine)
    }

    /// A directory of this test's own.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub fn token(&self) -> &str {
        &self.token
    }

    /// A program on a machine: only its network is another, so cgroups and mounts are the real ones.
    pub fn on(&self, machine: &str, program: &Path) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{}", self.namespace(machine))).arg(program);
        command
    }

    /// What a shell on a machine says to this.
    #[track_caller]
    pub fn shell(&self, machine: &str, line: &str) -> Output {
        let mut command = self.on(machine, Path::new("sh"));
        command.args(["-c", line]);
        run(command, &format!("on {machine}: {line}"), "", PATIENCE)
    }

    pub fn mainstay(&self, machine: &str, arguments: &[&str]) -> Command {
        let mut command = self.on(machine, Path::new(env!("CARGO_BIN_EXE_mainstay")));
        command.args(arguments).arg("--data-dir").arg(self.data(machine));
        command
    }

    #[track_caller]
    fn start(&mut self, machine: &str, arguments: &[&str]) {
        let (mut command, log) = (self.mainstay(machine, arguments), self.dir.path().join(format!("{machine}.log")));
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        self.running.insert(machine.to_owned(), Daemon::spawn_with_log_of_before(command, &log));
    }

    /// What is started from now on has this variable, and no other.
    pub fn set_environment(&mut self, variable: Option<(&'static str, &str)>) {
        self.environment = variable.into_iter().map(|(name, value)| (name, value.to_owned())).collect();
    }

    /// The process of a machine's agent, or of the server.
    pub fn pid(&self, machine: &str) -> u32 {
        self.running[machine].pid()
    }

    /// `kill -9` of a machine's agent.
    #[track_caller]
    pub fn kill(&mut self, machine: &str) {
        self.running.remove(machine).expect("it runs").kill();
    }

    #[track_caller]
    pub fn kill_server(&mut self) {
        self.kill(SERVER);
    }

    /// Takes a machine off the wire, or puts it back; everything on it runs on.
    #[track_caller]
    pub fn plug(&self, machine: &str, on: bool) {
        let state = if on { "up" } else { "down" };
        ip(&format!("-n {} link set to-{machine} {state}", self.namespace(SERVER)));
    }

    /// A whole machine is gone at once: its wire, and every process on it.
    #[track_caller]
    pub fn cut(&mut self, machine: &str) {
        self.plug(machine, false);
        self.kill(machine);
        host::kill_processes(&self.data(machine));
    }

    /// A machine loses its power and is back: only its disk is as it was.
    #[track_caller]
    pub fn reboot(&mut self, machine: &str) {
        self.cut(machine);
        host::forget(&self.data(machine));
        ip(&format!("-n {} link del to-{machine}", self.namespace(SERVER)));
        ip(&format!("netns del {}", self.namespace(machine)));
        self.plug_in(machine);
        self.start_agent(machine);
    }

    /// Takes a machine's processes and everything they left off the machine.
    #[track_caller]
    pub fn down(&mut self, machine: &str) {
        run(self.mainstay(machine, &["down"]), "mainstay down", "", PATIENCE).ok();
        if let Some(mut daemon) = self.running.remove(machine) {
            daemon.wait();
        }
    }

    pub fn log(&self, machine: &str) -> String {
        fs::read_to_string(self.dir.path().join(format!("{machine}.log"))).unwrap_or_default()
    }

    /// From now on kubectl asks this server.
    pub fn ask(&mut self, server: &'static str) {
        self.asked = server;
    }

    #[track_caller]
    pub fn kubectl(&self, arguments: &[&str], input: &str) -> Output {
        self.kubectl_within(arguments, input, PATIENCE)
    }

    #[track_caller]
    pub fn kubectl_within(&self, arguments: &[&str], input: &str, patience: Duration) -> Output {
        self.kubectl_at(self.asked, arguments, input, patience)
    }

    #[track_caller]
    pub fn kubectl_at(&self, server: &str, arguments: &[&str], input: &str, patience: Duration) -> Output {
        let command = self.kubectl_command(server, arguments);
        run(command, &format!("at {server}: kubectl {}", arguments.join(" ")), input, patience)
    }

    /// kubectl with the credentials that a server wrote for its administrator.
    pub fn kubectl_command(&self, server: &str, arguments: &[&str]) -> Command {
        let mut command = self.on(server, &tool("bin/kubectl-1.32"));
        command.arg("--kubeconfig").arg(self.data(server).join("admin.kubeconfig")).args(arguments);
        command.env("HOME", self.dir.path());
        command
    }
}

impl Drop for Machines {
    fn drop(&mut self) {
        self.running.clear(); // kills them
        for machine in self.names.iter().map(String::as_str).chain([SECOND, SERVER]) {
            if self.data(machine).exists() {
                let _ = self.mainstay(machine, &["down"]).stdout(Stdio::null()).status();
            }
            if machine != SECOND {
                let _ = Command::new("ip").args(["netns", "del", &self.namespace(machine)]).status();
            }
        }
    }
}
