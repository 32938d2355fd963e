//! `mainstay sim`: a whole cluster of hollow nodes in this process, to try its size.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc, time::Duration};

use anyhow::{Context, anyhow};
use clap::Parser;
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use mainstay_sim::{
    faults::Faults,
    fleet::{self, Access, WatchMode},
    hollow_node::NodeTemplate,
    process::Process,
    progress::{Progress, grouped},
    scenario::{self, ClusterUnderTest, Plan},
};
use tokio_util::sync::CancellationToken;

use crate::{
    cli::{CommonOptions, ServerOptions, SimOptions},
    exit::Exit,
    log,
    run::run_until_signal,
    server::Server,
};

/// Nodes that fall silent do so within this time.
const SILENCE: Duration = Duration::from_secs(10);

pub fn run(options: &SimOptions) -> Result<(), Exit> {
    let directory = Directory::make(options.dir.clone())?;
    let server = stock_server(options, &directory)?;
    run_until_signal(&server.common, log::STOCK, async |stop| {
        let server = Server::build(&server, None).await?;
        let cluster = cluster(&server, options).await?;
        let ended = CancellationToken::new();
        let serving = tokio::spawn(server.run(ended.clone()));
        let measured = measure(&cluster, options, stop).await;
        ended.cancel();
        serving.await.map_err(|error| Exit::Failed(anyhow!(error).context("the server ended badly")))??;
        measured
    })
}

async fn measure(cluster: &ClusterUnderTest, options: &SimOptions, stop: CancellationToken) -> Result<(), Exit> {
    let plan = plan(options);
    if !options.json {
        let (nodes, pods) = (grouped(options.nodes), grouped(options.pods));
        println!("{nodes} hollow nodes, {pods} pods, {} clients:", options.clients);
    }
    let print_figure = |figure: &mainstay_sim::figures::Figure| {
        if !options.json {
            println!("{figure}");
        }
    };
    let asked_to_stop = stop.clone();
    let figures = match scenario::run(cluster, &plan, Progress::for_stderr(), stop, print_figure).await {
        Err(_) if asked_to_stop.is_cancelled() => return Ok(()), // asked to, by Ctrl-C
        figures => figures?,
    };
    if options.json {
        println!("{}", serde_json::to_string_pretty(&figures).context("write the figures")?);
    }
    Ok(())
}

fn plan(options: &SimOptions) -> Plan {
    let faults = Faults {
        seed: options.seed,
        silent: options.silent,
        lying: options.lying,
        refusing: options.refusing,
        within: SILENCE,
    };
    let nodes = fleet::Settings {
        template: NodeTemplate {
            cpu: options.cpu,
            memory: options.memory << 20,
            pods: options.max_pods,
            zones: options.zones,
            labels: options.labels.iter().cloned().collect::<BTreeMap<_, _>>(),
            ..NodeTemplate::default()
        },
        start_delay: options.start_delay(),
        faults,
        watch_mode: if options.watch_each { WatchMode::PerNode } else { WatchMode::Shared },
        ..fleet::Settings::new(options.nodes)
    };
    Plan {
        nodes,
        pods: options.pods,
        backlog: !options.no_backlog,
        deployment: options.deployment,
        idle: Duration::from_secs(options.idle),
    }
}

/// Nodes need no socket; those who create pods come over TLS, as anybody would.
async fn cluster(server: &Server, options: &SimOptions) -> Result<ClusterUnderTest, Exit> {
    let config = Kubeconfig::read_from(&server.kubeconfig).context("read the kubeconfig just written")?;
    let config = Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await;
    let config = config.context("use the kubeconfig just written")?;
    let clients = (0..options.clients).map(|_| Client::try_from(config.clone()));
    let clients = clients.collect::<Result<Vec<_>, _>>().context("make clients")?;
    let access = Access { admin: server.client("sim"), node_client: Arc::new(server.node_clients()) };
    Ok(ClusterUnderTest { access, clients, server: Some(Process::current()) })
}

/// A server as `mainstay server` would start it, on a free port, with room for the addresses of all nodes' pods.
fn stock_server(options: &SimOptions, directory: &Directory) -> Result<ServerOptions, Exit> {
    #[derive(Parser)]
    struct Stock {
        #[command(flatten)]
        server: ServerOptions,
    }
    let mut stock = Stock::try_parse_from(["sim"]).map_err(Exit::Usage)?.server;
    stock.data.data_dir = Some(directory.0.clone());
    stock.listen = Some(([127, 0, 0, 1], 0).into());
    stock.common = CommonOptions {
        pod_range: "10.128.0.0/10".parse().map_err(|error| Exit::Failed(anyhow!("the pods' range: {error}")))?,
        offer_ttl: None,
        config: None,
        log_format: options.log_format,
        log: Some(options.log.clone()),
        ..stock.common
    };
    Ok(stock)
}

/// A directory that is gone when it is no longer used.
struct Directory(PathBuf);

impl Directory {
    fn make(below: Option<PathBuf>) -> Result<Self, Exit> {
        let below = below.unwrap_or_else(std::env::temp_dir);
        let path = below.join(format!("mainstay-sim-{}", std::process::id()));
        mainstay_files::create_private_dir(&path)
            .with_context(|| format!("make a directory for the store in {}", below.display()))
            .map_err(Exit::Refused)?;
        Ok(Self(path))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            eprintln!("mainstay: cannot remove {}: {error}", self.0.display());
        }
    }
}
