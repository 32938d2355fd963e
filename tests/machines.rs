//! Several machines, each a network namespace: they join, run pods, and are reached through the server.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use serde_json::json;
use tempfile::TempDir;

use crate::harness::{
    PATIENCE,
    command::{Output, run},
    eventually, tool,
};

/// Namespaces that share one wire; the first holds the bridge and the server.
pub struct Machines {
    id: u32,
    dir: TempDir,
    running: Vec<(String, Child)>,
}

fn ip(arguments: &str) {
    let mut command = Command::new("ip");
    command.args(arguments.split_whitespace());
    run(command, &format!("ip {arguments}"), "", PATIENCE).ok();
}

impl Machines {
    /// A server, and machines that have joined it.
    pub fn joined(names: &[&str]) -> Self {
        let mut machines = Self::wired(names);
        machines.start("server", &["server", "--listen", "198.51.100.1:6443"]);
        eventually("the server is up", || machines.log("server").contains("Ctrl-C").then_some(()));
        let made = machines.mainstay("server", &["token", "create"]);
        let token = run(made, "mainstay token create", "", PATIENCE).ok().trim().to_owned();
        for (number, name) in names.iter().enumerate() {
            machines.join(name, number, &token);
        }
        eventually("all machines are ready", || {
            let ready = r#"jsonpath={.items[*].status.conditions[?(@.type=="Ready")].status}"#;
            let said = machines.kubectl(&["get", "nodes", "-o", ready], "").stdout;
            (said.split_whitespace().filter(|status| *status == "True").count() == names.len()).then_some(())
        });
        machines
    }

    fn wired(others: &[&str]) -> Self {
        let id = std::process::id();
        let machines = Self { id, dir: tempfile::tempdir().expect("make a directory"), running: vec![] };
        let server = machines.namespace("server");
        ip(&format!("netns add {server}"));
        ip(&format!("-n {server} link set lo up"));
        ip(&format!("-n {server} link add wire type bridge"));
        ip(&format!("-n {server} addr add 198.51.100.1/24 dev wire"));
        ip(&format!("-n {server} link set wire up"));
        for (number, name) in others.iter().enumerate() {
            let own = machines.namespace(name);
            ip(&format!("netns add {own}"));
            ip(&format!("-n {own} link set lo up"));
            ip(&format!("-n {server} link add name to-{name} type veth peer name wire netns {own}"));
            ip(&format!("-n {server} link set to-{name} master wire up"));
            ip(&format!("-n {own} addr add {}/24 dev wire", address(number)));
            ip(&format!("-n {own} link set wire up"));
        }
        machines
    }

    fn namespace(&self, machine: &str) -> String {
        format!("mainstay-{}-{machine}", self.id)
    }

    fn data(&self, machine: &str) -> PathBuf {
        self.dir.path().join(machine)
    }

    /// A program on a machine: only its network is another, so cgroups and mounts are the real ones.
    fn on(&self, machine: &str, program: &Path) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{}", self.namespace(machine))).arg(program);
        command
    }

    fn mainstay(&self, machine: &str, arguments: &[&str]) -> Command {
        let mut command = self.on(machine, Path::new(env!("CARGO_BIN_EXE_mainstay")));
        command.args(arguments).arg("--data-dir").arg(self.data(machine));
        command
    }

    fn start(&mut self, machine: &str, arguments: &[&str]) {
        let log = fs::File::create(self.dir.path().join(format!("{machine}.log"))).expect("make a log file");
        let mut command = self.mainstay(machine, arguments);
        command.stdin(Stdio::null()).stdout(log.try_clone().expect("share the log")).stderr(log);
        self.running.push((machine.to_owned(), command.spawn().expect("start it")));
    }

    fn join(&mut self, machine: &str, number: usize, token: &str) {
        let address = address(number);
        let joined = ["agent", "--server", "https://198.51.100.1:6443", "--token", token];
        let own = ["--node-name", machine, "--node-ip", &address, "--evict-disk", "0"];
        self.start(machine, &[&joined[..], &own].concat());
    }

    fn log(&self, machine: &str) -> String {
        fs::read_to_string(self.dir.path().join(format!("{machine}.log"))).unwrap_or_default()
    }

    pub fn kubectl(&self, arguments: &[&str], input: &str) -> Output {
        self.kubectl_within(arguments, input, PATIENCE)
    }

    pub fn kubectl_within(&self, arguments: &[&str], input: &str, patience: Duration) -> Output {
        let mut command = self.on("server", &tool("bin/kubectl-1.32"));
        command.arg("--kubeconfig").arg(self.data("server").join("admin.kubeconfig")).args(arguments);
        command.env("HOME", self.dir.path());
        run(command, &format!("kubectl {}", arguments.join(" ")), input, patience)
    }
}

