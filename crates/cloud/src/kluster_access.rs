//! The ways into a Kluster: a client of its API by its kubeconfig Secret, and a session with its cloud.
//!
//! Both are kept while the Secrets they come from stay the same. Nothing is sent to the kluster or the cloud here; a Secret that is missing or unreadable is an
//! error of its own, which for a deorbit counts as an API that is not available.

use std::{collections::HashMap, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};
use mainstay_api::cloud::kluster::Kluster;
use mainstay_controllers::runtime::ApiError;
use parking_lot::Mutex;

use crate::{
    bounded_client::{MOST_BYTES, bounded_client},
    context::{CloudContext, ProjectError},
    kluster_kubeconfig::client_config,
    klusters::{CLOUDS_YAML, KUBECONFIG, cloud_secret, kubeconfig_secret},
    openstack::{ConfigError, Session},
};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const READ_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    #[error("the Kluster has no Secret {name:?} with a key {key:?} yet")]
    NoSecret { name: String, key: &'static str },
    #[error("the Kluster's Secret {name:?} holds no usable kubeconfig")]
    Kubeconfig {
        name: String,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    #[error("the Kluster's cloud is not usable")]
    Cloud(#[source] ConfigError),
    #[error("the Kluster's project is not usable")]
    Project(#[source] ProjectError),
}

/// Clients and sessions by Kluster, with the version of the Secret each was made from.
#[derive(Default)]
pub struct KlusterAccess {
    clients: Mutex<HashMap<String, (String, KlusterClient)>>,
    sessions: Mutex<HashMap<String, (String, Session)>>,
    /// The API of every Kluster, whatever its Secret says.
    fixed: Option<KlusterClient>,
}

/// A client of a kluster's API, and what machines have to know of it.
#[derive(Clone)]
pub struct KlusterClient {
    pub client: Client,
    pub server: String,
    /// The certificate of its authority.
    pub authority: Arc<[u8]>,
}

impl KlusterAccess {
    /// For programs that have the kluster's API at hand: every Kluster is reached by this client.
    pub fn fixed(client: KlusterClient) -> Self {
        Self { fixed: Some(client), ..Self::default() }
    }

    pub async fn client(&self, context: &CloudContext, kluster: &Kluster) -> Result<KlusterClient, ApiError> {
        if let Some(fixed) = &self.fixed {
            return Ok(fixed.clone());
        }
        let name = kubeconfig_secret(kluster.name());
        let (version, text) = read_secret(context, kluster, &name, KUBECONFIG).await?.ok_or_else(|| {
            ApiError::other("find the kluster's API", AccessError::NoSecret { name: name.clone(), key: KUBECONFIG })
        })?;
        let uid = kluster.metadata.uid.clone().unwrap_or_default();
        if let Some((_, known)) = self.clients.lock().get(&uid).filter(|(known, _)| *known == version) {
            return Ok(known.clone());
        }
        let made = make_client(&text).await.map_err(|source| {
            ApiError::other("connect to the kluster's API", AccessError::Kubeconfig { name, source })
        })?;
        self.clients.lock().insert(uid, (version, made.clone()));
        Ok(made)
    }

    /// The cloud of the Kluster's own user if it has one, otherwise the cloud that it names, otherwise this cluster's own; in its project.
    pub async fn session(&self, context: &CloudContext, kluster: &Kluster) -> Result<Session, ApiError> {
        let failed = |source| ApiError::other("find the kluster's cloud", AccessError::Cloud(source));
        let name = cloud_secret(kluster.name());
        let Some((version, text)) = read_secret(context, kluster, &name, CLOUDS_YAML).await? else {
            let session = context.clouds.kluster_session(kluster).await;
            return session.map_err(|source| ApiError::other("find the kluster's cloud", AccessError::Project(source)));
        };
        let uid = kluster.metadata.uid.clone().unwrap_or_default();
        if let Some((_, known)) = self.sessions.lock().get(&uid).filter(|(known, _)| *known == version) {
            return Ok(known.clone());
        }
        let made = context.clouds.session_from_text(&format!("Secret {name}"), &text).map_err(failed)?;
        self.sessions.lock().insert(uid, (version, made.clone()));
        Ok(made)
    }

    /// Forgets a Kluster that is gone.
    pub fn forget(&self, uid: &str) {
        self.clients.lock().remove(uid);
        self.sessions.lock().remove(uid);
    }
}

async fn read_secret(
    context: &CloudContext,
    kluster: &Kluster,
    name: &str,
    key: &str,
) -> Result<Option<(String, String)>, ApiError> {
    let namespace = kluster.metadata.namespace.as_deref().unwrap_or_default();
    let secrets: Api<Secret> = Api::namespaced(context.client.clone(), namespace);
    let secret = secrets.get_opt(name).await.map_err(ApiError::when(format!("read secret {name}")))?;
    Ok(secret.and_then(|secret| {
        let value = secret.data.as_ref()?.get(key)?;
        let text = String::from_utf8(value.0.clone()).ok()?;
        Some((secret.metadata.resource_version.unwrap_or_default(), text))
    }))
}

async fn make_client(text: &str) -> Result<KlusterClient, Box<dyn std::error::Error + Send + Sync>> {
    let mut config = client_config(text).await?;
    (config.connect_timeout, config.read_timeout) = (Some(CONNECT_TIMEOUT), Some(READ_TIMEOUT));
    let authority = config.root_cert.as_ref().and_then(|roots| roots.first()).cloned().unwrap_or_default();
    let server = config.cluster_url.to_string().trim_end_matches('/').to_owned();
    Ok(KlusterClient { client: bounded_client(config, MOST_BYTES)?, server, authority: authority.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_kubeconfig_of_a_secret_runs_no_program() {
        let trace = std::env::temp_dir().join(format!("mainstay-test-kubeconfig-{}", std::process::id()));
        let text = format!(
            "{{current-context: x, contexts: [{{name: x, context: {{cluster: x, user: x}}}}], clusters: [{{name: x, cluster: \
             {{server: 'https://127.0.0.1:1'}}}}], users: [{{name: x, user: {{exec: {{apiVersion: \
             client.authentication.k8s.io/v1, command: touch, args: [{}]}}}}}}]}}",
            trace.display()
        );
        assert!(make_client(&text).await.is_err());
        assert!(!trace.exists(), "the program was run");
    }
}
