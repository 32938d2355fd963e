//! A server, and machines that are network namespaces on one bridge. All of it goes when this is dropped.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use k8s_openapi::api::core::v1::Node;
use kube::{Api, Client, Config, api::ListParams, config::Kubeconfig};
use tempfile::TempDir;

/// Nobody else on this machine may use these meanwhile.
const SERVER: &str = "203.0.113.1";
const PORT: u16 = 7443;
const RANGES: [&str; 4] = ["--pod-range", "10.234.0.0/16", "--service-range", "10.235.0.0/16"];
const PATIENCE: Duration = Duration::from_secs(120);

pub struct Fleet {
    binary: PathBuf,
    dir: TempDir,
    id: u32,
    machines: u8,
    running: Vec<Child>,
    pub client: Client,
}

fn ip(arguments: &str) -> anyhow::Result<()> {
    let status = Command::new("ip").args(arguments.split_whitespace()).status().context("run ip")?;
    ensure!(status.success(), "ip {arguments}: {status}");
    Ok(())
}

impl Fleet {
    pub async fn start(binary: &Path, machines: u8) -> anyhow::Result<Self> {
        let binary = binary.canonicalize().with_context(|| format!("--spawn {}", binary.display()))?;
        let dir = tempfile::Builder::new().prefix("bench-machines-").tempdir()?;
        let id = std::process::id();
        ip(&format!("link add msb{id} type bridge"))?;
        // Not whole yet, so that whatever fails from here on is cleaned up.
        let nobody = Client::try_from(Config::new("http://127.0.0.1:1".parse()?))?;
        let mut fleet = Self { binary, dir, id, machines, running: Vec::new(), client: nobody };
        ip(&format!("addr add {SERVER}/24 dev msb{id}"))?;
        ip(&format!("link set msb{id} up"))?;
        let listen = format!("{SERVER}:{PORT}");
        let mut server = fleet.command("server", "server", &["--listen", &listen]);
        let child = server.spawn().context("start the server")?;
        fleet.running.push(child);
        fleet.client = fleet.connect().await?;
        let mut token = Command::new(&fleet.binary);
        let token = token.args(["token", "create", "--data-dir"]).arg(fleet.dir.path().join("server")).output()?;
        let token = String::from_utf8(token.stdout)?.trim().to_owned();
        for number in 0..machines {
            fleet.join(number, &token)?;
        }
        fleet.all_ready().await?;
        Ok(fleet)
    }

    fn join(&mut self, number: u8, token: &str) -> anyhow::Result<()> {
        let (id, address) = (self.id, format!("203.0.113.{}", number + 10));
        let (namespace, wire) = (self.namespace(number), self.wire(number));
        ip(&format!("netns add {namespace}"))?;
        ip(&format!("-n {namespace} link set lo up"))?;
        ip(&format!("link add name {wire} type veth peer name wire netns {namespace}"))?;
        ip(&format!("link set {wire} master msb{id} up"))?;
        ip(&format!("-n {namespace} addr add {address}/24 dev wire"))?;
        ip(&format!("-n {namespace} link set wire up"))?;
        let (name, server) = (format!("m{number}"), format!("https://{SERVER}:{PORT}"));
        let flags = ["--server", &server, "--token", token, "--node-name", &name, "--node-ip", &address];
        let agent = self.command("agent", &name, &[&flags[..], &["--evict-disk", "0"]].concat());
        let mut entered = Command::new("nsenter");
        entered.arg(format!("--net=/run/netns/{namespace}")).arg(agent.get_program()).args(agent.get_args());
        let log = fs::File::create(self.dir.path().join(format!("{name}.log")))?;
        let child = entered.stdout(Stdio::null()).stderr(log).spawn().with_context(|| format!("start agent {name}"))?;
        self.running.push(child);
        Ok(())
    }

    fn command(&self, verb: &str, name: &str, flags: &[&str]) -> Command {
        let mut command = Command::new(&self.binary);
        command.arg(verb).args(flags).args(RANGES).arg("--data-dir").arg(self.dir.path().join(name));
        if let Ok(log) = fs::File::create(self.dir.path().join(format!("{name}.log"))) {
            command.stdout(Stdio::null()).stderr(log);
        }
        command
    }

    async fn connect(&self) -> anyhow::Result<Client> {
        let (file, deadline) = (self.dir.path().join("server/admin.kubeconfig"), Instant::now() + PATIENCE);
        loop {
            if let Ok(kubeconfig) = Kubeconfig::read_from(&file) {
                let client = Client::try_from(Config::from_custom_kubeconfig(kubeconfig, &Default::default()).await?)?;
                if client.apiserver_version().await.is_ok() {
                    return Ok(client);
                }
            }
            if Instant::now() > deadline {
                bail!("the server did not answer within {PATIENCE:?}");
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    fn namespace(&self, number: u8) -> String {
        format!("msb{}-m{number}", self.id)
    }

    fn wire(&self, number: u8) -> String {
        format!("ms{}-{number}", self.id)
    }

    /// Takes a machine off the wire, or puts it back.
    pub fn plug(&self, machine: &str, on: bool) -> anyhow::Result<()> {
        let number: u8 = machine.trim_start_matches('m').parse().with_context(|| format!("machine {machine}"))?;
        ip(&format!("link set {} {}", self.wire(number), if on { "up" } else { "down" }))
    }

    /// Returns once all machines are Ready and have no taints.
    pub async fn all_ready(&self) -> anyhow::Result<()> {
        let (nodes, deadline) = (Api::<Node>::all(self.client.clone()), Instant::now() + PATIENCE);
        loop {
            let all = nodes.list(&ListParams::default()).await?.items;
            if all.iter().filter(|node| is_ready(node)).count() == usize::from(self.machines) {
                return Ok(());
            }
            if Instant::now() > deadline {
                bail!("not all machines are ready after {PATIENCE:?}");
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

fn is_ready(node: &Node) -> bool {
    let mut conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref()).is_none_or(Vec::is_empty);
    taints && conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

impl Drop for Fleet {
    fn drop(&mut self) {
        for number in 0..self.machines {
            let namespace = format!("--net=/run/netns/{}", self.namespace(number));
            let down = Command::new("nsenter")
                .args([&namespace, &self.binary.display().to_string(), "down", "--shutdown-grace", "0s", "--data-dir"])
                .arg(self.dir.path().join(format!("m{number}")))
                .output();
            if let Err(error) = down {
                eprintln!("cannot take m{number} down: {error}");
            }
            let _ = ip(&format!("link del {}", self.wire(number)));
            let _ = ip(&format!("netns del {}", self.namespace(number)));
        }
        for child in &mut self.running {
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = ip(&format!("link del msb{}", self.id));
    }
}
