//! Helpers of the suite: make and remove pods, run programs in them, wait with a limit.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use crate::{
    observed::{ContainerId, ContainerState, ContainerStatus, PodRef, PodUid, SandboxId, SandboxStatus},
    port::Runtime,
    session::ExecOutput,
    spec::{ContainerSpec, Dns, LogLimit, Mount, PidMode, Resources, SandboxSpec},
    suite::Subject,
};

/// Where `busybox` lies in every container.
pub const BOX: &str = "/box/busybox";

pub struct Bench {
    pub subject: Arc<dyn Subject>,
    pub runtime: Arc<dyn Runtime>,
    claim: &'static str,
    sandboxes: Mutex<Vec<SandboxId>>,
}

/// A pod with its sandbox made.
pub struct Pod {
    pub bench: Arc<Bench>,
    pub spec: SandboxSpec,
    pub id: SandboxId,
}

impl Bench {
    pub(super) fn new(subject: Arc<dyn Subject>, claim: &'static str) -> Self {
        Self { runtime: subject.runtime(), subject, claim, sandboxes: Mutex::default() }
    }

    /// What the claim is about to be tried on.
    pub fn pod_spec(&self) -> SandboxSpec {
        let mut spec = sandbox_spec();
        let (name, uid) = (&spec.pod.name, &spec.pod.uid);
        spec.log_directory = self.subject.scratch().join("logs").join(format!("suite_{name}_{uid}"));
        std::fs::create_dir_all(&spec.log_directory).expect("make a log directory");
        spec.labels = BTreeMap::from([("claim".to_owned(), self.claim.replace('_', "-").chars().take(60).collect())]);
        spec.annotations = BTreeMap::from([("suite/claim".to_owned(), self.claim.to_owned())]);
        spec
    }

    pub async fn pod(self: &Arc<Self>) -> Pod {
        let spec = self.pod_spec();
        self.pod_of(spec).await
    }

    pub async fn pod_of(self: &Arc<Self>, spec: SandboxSpec) -> Pod {
        let id = self.runtime.create_sandbox(&spec).await.expect("create a sandbox");
        self.sandboxes.lock().push(id.clone());
        Pod { bench: self.clone(), spec, id }
    }

    /// Removes what was made, held or not.
    pub(super) async fn clear(&self) {
        let ids = std::mem::take(&mut *self.sandboxes.lock());
        for id in ids {
            if let Err(error) = self.runtime.remove_sandbox(&id).await {
                tracing::warn!(%id, %error, "a sandbox of the suite stays");
            }
        }
    }

    /// A file or directory of the claim's own on this machine.
    pub fn path(&self, name: &str) -> PathBuf {
        let directory = self.subject.scratch().join("claims").join(self.claim);
        std::fs::create_dir_all(&directory).expect("make a directory");
        directory.join(name)
    }
}

impl Pod {
    pub fn uid(&self) -> &PodUid {
        &self.spec.pod.uid
    }

    pub fn log_path(&self, name: &str, attempt: u32) -> PathBuf {
        self.spec.log_directory.join(name).join(format!("{attempt}.log"))
    }

    /// A container that runs this in busybox's shell.
    pub fn shell(&self, name: &str, script: &str) -> ContainerSpec {
        self.program(name, &[BOX, "sh", "-c", script])
    }

    /// A container that waits to be stopped.
    pub fn sleeper(&self, name: &str) -> ContainerSpec {
        self.program(name, &[BOX, "sleep", "100000"])
    }

    pub fn program(&self, name: &str, command: &[&str]) -> ContainerSpec {
        let log_path = self.log_path(name, 0);
        std::fs::create_dir_all(log_path.parent().expect("has a directory")).expect("make a log directory");
        ContainerSpec {
            name: name.to_owned(),
            image: self.bench.subject.image(),
            command: command.iter().map(|s| (*s).to_owned()).collect(),
            mounts: vec![bind(super::image::busybox().parent().expect("has a directory"), "/box", true)],
            log_path,
            log_limit: LogLimit::default(),
            annotations: BTreeMap::from([("suite/name".to_owned(), name.to_owned())]),
            ..ContainerSpec::default()
        }
    }

    pub async fn create(&self, mut spec: ContainerSpec) -> ContainerId {
        let runtime = &self.bench.runtime;
        if spec.image_id.is_empty() {
            let image = runtime.images().find(&spec.image).await.expect("ask for an image");
            spec.image_id = image.unwrap_or_else(|| panic!("image {} is there", spec.image)).id;
        }
        runtime.create_container(&self.id, &spec).await.expect("create a container")
    }

    pub async fn start(&self, spec: ContainerSpec) -> ContainerId {
        let id = self.create(spec).await;
        self.bench.runtime.start_container(&id).await.expect("start a container");
        id
    }

