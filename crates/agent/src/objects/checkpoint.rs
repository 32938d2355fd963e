//! The last known values, for an agent that is started while the API is away: containers of pods that run here can
//! then be started again as they were. Secrets are among them, so they are kept where only root reads and
//! where nothing outlives a boot.

use std::{io, path::PathBuf};

use mainstay_files::{Durability, Format, PRIVATE_FILE, create_private_dir, write_atomic};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

pub const FORMAT: Format = Format::new("the checkpoint of Secrets and ConfigMaps", 1);

#[derive(Serialize, Deserialize)]
struct Content<T> {
    items: Vec<T>,
}

/// A directory of files, or nothing.
#[derive(Clone, Debug)]
pub(super) struct ObjectCheckpoint {
    directory: Option<PathBuf>,
}

impl ObjectCheckpoint {
    pub(super) fn nowhere() -> Self {
        Self { directory: None }
    }

    pub(super) fn within(directory: PathBuf) -> Self {
        Self { directory: Some(directory) }
    }

    pub(super) fn read<K: DeserializeOwned>(&self, file: &str) -> Option<Vec<K>> {
        let text = std::fs::read_to_string(self.directory.as_ref()?.join(file)).ok()?;
        let content = FORMAT.decode::<Content<K>>(text.as_bytes()).map(|content| content.items);
        // Without a number it was a bare list.
        content.or_else(|_| serde_json::from_str(&text)).ok()
    }

    pub(super) fn write<'a, K: Serialize + 'a>(&self, file: &str, objects: impl Iterator<Item = &'a K>) {
        let Some(directory) = &self.directory else { return };
        let write = || -> io::Result<()> {
            create_private_dir(directory)?;
            let text = FORMAT.encode(&Content { items: objects.collect() })?;
            // Whole or not at all: a half of it would be read as nothing, and the old one is better than that.
            write_atomic(&directory.join(file), &text, PRIVATE_FILE, Durability::Volatile)
        };
        if let Err(error) = write() {
            tracing::debug!(%error, file, "cannot write the checkpoint of objects that the API served");
        }
    }

    pub(super) fn forget(&self, file: &str) {
        if let Some(directory) = &self.directory {
            _ = std::fs::remove_file(directory.join(file));
        }
    }
}
