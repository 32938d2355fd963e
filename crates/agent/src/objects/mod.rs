//! Caches of the objects that pods refer to: ConfigMaps, Secrets, claims, volumes and their attachments, trust bundles, Services, service account
//! tokens and certificates.
//!
//! Each object that some pod here refers to is followed while one does, and only then. A pod is woken
//! when something it asked for appears, changes or goes, so waiting for a ConfigMap ends the moment it
//! is created. While the API cannot be reached, the last known value counts; what was never known is
//! [`ObjectError::Unreachable`], which is not the same as [`ObjectError::Missing`]: nothing may be concluded from it.

mod changes;
pub mod checkpoint;
#[cfg(test)]
pub(crate) mod fake;
mod object_cache;
mod pod_certificates;
mod pod_keys;
#[cfg(test)]
mod tests;
mod tokens;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use k8s_openapi::api::{
    certificates::v1::ClusterTrustBundle,
    core::v1::{ConfigMap, PersistentVolume, PersistentVolumeClaim, Pod, PodCertificateProjection, Secret, Service},
    storage::v1::VolumeAttachment,
};
use kube::{Api, Client};
use mainstay_api::config_versions::ConfigKind;
use mainstay_runtime::PodUid;
use parking_lot::Mutex;

pub use self::pod_certificates::{CertificateError, PodCertificate};
use self::{
    changes::Changes,
    checkpoint::ObjectCheckpoint,
    object_cache::{ObjectCache, Selection},
    pod_certificates::PodCertificates,
    tokens::Tokens,
};
use crate::{settings::Settings, wake::Wake};

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ObjectError {
    #[error("not found")]
    Missing,
    #[error("{0}")]
    Unreachable(String),
    /// The API refuses to show it to this node.
    #[error("{0}")]
    Forbidden(String),
}

pub type ObjectResult<K> = Result<Arc<K>, ObjectError>;

/// Where an agent keeps objects that it received, until the machine is started again.
pub fn checkpoint_directory(settings: &Settings) -> PathBuf {
    settings.run_directory().join("objects")
}

pub struct Objects {
    client: Client,
    config_maps: ObjectCache<ConfigMap>,
    secrets: ObjectCache<Secret>,
    claims: ObjectCache<PersistentVolumeClaim>,
    volumes: ObjectCache<PersistentVolume>,
    trust_bundles: ObjectCache<ClusterTrustBundle>,
    /// Of this node.
    attachments: ObjectCache<VolumeAttachment>,
    /// Nobody is woken for these: they only matter when a container is made.
    services: ObjectCache<Service>,
    tokens: Tokens,
    certificates: PodCertificates,
    changes: Changes,
    /// Of claims that pods here have asked for, by namespace and name.
    access_modes: Mutex<BTreeMap<(String, String), Vec<String>>>,
}

impl Objects {
    pub fn new(client: Client, wake: Wake) -> Self {
        let changes = Changes::new(wake.clone());
        Self {
            client: client.clone(),
            config_maps: ObjectCache::new(client.clone(), Api::namespaced, Some(changes.clone())),
            secrets: ObjectCache::new(client.clone(), Api::namespaced, Some(changes.clone())),
            claims: ObjectCache::new(client.clone(), Api::namespaced, Some(changes.clone())),
            volumes: ObjectCache::new(client.clone(), |client, _| Api::all(client), Some(changes.clone())),
            trust_bundles: ObjectCache::new(client.clone(), |client, _| Api::all(client), Some(changes.clone())),
            attachments: ObjectCache::new(client.clone(), |client, _| Api::all(client), Some(changes.clone())),
            services: ObjectCache::new(client.clone(), Api::namespaced, None),
            tokens: Tokens::new(client.clone(), wake),
            certificates: PodCertificates::new(client, changes.clone()),
            changes,
            access_modes: Mutex::default(),
        }
    }

    /// Follows what names this node.
    pub fn for_node(mut self, node: &str) -> Self {
        self.attachments.restrict_to(format!("spec.nodeName={node}"));
        self
    }

    /// Keeps received objects in a directory that is emptied at boot, so that an agent that is started while
    /// the API is away knows it.
    pub fn with_checkpoints(mut self, directory: &Path) -> Self {
        let within = |kind: &str| ObjectCheckpoint::within(directory.join(kind));
        self.config_maps.checkpoint_in(within("configmaps"));
        self.secrets.checkpoint_in(within("secrets"));
        self.claims.checkpoint_in(within("claims"));
        self.volumes.checkpoint_in(within("volumes"));
        self.trust_bundles.checkpoint_in(within("clustertrustbundles"));
        self.attachments.checkpoint_in(within("volumeattachments"));
        self.services.checkpoint_in(within("services"));
        self
    }

