//! Which resources the server has.
//!
//! Asked group by group, so that one group that does not answer (an extension server that is
//! down) hides its own resources only, and is known to hide them.

use std::{collections::HashMap, fmt, sync::Arc};

use kube::{Api, Client, api::ApiResource};
use parking_lot::RwLock;
use tokio::sync::Notify;

use crate::{
    failure::{self, Failure},
    meta::Meta,
};

#[derive(Debug, PartialEq, Eq)]
pub struct Resource {
    pub api: ApiResource,
    pub namespaced: bool,
    pub verbs: Vec<String>,
}

impl Resource {
    pub fn can(&self, verb: &str) -> bool {
        self.verbs.iter().any(|own| own == verb)
    }

    /// Whether this is a resource, in whatever version.
    pub fn is(&self, group: &str, plural: &str) -> bool {
        self.api.group == group && self.api.plural == plural
    }

    /// In a namespace, or everywhere.
    pub fn api(&self, client: &Client, namespace: Option<&str>) -> Api<Meta> {
        match namespace.filter(|_| self.namespaced) {
            Some(namespace) => Api::namespaced_with(client.clone(), namespace, &self.api),
            None => Api::all_with(client.clone(), &self.api),
        }
    }
}

/// `pods`, `deployments.apps`.
impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.api.plural)?;
        if self.api.group.is_empty() { Ok(()) } else { write!(f, ".{}", self.api.group) }
    }
}

/// What the server has, as of one moment.
#[derive(Debug, Default)]
pub struct Kinds {
    /// Each resource once, in the version its group prefers.
    pub resources: Vec<Arc<Resource>>,
    /// By `apiVersion` and `kind`, every version.
    by_kind: HashMap<(String, String), Arc<Resource>>,
    /// Groups (with their version) that did not answer, and why.
    pub silent: Vec<(String, String)>,
}

impl Kinds {
    pub fn find(&self, api_version: &str, kind: &str) -> Option<&Arc<Resource>> {
        self.by_kind.get(&(api_version.to_owned(), kind.to_owned()))
    }

    /// Asks the server.
    pub async fn discover(client: &Client) -> Result<Self, Failure> {
        let mut kinds = Self::default();
        let core = client.list_core_api_versions().await.map_err(Failure::when("list the API's versions"))?;
        for version in &core.versions {
            kinds.add(version, client.list_core_api_resources(version).await);
        }
        let groups = client.list_api_groups().await.map_err(Failure::when("list the API's groups"))?;
        for group in groups.groups {
            let preferred = group.preferred_version.as_ref().map(|v| v.group_version.clone());
            let mut versions: Vec<String> = group.versions.into_iter().map(|v| v.group_version).collect();
            versions.sort_by_key(|version| Some(version) != preferred.as_ref());
            for version in versions {
                let answer = client.list_api_group_resources(&version).await;
                kinds.add(&version, answer);
            }
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
            Err(error) => return self.silent.push((group_version.to_owned(), failure::text(&error))),
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
            let resource = Arc::new(Resource { api, namespaced: found.namespaced, verbs: found.verbs });
            if !self.resources.iter().any(|r| r.is(group, &resource.api.plural)) {
                self.resources.push(resource.clone());
            }
            self.by_kind.insert(key, resource);
        }
    }
}

/// The newest answer, and a bell for those who miss something in it.
#[derive(Default)]
pub struct Catalogue {
    current: RwLock<Arc<Kinds>>,
    pub missed: Notify,
}

impl Catalogue {
    pub fn current(&self) -> Arc<Kinds> {
        self.current.read().clone()
    }

    pub fn set(&self, kinds: Arc<Kinds>) {
        *self.current.write() = kinds;
    }
}
