//! What the built-in runtime asks of an image store, beyond the images themselves: a root filesystem
//! for each container.
//!
//! The store only prepares directories and says what to mount. The mounting is done by the process that
//! becomes the container, in its own mount namespace: nothing of it shows on the machine, and nothing is left
//! when the container ends, however it ends.

use std::path::PathBuf;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::{images::Images, port::Result};

#[async_trait]
pub trait RootImages: Images {
    /// How the image wants to be run. `ImageMissing` if it is not there.
    async fn config(&self, image_id: &str) -> Result<ImageConfig>;

    /// Makes the directories for a container's root. Asked twice for one container, it answers the same.
    /// The image cannot be removed until [`RootImages::release_rootfs`].
    async fn prepare_rootfs(&self, image_id: &str, container_id: &str) -> Result<Rootfs>;

    /// Removes the container's directories. Works more than once, and for what was never prepared.
    async fn release_rootfs(&self, container_id: &str) -> Result<()>;

    /// For the interface that the agent sees.
    fn as_images(&self) -> &dyn Images;
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageConfig {
    pub entrypoint: Vec<String>,
    pub cmd: Vec<String>,
    /// `NAME=value`.
    pub env: Vec<String>,
    pub working_dir: String,
    /// Empty, `1000`, `1000:1000`, `nobody`, `nobody:nogroup`.
    pub user: String,
    /// `SIGTERM`, `TERM` or `15`; empty if not said.
    pub stop_signal: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rootfs {
    /// The root, once everything in `mounts` is mounted. Exists.
    pub path: PathBuf,
    /// In this order, in the container's mount namespace.
    pub mounts: Vec<RootMount>,
    /// Directories in which the image's files can be read without mounting, topmost first.
    pub layers: Vec<PathBuf>,
    /// Where the container's own writes go.
    pub writable: Option<PathBuf>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RootMount {
    /// `overlay`, `tmpfs`; `bind` binds `source` (a directory or a file) with everything mounted below it.
    pub kind: String,
    pub source: PathBuf,
    /// Exists, or is a directory that an earlier mount brings.
    pub target: PathBuf,
    pub read_only: bool,
    /// As for `mount -o`: `lowerdir=a:b,upperdir=c,workdir=d`.
    pub data: String,
}
