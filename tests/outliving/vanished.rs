//! A data directory that is removed while its pods run: nothing they have on the machine may be forgotten.

use std::{
    fs,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command},
};

use k8s_openapi::api::core::v1::Pod;
use serde_json::json;
use tempfile::TempDir;

use super::{Marks, create, host, phase, pods, sleeper};
use crate::harness::{
    Cluster, PATIENCE,
    command::{self, Output},
    eventually,
};

fn mainstay(arguments: &[&str]) -> Output {
    let mut program = Command::new(env!("CARGO_BIN_EXE_mainstay"));
    program.args(arguments);
    command::run(program, &arguments.join(" "), "", PATIENCE * 2)
}

/// A cluster with two pods whose data directory was removed, as far as that can be done under mounts.
struct Vanished {
    cluster: Cluster,
    data_dir: PathBuf,
    /// The instance's name, from when the directory was there.
    instance: String,
    /// On the host, one part of it mounted into a pod.
    shared: TempDir,
    /// Outer ends of the pods' interfaces.
    veths: Vec<PathBuf>,
    marks: Marks,
}

impl Vanished {
    async fn new() -> Self {
        let cluster = Cluster::with_pods(&[]);
        let shared = tempfile::tempdir().expect("make a directory");
        fs::create_dir(shared.path().join("part")).expect("make a directory");
        fs::write(shared.path().join("beside"), "stays").expect("write a file");
        let marks = Marks::new();
        create(&cluster, &privileged("privileged", &marks.mark(0))).await;
        create(&cluster, &with_sub_path("sharing", shared.path())).await;
        running(&cluster, &["privileged", "sharing"]).await;
        let data_dir = cluster.data_dir();
        let instance = host::instance(&data_dir);
        let bridge = Path::new("/sys/class/net").join(instance.replace("mainstay-", "ms-")).join("brif");
        let veths: Vec<PathBuf> = fs::read_dir(bridge)
            .expect("list the bridge's interfaces")
            .map(|entry| Path::new("/sys/class/net").join(entry.expect("read an entry").file_name()))
            .collect();
        assert_eq!(veths.len(), 2);
        let removed = Command::new("rm").arg("-rf").arg(&data_dir).output().expect("run rm");
        assert!(!data_dir.join("agent/runtime").exists(), "{removed:?}");
        // What rm could reach through the mount is gone; from here on nothing may be.
        fs::write(shared.path().join("part/later"), "stays").expect("write a file");
        Self { cluster, data_dir, instance, shared, veths, marks }
    }

    fn data_dir(&self) -> &str {
        self.data_dir.to_str().expect("temporary paths are UTF-8")
    }

    #[track_caller]
    fn assert_nothing_left(&self) {
        let traces = host::traces_of(&self.instance, &self.data_dir);
        assert_eq!(traces, Vec::<String>::new());
        let veths: Vec<_> = self.veths.iter().filter(|veth| veth.exists()).collect();
        assert_eq!(veths, Vec::<&PathBuf>::new());
        assert_eq!(host::pids(&self.marks.mark(0)), Vec::<u32>::new());
        for file in ["beside", "part/later"] {
            assert_eq!(fs::read_to_string(self.shared.path().join(file)).expect("a file of the host"), "stays");
        }
    }
}

fn privileged(name: &str, mark: &str) -> Pod {
    let mut pod = sleeper(name, mark);
    let spec = pod.spec.as_mut().expect("a pod has a spec");
    spec.containers[0].security_context = serde_json::from_value(json!({"privileged": true})).expect("a context");
    pod
}

fn with_sub_path(name: &str, directory: &Path) -> Pod {
    let script = "trap 'touch /part/asked; exit 0' TERM; touch /part/begun; while :; do sleep 0.05; done";
    let pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "nodeName": "here",
            "containers": [{
                "name": "c", "image": "host", "command": ["sh", "-c", script],
                "volumeMounts": [
                    {"name": "shared", "mountPath": "/part", "subPath": "part"},
                    {"name": "memory", "mountPath": "/memory"},
                ],
            }],
            "volumes": [
                {"name": "shared", "hostPath": {"path": directory}},
                {"name": "memory", "emptyDir": {"medium": "Memory"}},
            ],
        },
    });
    serde_json::from_value(pod).expect("a pod")
}

async fn running(cluster: &Cluster, names: &[&str]) {
    for name in names {
        super::ends::until(cluster, name, |pod| phase(pod) == "Running").await;
    }
}

/// A process of somebody else that looks like a shim in the list of processes; ends with the test.
struct Pretender(Child);

