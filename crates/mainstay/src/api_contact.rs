//! How this machine reaches the API, on disk: for `mainstay down`, which removes the machine's pods from the API once they have ended.
//!
//! Written by `mainstay agent` at each start. A machine whose server is its own process (`mainstay up`) has none: its API ends with it, and
//! the next start runs its pods again.

use std::{fs, io, net::IpAddr, path::Path, time::Duration};

use anyhow::{Context, anyhow};
use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, Preconditions},
};
use mainstay_agent::{host_services::publisher::withdraw_all, join, servers::Servers, settings::Settings};
use mainstay_files::{Durability, PRIVATE_FILE, write_atomic};
use serde::{Deserialize, Serialize};

/// Raised when an earlier version could not read the file any more.
const FORMAT: u32 = 1;
/// Pods that are removed at a time.
const AT_ONCE: usize = 16;
/// A server that does not answer must not hold up the end of the machine's pods longer.
const DEADLINE: Duration = Duration::from_secs(5);

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApiContact {
    format: u32,
    node: String,
    servers: Vec<String>,
    addresses: Vec<IpAddr>,
}

impl ApiContact {
    pub fn new(settings: &Settings, servers: &[String]) -> Self {
        let (node, addresses) = (settings.node_name.clone(), settings.addresses.clone());
        Self { format: FORMAT, node, servers: servers.to_vec(), addresses }
    }

    /// None if the machine never had another's API. `directory` is the agent's.
    pub fn read(directory: &Path) -> anyhow::Result<Option<Self>> {
        let file = directory.join("api.json");
        let content = match fs::read(&file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            content => content.with_context(|| format!("read {}", file.display()))?,
        };
        let contact: Self = serde_json::from_slice(&content).with_context(|| format!("read {}", file.display()))?;
        match contact.format {
            FORMAT => Ok(Some(contact)),
            newer => Err(anyhow!("{} has format {newer}: a later version wrote it", file.display())),
        }
    }

    pub fn write(&self, directory: &Path) -> io::Result<()> {
        write_atomic(&directory.join("api.json"), &serde_json::to_vec(self)?, PRIVATE_FILE, Durability::Durable)
    }

    /// Removes all pods and services of this node from the API, now that nothing of them runs. Returns how many pods.
    pub async fn remove_pods(&self, directory: &Path) -> anyhow::Result<usize> {
        let removed = async {
            let client = self.connect(directory).await?;
            withdraw_all(&client, &self.node).await.context("withdraw the services of this machine")?;
            remove_pods(&client, &self.node).await
        };
        let removed = tokio::time::timeout(DEADLINE, removed).await;
        removed.map_err(|_| anyhow!("{} does not answer", self.servers.join(", ")))?
    }

    /// A client with the rights of this node.
    pub async fn connect(&self, directory: &Path) -> anyhow::Result<Client> {
        let servers = Servers::named(&self.servers)?;
        let identity = join::join(&servers, None, &self.node, &self.addresses, &directory.join("identity")).await?;
        Ok(identity.client(&servers)?)
    }
}

async fn remove_pods(client: &Client, node: &str) -> anyhow::Result<usize> {
    let of_node = ListParams::default().fields(&format!("spec.nodeName={node}"));
    let pods = Api::<Pod>::all(client.clone()).list(&of_node).await.context("list the pods of this node")?;
    let removals = pods.items.iter().map(|pod| remove_pod(client, pod));
    let removed: Vec<kube::Result<()>> = stream::iter(removals).buffer_unordered(AT_ONCE).collect().await;
    let count = removed.len();
    removed.into_iter().collect::<kube::Result<()>>().context("remove the pods of this node")?;
    Ok(count)
}

async fn remove_pod(client: &Client, pod: &Pod) -> kube::Result<()> {
    let api: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace().unwrap_or_default());
    // Another pod of that name, made meanwhile, is not ours.
    let uid = Some(Preconditions { uid: pod.metadata.uid.clone(), ..Preconditions::default() });
    let at_once = DeleteParams { preconditions: uid, ..DeleteParams::default().grace_period(0) };
    match api.delete(&pod.name_any(), &at_once).await {
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
        removed => removed.map(drop),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read_and_a_later_format_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(ApiContact::read(directory.path()).unwrap(), None);
        let (node, addresses) = ("a".to_owned(), vec!["192.0.2.1".parse().unwrap()]);
        let contact = ApiContact { format: FORMAT, node, servers: vec!["https://b:6443".to_owned()], addresses };
        contact.write(directory.path()).unwrap();
        assert_eq!(ApiContact::read(directory.path()).unwrap(), Some(contact));
        let newer = r#"{"format":2,"node":"a","servers":[],"addresses":[]}"#;
        fs::write(directory.path().join("api.json"), newer).unwrap();
        let error = ApiContact::read(directory.path()).unwrap_err().to_string();
        assert!(error.ends_with("api.json has format 2: a later version wrote it"), "{error}");
    }
}