    pub async fn config_map(&self, pod: &PodUid, namespace: &str, name: &str) -> ObjectResult<ConfigMap> {
        self.config_maps.get_named(pod, namespace, name).await
    }

    pub async fn secret(&self, pod: &PodUid, namespace: &str, name: &str) -> ObjectResult<Secret> {
        self.secrets.get_named(pod, namespace, name).await
    }

    pub async fn claim(&self, pod: &PodUid, namespace: &str, name: &str) -> ObjectResult<PersistentVolumeClaim> {
        let claim = self.claims.get_named(pod, namespace, name).await?;
        let modes = claim.spec.as_ref().and_then(|spec| spec.access_modes.clone()).unwrap_or_default();
        self.access_modes.lock().insert((namespace.to_owned(), name.to_owned()), modes);
        Ok(claim)
    }

    /// Of a claim that some pod here has asked for.
    pub fn access_modes(&self, namespace: &str, name: &str) -> Option<Vec<String>> {
        self.access_modes.lock().get(&(namespace.to_owned(), name.to_owned())).cloned()
    }

    pub async fn volume(&self, pod: &PodUid, name: &str) -> ObjectResult<PersistentVolume> {
        self.volumes.get_named(pod, "", name).await
    }

    /// All VolumeAttachments of this node, by name.
    pub async fn attachments(&self, pod: &PodUid) -> Result<BTreeMap<String, Arc<VolumeAttachment>>, ObjectError> {
        self.attachments.get(pod, &Selection::all("")).await
    }

    pub async fn trust_bundle(&self, pod: &PodUid, name: &str) -> ObjectResult<ClusterTrustBundle> {
        self.trust_bundles.get_named(pod, "", name).await
    }

    /// All trust bundles of the cluster.
    pub async fn trust_bundles(&self, pod: &PodUid) -> Result<BTreeMap<String, Arc<ClusterTrustBundle>>, ObjectError> {
        self.trust_bundles.get(pod, &Selection::all("")).await
    }

    pub fn client(&self) -> &Client {
        &self.client
    }

    /// All Services of a namespace.
    pub async fn services(&self, pod: &PodUid, namespace: &str) -> Result<BTreeMap<String, Arc<Service>>, ObjectError> {
        self.services.get(pod, &Selection::all(namespace)).await
    }

    pub async fn service(&self, pod: &PodUid, namespace: &str, name: &str) -> ObjectResult<Service> {
        self.services.get_named(pod, namespace, name).await
    }

    /// A token of the pod's service account, bound to the pod: the one it has, or a new one when that has
    /// lived through most of its life. The pod is woken when its token is to be asked for again.
    pub async fn token(&self, pod: &Pod, audience: &str, seconds: i64) -> Result<Arc<str>, ObjectError> {
        self.tokens.get(pod, audience, seconds).await
    }

    /// The certificate of a source of a projected volume: the one it has, which is renewed when its signer wants it. The pod
    /// is woken when it gets one.
    pub fn certificate(
        &self,
        pod: &Pod,
        volume: &str,
        source: usize,
        wanted: &PodCertificateProjection,
    ) -> Result<Arc<PodCertificate>, CertificateError> {
        self.certificates.get(pod, volume, source, wanted)
    }

    /// Counts the changes of ConfigMaps, Secrets, claims and certificates that the pod refers to.
    pub fn generation(&self, pod: &PodUid) -> u64 {
        self.changes.count(pod)
    }

    /// The pod reads this copy of a ConfigMap or Secret no longer.
    pub fn forget_copy(&self, pod: &PodUid, namespace: &str, kind: ConfigKind, name: &str) {
        match kind {
            ConfigKind::ConfigMap => self.config_maps.forget_named(pod, namespace, name),
            ConfigKind::Secret => self.secrets.forget_named(pod, namespace, name),
        }
    }

    /// The pod is gone; what only it referred to is no longer followed.
    pub fn forget(&self, pod: &PodUid) {
        self.config_maps.forget(pod);
        self.secrets.forget(pod);
        self.claims.forget(pod);
        self.volumes.forget(pod);
        self.trust_bundles.forget(pod);
        self.attachments.forget(pod);
        self.services.forget(pod);
        self.tokens.forget(pod);
        self.certificates.forget(pod);
        self.changes.forget(pod);
    }
}