    /// Runs it to its end.
    pub async fn run(&self, spec: ContainerSpec) -> ContainerStatus {
        let id = self.start(spec).await;
        self.ended(&id).await
    }

    /// Runs a script to its end and returns what it printed, having checked that it succeeded.
    pub async fn print(&self, spec: ContainerSpec) -> String {
        let log = spec.log_path.clone();
        let status = self.run(spec).await;
        let text = text(&log);
        let ContainerState::Exited { exit_code, .. } = status.state else { panic!("{status:?}") };
        assert_eq!(exit_code, 0, "{} ended with {exit_code}: {text}", status.name);
        text
    }

    pub async fn exec(&self, id: &ContainerId, script: &str) -> ExecOutput {
        let command = [BOX, "sh", "-c", script].map(str::to_owned);
        let runtime = &self.bench.runtime;
        runtime.exec(id, &command, Some(Duration::from_secs(60)), 1 << 20).await.expect("exec")
    }

    pub async fn containers(&self) -> Vec<ContainerStatus> {
        self.bench.runtime.observe(Some(self.uid())).await.expect("observe").containers
    }

    pub async fn sandboxes(&self) -> Vec<SandboxStatus> {
        self.bench.runtime.observe(Some(self.uid())).await.expect("observe").sandboxes
    }

    pub async fn status(&self, id: &ContainerId) -> Option<ContainerStatus> {
        self.containers().await.into_iter().find(|c| c.id == *id)
    }

    pub async fn ended(&self, id: &ContainerId) -> ContainerStatus {
        eventually(&format!("{id} ends"), async || self.status(id).await.filter(|c| c.state.has_ended())).await
    }

    /// Returns once the container's log holds this.
    pub async fn says(&self, name: &str, what: &str) -> String {
        let path = self.log_path(name, 0);
        eventually(&format!("{name} says {what:?}"), async || Some(text(&path)).filter(|t| t.contains(what))).await
    }
}

pub fn bind(source: &Path, target: &str, read_only: bool) -> Mount {
    Mount {
        source: source.to_owned(),
        target: target.into(),
        read_only,
        recursive_read_only: Default::default(),
        propagation: Default::default(),
    }
}

/// Asks until there is an answer.
pub async fn eventually<T>(what: &str, ask: impl AsyncFn() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(Instant::now() < deadline, "not within a minute: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The code of what has ended.
pub fn code(status: &ContainerStatus) -> i32 {
    match status.state {
        ContainerState::Exited { exit_code, .. } => exit_code,
        _ => panic!("has not ended: {status:?}"),
    }
}

/// One line of a log file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLine {
    pub time: jiff::Timestamp,
    pub stream: String,
    pub full: bool,
    pub text: String,
}

/// What a log file holds; a file that is not there yet holds nothing.
pub fn log(path: &Path) -> Vec<LogLine> {
    let bytes = std::fs::read(path).unwrap_or_default();
    let content = String::from_utf8_lossy(&bytes);
    content.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')).map(parse).collect()
}

fn parse(line: &str) -> LogLine {
    let mut parts = line.splitn(4, ' ');
    let mut next = || parts.next().unwrap_or_else(|| panic!("a log line of four parts: {line:?}"));
    let (time, stream, tag, text) = (next(), next(), next(), next());
    assert!(tag == "F" || tag == "P", "tag of {line:?}");
    LogLine {
        time: time.parse().unwrap_or_else(|e| panic!("time of {line:?}: {e}")),
        stream: stream.to_owned(),
        full: tag == "F",
        text: text.to_owned(),
    }
}

/// What was printed, on whichever stream.
pub fn text(path: &Path) -> String {
    log(path).iter().map(|line| line.text.clone() + if line.full { "\n" } else { "" }).collect()
}

/// A sandbox that asks for nothing in particular.
pub fn sandbox_spec() -> SandboxSpec {
    let uid = uuid::Uuid::new_v4().to_string();
    let name = format!("p-{}", &uid[..8]);
    SandboxSpec {
        pod: PodRef { namespace: "suite".to_owned(), name: name.clone(), uid: PodUid(uid.clone()) },
        attempt: 0,
        hostname: name,
        log_directory: Default::default(),
        host_network: false,
        host_ipc: false,
        pid: PidMode::Container,
        users: None,
        runtime_handler: String::new(),
        selinux: None,
        cgroup: format!("burstable/pod{uid}"),
        resources: Resources::default(),
        sysctls: BTreeMap::new(),
        ports: Vec::new(),
        dns: Dns::default(),
        labels: BTreeMap::new(),
        annotations: BTreeMap::new(),
    }
}
