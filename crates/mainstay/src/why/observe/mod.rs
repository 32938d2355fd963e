//! Reads from the API what explanations are made of.
//!
//! The object that is asked about must be readable; what only adds to the explanation (logs, nodes, storage classes) is
//! left out where it cannot be read, or not in time.

mod dependencies;
mod objects;
mod pods;

use std::{fmt::Debug, time::Duration};

use anyhow::Context;
use k8s_openapi::{
    NamespaceResourceScope,
    api::core::v1::{Event, Pod},
};
use kube::{
    Api, Client, Resource,
    api::{ListParams, ObjectMeta},
};
use serde::de::DeserializeOwned;

/// How long something is waited for that the explanation can do without.
const PATIENCE: Duration = Duration::from_secs(5);

/// How many pods of a workload are explained.
const PODS_EXPLAINED: usize = 5;

pub struct Observer {
    client: Client,
    namespace: String,
}

impl Observer {
    pub fn new(client: Client, namespace: &str) -> Self {
        Self { client, namespace: namespace.to_owned() }
    }

    fn api<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    async fn get<K>(&self, name: &str) -> anyhow::Result<Option<K>>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned,
    {
        let kind = K::kind(&()).to_lowercase();
        self.api::<K>().get_opt(name).await.with_context(|| format!("read {kind} {name}"))
    }

    /// Events about an object of this namespace.
    async fn events(&self, kind: &str, meta: &ObjectMeta) -> anyhow::Result<Vec<Event>> {
        let name = meta.name.as_deref().unwrap_or_default();
        let about = format!("involvedObject.kind={kind},involvedObject.name={name}");
        let mut events =
            self.api::<Event>().list(&ListParams::default().fields(&about)).await.context("list its events")?.items;
        // An earlier object of the same name has a history of its own.
        events.retain(|event| event.involved_object.uid.is_none() || event.involved_object.uid == meta.uid);
        Ok(events)
    }

    async fn all_pods(&self) -> anyhow::Result<Vec<Pod>> {
        Ok(self.api::<Pod>().list(&ListParams::default()).await.context("list pods")?.items)
    }
}

fn is_owned_by(meta: &ObjectMeta, owner: &ObjectMeta) -> bool {
    let owners = meta.owner_references.iter().flatten();
    owner.uid.is_some() && owners.into_iter().any(|reference| Some(&reference.uid) == owner.uid.as_ref())
}

/// What can be done without, within [`PATIENCE`].
async fn optional<T>(reading: impl Future<Output = Result<T, kube::Error>>) -> Option<T> {
    tokio::time::timeout(PATIENCE, reading).await.ok()?.ok()
}
