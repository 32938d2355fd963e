//! Making and deleting pods for an owner, in the way all controllers of workloads do it: the cache
//! learns of it at once, and an event tells.

use kube::{
    Api, Client, Resource,
    api::{DeleteParams, PostParams, Preconditions},
    core::{NamespaceResourceScope, Request},
};
use serde::Serialize;
use serde_json::{Value, json};

use super::{Workloads, owner::Owner, pod::Pod};
use crate::{
    cache::{Cache, Kept, Key},
    failure::{self, Failure},
};

impl Workloads {
    pub fn pods_in(&self, namespace: &str) -> Api<Pod> {
        Api::namespaced(self.client.clone(), namespace)
    }

    /// Makes a pod. One that is there under this name is a failure that says to look again.
    pub async fn create_pod(&self, owner: &Owner, pod: &Value) -> Result<(), Failure> {
        let name = pod["metadata"]["name"].as_str().unwrap_or_default();
        match self.post_pod(&owner.key.namespace, pod).await {
            Ok(made) => {
                self.caches.pods.wrote(made);
                self.events.normal(owner, "SuccessfulCreate", format!("Created pod: {name}"));
                Ok(())
            }
            Err(error) => {
                if !failure::is(&error, 409) && !failure::namespace_goes(&error) {
                    let message = format!("Error creating: {}", failure::text(&error));
                    self.events.warning(owner, "FailedCreate", message);
                }
                Err(Failure::new(format!("create pod {}/{name}", owner.key.namespace), error))
            }
        }
    }

    pub async fn post_pod(&self, namespace: &str, pod: &Value) -> Result<Pod, kube::Error> {
        post(&self.client, namespace, pod).await
    }

    /// Deletes a pod, this very one. That it is gone already is as good; another under its name means to look again.
    pub async fn delete_pod(&self, owner: &Owner, name: &str, uid: &str) -> Result<(), Failure> {
        self.delete_pod_seen(owner, name, uid, None).await
    }

    /// The same, but only as long as it is as it was seen, if a version says so.
    pub async fn delete_pod_seen(
        &self,
        owner: &Owner,
        name: &str,
        uid: &str,
        version: Option<String>,
    ) -> Result<(), Failure> {
        let key = Key::new(owner.key.namespace.clone(), name);
        let result = delete_seen(&self.pods_in(&key.namespace), &self.caches.pods, &key, uid, version).await;
        match &result {
            Ok(true) => self.events.normal(owner, "SuccessfulDelete", format!("Deleted pod: {name}")),
            Ok(false) => {}
            Err(failure) if failure.is_stale() => {}
            Err(failure) => {
                self.events.warning(owner, "FailedDelete", format!("Error deleting: {}", failure.answer()));
            }
        }
        result.map(drop)
    }
}

/// Makes an object of what is more than our narrow view of it.
pub async fn post<K: Kept>(client: &Client, namespace: &str, object: &Value) -> Result<K, kube::Error> {
    let body = serde_json::to_vec(object).map_err(kube::Error::SerdeError)?;
    let requests = Request::new(K::url_path(&(), Some(namespace)));
    let request = requests.create(&PostParams::default(), body).map_err(kube::Error::BuildRequest)?;
    client.request(request).await
}

/// Deletes an object by name and uid, in the background, and lets the cache know. Says whether there was anything
/// to delete.
pub async fn delete<K: Kept>(api: &Api<K>, cache: &Cache<K>, key: &Key, uid: &str) -> Result<bool, Failure> {
    delete_seen(api, cache, key, uid, None).await
}

/// The same, but only as long as it is as it was seen, if a version says so.
pub async fn delete_seen<K: Kept>(
    api: &Api<K>,
    cache: &Cache<K>,
    key: &Key,
    uid: &str,
    version: Option<String>,
) -> Result<bool, Failure> {
    let params = DeleteParams {
        preconditions: Some(Preconditions { uid: Some(uid.to_owned()), resource_version: version }),
        ..DeleteParams::background()
    };
    match api.delete(&key.name, &params).await {
        Ok(answer) => {
            match answer.left().filter(|object| lingers(object.meta())) {
                Some(object) => cache.wrote(object),
                None => cache.removed(key, uid),
            }
            Ok(true)
        }
        Err(error) if failure::no_such_object(&error, &key.name) => {
            cache.removed(key, uid);
            Ok(false)
        }
        Err(error) => Err(Failure::new(format!("delete {} {key:?}", K::kind(&()).to_lowercase()), error)),
    }
}

/// Writes the status of an object as a whole, unless the object has changed since it was judged.
pub async fn report<K, S>(client: &Client, cache: &Cache<K>, key: &Key, status: &S) -> Result<(), Failure>
where
    K: Kept + Resource<Scope = NamespaceResourceScope> + Serialize,
    S: Serialize,
{
    let Some(judged) = cache.get(key) else { return Ok(()) };
    let failed = |error| Failure::new(format!("write the status of {} {key:?}", K::kind(&()).to_lowercase()), error);
    let mut object = serde_json::to_value(&*judged).map_err(|error| failed(kube::Error::SerdeError(error)))?;
    object["status"] = json!(status);
    let object: K = serde_json::from_value(object).map_err(|error| failed(kube::Error::SerdeError(error)))?;
    let objects: Api<K> = Api::namespaced(client.clone(), &key.namespace);
    match objects.replace_status(&key.name, &PostParams::default(), &object).await {
        Ok(written) => cache.wrote(written),
        Err(error) if failure::no_such_object(&error, &key.name) => {}
        Err(error) => return Err(failed(error)),
    }
    Ok(())
}

/// Whether an object that was deleted is still there: in its grace, or held by a finalizer.
pub fn lingers(meta: &kube::api::ObjectMeta) -> bool {
    let grace = meta.deletion_grace_period_seconds.unwrap_or(0) > 0;
    let held = meta.finalizers.as_ref().is_some_and(|finalizers| !finalizers.is_empty());
    meta.deletion_timestamp.is_some() && (grace || held)
}
