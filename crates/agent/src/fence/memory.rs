//! What the node may have promised in its Lease, on disk: for an agent that starts again while no server answers.
//!
//! Written, and synced, before a promise is sent. So where there is no such file, nothing was promised.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use mainstay_api::node_loss::{FencePromise, Timing};
use mainstay_files::{Durability, PRIVATE_FILE, remove_file_if_exists, write_atomic};
use serde::{Deserialize, Serialize};

/// Raised when an earlier version could not read the file any more.
const FORMAT: u32 = 1;

/// In the agent's directory.
pub fn promise_file(directory: &Path) -> PathBuf {
    directory.join("promise.json")
}

/// Whether unique pods end by themselves some time after the agent of this directory was stopped.
pub fn has_promised(directory: &Path) -> bool {
    promise_file(directory).exists()
}

pub struct PromiseFile(PathBuf);

#[derive(Serialize, Deserialize)]
struct Content {
    format: u32,
    /// The witnesses of every promise that may be in force.
    groups: Vec<Vec<String>>,
}

impl PromiseFile {
    pub fn new(path: PathBuf) -> Self {
        Self(path)
    }

    /// Nothing if nothing was promised. What cannot be read may be anything: then there is no witness who could be believed.
    pub fn read(&self, timing: &Timing) -> Vec<FencePromise> {
        let promise = |witnesses| FencePromise { stops_within: timing.stops_within(), witnesses };
        let content = match fs::read(&self.0) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Vec::new(),
            content => content.and_then(|content| Ok(serde_json::from_slice::<Content>(&content)?)),
        };
        match content {
            Ok(content) if content.format == FORMAT => content.groups.into_iter().map(promise).collect(),
            Ok(Content { format, .. }) => {
                tracing::warn!(file = %self.0.display(), format, "the file was written by a later version");
                vec![promise(unknown_witnesses())]
            }
            Err(error) => {
                tracing::warn!(file = %self.0.display(), %error, "cannot read what this node has promised");
                vec![promise(unknown_witnesses())]
            }
        }
    }

    pub fn write(&self, groups: &[FencePromise]) -> io::Result<()> {
        if groups.is_empty() {
            return remove_file_if_exists(&self.0);
        }
        let groups = groups.iter().map(|group| group.witnesses.clone()).collect();
        let content = serde_json::to_vec(&Content { format: FORMAT, groups })?;
        write_atomic(&self.0, &content, PRIVATE_FILE, Durability::Durable)
    }
}

/// One that never answers.
fn unknown_witnesses() -> Vec<String> {
    vec![String::new()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn promises_are_remembered_until_nothing_is_promised() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("promise.json");
        let (file, timing) = (PromiseFile::new(path.clone()), Timing::default());
        assert!(file.read(&timing).is_empty());
        let witnesses = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let groups = [&["b"][..], &["b", "c"]]
            .map(|names| FencePromise { stops_within: timing.stops_within(), witnesses: witnesses(names) });
        file.write(&groups).unwrap();
        assert_eq!(file.read(&timing), groups);
        file.write(&[]).unwrap();
        file.write(&[]).unwrap();
        assert!(file.read(&timing).is_empty());
    }

    #[test]
    fn a_file_that_cannot_be_read_or_is_of_a_later_version_binds_the_node() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("promise.json");
        for content in ["{", r#"{"format":2,"groups":[]}"#] {
            fs::write(&path, content).unwrap();
            let groups = PromiseFile::new(path.clone()).read(&Timing::default());
            assert!(!groups[0].lets_run(|_| None), "{content}");
        }
    }
}
