//! Settings that all of a cluster must share are compared when a server or a machine joins.

use crate::harness::{Cluster, Etcd, Machines, command::run, eventually, machines::OUTSIDE, tool};

const PATIENCE: std::time::Duration = crate::harness::PATIENCE;

/// A server that is expected to refuse to start, and what it says.
#[track_caller]
fn refused_server(flags: &[&str]) -> String {
    let dir = tempfile::tempdir().expect("make a directory");
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_mainstay"));
    command.args(["server", "--listen", "127.0.0.1:0", "--data-dir"]).arg(dir.path()).args(flags).env("NO_COLOR", "1");
    let output = run(command, "a second server", "", PATIENCE);
    assert_eq!(output.code, 1, "{output}");
    output.stderr
}

#[test]
fn a_server_with_another_service_range_is_refused() {
    let etcd = Etcd::start("bin/etcd-3.5");
    let advertised = ["--advertise", "198.51.100.7"];
    let etcd = ["--store", &etcd.flag(), "--encryption-provider-config", &etcd.key_file()];
    let flags = [&etcd[..], &["--service-range", "10.97.0.0/16"]].concat();
    let first = Cluster::start_with(&[&flags[..], &advertised].concat());
    let stderr = refused_server(&[&etcd[..], &["--advertise", "198.51.100.8"]].concat());
    let expected = "--service-range is 10.96.0.0/16 here, but 10.97.0.0/16 in the rest of the cluster: start it with \
                    --service-range 10.97.0.0/16";
    assert!(stderr.contains(expected), "{stderr}");
    let stderr = refused_server(&[&etcd[..], &["--service-range", "10.97.0.0/16", "--cluster-domain", "b.c"]].concat());
    assert!(stderr.contains("--cluster-domain is b.c here, but cluster.local in the rest"), "{stderr}");
    // One that was refused has not announced itself.
    let mut command = std::process::Command::new(tool("bin/kubectl-1.32"));
    command.arg("--kubeconfig").arg(first.kubeconfig()).args(["get", "endpoints", "kubernetes", "-o"]);
    command.arg("jsonpath={.subsets[*].addresses[*].ip}").env("HOME", first.home());
    let addresses = run(command, "kubectl get endpoints", "", PATIENCE).ok();
    assert_eq!(addresses, "198.51.100.7");
    let second = Cluster::start_with(&[&etcd[..], &["--service-range", "10.97.0.0/16"]].concat());
    assert_ne!(second.url(), first.url());
}

#[test]
fn a_machine_with_another_pod_range_or_domain_is_refused() {
    let mut machines = Machines::wired(&["a"]);
    machines.start_server();
    let url = format!("https://{OUTSIDE}:6443");
    let join = |flag: &str, value: &str| {
        let mut command =
            machines.mainstay("a", &["agent", "--server", &url, "--token", machines.token(), flag, value]);
        command.args(["--node-name", "a", "--node-ip", &machines.address("a")]).env("NO_COLOR", "1");
        let output = run(command, "an agent", "", PATIENCE);
        assert_eq!(output.code, 1, "{output}");
        output.stderr
    };
    let stderr = join("--pod-range", "10.200.0.0/16");
    assert!(
        stderr.contains("--pod-range is 10.200.0.0/16 here, but 10.244.0.0/16 in the rest of the cluster"),
        "{stderr}"
    );
    let stderr = join("--cluster-domain", "example.org");
    assert!(stderr.contains("start it with --cluster-domain cluster.local"), "{stderr}");
    let nodes = machines.kubectl(&["get", "nodes", "-o", "name"], "").ok();
    assert_eq!(nodes, "", "it has not registered");
    machines.start_agent("a");
    eventually("with the same settings it joins", || {
        machines.kubectl(&["get", "nodes", "-o", "name"], "").stdout.contains("node/a").then_some(())
    });
}
