//! Which store, and how it is opened.

use std::{path::Path, sync::Arc};

use anyhow::{Context, anyhow};
use mainstay_server::handler::Backup;
use mainstay_store::{Embedded, Store, embedded};

use crate::{cli::UpOptions, exit::Exit};

/// Node heartbeats are not worth an fsync.
const VOLATILE: &str = "/registry/leases/kube-node-lease/";

/// A store that is open, and what is particular to its kind.
pub enum Opened {
    Embedded(Arc<Embedded>),
}

impl Opened {
    pub fn store(&self) -> Arc<dyn Store> {
        match self {
            Self::Embedded(store) => store.clone(),
        }
    }

    /// How the running server copies its store, if it can.
    pub fn backup(&self) -> Option<Backup> {
        match self {
            Self::Embedded(store) => {
                let store = store.clone();
                Some(Arc::new(move |file| store.backup(file).map(drop).map_err(Into::into)))
            }
        }
    }

    /// Waits until everything is safely put away.
    pub async fn close(&self) -> anyhow::Result<()> {
        match self {
            Self::Embedded(store) => store.close().await.context("close the store"),
        }
    }
}

pub async fn open(options: &UpOptions, data_dir: &Path) -> Result<Opened, Exit> {
    match options.store.as_str() {
        "file" => {
            let dir = data_dir.join("store");
            let settings = embedded::Options { volatile: vec![VOLATILE.into()], ..embedded::Options::default() };
            let opened = tokio::task::spawn_blocking(move || Embedded::open(dir, settings)).await;
            let store = opened.context("open the store")?.map_err(|e| Exit::Refused(anyhow!(e)))?;
            Ok(Opened::Embedded(Arc::new(store)))
        }
        other => Err(Exit::Refused(anyhow!(
            "--store {other:?}: must be `file` or `etcd://HOST:PORT,HOST:PORT` (`etcds://` with TLS)"
        ))),
    }
}
