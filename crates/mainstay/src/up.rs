//! `mainstay up` and `mainstay server`: build everything, say what was built, run, stop in order.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use anyhow::anyhow;
use mainstay_agent::{
    servers::Servers,
    settings::Settings,
    tls::{Identity, Pair},
};
use mainstay_server::pki::renewal::NodeCertificates;
use tokio_util::sync::CancellationToken;

use crate::{
    cli::{ServerOptions, UpOptions},
    cluster_settings::ClusterSettings,
    demo,
    exit::Exit,
    log,
    machine::{self, LocalAgent},
    process::DataDirLock,
    readiness::Readiness,
    run::run_until_signal,
    server::Server,
    state_dump::StateDump,
};

pub fn run(options: &UpOptions) -> Result<(), Exit> {
    let started = Instant::now();
    // What the demo tells is not to be looked for between other lines.
    let default_filter = if options.demo { "warn" } else { log::STOCK };
    run_until_signal(&options.server.common, default_filter, async |stop| {
        let data_dir = options.server.data.path();
        let _lock = DataDirLock::acquire_to_run(&data_dir)?;
        let missing = machine::missing_requirements(&options.machine, &data_dir);
        let pods_at = if missing.is_empty() { machine::address(&options.machine) } else { None };
        let mut server = Server::build(&options.server, pods_at).await?;
        let machine = match missing.is_empty() {
            true => Ok(local_machine(&mut server, options).await?),
            false => Err(missing),
        };
        announce(&server, machine.as_ref().map_err(Vec::as_slice), started.elapsed());
        let kubeconfig = server.kubeconfig.clone();
        let demo = run_demo(options.demo, machine.is_ok(), server.client("demo"), &kubeconfig, stop.clone());
        let readiness = Readiness {
            server: Some(server.client("readiness")),
            node: machine.as_ref().ok().map(|machine| (server.client("readiness"), machine.node_name().to_owned())),
            drains_on_stop: machine.as_ref().is_ok_and(LocalAgent::drains_on_stop),
        };
        let state =
            StateDump { server: Some(server.client("state")), agent: machine.as_ref().ok().map(LocalAgent::state) };
        let (readiness, state) = (readiness.report(data_dir, stop.clone()), state.run(stop.clone()));
        tokio::join!(run_both(server, machine.ok(), stop), demo, readiness, state).0
    })
}

/// The demo, beside what it shows; it ends with it.
async fn run_demo(wanted: bool, pods_can_run: bool, client: kube::Client, kubeconfig: &Path, stop: CancellationToken) {
    if wanted && pods_can_run {
        tokio::select! {
            reported = demo::run(client, kubeconfig) => if let Err(error) = reported {
                println!("The demo ends here: {error:#}");
            },
            () = stop.cancelled() => {}
        }
    } else if wanted {
        println!();
        println!("There is no demo without pods: start as root (sudo mainstay up --demo) to see it.");
        println!("What works without: kubectl creates, reads, watches and deletes objects.");
    }
}

pub fn run_server(options: &ServerOptions) -> Result<(), Exit> {
    let started = Instant::now();
    run_until_signal(&options.common, log::STOCK, async |stop| {
        let _lock = DataDirLock::acquire_to_run(&options.data.path())?;
        let server = Server::build(options, None).await?;
        announce(&server, Err(&[]), started.elapsed());
        let readiness = Readiness { server: Some(server.client("readiness")), ..Readiness::default() };
        let state = StateDump { server: Some(server.client("state")), agent: None };
        let (readiness, state) = (readiness.report(options.data.path(), stop.clone()), state.run(stop.clone()));
        tokio::join!(run_both(server, None, stop), readiness, state).0
    })
}

/// The agent of the server's own process: it needs no token, and speaks to the API without a socket.
async fn local_machine(server: &mut Server, options: &UpOptions) -> Result<LocalAgent, Exit> {
    let settings = Settings {
        timing: options.server.node_loss.timing()?,
        ..machine::settings(&options.machine, &options.server.common, &server.data_dir)?
    };
    let issued =
        server.pki.issue_node(&settings.node_name, &settings.addresses).map_err(|e| Exit::Failed(anyhow!(e)))?;
    let pair = |identity: &mainstay_server::pki::Identity| Pair {
        certificate: identity.certificate.clone(),
        key: identity.key.clone(),
    };
    let identity = Identity::new(&server.pki.ca, &pair(&issued.client), &pair(&issued.serving))
        .map_err(|e| Exit::Failed(anyhow!(e)))?;
    server.local_node = Some(NodeCertificates {
        name: settings.node_name.clone(),
        addresses: settings.addresses.clone(),
        client: identity.client.clone(),
        serving: identity.serving.clone(),
    });
    let api = (server.node_client(&settings.node_name), Servers::default());
    LocalAgent::build(&options.machine, settings, ClusterSettings::from_options(&options.server.common)?, api, identity)
        .await
}

/// The agent stops first: while it ends, there is still somebody to tell.
async fn run_both(server: Server, machine: Option<LocalAgent>, stop: CancellationToken) -> Result<(), Exit> {
    let stop_server = CancellationToken::new();
    let serving = tokio::spawn(server.run(stop_server.clone()));
    match machine {
        Some(machine) => machine.run(stop).await,
        None => stop.cancelled().await,
    }
    stop_server.cancel();
    match serving.await {
        Ok(result) => Ok(result?),
        Err(error) => Err(Exit::Failed(anyhow!(error).context("the server ended badly"))),
    }
}

fn announce(server: &Server, machine: Result<&LocalAgent, &[String]>, took: Duration) {
    println!("Mainstay {} is up after {:.2} s.", env!("CARGO_PKG_VERSION"), took.as_secs_f64());
    println!("  API    {}", server.url);
    if let Some(address) = server.pods_reach() {
        println!("  pods   reach it at https://{address}, nobody else does");
    }
    println!("  store  {}", server.store());
    match machine {
        Ok(machine) => println!("  node   {}", machine.describe()),
        Err([]) => {}
        Err(missing) => {
            println!("  node   none: this machine cannot run pods, only the API works. What is missing:");
            for what in missing {
                println!("         - {what}");
            }
        }
    }
    println!();
    println!("Try, in another terminal:");
    println!("  export KUBECONFIG={}", server.kubeconfig.display());
    if machine.is_ok() {
        println!("  kubectl run hello --image=host --command -- sleep 1000");
        println!("  kubectl get pods");
    } else {
        println!("  kubectl get namespaces");
    }
    println!();
    println!("Ctrl-C stops it; the next start continues where it was.");
}
