//! local-path volumes: directories `<data-dir>/volumes/<volume>` provisioned for claims on this node.
//!
//! Whoever makes volumes reads from this machine's Node where they are to lie. A directory is made when the first
//! pod uses it, and from then on a finalizer of ours says that it is there. It is removed only when the API
//! says of this very volume that it is being deleted and nothing else holds it: not because the volume is
//! unknown. A cluster that was set up anew does not take anybody's data along.

use std::{
    io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    time::Duration,
};

use k8s_openapi::api::core::v1::{Node, PersistentVolume};
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use mainstay_errors::error_chain;
use mainstay_files::remove_tree;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::settings::Settings;

/// On a Node: where its agent keeps volumes.
pub const DIRECTORY: &str = mainstay_api::wellknown::mainstay::VOLUMES;
/// On a volume: its directory exists.
pub const ON_DISK: &str = mainstay_api::wellknown::mainstay::LOCAL_PATH;
pub const PROVISIONER: &str = mainstay_api::wellknown::mainstay::LOCAL_PATH;
const PROVISIONED_BY: &str = mainstay_api::wellknown::kubernetes::PROVISIONED_BY;

const LOOK: Duration = Duration::from_secs(10);
const ANSWER: Duration = Duration::from_secs(8);

/// Beside the agent's own directory.
pub fn directory(settings: &Settings) -> PathBuf {
    settings.directory.parent().unwrap_or(&settings.directory).join("volumes")
}

/// Whether the volume is one of those made on machines.
pub fn is_ours(volume: &PersistentVolume) -> bool {
    let by = volume.metadata.annotations.as_ref().and_then(|all| all.get(PROVISIONED_BY));
    by.is_some_and(|by| by == PROVISIONER)
}

pub fn is_on_disk(volume: &PersistentVolume) -> bool {
    volume.metadata.finalizers.iter().flatten().any(|own| own == ON_DISK)
}

