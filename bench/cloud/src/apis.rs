//! Kubernetes APIs on a port of this machine, each with a store in a directory.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use mainstay_api::registry::Registry;
use mainstay_server::{
    api::Api,
    bootstrap,
    handler::Handler,
    pki::{self, Pki},
    serve::{self, Listener},
    settings::Settings,
    volatile_prefixes,
};
use mainstay_store::{Embedded, embedded};
use tokio_util::sync::{CancellationToken, DropGuard};

/// Serves until it is dropped.
pub struct LocalApi {
    pub kubeconfig: String,
    pub kubeconfig_file: PathBuf,
    _stop: DropGuard,
}

impl LocalApi {
    pub async fn start(directory: &Path) -> anyhow::Result<Self> {
        let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let pki = Pki::open(&directory.join("pki"), &serve::names(listen, &[], [10, 96, 0, 1].into()))?;
        let listener = Listener::bind(listen, &pki).await?;
        let address = listener.address()?;
        let stop = CancellationToken::new();
        let volatile = volatile_prefixes(&Registry::builtin());
        let store = Embedded::open(directory.join("store"), embedded::Options { volatile, ..Default::default() })?;
        let api = Api::new(Registry::builtin(), Arc::new(store), Settings::default());
        let handler = Arc::new(Handler::new(api, stop.clone()).with_ca(&pki.ca));
        bootstrap::bootstrap(&handler, address).await?;
        let kubeconfig = pki.kubeconfig(&format!("https://{address}"));
        let kubeconfig_file = directory.join("admin.kubeconfig");
        pki::write_private(&kubeconfig_file, &kubeconfig)?;
        tokio::spawn(listener.run(handler, stop.clone(), Duration::from_secs(1)));
        Ok(Self { kubeconfig, kubeconfig_file, _stop: stop.drop_guard() })
    }

    pub async fn client(&self) -> anyhow::Result<Client> {
        read_client(&self.kubeconfig_file).await
    }
}

pub async fn read_client(kubeconfig: &Path) -> anyhow::Result<Client> {
    let file = Kubeconfig::read_from(kubeconfig)?;
    let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?;
    Ok(Client::try_from(config)?)
}
