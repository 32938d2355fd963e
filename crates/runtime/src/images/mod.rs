//! Container images: listed, pulled, removed, and mounted as root filesystems.
//!
//! [`Images`] is what the agent asks of a runtime. [`ImageStore`] is the built-in runtime's: layers by content, names
//! in one index, root filesystems from overlayfs.

mod closed_files;
mod collect;
mod document;
mod extract;
mod files;
mod import;
mod index;
mod layers;
mod name;
mod pull;
mod registry;
mod registry_client;
mod request_error;
mod rootfs;
mod store;
#[cfg(test)]
mod testing;
mod watch;

use std::path::PathBuf;

use async_trait::async_trait;
use jiff::Timestamp;
pub use mainstay_files::DiskUsage;
use mainstay_files::Format;
use serde::{Deserialize, Serialize};
use tokio::sync::watch as changes;

pub use document::ImageConfig;
pub use import::{ImportError, ImportedImage};
pub use rootfs::{Owners, Rootfs, what_overlay_lacks};
pub use store::{ImageStore, Options};

use crate::{error::RuntimeError, port::Result};

/// Of the directory of images: an index of OCI's form, layers by content, root filesystems.
pub const FORMAT: Format = Format::new("the image store", 1);

/// The image that every machine has: its own root filesystem.
pub const HOST_IMAGE: &str = "host";

/// What names of image volumes begin with, so that nobody takes them for containers.
pub const VOLUME_PREFIX: &str = "volume-";

#[async_trait]
pub trait Images: Send + Sync {
    async fn list(&self) -> Result<Vec<Image>>;

    /// By name, digest or id; short names mean what they mean to docker (`busybox` is
    /// `docker.io/library/busybox:latest`).
    async fn find(&self, reference: &str) -> Result<Option<Image>>;

    /// Fetches it from its registry; the answer is what the name stands for now.
    async fn pull(&self, reference: &str, auth: Option<&Auth>) -> std::result::Result<Image, PullError>;

    /// Removes it unless a container is made of it.
    async fn remove(&self, id: &str) -> Result<()>;

    async fn usage(&self) -> Result<DiskUsage>;

    /// Mounts an image's files for the volume of a pod, and says where. Asked again, the same. The image stays while it is
    /// mounted. `volume` begins with [`VOLUME_PREFIX`].
    async fn mount_volume(&self, _image_id: &str, _volume: &str) -> Result<PathBuf> {
        Err(RuntimeError::Invalid { why: "this runtime cannot mount images as volumes".to_owned() })
    }

    /// Unmounts all volumes whose name begins so.
    async fn unmount_volumes(&self, _prefix: &str) -> Result<()> {
        Ok(())
    }

    /// Counts up whenever an image has appeared or gone, whoever did it. `None` if this cannot be known but by asking.
    /// Asked within a tokio runtime.
    fn changes(&self) -> Option<changes::Receiver<u64>> {
        None
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Image {
    /// `sha256:…` of its configuration; `host` for the machine itself.
    pub id: String,
    /// Full names with tags.
    pub tags: Vec<String>,
    /// Full names with digests.
    pub digests: Vec<String>,
    pub size: u64,
    /// As in the image: empty, `1000`, `1000:1000`, `nobody`.
    pub user: String,
    pub created_at: Option<Timestamp>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Auth {
    pub username: String,
    pub password: String,
    /// Used instead of the two if not empty.
    pub token: String,
}

#[derive(Debug, thiserror::Error)]
pub enum PullError {
    /// No such image reference can exist.
    #[error("couldn't parse image name {reference:?}: {why}")]
    InvalidName { reference: String, why: String },
    #[error("failed to pull image {reference:?}: not found")]
    NotFound { reference: String },
    /// For want of the right credentials.
    #[error("failed to pull image {reference:?}: the registry refuses access: {why}")]
    Refused { reference: String, why: String },
    #[error("failed to pull image {reference:?}: {why}")]
    Failed { reference: String, why: String },
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
}

impl PullError {
    /// Why, without the name of the image: for sentences that have it already.
    pub fn cause(&self) -> String {
        let text = self.to_string();
        match self {
            Self::NotFound { reference } | Self::Refused { reference, .. } | Self::Failed { reference, .. } => {
                let prefix = format!("failed to pull image {reference:?}: ");
                text.strip_prefix(&prefix).map(str::to_owned).unwrap_or(text)
            }
            Self::InvalidName { .. } | Self::Runtime(_) => text,
        }
    }
}
