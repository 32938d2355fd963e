//! `mainstay agent`: this machine runs pods for a server elsewhere, or by itself.

use std::time::Duration;

use anyhow::anyhow;
use mainstay_agent::{
    join::{self, Token},
    node::sole_agent::check_sole_agent,
    servers::Servers,
    settings::Settings,
    tls::Identity,
};
use tokio_util::sync::CancellationToken;

use crate::{
    api_contact::ApiContact,
    cli::AgentOptions,
    cluster_settings::ClusterSettings,
    exit::Exit,
    log,
    machine::{self, LocalAgent},
    process::DataDirLock,
    readiness::Readiness,
    run::run_until_signal,
    state_dump::StateDump,
};

/// How soon a server that could not be reached is tried again.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

pub fn run(options: &AgentOptions) -> Result<(), Exit> {
    let data_dir = options.data.path();
    run_until_signal(&options.common, log::STOCK, async |stop| {
        let _lock = DataDirLock::acquire_to_run(&data_dir)?;
        mainstay_server::serve::raise_file_limit();
        let missing = machine::missing_requirements(&options.machine, &data_dir);
        if !missing.is_empty() {
            return Err(Exit::Refused(anyhow!("this machine cannot run pods:\n  - {}", missing.join("\n  - "))));
        }
        let settings = machine::settings(&options.machine, &options.common, &data_dir)?;
        match &options.server[..] {
            [] if options.machine.static_pods.is_some() => {
                let cluster = ClusterSettings::from_options(&options.common)?;
                let machine = LocalAgent::alone(&options.machine, settings, cluster).await?;
                let readiness = Readiness::default().report(data_dir.clone(), stop.clone());
                let state = StateDump { server: None, agent: Some(machine.state()) }.run(stop.clone());
                tokio::join!(run_announced(machine, stop), readiness, state);
                Ok(())
            }
            [] => Err(Exit::Refused(anyhow!(
                "--server is missing: name the API's URL, or pods to run by themselves with --static-pods"
            ))),
            urls => serve(options, settings, urls, stop).await,
        }
    })
}

async fn serve(
    options: &AgentOptions,
    mut settings: Settings,
    urls: &[String],
    stop: CancellationToken,
) -> Result<(), Exit> {
    let servers = Servers::named(urls).map_err(|e| Exit::Refused(anyhow!(e).context("--server")))?;
    let token = options.token.as_deref().map(str::parse::<Token>).transpose();
    let token = token.map_err(|error| Exit::Refused(anyhow!(error).context("--token")))?;
    let directory = settings.directory.join("identity");
    let Some(identity) = stop.run_until_cancelled(joined(&servers, token.as_ref(), &settings)).await else {
        return Ok(());
    };
    let identity = identity?;
    if let Err(error) = ApiContact::new(&settings, urls).write(&settings.directory) {
        tracing::warn!(%error, "cannot record how the API is reached: `mainstay down` will not remove pods from it");
    }
    let client = identity.client(&servers).map_err(|e| Exit::Refused(anyhow!(e).context("--server")))?;
    let cluster = ClusterSettings::from_options(&options.common)?;
    let Some(checked) = stop.run_until_cancelled(cluster.check_as_node(&client)).await else { return Ok(()) };
    settings.timing = mainstay_agent::fence::last_known_timing(&settings.directory, checked?);
    let Some(sole) = stop.run_until_cancelled(check_sole_agent(&client, &settings)).await else { return Ok(()) };
    sole.map_err(|error| Exit::Refused(anyhow!(error)))?;
    let renewal = join::renew(
        identity.clone(),
        client.clone(),
        settings.node_name.clone(),
        settings.addresses.clone(),
        directory,
        stop.clone(),
    );
    let renewing = tokio::spawn(renewal);
    let node = Some((client.clone(), settings.node_name.clone()));
    let machine = LocalAgent::build(&options.machine, settings, cluster, (client, servers), identity).await?;
    let readiness = Readiness { server: None, node, drains_on_stop: machine.drains_on_stop() }
        .report(options.data.path(), stop.clone());
    let state = StateDump { server: None, agent: Some(machine.state()) }.run(stop.clone());
    tokio::join!(run_announced(machine, stop), readiness, state);
    let _ = renewing.await;
    Ok(())
}

/// Waits for a server that is not there yet; gives up only when waiting cannot help.
async fn joined(servers: &Servers, token: Option<&Token>, settings: &Settings) -> Result<Identity, Exit> {
    let directory = settings.directory.join("identity");
    let mut warned = false;
    loop {
        match join::join(servers, token, &settings.node_name, &settings.addresses, &directory).await {
            Ok(identity) => return Ok(identity),
            Err(error) if error.may_pass() => {
                if !std::mem::replace(&mut warned, true) {
                    tracing::warn!(error = mainstay_errors::error_chain(&error), %servers, "cannot join yet; will try again");
                }
                tokio::time::sleep(RETRY_INTERVAL).await;
            }
            Err(error) => return Err(Exit::Refused(anyhow!(error))),
        }
    }
}

async fn run_announced(machine: LocalAgent, stop: CancellationToken) {
    println!("Mainstay {} runs pods here: {}.", env!("CARGO_PKG_VERSION"), machine.describe());
    machine.run(stop).await;
}
