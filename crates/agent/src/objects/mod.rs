//! What pods refer to: ConfigMaps, Secrets, claims and Services, as the API last told.
//!
//! Each object that some pod here refers to is followed while one does, and only then. A pod is woken
//! when something it asked for appears, changes or goes, so waiting for a ConfigMap ends the moment it
//! is created. While the API cannot be reached, the last known value counts; what was never known is
//! [`Lack::Unreachable`], which is not the same as [`Lack::Missing`]: nothing may be concluded from it.

mod changes;
mod checkpoint;
#[cfg(test)]
pub(crate) mod fake;
mod follow;
#[cfg(test)]
mod tests;
mod tokens;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolume, PersistentVolumeClaim, Pod, Secret, Service};
use kube::{Api, Client};
use mainstay_runtime::PodUid;

use self::{
    changes::Changes,
    checkpoint::ObjectCheckpoint,
    follow::{Followed, Selection},
    tokens::Tokens,
};
use crate::{settings::Settings, wake::Wake};

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Lack {
    #[error("not found")]
    Missing,
    #[error("{0}")]
    Unreachable(String),
}

pub type Known<K> = Result<Arc<K>, Lack>;

/// Where an agent keeps what it was told, until the machine is started again.
pub fn kept_in(settings: &Settings) -> PathBuf {
    settings.run_directory().join("objects")
}

pub struct Objects {
    client: Client,
    config_maps: Followed<ConfigMap>,
    secrets: Followed<Secret>,
    claims: Followed<PersistentVolumeClaim>,
    volumes: Followed<PersistentVolume>,
    /// Nobody is woken for these: they only matter when a container is made.
    services: Followed<Service>,
    tokens: Tokens,
    changes: Changes,
}

impl Objects {
    pub fn new(client: Client, wake: Wake) -> Self {
        let changes = Changes::new(wake.clone());
        Self {
            client: client.clone(),
            config_maps: Followed::new(client.clone(), Api::namespaced, Some(changes.clone())),
            secrets: Followed::new(client.clone(), Api::namespaced, Some(changes.clone())),
            claims: Followed::new(client.clone(), Api::namespaced, Some(changes.clone())),
            volumes: Followed::new(client.clone(), |client, _| Api::all(client), Some(changes.clone())),
            services: Followed::new(client.clone(), Api::namespaced, None),
            tokens: Tokens::new(client, wake),
            changes,
        }
    }

    /// Keeps what is told in a directory that nothing outlives a boot in, so that an agent that is started while
    /// the API is away knows it.
    pub fn keeping(mut self, directory: &Path) -> Self {
        let within = |kind: &str| ObjectCheckpoint::within(directory.join(kind));
        self.config_maps.keep_in(within("configmaps"));
        self.secrets.keep_in(within("secrets"));
        self.claims.keep_in(within("claims"));
        self.volumes.keep_in(within("volumes"));
        self.services.keep_in(within("services"));
        self
    }

    pub async fn config_map(&self, pod: &PodUid, namespace: &str, name: &str) -> Known<ConfigMap> {
        self.config_maps.one(pod, namespace, name).await
    }

    pub async fn secret(&self, pod: &PodUid, namespace: &str, name: &str) -> Known<Secret> {
        self.secrets.one(pod, namespace, name).await
    }

    pub async fn claim(&self, pod: &PodUid, namespace: &str, name: &str) -> Known<PersistentVolumeClaim> {
        self.claims.one(pod, namespace, name).await
    }

    pub async fn volume(&self, pod: &PodUid, name: &str) -> Known<PersistentVolume> {
        self.volumes.one(pod, "", name).await
    }

    pub fn client(&self) -> &Client {
        &self.client
    }

    /// All Services of a namespace.
    pub async fn services(&self, pod: &PodUid, namespace: &str) -> Result<BTreeMap<String, Arc<Service>>, Lack> {
        self.services.get(pod, &Selection::all(namespace)).await
    }

    pub async fn service(&self, pod: &PodUid, namespace: &str, name: &str) -> Known<Service> {
        self.services.one(pod, namespace, name).await
    }

    /// A token of the pod's service account, bound to the pod: the one it has, or a new one when that has
    /// lived through most of its life. The pod is woken when its token is to be asked for again.
    pub async fn token(&self, pod: &Pod, audience: &str, seconds: i64) -> Result<Arc<str>, Lack> {
        self.tokens.get(pod, audience, seconds).await
    }

    /// Counts the changes of ConfigMaps, Secrets and claims that the pod refers to.
    pub fn generation(&self, pod: &PodUid) -> u64 {
        self.changes.count(pod)
    }

    /// The pod is gone; what only it referred to is no longer followed.
    pub fn forget(&self, pod: &PodUid) {
        self.config_maps.forget(pod);
        self.secrets.forget(pod);
        self.claims.forget(pod);
        self.volumes.forget(pod);
        self.services.forget(pod);
        self.tokens.forget(pod);
        self.changes.forget(pod);
    }
}
