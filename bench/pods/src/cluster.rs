//! A `mainstay up` started for the measurement.

use std::{
    net::{Ipv4Addr, TcpListener},
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    Api, Client, Config,
    api::{DeleteParams, ListParams, PostParams},
    config::Kubeconfig,
};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::process::{Child, Command};

use crate::{Options, image::IMAGE, pod_watch::PodWatch, process};

pub struct Cluster {
    binary: PathBuf,
    dir: TempDir,
    child: Child,
    pub pods: Api<Pod>,
    pub watch: PodWatch,
    /// From exec to the container of the first pod seen running.
    pub first_pod_after: Duration,
}

impl Cluster {
    pub async fn start(options: &Options, runtime: &str, archive: &Path) -> anyhow::Result<Self> {
        let binary = options.spawn.canonicalize().with_context(|| format!("--spawn {}", options.spawn.display()))?;
        let dir = tempfile::Builder::new().prefix("bench-data-").tempdir_in(".")?;
        let data = dir.path().canonicalize()?;
        if runtime == "builtin" {
            let mut import = Command::new(&binary);
            run(import.args(["image", "import", "--data-dir"]).arg(&data).arg(archive).stdout(Stdio::null())).await?;
        }
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        let started = Instant::now();
        let mut child = Command::new(&binary)
            .args(["up", "--log", "warn", "--agent-port", "0", "--node-name", "bench", "--runtime", runtime])
            .args(["--evict-disk", "0", "--pod-range", "10.232.0.0/16", "--service-range", "10.233.0.0/16"]) // a full disk and a neighbour are not the point
            .args(["--listen", &format!("127.0.0.1:{port}"), "--data-dir"])
            .arg(&data)
            .stdout(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("start {}", binary.display()))?;
        let connected = Self::connect(&mut child, &data.join("admin.kubeconfig"), started).await;
        let client = match connected {
            Ok(client) => client,
            Err(error) => {
                let _ = child.kill().await;
                let _ = down(&binary, &data).await;
                return Err(error);
            }
        };
        let pods: Api<Pod> = Api::default_namespaced(client.clone());
        let watch = PodWatch::follow(pods.clone());
        let mut cluster = Self { binary, dir, child, pods, watch, first_pod_after: Duration::ZERO };
        let first = cluster.first_pod(started).await;
        if let Err(error) = first {
            let nodes = Api::<Node>::all(client).list(&ListParams::default()).await;
            let nodes = nodes.map(|nodes| serde_json::to_string(&nodes.items).unwrap_or_default());
            cluster.end().await?;
            return Err(error.context(format!("nodes: {nodes:?}")));
        }
        Ok(cluster)
    }

    async fn connect(child: &mut Child, kubeconfig: &Path, started: Instant) -> anyhow::Result<Client> {
        loop {
            if let Some(status) = child.try_wait()? {
                bail!("mainstay ended early: {status}");
            }
            if started.elapsed() > Duration::from_secs(60) {
                bail!("the API does not answer within a minute");
            }
            if let Ok(kubeconfig) = Kubeconfig::read_from(kubeconfig)
                && let Ok(config) = Config::from_custom_kubeconfig(kubeconfig, &Default::default()).await
                && let Ok(client) = Client::try_from(config)
                && client.apiserver_version().await.is_ok()
            {
                return Ok(client);
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    async fn first_pod(&mut self, started: Instant) -> anyhow::Result<()> {
        loop {
            match self.create("first").await {
                Ok(_) => break,
                Err(_) if started.elapsed() < Duration::from_secs(60) => {
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
                Err(error) => return Err(error),
            }
        }
        self.first_pod_after = self.watch.running("first", 0).await? - started;
        self.delete("first").await
    }

    /// Creates a pod and answers when it was asked for. It ends when told to, and its name is in its arguments.
    pub async fn create(&self, name: &str) -> anyhow::Result<Instant> {
        let script = format!(": {}; trap 'exit 0' TERM; sleep 1000000 & wait", token(name));
        self.create_container(name, json!({ "command": ["/bin/sh", "-c", script] })).await
    }

    /// The same with a server that needs some time to listen, and a readiness probe that sets nothing but the port.
    pub async fn create_probed(&self, name: &str) -> anyhow::Result<Instant> {
        let script = "trap 'exit 0' TERM; sleep 0.3; /bin/busybox httpd -f -p 8080 & wait";
        let probe = json!({ "tcpSocket": { "port": 8080 } });
        self.create_container(name, json!({ "command": ["/bin/sh", "-c", script], "readinessProbe": probe })).await
    }

    async fn create_container(&self, name: &str, mut container: Value) -> anyhow::Result<Instant> {
        (container["name"], container["image"], container["imagePullPolicy"]) =
            (json!("main"), json!(IMAGE), json!("Never"));
        let spec = json!({ "containers": [container] });
        let pod: Pod = serde_json::from_value(json!({ "metadata": { "name": name }, "spec": spec }))?;
        let asked = Instant::now();
        self.pods.create(&PostParams::default(), &pod).await.with_context(|| format!("create {name}"))?;
        Ok(asked)
    }

    pub async fn delete(&self, name: &str) -> anyhow::Result<()> {
        self.pods.delete(name, &DeleteParams::default()).await.with_context(|| format!("delete {name}"))?;
        self.watch.all_gone().await
    }

    pub fn pid(&self) -> anyhow::Result<u32> {
        self.child.id().context("mainstay has ended")
    }

    /// Its processes that hold pods: of the same program, or containerd's.
    pub fn shims(&self) -> Vec<u32> {
        let data = self.dir.path().file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let is_shim = |arguments: &[String]| {
            let program = arguments.first().map(String::as_str).unwrap_or_default();
            let own = arguments.get(1).is_some_and(|verb| verb == "shim")
                && arguments.iter().any(|argument| argument.contains(&data));
            own || program.ends_with("containerd-shim-runc-v2")
        };
        process::all().into_iter().filter(|(_, arguments)| is_shim(arguments)).map(|(pid, _)| pid).collect()
    }

    /// Leaves nothing behind.
    pub async fn end(mut self) -> anyhow::Result<()> {
        self.watch.stop();
        process::send(self.pid()?, Signal::SIGTERM)?;
        let ended = tokio::time::timeout(Duration::from_secs(60), self.child.wait()).await;
        if ended.is_err() {
            self.child.kill().await?;
        }
        down(&self.binary, &self.dir.path().canonicalize()?).await
    }
}

/// What a pod's process can be found by.
pub fn token(name: &str) -> String {
    format!("bench-token-{name}-end")
}

async fn down(binary: &Path, data: &Path) -> anyhow::Result<()> {
    run(Command::new(binary).args(["down", "--data-dir"]).arg(data).stdout(Stdio::null())).await
}

pub async fn run(command: &mut Command) -> anyhow::Result<()> {
    let status = command.status().await.with_context(|| format!("{command:?}"))?;
    if !status.success() {
        bail!("{command:?}: {status}");
    }
    Ok(())
}
