//! How controllers reach a Kluster: its API by the kubeconfig Secret, its project by the credentials of its own user.
//!
//! Both Secrets are in the Kluster's namespace: `NAME-kubeconfig` (key `kubeconfig`) and `NAME-cloud` (key `clouds.yaml`). A Kluster without the
//! second is reached with the credentials of its cloud in the server's own configuration, in the Kluster's project.

use std::{collections::HashMap, sync::Arc};

use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use mainstay_api::cloud::kluster::{Kluster, KlusterPhase};
use mainstay_controllers::runtime::{ApiError, Change, ObjectKey};
use parking_lot::Mutex;

use crate::{context::CloudContext, observatory::ObservedCluster, openstack::Session};

const KUBECONFIG: &str = "kubeconfig";
const CLOUDS_YAML: &str = "clouds.yaml";

pub struct KlusterObserver {
    context: Arc<CloudContext>,
    /// Sessions by the Kluster, with the text that they were made from.
    sessions: Mutex<HashMap<ObjectKey, (Vec<u8>, Session)>>,
}

impl KlusterObserver {
    /// Forgets Klusters when they go.
    pub fn new(context: &Arc<CloudContext>) -> Arc<Self> {
        let access = Arc::new(Self { context: context.clone(), sessions: Mutex::default() });
        let (weak, observatory) = (Arc::downgrade(&access), context.observatory.clone());
        context.caches.klusters.on_change(move |change: Change<'_, Kluster>| {
            if change.after.is_none() {
                observatory.close(change.key);
                if let Some(access) = weak.upgrade() {
                    access.sessions.lock().remove(change.key);
                }
            }
        });
        access
    }

    /// The Kluster, if it has an API and is in a cloud.
    pub fn find(&self, key: &ObjectKey) -> Option<Arc<Kluster>> {
        let kluster = self.context.caches.klusters.get(key)?;
        let has_api =
            matches!(kluster.phase(), KlusterPhase::Running | KlusterPhase::Upgrading | KlusterPhase::Terminating);
        (has_api && !kluster.spec.no_cloud).then_some(kluster)
    }

    /// Its API and its Nodes; nothing while it has no kubeconfig.
    pub async fn observe(&self, key: &ObjectKey) -> Result<Option<ObservedCluster>, ApiError> {
        let Some(kubeconfig) = self.read_secret(key, &format!("{}-kubeconfig", key.name), KUBECONFIG).await? else {
            return Ok(None);
        };
        let kubeconfig = String::from_utf8_lossy(&kubeconfig).into_owned();
        let observed = self.context.observatory.observe(key, &kubeconfig).await;
        observed.map(Some).map_err(|error| ApiError::other(format!("look at the nodes of kluster {key:?}"), error))
    }

    /// A session in its project.
    pub async fn session(&self, key: &ObjectKey, kluster: &Kluster) -> Result<Session, ApiError> {
        let origin = format!("secret {}/{}-cloud", key.namespace, key.name);
        let failed = |error| ApiError::other(format!("use the credentials of kluster {key:?}"), error);
        let Some(text) = self.read_secret(key, &format!("{}-cloud", key.name), CLOUDS_YAML).await? else {
            let session = self.context.clouds.kluster_session(kluster).await;
            return session.map_err(|error| ApiError::other(format!("find the cloud of kluster {key:?}"), error));
        };
        if let Some((known, session)) = self.sessions.lock().get(key)
            && *known == text
        {
            return Ok(session.clone());
        }
        let session =
            self.context.clouds.session_from_text(&origin, &String::from_utf8_lossy(&text)).map_err(failed)?;
        self.sessions.lock().insert(key.clone(), (text, session.clone()));
        Ok(session)
    }

    /// The session of the server's own configuration with the Kluster's cloud.
    pub fn operator_session(&self, kluster: &Kluster) -> Result<Session, ApiError> {
        let clouds = &self.context.clouds;
        let cloud = self.cloud_name(kluster);
        clouds.session(&cloud).map_err(|error| ApiError::other(format!("log in to cloud {cloud}"), error))
    }

    pub fn cloud_name(&self, kluster: &Kluster) -> String {
        match kluster.spec.openstack.cloud.as_str() {
            "" => self.context.clouds.own_name().to_owned(),
            named => named.to_owned(),
        }
    }

    async fn read_secret(&self, key: &ObjectKey, name: &str, field: &str) -> Result<Option<Vec<u8>>, ApiError> {
        let secrets: Api<Secret> = Api::namespaced(self.context.client.clone(), &key.namespace);
        let doing = format!("read secret {}/{name}", key.namespace);
        let secret = secrets.get_opt(name).await.map_err(ApiError::when(doing))?;
        Ok(secret.and_then(|secret| secret.data?.remove(field)).map(|bytes| bytes.0))
    }
}