impl Drop for Pretender {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn pretender(instance: &str, directory: &Path) -> Pretender {
    fs::write(directory.join("shim"), "while :; do sleep 0.1; done").expect("write a script");
    let id = "0123456789abcdef0123456789abcdef";
    let child = Command::new("sh")
        .arg0("mainstay")
        .arg("shim")
        .arg(format!("/d/runtime/sandboxes/{id}"))
        .arg(format!("/run/{instance}/s/{id}"))
        .current_dir(directory)
        .spawn()
        .expect("start a process");
    Pretender(child)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn down_ends_what_runs_after_its_data_directory_was_removed() {
    let mut vanished = Vanished::new().await;
    let text = mainstay(&["down", "--data-dir", vanished.data_dir()]).ok();
    assert!(text.contains("Stopped.") && text.contains("Ended 2 pods with 2 running containers"), "{text}");
    vanished.assert_nothing_left();
    assert!(vanished.shared.path().join("part/asked").exists(), "it got its stop signal");
    let text = mainstay(&["down", "--data-dir", vanished.data_dir()]).ok();
    assert!(text.contains("No pods have run"), "{text}");
    vanished.cluster.kill();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leftovers_are_listed_and_removed_and_nobody_elses() {
    let beside = Cluster::with_pods(&[]);
    let marks = Marks::new();
    create(&beside, &sleeper("p", &marks.mark(0))).await;
    running(&beside, &["p"]).await;
    let before = host::pids(&marks.mark(0));
    assert_eq!(before.len(), 1);

    let mut vanished = Vanished::new().await;
    let instance = vanished.instance.clone();
    let home = tempfile::tempdir().expect("make a directory");
    let mut other = pretender(&instance, home.path());

    let refused = mainstay(&["down", "--leftovers", "--instance", &instance]);
    assert_eq!(refused.code, 1, "{refused}");
    let advice = format!("use `mainstay down --data-dir {}`", vanished.data_dir());
    assert!(refused.stderr.contains("runs as process") && refused.stderr.contains(&advice), "{refused}");

    let text = mainstay(&["stop", "--data-dir", vanished.data_dir()]).ok();
    assert!(text.contains("Stopped."), "{text}");
    vanished.cluster.kill(); // gone already; the harness has to know
    assert_eq!(host::pids(&vanished.marks.mark(0)).len(), 1, "containers run on");

    let listed = mainstay(&["down", "--leftovers", "--dry-run", "--instance", &instance]);
    assert_eq!(listed.code, 1, "{listed}");
    let bridge = format!("interface {}", instance.replace("mainstay-", "ms-"));
    let rules = format!("packet rules {instance}-services");
    for line in
        ["process ", " shim ", "mount /run/", "/merged", "/subpaths/c/0", "cgroup ", "directory /run/", &bridge, &rules]
    {
        assert!(listed.stdout.contains(line), "{line} is missing\n{listed}");
    }
    assert!(!listed.stdout.contains(&format!("process {} ", other.0.id())), "{listed}");
    let all = mainstay(&["down", "--leftovers", "--dry-run"]);
    let running = format!("{}: left alone, process", host::instance(&beside.data_dir()));
    assert!(all.code == 1 && all.stdout.contains(&running), "{all}");
    assert_eq!(host::pids(&vanished.marks.mark(0)).len(), 1, "listing removes nothing");

    mainstay(&["down", "--leftovers", "--instance", &instance, "--timeout", "2"]).ok();
    assert!(other.0.try_wait().expect("ask for its state").is_none(), "it is not ours");
    drop(other);
    vanished.assert_nothing_left();
    let clean = mainstay(&["down", "--leftovers", "--dry-run", "--instance", &instance]).ok();
    assert!(clean.contains("Nothing is left over."), "{clean}");
    assert_eq!(host::pids(&marks.mark(0)), before, "the other cluster runs on");
    running_still(&beside).await;
}

async fn running_still(cluster: &Cluster) {
    let pod = pods(cluster).await.get("p").await.expect("get the pod");
    assert_eq!((phase(&pod), super::restarts(&pod)), ("Running", 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_after_its_data_directory_was_removed_leaves_nothing_of_before() {
    let mut vanished = Vanished::new().await;
    // Nothing may start beside the process that still runs.
    let mut second = Command::new(env!("CARGO_BIN_EXE_mainstay"));
    second.args(["up", "--listen", "127.0.0.1:0", "--agent-port", "0", "--data-dir", vanished.data_dir()]);
    let refused = command::run(second, "up", "", PATIENCE);
    assert!(refused.code == 1 && refused.stderr.contains("its files were removed"), "{refused}");

    vanished.cluster.kill();
    vanished.cluster.start_again();
    assert_eq!(host::pids(&vanished.marks.mark(0)), Vec::<u32>::new(), "what nobody knows does not run");
    let cgroups = host::sandbox_cgroups(&vanished.instance);
    assert_eq!(cgroups, Vec::<PathBuf>::new());
    let marks = Marks::new();
    let mut new = sleeper("new", &marks.mark(0));
    let command = ["sh", "-c", "echo up; exec sleep $0", &marks.mark(0)].map(str::to_owned);
    new.spec.as_mut().expect("a pod has a spec").containers[0].command = Some(command.to_vec());
    create(&vanished.cluster, &new).await;
    running(&vanished.cluster, &["new"]).await;
    eventually("it runs", || (host::pids(&marks.mark(0)).len() == 1).then_some(()));
    let text = mainstay(&["down", "--data-dir", vanished.data_dir()]).ok();
    assert!(text.contains("Ended 1 pods with 1 running containers"), "{text}");
    let logs = format!("Log files stay in {}.", vanished.data_dir.join("logs").display());
    assert!(text.contains(&logs), "{text}");
    assert!(!vanished.data_dir.join("mainstay.pid").exists());
    vanished.assert_nothing_left();
    vanished.cluster.kill();
}
