//! Objects of any kind by their metadata: where they are, and lists of them.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{
    Api, Client,
    api::{DynamicObject, ListParams},
    core::PartialObjectMeta,
};

use super::{ApiError, discovery::ServerResource, error};

/// An object without its content.
pub type PartialMeta = PartialObjectMeta<DynamicObject>;

pub type Uid = Arc<str>;

const PAGE_SIZE: u32 = 500;

/// Where an object is: resource, namespace and name.
#[derive(Clone)]
pub struct ObjectLocation {
    pub resource: Arc<ServerResource>,
    pub namespace: Option<Arc<str>>,
    pub name: Arc<str>,
}

impl ObjectLocation {
    pub fn new(resource: Arc<ServerResource>, meta: &ObjectMeta) -> Self {
        let namespace = meta.namespace.as_deref().filter(|ns| !ns.is_empty() && resource.namespaced).map(Arc::from);
        Self { namespace, name: meta.name.as_deref().unwrap_or_default().into(), resource }
    }

    pub fn api(&self, client: &Client) -> Api<PartialMeta> {
        self.resource.api(client, self.namespace.as_deref())
    }

    /// The object there, or nothing if the API says so; anything else is not known.
    pub async fn get(&self, client: &Client) -> Result<Option<PartialMeta>, ApiError> {
        match self.api(client).get(&self.name).await {
            Ok(meta) => Ok(Some(meta)),
            Err(error) if error::is_not_found(&error, &self.name) => Ok(None),
            Err(error) => Err(ApiError::new(format!("get {self}"), error)),
        }
    }
}

impl std::fmt::Display for ObjectLocation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ", self.resource)?;
        if let Some(namespace) = &self.namespace {
            write!(f, "{namespace}/")?;
        }
        write!(f, "{}", self.name)
    }
}

impl std::fmt::Debug for ObjectLocation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self}")
    }
}

/// Calls `each` with every object of a resource, a page at a time.
pub async fn list_metadata(
    client: &Client,
    resource: &ServerResource,
    namespace: Option<&str>,
    mut each: impl FnMut(ObjectMeta),
) -> Result<(), kube::Error> {
    let api = resource.api(client, namespace);
    let mut params = ListParams::default().limit(PAGE_SIZE);
    loop {
        let page = api.list(&params).await?;
        page.items.into_iter().for_each(|object| each(object.metadata));
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(()),
        }
    }
}