fn address(number: usize) -> String {
    format!("198.51.100.{}", number + 2)
}

impl Drop for Machines {
    fn drop(&mut self) {
        for (machine, child) in &mut self.running {
            let _ = child.kill();
            let _ = child.wait();
            if std::thread::panicking() {
                eprintln!(
                    "{machine}:\n{}",
                    fs::read_to_string(self.dir.path().join(format!("{machine}.log"))).unwrap_or_default()
                );
            }
        }
        let names: Vec<String> = self.running.iter().map(|(machine, _)| machine.clone()).collect();
        for machine in names {
            let _ = self.mainstay(&machine, &["down"]).stdout(Stdio::null()).status();
        }
        for namespace in fs::read_dir("/run/netns").into_iter().flatten().flatten() {
            let name = namespace.file_name().to_string_lossy().into_owned();
            if name.starts_with(&self.namespace("")) {
                let _ = Command::new("ip").args(["netns", "del", &name]).status();
            }
        }
    }
}

/// Serves its own machine's name.
fn web(name: &str, busybox: &Path) -> String {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name },
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "containers": [{
                "name": "web", "image": "host",
                "env": [{ "name": "NODE", "valueFrom": { "fieldRef": { "fieldPath": "spec.nodeName" } } }],
                "command": ["sh", "-c", "mkdir /www && echo on $NODE | tee /www/index.html && exec /busybox httpd -f -p 80 -h /www"],
                "volumeMounts": [{ "name": "busybox", "mountPath": "/busybox" }],
            }],
            "volumes": [{ "name": "busybox", "hostPath": { "path": busybox, "type": "File" } }],
        },
    })
    .to_string()
}

#[test]
fn machines_join_run_pods_reach_each_other_and_are_reached_through_the_server() {
    let mut machines = Machines::wired(&["a", "b"]);
    machines.start("server", &["server", "--listen", "198.51.100.1:6443"]);
    eventually("the server is up", || machines.log("server").contains("Ctrl-C").then_some(()));
    let made = machines.mainstay("server", &["token", "create"]);
    let token = run(made, "mainstay token create", "", PATIENCE).ok().trim().to_owned();
    machines.join("a", 0, &token);
    machines.join("b", 1, &token);
    machines.kubectl(&["wait", "--for=condition=Ready", "node/a", "node/b", "--timeout=25s"], "");
    eventually("both machines are there", || {
        (machines.kubectl(&["get", "nodes", "-o", "name"], "").stdout.lines().count() == 2).then_some(())
    });

    let busybox = fs::canonicalize(tool("busybox/bin/busybox")).expect("busybox");
    for name in ["one", "two"] {
        machines.kubectl(&["create", "-f", "-"], &web(name, &busybox)).ok();
    }
    machines.kubectl(&["wait", "--for=condition=Ready", "pod/one", "pod/two", "--timeout=25s"], "").ok();
    let value =
        |pod: &str, path: &str| machines.kubectl(&["get", "pod", pod, "-o", &format!("jsonpath={path}")], "").ok();
    let nodes = [value("one", "{.spec.nodeName}"), value("two", "{.spec.nodeName}")];
    assert_ne!(nodes[0], nodes[1], "two pods go to two machines");
    for (pod, node) in ["one", "two"].into_iter().zip(&nodes) {
        assert_eq!(machines.kubectl(&["logs", pod], "").ok(), format!("on {node}\n"));
        assert_eq!(machines.kubectl(&["exec", pod, "--", "hostname"], "").ok(), format!("{pod}\n"));
    }
    let from_other = |pod: &str, url: &str| machines.kubectl(&["exec", pod, "--", "/busybox", "wget", "-qO-", url], "");
    let two = format!("http://{}/", value("two", "{.status.podIP}"));
    eventually("a pod reaches a pod on the other machine", || {
        (from_other("one", &two).stdout == format!("on {}\n", nodes[1])).then_some(())
    });

    // The name of a member is taken, whoever holds a token.
    let stranger = machines.dir.path().join("stranger");
    let mut second = machines.on("b", Path::new(env!("CARGO_BIN_EXE_mainstay")));
    second.args(["agent", "--server", "https://198.51.100.1:6443", "--token", &token, "--node-name", "a"]);
    second.args(["--node-ip", "198.51.100.3", "--agent-port", "0", "--data-dir"]).arg(&stranger);
    let refused = run(second, "mainstay agent", "", PATIENCE).refused();
    assert!(refused.contains("\"a\"") || refused.contains("node a"), "{refused}");

    machines.kubectl(&["delete", "pod", "one", "two"], "").ok();
}
