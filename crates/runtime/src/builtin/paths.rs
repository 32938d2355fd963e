//! Paths of the built-in runtime, below its directory and its run directory.
//!
//! ```text
//! <directory>/sandboxes/<sandbox>/sandbox.json
//!                                /containers/<container>/container.json  what was asked for
//!                                                       /launch.json, config.json  how to do it
//!                                                       /run.json        what became of it
//! <run_dir>/s/<sandbox>      the shim's socket
//! <run_dir>/shm/<sandbox>    the pod's /dev/shm, a mount
//! <run_dir>/fence.json       until when unique pods may run, written by the agent
//! ```

use std::path::{Path, PathBuf};

use crate::observed::{ContainerId, SandboxId};

#[derive(Clone, Debug)]
pub struct Paths {
    pub directory: PathBuf,
    pub run_dir: PathBuf,
}

impl Paths {
    pub fn sandboxes(&self) -> PathBuf {
        self.directory.join("sandboxes")
    }

    pub fn sandbox(&self, id: &SandboxId) -> SandboxDir {
        SandboxDir(self.sandboxes().join(&id.0))
    }

    pub fn sockets(&self) -> PathBuf {
        self.run_dir.join("s")
    }

    pub fn socket(&self, id: &SandboxId) -> PathBuf {
        self.sockets().join(&id.0)
    }

    pub fn all_shm(&self) -> PathBuf {
        self.run_dir.join("shm")
    }

    pub fn shm(&self, id: &SandboxId) -> PathBuf {
        self.all_shm().join(&id.0)
    }
}

/// Where in the run directory the limit is that shims of unique pods obey.
pub fn fence_file(run_dir: &Path) -> PathBuf {
    run_dir.join("fence.json")
}

#[derive(Clone, Debug)]
pub struct SandboxDir(pub PathBuf);

impl SandboxDir {
    pub fn record(&self) -> PathBuf {
        self.0.join("sandbox.json")
    }

    pub fn containers(&self) -> PathBuf {
        self.0.join("containers")
    }

    pub fn container(&self, id: &ContainerId) -> ContainerDir {
        ContainerDir(self.containers().join(&id.0))
    }
}

#[derive(Clone, Debug)]
pub struct ContainerDir(pub PathBuf);

impl ContainerDir {
    pub fn record(&self) -> PathBuf {
        self.0.join("container.json")
    }

    pub fn launch(&self) -> PathBuf {
        self.0.join("launch.json")
    }

    pub fn config(&self) -> PathBuf {
        self.0.join("config.json")
    }

    pub fn run(&self) -> PathBuf {
        self.0.join("run.json")
    }

    /// libcontainer's own records.
    pub fn oci(&self) -> PathBuf {
        self.0.join("oci")
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}
