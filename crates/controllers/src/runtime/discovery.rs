//! Discovery: which resources the server has.
//!
//! Asked group by group, so that one group that does not answer (an extension server that is
//! down) hides its own resources only, and is known to hide them.

use std::{collections::HashMap, fmt, sync::Arc};

use futures::{StreamExt, stream};
use kube::{Api, Client, api::ApiResource};
use parking_lot::RwLock;
use tokio::sync::Notify;

use super::{ApiError, error, object_meta::PartialMeta};

/// Versions whose resources are asked for at the same time.
const CONCURRENT_QUESTIONS: usize = 16;

#[derive(Debug, PartialEq, Eq)]
pub struct ServerResource {
    pub api: ApiResource,
    pub namespaced: bool,
    pub verbs: Vec<String>,
}

impl ServerResource {
    pub fn can(&self, verb: &str) -> bool {
        self.verbs.iter().any(|own| own == verb)
    }

    /// Whether this is the resource of that name, in whatever version.
    pub fn is_named(&self, group: &str, plural: &str) -> bool {
        self.api.group == group && self.api.plural == plural
    }

    /// In a namespace, or everywhere.
    pub fn api(&self, client: &Client, namespace: Option<&str>) -> Api<PartialMeta> {
        match namespace.filter(|_| self.namespaced) {
            Some(namespace) => Api::namespaced_with(client.clone(), namespace, &self.api),
            None => Api::all_with(client.clone(), &self.api),
        }
    }
}

/// `pods`, `deployments.apps`.
impl fmt::Display for ServerResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.api.plural)?;
        if self.api.group.is_empty() { Ok(()) } else { write!(f, ".{}", self.api.group) }
    }
}

/// What the server has, as of one moment.
#[derive(Debug, Default)]
pub struct ServerResources {
    /// Each resource once, in the version its group prefers.
    pub resources: Vec<Arc<ServerResource>>,
    /// By `apiVersion` and `kind`, every version.
    by_kind: HashMap<(String, String), Arc<ServerResource>>,
    /// Groups (with their version) that did not answer, and why.
    pub failed_groups: Vec<(String, String)>,
}

impl ServerResources {
    pub fn find(&self, api_version: &str, kind: &str) -> Option<&Arc<ServerResource>> {
        self.by_kind.get(&(api_version.to_owned(), kind.to_owned()))
    }

    /// Asks the server.
    pub async fn discover(client: &Client) -> Result<Self, ApiError> {
        let mut kinds = Self::default();
        let core = client.list_core_api_versions().await.map_err(ApiError::when("list the API's versions"))?;
        for version in &core.versions {
            kinds.add(version, client.list_core_api_resources(version).await);
        }
        let groups = client.list_api_groups().await.map_err(ApiError::when("list the API's groups"))?;
        let versions = groups.groups.into_iter().flat_map(|group| {
            let preferred = group.preferred_version.as_ref().map(|v| v.group_version.clone());
            let mut versions: Vec<String> = group.versions.into_iter().map(|v| v.group_version).collect();
            versions.sort_by_key(|version| Some(version) != preferred.as_ref());
            versions
        });
        // Several at a time: other servers may serve some of them, and may be slow to fail.
        let asked = stream::iter(versions).map(|version| async {
            let answer = client.list_api_group_resources(&version).await;
            (version, answer)
        });
        let mut answers = std::pin::pin!(asked.buffered(CONCURRENT_QUESTIONS));
        while let Some((version, answer)) = answers.next().await {
            kinds.add(&version, answer);
        }
        Ok(kinds)
    }

    fn add(
        &mut self,
        group_version: &str,
        answer: kube::Result<k8s_openapi::apimachinery::pkg::apis::meta::v1::APIResourceList>,
    ) {
        let list = match answer {
            Ok(list) => list,
            Err(error) => return self.failed_groups.push((group_version.to_owned(), error::message(&error))),
        };
        let (group, version) = group_version.split_once('/').unwrap_or(("", group_version));
        for found in list.resources.into_iter().filter(|r| !r.name.contains('/')) {
            let api = ApiResource {
                group: group.to_owned(),
                version: version.to_owned(),
                api_version: group_version.to_owned(),
                kind: found.kind,
                plural: found.name,
            };
            let key = (api.api_version.clone(), api.kind.clone());
            let resource = Arc::new(ServerResource { api, namespaced: found.namespaced, verbs: found.verbs });
            if !self.resources.iter().any(|r| r.is_named(group, &resource.api.plural)) {
                self.resources.push(resource.clone());
            }
            self.by_kind.insert(key, resource);
        }
    }
}

/// The newest discovery, and a way to ask for another.
#[derive(Default)]
pub struct DiscoveryCache {
    current: RwLock<Arc<ServerResources>>,
    pub stale: Notify,
}

impl DiscoveryCache {
    pub fn current(&self) -> Arc<ServerResources> {
        self.current.read().clone()
    }

    pub fn set(&self, kinds: Arc<ServerResources>) {
        *self.current.write() = kinds;
    }
}