/// Makes the directory of a volume, open to whoever the pod runs as.
pub fn make(within: &Path, path: &Path) -> io::Result<()> {
    if path.parent() != Some(within) {
        let why = format!("{} does not lie in {}, where this machine keeps volumes", path.display(), within.display());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    mainstay_files::create_private_dir(within)?;
    match std::fs::create_dir(path) {
        Ok(()) => std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    }
}

/// Records on a volume that its directory on this node exists, so that it does not go without it.
pub async fn mark_on_disk(client: &Client, volume: &PersistentVolume) -> Result<(), String> {
    if is_on_disk(volume) {
        return Ok(());
    }
    match tokio::time::timeout(ANSWER, mark(client, volume, true)).await {
        Ok(result) => result.map_err(|error| error_chain(&error)),
        Err(_) => Err("the API does not answer".to_owned()),
    }
}

/// Changes our finalizer of a volume, unless the volume has changed meanwhile.
pub async fn mark(client: &Client, volume: &PersistentVolume, on_disk: bool) -> kube::Result<()> {
    let meta = &volume.metadata;
    let mut finalizers: Vec<&String> = meta.finalizers.iter().flatten().filter(|own| *own != ON_DISK).collect();
    let own = ON_DISK.to_owned();
    if on_disk {
        finalizers.push(&own);
    }
    let patch = json!({"metadata": {"resourceVersion": meta.resource_version, "finalizers": finalizers}});
    let api: Api<PersistentVolume> = Api::all(client.clone());
    let name = meta.name.as_deref().unwrap_or_default();
    match api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await {
        Err(kube::Error::Api(status)) if status.code == 404 && !on_disk => Ok(()),
        result => result.map(drop),
    }
}

/// Tells where volumes lie, and removes the directories of those that are deleted.
pub struct LocalPath {
    client: Client,
    node: String,
    directory: PathBuf,
}

impl LocalPath {
    pub fn new(client: Client, settings: &Settings) -> Self {
        Self { client, node: settings.node_name.clone(), directory: directory(settings) }
    }

    pub async fn run(self, stop: CancellationToken) {
        let mut annotated = false;
        loop {
            if !annotated {
                match tokio::time::timeout(ANSWER, self.annotate_node()).await {
                    Ok(Ok(())) => annotated = true,
                    Ok(Err(error)) => {
                        tracing::debug!(
                            error = error_chain(&error),
                            "cannot annotate the node with the directory of its volumes; will retry"
                        )
                    }
                    Err(_) => tracing::debug!(
                        "cannot annotate the node with the directory of its volumes: no answer; will retry"
                    ),
                }
            }
            if let Err(error) = self.sweep().await {
                tracing::debug!(error = error_chain(&error), "cannot look for deleted volumes; will retry");
            }
            let pause = if annotated { LOOK } else { Duration::from_secs(1) };
            if stop.run_until_cancelled(tokio::time::sleep(pause)).await.is_none() {
                return;
            }
        }
    }

    async fn annotate_node(&self) -> kube::Result<()> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let patch = json!({"metadata": {"annotations": {DIRECTORY: self.directory}}});
        nodes.patch_metadata(&self.node, &PatchParams::default(), &Patch::Merge(patch)).await.map(drop)
    }

    /// Looks at every directory there is.
    async fn sweep(&self) -> io::Result<()> {
        let mut entries = match tokio::fs::read_dir(&self.directory).await {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        let volumes: Api<PersistentVolume> = Api::all(self.client.clone());
        while let Some(entry) = entries.next_entry().await? {
            let Ok(name) = entry.file_name().into_string() else { continue };
            let volume = match tokio::time::timeout(ANSWER, volumes.get_opt(&name)).await {
                Ok(Ok(Some(volume))) => volume,
                // Unknown: kept. Who wants the space back removes it by hand.
                Ok(Ok(None)) => continue,
                Ok(Err(kube::Error::Api(_))) => continue,
                Ok(Err(error)) => return Err(io::Error::other(error)),
                Err(_) => return Err(io::Error::from(io::ErrorKind::TimedOut)),
            };
            if !is_to_go(&volume, &entry.path()) {
                continue;
            }
            let path = entry.path();
            let removed = tokio::task::spawn_blocking(move || remove_tree(&path)).await;
            match removed.map_err(io::Error::other)? {
                Ok(()) => {
                    tracing::info!(volume = name, "removed the directory of a deleted volume");
                    if let Err(error) = mark(&self.client, &volume, false).await {
                        tracing::warn!(
                            volume = name,
                            error = error_chain(&error),
                            "cannot remove the finalizer of a deleted volume; will retry"
                        );
                    }
                }
                Err(error) => tracing::warn!(
                    volume = name,
                    error = error_chain(&error),
                    "cannot remove the directory of a volume"
                ),
            }
        }
        Ok(())
    }
}

/// Deleted, held by nobody else, and really this directory.
fn is_to_go(volume: &PersistentVolume, path: &Path) -> bool {
    let place = volume.spec.as_ref().and_then(|spec| spec.local.as_ref()).map(|local| Path::new(&local.path));
    volume.metadata.deletion_timestamp.is_some()
        && is_ours(volume)
        && place == Some(path)
        && volume.metadata.finalizers.as_deref() == Some(&[ON_DISK.to_owned()][..])
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn only_what_is_deleted_and_free_goes() {
        let volume = |change: &dyn Fn(&mut Value)| {
            let mut volume = json!({
                "metadata": {"name": "pv", "deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": [ON_DISK],
                             "annotations": {PROVISIONED_BY: PROVISIONER}},
                "spec": {"local": {"path": "/data/volumes/pv"}},
            });
            change(&mut volume);
            is_to_go(&serde_json::from_value(volume).unwrap(), Path::new("/data/volumes/pv"))
        };
        assert!(volume(&|_| {}));
        assert!(!volume(&|v| v["metadata"]["deletionTimestamp"] = Value::Null));
        assert!(!volume(&|v| v["metadata"]["finalizers"] = json!(["kubernetes.io/pv-protection", ON_DISK])));
        assert!(!volume(&|v| v["metadata"]["annotations"] = Value::Null));
        assert!(!volume(&|v| v["spec"]["local"]["path"] = json!("/data/volumes/other")));
    }

    #[test]
    fn directories_are_made_where_they_belong_and_nowhere_else() {
        let data = tempfile::tempdir().unwrap();
        let within = data.path().join("volumes");
        make(&within, &within.join("pv")).unwrap();
        make(&within, &within.join("pv")).unwrap();
        assert_eq!(within.join("pv").metadata().unwrap().permissions().mode() & 0o777, 0o777);
        make(&within, &data.path().join("pv")).unwrap_err();
        make(&within, &within.join("a/pv")).unwrap_err();
    }
}
