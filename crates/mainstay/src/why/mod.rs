//! `mainstay why`: the cause of an object's trouble, what surrounds it, and the command to type next.
//!
//! Everything is read from the API (objects, events, the last log line of a container that ended), so it knows nothing
//! that `kubectl` could not show. [`observe`] reads, [`explain`] decides and words (pure), this module prints. What may
//! not or cannot be read is left out; only a missing object and a server that does not answer are errors.

mod explain;
mod observe;
mod target;

use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use clap::Args;
use jiff::Timestamp;
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};

use self::{
    observe::Observer,
    target::{Target, TargetKind},
};
use crate::{cli::DataDir, exit::Exit};

#[derive(Debug, Args)]
pub struct WhyOptions {
    /// What to explain: `pod/NAME` or just `NAME`; `deployment/NAME` and other workloads, `service/NAME`, `pvc/NAME`,
    /// `node/NAME`, `namespace/NAME`
    #[arg(value_name = "WHAT", value_parser = Target::parse)]
    target: Target,

    /// Its namespace
    #[arg(short, long, value_name = "NAME", default_value = mainstay_api::wellknown::namespace::DEFAULT)]
    namespace: String,

    /// How to reach the API [default: admin.kubeconfig in the data directory]
    #[arg(long, env = "KUBECONFIG", value_name = "FILE")]
    kubeconfig: Option<PathBuf>,

    #[command(flatten)]
    data: DataDir,
}

pub fn run(options: &WhyOptions) -> Result<(), Exit> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("start")?;
    runtime.block_on(async {
        let observer = Observer::new(connect(options.kubeconfig.as_deref(), &options.data).await?, &options.namespace);
        let text = explain_target(&observer, &options.target).await?.ok_or_else(|| {
            let Target { kind, name } = &options.target;
            let place = match kind {
                TargetKind::Node | TargetKind::Namespace => String::new(),
                _ => format!(" in namespace {:?}", options.namespace),
            };
            Exit::Refused(anyhow!("there is no {} {name:?}{place}", kind.noun()))
        })?;
        print!("{text}");
        Ok(())
    })
}

/// Observes and explains; `None` if there is no such object.
async fn explain_target(observer: &Observer, target: &Target) -> anyhow::Result<Option<String>> {
    let (name, now) = (target.name.as_str(), Timestamp::now());
    Ok(match target.kind {
        TargetKind::Pod => match observer.pod(name).await? {
            Some(facts) => Some(explain::explain_pod(&facts, now).to_string()),
            None => explain::explain_removed_pod(&observer.removed_pod(name).await?, now).map(|gone| gone.to_string()),
        },
        TargetKind::Workload(kind) => {
            observer.workload(kind, name).await?.map(|facts| explain::explain_workload(&facts, now))
        }
        TargetKind::CronJob => observer.cron_job(name).await?.map(|facts| explain::explain_cron_job(&facts, now)),
        TargetKind::Service => observer.service(name).await?.map(|facts| explain::explain_service(&facts, now)),
        TargetKind::Claim => observer.claim(name).await?.map(|facts| explain::explain_claim(&facts, now).to_string()),
        TargetKind::Node => observer.node(name).await?.map(|facts| explain::explain_node(&facts, now).to_string()),
        TargetKind::Namespace => {
            observer.namespace(name).await?.map(|facts| explain::explain_namespace(&facts, now).to_string())
        }
    })
}

/// A client of the API, for commands that people run.
pub async fn connect(kubeconfig: Option<&Path>, data: &DataDir) -> anyhow::Result<Client> {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let path = kubeconfig.map_or_else(|| data.path().join("admin.kubeconfig"), Path::to_owned);
    // Asked before reading, since the reader's error repeats its own cause.
    std::fs::metadata(&path).with_context(|| {
        format!("read {}; name another with --kubeconfig, or the server's --data-dir", path.display())
    })?;
    let kubeconfig = Kubeconfig::read_from(&path)?;
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    // A 429 is an answer, which says why: of a budget that blocks an eviction, say.
    config.default_retry = false;
    Ok(Client::try_from(config)?)
}
