//! Pod control: creating and deleting pods for an owner, with the events that upstream records about it.

use kube::Api;
use serde_json::Value;

use super::controller_ref::Owner;
use crate::{
    objects::pod::Pod,
    runtime::{ApiError, Context, ObjectKey, error, object_writes},
};

impl Context {
    pub fn pods_in(&self, namespace: &str) -> Api<Pod> {
        Api::namespaced(self.client.clone(), namespace)
    }

    /// Creates a pod. That one of this name exists is a conflict: the next reconcile sees it.
    pub async fn create_pod(&self, owner: &Owner, pod: &Value) -> Result<(), ApiError> {
        let name = pod["metadata"]["name"].as_str().unwrap_or_default();
        match self.post_pod(&owner.key.namespace, pod).await {
            Ok(made) => {
                self.caches.pods.wrote(made);
                self.events.normal(owner, "SuccessfulCreate", format!("Created pod: {name}"));
                Ok(())
            }
            Err(error) => {
                if !error::has_code(&error, 409) && !error::is_namespace_terminating(&error) {
                    let message = format!("Error creating: {}", error::message(&error));
                    self.events.warning(owner, "FailedCreate", message);
                }
                Err(ApiError::new(format!("create pod {}/{name}", owner.key.namespace), error))
            }
        }
    }

    pub async fn post_pod(&self, namespace: &str, pod: &Value) -> Result<Pod, kube::Error> {
        object_writes::create_from(&self.client, namespace, pod).await
    }

    /// Deletes a pod by name and uid. That it is gone already is as good; another under its name is a conflict.
    pub async fn delete_pod(&self, owner: &Owner, name: &str, uid: &str) -> Result<(), ApiError> {
        self.delete_pod_if_unchanged(owner, name, uid, None).await
    }

    /// The same, but only while it still has this version, if one is given.
    pub async fn delete_pod_if_unchanged(
        &self,
        owner: &Owner,
        name: &str,
        uid: &str,
        version: Option<String>,
    ) -> Result<(), ApiError> {
        let key = ObjectKey::new(owner.key.namespace.clone(), name);
        let result =
            object_writes::delete_if_unchanged(&self.pods_in(&key.namespace), &self.caches.pods, &key, uid, version)
                .await;
        match &result {
            Ok(true) => self.events.normal(owner, "SuccessfulDelete", format!("Deleted pod: {name}")),
            Ok(false) => {}
            Err(failure) if failure.is_conflict() => {}
            Err(failure) => {
                self.events.warning(owner, "FailedDelete", format!("Error deleting: {}", failure.message()));
            }
        }
        result.map(drop)
    }
}
