//! A server and an agent in this process, and kubectl beside them.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::core::v1::{Node, Pod, Service};
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use mainstay_agent::{
    pods::{Pods, Source},
    stream::{Parts, Server},
    tls::{Identity, Pair},
    wake::Wake,
};
use mainstay_api::registry::Registry;
use mainstay_runtime::{ContainerSpec, PodUid, Runtime, SandboxSpec, observed::PodRef, spec};
use mainstay_server::{
    agent_tls::AgentTls, api::Api as ServerApi, bootstrap, client, handler::Handler, pki::Pki, serve::Listener,
    settings::Settings,
};
use mainstay_store::memory::Memory;
use mainstay_testing::eventually;
pub use mainstay_testing::tool;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::{
    command::{self, Output},
    processes::Processes,
    words,
};

pub const PATIENCE: Duration = Duration::from_secs(60);

pub struct Cluster {
    pub runtime: Arc<Processes>,
    pub logs: PathBuf,
    client: Client,
    pods: Arc<Pods>,
    home: tempfile::TempDir,
    threads: tokio::runtime::Runtime,
    stop: CancellationToken,
}

/// The kubectls that people have.
pub const KUBECTLS: [&str; 2] = ["bin/kubectl-1.20", "bin/kubectl-1.32"];

impl Cluster {
    pub fn start() -> Self {
        let threads = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let home = tempfile::tempdir().unwrap();
        let (runtime, pods) = (Arc::new(Processes::default()), Arc::new(Pods::new(Wake::default())));
        let stop = CancellationToken::new();
        let logs = home.path().join("logs");
        let client = threads.block_on(serve(home.path(), &logs, runtime.clone(), pods.clone(), &stop));
        Self { runtime, logs, client, pods, home, threads, stop }
    }

    pub fn home(&self) -> &Path {
        self.home.path()
    }

    pub fn kubeconfig(&self) -> PathBuf {
        self.home.path().join("kubeconfig")
    }

