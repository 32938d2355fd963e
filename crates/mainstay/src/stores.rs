//! Which store, and how it is opened.

use std::{path::Path, sync::Arc, time::Duration};

use anyhow::{Context, anyhow};
use mainstay_api::registry::Registry;
use mainstay_server::{handler::Backup, volatile_prefixes};
use mainstay_store::{Embedded, Etcd, EtcdConfig, Store, embedded, etcd::compactor};
use tokio_util::sync::CancellationToken;

use crate::{
    cli::ServerOptions,
    exit::Exit,
    store_dir::{self, LinkedStore},
};

/// A store that is open, and what is particular to its kind.
#[derive(Clone)]
pub enum OpenStore {
    Embedded(Arc<Embedded>),
    Etcd(Arc<Etcd>),
}

impl OpenStore {
    pub fn store(&self) -> Arc<dyn Store> {
        match self {
            Self::Embedded(store) => store.clone(),
            Self::Etcd(store) => store.clone(),
        }
    }

    /// How the running server copies its store, if it can.
    pub fn backup(&self) -> Option<Backup> {
        match self {
            Self::Embedded(store) => {
                let store = store.clone();
                Some(Arc::new(move |file| store.backup(file).map(drop).map_err(Into::into)))
            }
            Self::Etcd(_) => None,
        }
    }

    /// Upkeep that runs beside the server until `stop`; the embedded store sees to itself.
    pub async fn upkeep(&self, stop: CancellationToken) {
        match self {
            Self::Embedded(_) => {}
            Self::Etcd(store) => compactor::run(Etcd::clone(store), compactor::INTERVAL, stop).await,
        }
    }

    /// Waits until everything is safely put away.
    pub async fn close(&self) -> anyhow::Result<()> {
        match self {
            Self::Embedded(store) => store.close().await.context("close the store"),
            Self::Etcd(_) => Ok(()),
        }
    }
}

pub async fn open(options: &ServerOptions, data_dir: &Path) -> Result<OpenStore, Exit> {
    match options.store.as_str() {
        "file" => {
            let place = store_dir::prepare(data_dir, options.place.store_dir.as_deref(), LinkedStore::Required)?;
            let dir = place.directory.clone();
            let settings = embedded::Options {
                history: Duration::from_secs(options.history_seconds),
                history_events: options.history_events,
                volatile: volatile_prefixes(&Registry::builtin()),
                ..embedded::Options::default()
            };
            let opened = tokio::task::spawn_blocking(move || Embedded::open(dir, settings)).await;
            let store = opened.context("open the store")?.map_err(|e| Exit::Refused(anyhow!(e)))?;
            place.remember()?;
            Ok(OpenStore::Embedded(Arc::new(store)))
        }
        url if url.starts_with("etcd://") || url.starts_with("etcds://") => {
            Ok(OpenStore::Etcd(Arc::new(etcd(options, url).await?)))
        }
        other => Err(Exit::Refused(anyhow!(
            "--store {other:?}: must be `file` or `etcd://HOST:PORT,HOST:PORT` (`etcds://` with TLS)"
        ))),
    }
}

async fn etcd(options: &ServerOptions, url: &str) -> Result<Etcd, Exit> {
    let mut config = EtcdConfig::new(url);
    config.ca_file = options.etcd.etcd_ca.clone();
    config.cert_file = options.etcd.etcd_cert.clone();
    config.key_file = options.etcd.etcd_key.clone();
    config.user = options.etcd.etcd_user.clone();
    if let Some(file) = &options.etcd.etcd_password_file {
        let text =
            std::fs::read_to_string(file).with_context(|| format!("read --etcd-password-file {}", file.display()))?;
        config.password = Some(text.trim_end_matches(['\r', '\n']).to_owned());
    }
    config.connect_deadline = Duration::from_secs(10);
    Etcd::connect(&config).await.map_err(|error| Exit::Failed(anyhow!(error).context(format!("--store {url}"))))
}
