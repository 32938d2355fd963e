//! Starts the container runtime of this node: the built-in one with its pod network, or a CRI runtime.

use std::{ffi::OsString, path::PathBuf, sync::Arc};

use mainstay_network::Bridge;
use mainstay_runtime::{
    Runtime,
    builtin::{Builtin, BuiltinSettings},
    cri::{Cri, CriSettings},
    images::{ImageStore, Options as ImageOptions},
};

use super::AgentError;
use crate::{
    leftovers::{Instance, find_data_dirs, orphans::remove_orphans},
    network::BridgeNetwork,
    settings::Settings,
};

/// What runs containers.
#[derive(Clone, Debug)]
pub enum Engine {
    Builtin {
        /// The program and its arguments that become a shim.
        shim: Vec<OsString>,
        /// Registries spoken to without TLS.
        insecure: Vec<String>,
    },
    Cri {
        socket: PathBuf,
    },
}

/// The runtime, and the pod network if it is ours.
pub async fn start_engine(
    settings: &Settings,
    engine: &Engine,
    cluster: mainstay_network::Range,
) -> Result<(Arc<dyn Runtime>, Option<Arc<Bridge>>), AgentError> {
    match engine {
        Engine::Builtin { shim, insecure } => {
            if let Ok(instance) = settings.instance.parse::<Instance>() {
                remove_orphans(&instance, &settings.runtime_directory).await.map_err(AgentError::Orphans)?;
            }
            let bridge = Bridge::new(mainstay_network::Settings {
                instance: settings.instance.clone(),
                directory: settings.directory.join("network"),
                cluster,
            })
            .map_err(|error| AgentError::Network(error.chain()))?;
            let directory = settings.runtime_directory.clone();
            let mut options = ImageOptions { insecure: insecure.clone(), ..ImageOptions::default() };
            options.hidden.extend(settings.store_directory.clone());
            options.find_hidden = find_data_dirs;
            let images = ImageStore::open_with(&directory.join("images"), options)?;
            let builtin = Builtin::open(BuiltinSettings {
                directory,
                run_dir: settings.run_directory(),
                cgroup_parent: settings.instance.clone(),
                shim: shim.clone(),
                network: Arc::new(BridgeNetwork(bridge.clone())),
                images: Arc::new(images),
            })
            .await?;
            Ok((Arc::new(builtin), Some(bridge)))
        }
        Engine::Cri { socket } => {
            let cri = Cri::connect(&socket.display().to_string(), CriSettings::new(&settings.instance))?;
            Ok((Arc::new(cri), None))
        }
    }
}
