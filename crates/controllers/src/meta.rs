//! Objects of any kind, as far as their metadata goes.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{
    Api, Client,
    api::{DynamicObject, ListParams},
    core::PartialObjectMeta,
};

use crate::{
    catalogue::Resource,
    failure::{self, Failure},
};

/// An object without its content.
pub type Meta = PartialObjectMeta<DynamicObject>;

pub type Uid = Arc<str>;

const PAGE: u32 = 500;

/// Where an object is.
#[derive(Clone)]
pub struct Place {
    pub resource: Arc<Resource>,
    pub namespace: Option<Arc<str>>,
    pub name: Arc<str>,
}

impl Place {
    pub fn new(resource: Arc<Resource>, meta: &ObjectMeta) -> Self {
        let namespace = meta.namespace.as_deref().filter(|ns| !ns.is_empty() && resource.namespaced).map(Arc::from);
        Self { namespace, name: meta.name.as_deref().unwrap_or_default().into(), resource }
    }

    pub fn api(&self, client: &Client) -> Api<Meta> {
        self.resource.api(client, self.namespace.as_deref())
    }

    /// The object there, or nothing if the API says so; anything else is not known.
    pub async fn get(&self, client: &Client) -> Result<Option<Meta>, Failure> {
        match self.api(client).get(&self.name).await {
            Ok(meta) => Ok(Some(meta)),
            Err(error) if failure::no_such_object(&error, &self.name) => Ok(None),
            Err(error) => Err(Failure::new(format!("get {self}"), error)),
        }
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ", self.resource)?;
        if let Some(namespace) = &self.namespace {
            write!(f, "{namespace}/")?;
        }
        write!(f, "{}", self.name)
    }
}

impl std::fmt::Debug for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self}")
    }
}

/// Calls `each` with every object of a resource, a page at a time.
pub async fn for_each(
    client: &Client,
    resource: &Resource,
    namespace: Option<&str>,
    mut each: impl FnMut(ObjectMeta),
) -> Result<(), kube::Error> {
    let api = resource.api(client, namespace);
    let mut params = ListParams::default().limit(PAGE);
    loop {
        let page = api.list(&params).await?;
        page.items.into_iter().for_each(|object| each(object.metadata));
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(()),
        }
    }
}
