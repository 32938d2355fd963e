//! Objects of one Kluster's control plane: read, written and deleted, and never those of somebody else.
//!
//! An object of the same name that the Kluster does not own counts as absent when it is looked for, is not deleted, and is a failure that names it
//! when the Kluster's own is to be written.

use std::fmt::Debug;

use k8s_openapi::NamespaceResourceScope;
use kube::{
    Api, Client, Resource,
    api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions},
};
use mainstay_api::cloud::kluster::Kluster;
use mainstay_controllers::runtime::{ApiError, error};
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Whose fields of applied objects are.
const MANAGER: &str = "mainstay-klusters";

/// An error of ours as the source of an [`ApiError`].
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Refusal(pub String);

/// A kind that control planes are made of.
pub trait ControlPlaneKind:
    Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + Debug + DeserializeOwned
{
}

impl<K> ControlPlaneKind for K where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + Debug + DeserializeOwned
{
}

pub struct KlusterObjects<'a> {
    client: &'a Client,
    kluster: &'a Kluster,
}

impl<'a> KlusterObjects<'a> {
    pub fn new(client: &'a Client, kluster: &'a Kluster) -> Self {
        Self { client, kluster }
    }

    pub fn api<K: ControlPlaneKind>(&self) -> Api<K> {
        Api::namespaced(self.client.clone(), self.kluster.metadata.namespace.as_deref().unwrap_or_default())
    }

    fn is_own<K: Resource>(&self, object: &K) -> bool {
        let mut owners = object.meta().owner_references.iter().flatten();
        owners.any(|owner| Some(&owner.uid) == self.kluster.metadata.uid.as_ref())
    }

    /// Of this name, whoever owns it.
    pub async fn find<K: ControlPlaneKind>(&self, name: &str) -> Result<Option<K>, ApiError> {
        let doing = format!("get {} {name}", K::kind(&()));
        self.api::<K>().get_opt(name).await.map_err(ApiError::when(doing))
    }

    /// The Kluster's own of this name.
    pub async fn get<K: ControlPlaneKind>(&self, name: &str) -> Result<Option<K>, ApiError> {
        Ok(self.find::<K>(name).await?.filter(|object| self.is_own(object)))
    }

    async fn refuse_foreign<K: ControlPlaneKind>(&self, name: &str) -> Result<(), ApiError> {
        match self.find::<K>(name).await? {
            Some(object) if !self.is_own(&object) => {
                let kind = K::kind(&());
                let why = format!(
                    "there is a {kind} of this name that is not the Kluster's; delete it or rename the Kluster"
                );
                Err(ApiError::other(format!("write {kind} {name}"), Refusal(why)))
            }
            _ => Ok(()),
        }
    }

    /// Creates what is not there yet; what is stays as it is.
    pub async fn create<K>(&self, object: Value) -> Result<(), ApiError>
    where
        K: ControlPlaneKind + serde::Serialize,
    {
        let name = object_name(&object);
        let doing = format!("create {} {name}", K::kind(&()));
        let object = K::deserialize(&object).map_err(|source| ApiError::other(doing.clone(), source))?;
        match self.api::<K>().create(&PostParams::default(), &object).await {
            Ok(_) => Ok(()),
            Err(failure) if error::has_code(&failure, 409) => self.refuse_foreign::<K>(&name).await,
            Err(failure) => Err(ApiError::new(doing, failure)),
        }
    }

    /// Has an object be like this.
    pub async fn apply<K: ControlPlaneKind>(&self, object: Value) -> Result<(), ApiError> {
        let name = object_name(&object);
        self.refuse_foreign::<K>(&name).await?;
        let params = PatchParams::apply(MANAGER).force();
        let applied = self.api::<K>().patch(&name, &params, &Patch::Apply(object)).await;
        applied.map(drop).map_err(ApiError::when(format!("apply {} {name}", K::kind(&()))))
    }

    /// Deletes the Kluster's own of this name.
    pub async fn delete<K: ControlPlaneKind>(&self, name: &str) -> Result<(), ApiError> {
        let Some(object) = self.get::<K>(name).await? else { return Ok(()) };
        let preconditions = Preconditions { uid: object.meta().uid.clone(), resource_version: None };
        let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::background() };
        match self.api::<K>().delete(name, &params).await {
            Ok(_) => Ok(()),
            Err(failure) if error::has_code(&failure, 404) => Ok(()),
            Err(failure) => Err(ApiError::new(format!("delete {} {name}", K::kind(&())), failure)),
        }
    }
}

fn object_name(object: &Value) -> String {
    object["metadata"]["name"].as_str().unwrap_or_default().to_owned()
}
