//! Pods from a directory of manifests, with a server and without one.

use std::{
    fs,
    path::Path,
    process::{Child, Command, Stdio},
};

use serde_json::json;
use tempfile::TempDir;

use super::{container, manifest, until_running};
use crate::{
    harness::{Kubectl, PATIENCE, Version, command::run, eventually, host},
    restarts::until,
};

/// The argument of `sleep` that no other test uses.
fn mark(number: u32) -> String {
    format!("{}.{}", 500_000 + number, std::process::id())
}

fn write(directory: &Path, name: &str, mark: &str) {
    let script = format!("echo runs {mark}; exec sleep {mark}");
    let text = manifest(name, json!({"containers": [container("c", &script, json!({}))]}));
    fs::write(directory.join(format!("{name}.json")), text).expect("write a manifest");
}

#[test]
fn a_static_pod_is_shown_by_a_mirror_that_deletes_nothing() {
    let manifests = tempfile::tempdir().expect("a directory");
    let directory = manifests.path().display().to_string();
    write(manifests.path(), "web", &mark(1));
    let k = Kubectl::with_pods_and(Version::V1_32, &["--static-pods", &directory]);
    eventually("the mirror", || (k.run("get pod web-here").code == 0).then_some(()));
    until_running(&k, "web-here");
    let first = eventually("its process", || host::pids(&mark(1)).first().copied());
    assert_eq!(k.ok("logs web-here"), format!("runs {}", mark(1)));
    assert_eq!(k.ok("exec web-here -- echo within"), "within");
    assert_eq!(k.value("pod web-here", "{.metadata.ownerReferences[0].kind}"), "Node");

    let uid = k.value("pod web-here", "{.metadata.uid}");
    k.ok("delete pod web-here --wait=false");
    eventually("a new mirror", || {
        let found = k.run("get pod web-here -o jsonpath={.metadata.uid}/{.metadata.deletionTimestamp}").stdout;
        (found.ends_with('/') && !found.starts_with(&uid) && found.len() > 1).then_some(())
    });
    until_running(&k, "web-here");
    assert_eq!(host::pids(&mark(1)), [first], "the same process runs on");

    write(manifests.path(), "web", &mark(2));
    eventually("the changed file", || {
        (host::pids(&mark(2)).len() == 1 && host::pids(&mark(1)).is_empty()).then_some(())
    });
    until(&k, "pod web-here", "{.status.containerStatuses[0].ready}", "true");
    write(manifests.path(), "other", &mark(3));
    eventually("another file", || (k.run("get pod other-here").code == 0).then_some(()));
    fs::remove_file(manifests.path().join("web.json")).expect("remove a manifest");
    eventually("nothing of it is left", || {
        (host::pids(&mark(2)).is_empty() && k.run("get pod web-here").code != 0).then_some(())
    });
    until_running(&k, "other-here");
}

/// An agent that knows of no server.
struct Alone {
    dir: TempDir,
    agent: Child,
}

impl Alone {
    fn start() -> Self {
        let dir = tempfile::Builder::new().prefix("mainstay-test-").tempdir().expect("a directory");
        fs::create_dir(dir.path().join("manifests")).expect("a directory");
        let agent = Self::launch(dir.path());
        Self { dir, agent }
    }

    fn launch(dir: &Path) -> Child {
        let id = std::process::id();
        let range = format!("10.{}.{}.0/22", 128 + (id >> 6) % 100, (id % 64) * 4);
        Command::new(env!("CARGO_BIN_EXE_mainstay"))
            .args(["agent", "--agent-port", "0", "--node-name", "here", "--evict-disk", "0", "--pod-range", &range])
            .arg("--static-pods")
            .arg(dir.join("manifests"))
            .arg("--data-dir")
            .arg(dir.join("data"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(fs::File::create(dir.join("log")).expect("a log"))
            .spawn()
            .expect("start an agent")
    }

    fn manifests(&self) -> std::path::PathBuf {
        self.dir.path().join("manifests")
    }

    fn kill(&mut self) {
        self.agent.kill().expect("kill the agent");
        self.agent.wait().expect("wait for its end");
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        let _ = self.agent.kill();
        let _ = self.agent.wait();
        if std::thread::panicking() {
            eprintln!("{}", fs::read_to_string(self.dir.path().join("log")).unwrap_or_default());
        }
        let mut down = Command::new(env!("CARGO_BIN_EXE_mainstay"));
        let down = down.arg("down").arg("--data-dir").arg(self.dir.path().join("data")).stdout(Stdio::null()).status();
        assert!(std::thread::panicking() || down.is_ok_and(|status| status.success()), "mainstay down failed");
    }
}

#[test]
fn an_agent_without_a_server_keeps_its_static_pods_running() {
    let mut alone = Alone::start();
    write(&alone.manifests(), "web", &mark(4));
    let first = eventually("its process", || host::pids(&mark(4)).first().copied());
    let killed = nix::sys::signal::kill(nix::unistd::Pid::from_raw(first as i32), nix::sys::signal::Signal::SIGKILL);
    killed.expect("kill the pod's process");
    let second = eventually("it is started again", || host::pids(&mark(4)).into_iter().find(|pid| *pid != first));
    alone.kill();
    write(&alone.manifests(), "later", &mark(5));
    assert_eq!(host::pids(&mark(4)), [second], "nobody noticed");
    alone.agent = Alone::launch(alone.dir.path());
    eventually("what came meanwhile", || (host::pids(&mark(5)).len() == 1).then_some(()));
    assert_eq!(host::pids(&mark(4)), [second], "adopted, not restarted");
    fs::remove_file(alone.manifests().join("web.json")).expect("remove a manifest");
    eventually("the pod ends with its file", || host::pids(&mark(4)).is_empty().then_some(()));
    assert_eq!(host::pids(&mark(5)).len(), 1);
    alone.kill();
    let mut down = Command::new(env!("CARGO_BIN_EXE_mainstay"));
    down.arg("down").arg("--data-dir").arg(alone.dir.path().join("data"));
    // Its process is deaf and its grace a second: with the stock grace this would outlast our patience.
    run(down, "mainstay down", "", PATIENCE).ok();
    assert!(host::pids(&mark(5)).is_empty());
}