    /// A running pod with these containers.
    pub fn pod(&self, name: &str, containers: &[&str]) {
        let containers: Vec<_> = containers
            .iter()
            .map(|c| json!({ "name": c, "image": "busybox", "stdin": true, "ports": [{ "containerPort": 8080, "name": "web" }] }))
            .collect();
        let pod = json!({
            "metadata": { "name": name, "namespace": "default", "labels": { "app": name } },
            "spec": { "nodeName": "node-a", "containers": containers },
        });
        self.threads.block_on(async {
            let api: Api<Pod> = Api::namespaced(self.client.clone(), "default");
            api.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
            let statuses: Vec<_> = containers
                .iter()
                .map(|c| {
                    json!({
                        "name": c["name"], "image": "busybox", "imageID": "", "ready": true, "restartCount": 0,
                        "started": true, "state": { "running": { "startedAt": "2024-01-01T00:00:00Z" } },
                    })
                })
                .collect();
            let status = json!({ "status": {
                "phase": "Running", "podIP": "127.0.0.1", "containerStatuses": statuses,
                "conditions": [{ "type": "Ready", "status": "True" }],
            } });
            let pod = api.patch_status(name, &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
            self.run(&pod).await;
            self.pods.upsert(Source::Api, pod);
        });
    }

    async fn run(&self, pod: &Pod) {
        let meta = &pod.metadata;
        let uid = meta.uid.clone().unwrap();
        let of = PodRef { namespace: "default".into(), name: meta.name.clone().unwrap(), uid: PodUid(uid.clone()) };
        let directory = mainstay_agent::logs::path::pod_directory(&self.logs, "default", &of.name, &uid);
        let sandbox = SandboxSpec {
            pod: of,
            attempt: 0,
            hostname: String::new(),
            log_directory: directory.clone(),
            host_network: false,
            host_ipc: false,
            pid: spec::PidMode::Container,
            cgroup: String::new(),
            resources: spec::Resources::default(),
            sysctls: Default::default(),
            ports: vec![],
            dns: spec::Dns::default(),
            labels: Default::default(),
            annotations: Default::default(),
            users: None,
            runtime_handler: Default::default(),
            selinux: None,
        };
        let sandbox = self.runtime.create_sandbox(&sandbox).await.unwrap();
        for container in &pod.spec.as_ref().unwrap().containers {
            self.start_container(&sandbox, &directory, &container.name, 0).await;
        }
    }

    async fn start_container(&self, sandbox: &mainstay_runtime::SandboxId, directory: &Path, name: &str, attempt: u32) {
        let image = self.runtime.images().find("busybox").await;
        let spec = ContainerSpec {
            name: name.to_owned(),
            attempt,
            image: "busybox".into(),
            image_id: image.ok().flatten().map(|image| image.id).unwrap_or_default(),
            log_path: mainstay_agent::logs::path::container_log(directory, name, attempt),
            ..ContainerSpec::default()
        };
        let id = self.runtime.create_container(sandbox, &spec).await.unwrap();
        self.runtime.start_container(&id).await.unwrap();
    }

    /// Another run of a container after its last one ended.
    pub fn restart(&self, pod: &str, container: &str, attempt: u32) {
        let (spec, status) = self.runtime.fake.sandbox(pod).unwrap();
        self.threads.block_on(self.start_container(&status.id, &spec.log_directory, container, attempt));
    }

    /// A pod that is nowhere, or on a machine of this name.
    pub fn placed(&self, name: &str, node: Option<&str>) {
        let mut pod = json!({
            "metadata": { "name": name }, "spec": { "containers": [{ "name": "a", "image": "busybox" }] },
        });
        if let Some(node) = node {
            pod["spec"]["nodeName"] = json!(node);
        }
        let api: Api<Pod> = Api::namespaced(self.client.clone(), "default");
        let pod = serde_json::from_value(pod).unwrap();
        self.threads.block_on(api.create(&PostParams::default(), &pod)).unwrap();
    }

    /// A machine whose agent would listen here.
    pub fn node(&self, name: &str, port: u16) {
        let node = json!({
            "metadata": { "name": name },
            "status": {
                "addresses": [{ "type": "InternalIP", "address": "127.0.0.1" }],
                "daemonEndpoints": { "kubeletEndpoint": { "Port": port } },
            },
        });
        let api: Api<Node> = Api::all(self.client.clone());
        let node = serde_json::from_value(node).unwrap();
        self.threads.block_on(api.create(&PostParams::default(), &node)).unwrap();
    }

    /// Everything stops, as at a signal.
    pub fn stop(&self) {
        self.stop.cancel();
    }

    pub fn create(&self, service: serde_json::Value) {
        let api: Api<Service> = Api::namespaced(self.client.clone(), "default");
        let service = serde_json::from_value(service).unwrap();
        self.threads.block_on(api.create(&PostParams::default(), &service)).unwrap();
    }

    fn command(&self, kubectl: &str, args: &[String]) -> Command {
        let mut command = Command::new(tool(kubectl));
        command.args(args).env("HOME", self.home()).env("KUBECONFIG", self.kubeconfig()).current_dir(self.home());
        command
    }

    #[track_caller]
    pub fn run_with(&self, kubectl: &str, line: &str, input: &str) -> Output {
        let args = words::split(line);
        command::run(self.command(kubectl, &args), &format!("{kubectl} {line}"), input, PATIENCE)
    }

    #[track_caller]
    pub fn ok(&self, kubectl: &str, line: &str) -> String {
        self.run_with(kubectl, line, "").ok()
    }

    #[track_caller]
    pub fn refused(&self, kubectl: &str, line: &str) -> String {
        self.run_with(kubectl, line, "").refused()
    }

    /// Starts something that goes on until it is dropped. Its output goes to a file.
    pub fn begin(&self, kubectl: &str, line: &str) -> Begun {
        let output = self.home().join(format!("output-{}", fastrand::u64(..)));
        let file = std::fs::File::create(&output).unwrap();
        let errors = file.try_clone().unwrap();
        let child = self
            .command(kubectl, &words::split(line))
            .stdin(Stdio::null())
            .stdout(file)
            .stderr(errors)
            .spawn()
            .unwrap();
        Begun { child, output }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// A program under way; ended when dropped.
pub struct Begun {
    child: Child,
    output: PathBuf,
}

impl Begun {
    pub fn output(&self) -> String {
        std::fs::read_to_string(&self.output).unwrap_or_default()
    }

    /// Waits until it has printed this.
    #[track_caller]
    pub fn prints(&self, wanted: &str) -> String {
        eventually(&format!("it prints {wanted:?}"), || Some(self.output()).filter(|output| output.contains(wanted)))
    }

    /// Waits until it ends by itself.
    #[track_caller]
    pub fn ends(mut self) -> (i32, String) {
        let code = eventually("it ends", || self.child.try_wait().unwrap());
        (code.code().unwrap_or(-1), self.output())
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("it printed:\n{}", self.output());
        }
    }
}

async fn serve(home: &Path, logs: &Path, runtime: Arc<Processes>, pods: Arc<Pods>, stop: &CancellationToken) -> Client {
    let local = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let pki = Pki::open(&home.join("pki"), &["127.0.0.1".to_owned()]).unwrap();
    let node = pki.issue_node("node-a", &[Ipv4Addr::LOCALHOST.into()]).unwrap();
    let pair = |i: &mainstay_server::pki::Identity| Pair { certificate: i.certificate.clone(), key: i.key.clone() };
    let identity = Identity::new(&pki.ca, &pair(&node.client), &pair(&node.serving)).unwrap();
    let parts =
        Parts::new("node-a".into(), pods, runtime, logs.to_owned(), mainstay_agent::metrics::Metrics::default());
    let agent = Server::bind(local, Arc::new(identity.server_config().unwrap()), parts).await.unwrap();
    let agent_port = agent.address().unwrap().port();
    tokio::spawn(agent.run(stop.clone()));

    let api = ServerApi::new(Registry::builtin(), Arc::new(Memory::new()), Settings::default());
    let handler = Handler::new(api, stop.clone()).with_agents(AgentTls::new(&pki).unwrap());
    let handler = Arc::new(handler);
    let listener = Listener::bind(local, &pki).await.unwrap();
    let address = listener.address().unwrap();
    bootstrap::bootstrap(&handler, address).await.unwrap();
    std::fs::write(home.join("kubeconfig"), pki.kubeconfig(&format!("https://{address}"))).unwrap();
    tokio::spawn(listener.run(handler.clone(), stop.clone(), Duration::from_secs(1)));
    let client = client::internal(handler, "test");
    let nodes: Api<Node> = Api::all(client.clone());
    let node = json!({
        "metadata": { "name": "node-a" },
        "status": {
            "addresses": [{ "type": "InternalIP", "address": "127.0.0.1" }],
            "daemonEndpoints": { "kubeletEndpoint": { "Port": agent_port } },
            "allocatable": { "cpu": "2", "memory": "4Gi" }, "capacity": { "cpu": "2", "memory": "4Gi" },
        },
    });
    nodes.create(&PostParams::default(), &serde_json::from_value(node).unwrap()).await.unwrap();
    client
}
