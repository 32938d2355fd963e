//! Creates, deletes and status writes that the caches learn of at once.

use kube::{
    Api, Client, Resource,
    api::{DeleteParams, PostParams, Preconditions},
    core::{NamespaceResourceScope, Request},
};
use serde::Serialize;
use serde_json::{Value, json};

use super::{ApiError, Cache, CachedObject, ObjectKey, error};

/// Creates an object from JSON that has more than our narrow type of it.
pub async fn create_from<K: CachedObject>(client: &Client, namespace: &str, object: &Value) -> Result<K, kube::Error> {
    let body = serde_json::to_vec(object).map_err(kube::Error::SerdeError)?;
    let requests = Request::new(K::url_path(&(), Some(namespace)));
    let request = requests.create(&PostParams::default(), body).map_err(kube::Error::BuildRequest)?;
    client.request(request).await
}

/// Deletes an object by name and uid, in the background, and lets the cache know. Says whether there was anything
/// to delete.
pub async fn delete<K: CachedObject>(
    api: &Api<K>,
    cache: &Cache<K>,
    key: &ObjectKey,
    uid: &str,
) -> Result<bool, ApiError> {
    delete_if_unchanged(api, cache, key, uid, None).await
}

/// The same, but only while the object still has this version, if one is given.
pub async fn delete_if_unchanged<K: CachedObject>(
    api: &Api<K>,
    cache: &Cache<K>,
    key: &ObjectKey,
    uid: &str,
    version: Option<String>,
) -> Result<bool, ApiError> {
    let params = DeleteParams {
        preconditions: Some(Preconditions { uid: Some(uid.to_owned()), resource_version: version }),
        ..DeleteParams::background()
    };
    match api.delete(&key.name, &params).await {
        Ok(answer) => {
            match answer.left().filter(|object| still_exists(object.meta())) {
                Some(object) => cache.wrote(object),
                None => cache.removed(key, uid),
            }
            Ok(true)
        }
        Err(error) if error::is_not_found(&error, &key.name) => {
            cache.removed(key, uid);
            Ok(false)
        }
        Err(error) => Err(ApiError::new(format!("delete {} {key:?}", K::kind(&()).to_lowercase()), error)),
    }
}

/// Writes the status of an object as a whole, unless the object changed since it was read.
pub async fn write_status<K, S>(client: &Client, cache: &Cache<K>, key: &ObjectKey, status: &S) -> Result<(), ApiError>
where
    K: CachedObject + Resource<Scope = NamespaceResourceScope> + Serialize,
    S: Serialize,
{
    let Some(judged) = cache.get(key) else { return Ok(()) };
    let failed = |error| ApiError::new(format!("write the status of {} {key:?}", K::kind(&()).to_lowercase()), error);
    let mut object = serde_json::to_value(&*judged).map_err(|error| failed(kube::Error::SerdeError(error)))?;
    object["status"] = json!(status);
    let body = serde_json::to_vec(&object).map_err(|error| failed(kube::Error::SerdeError(error)))?;
    let requests = Request::new(K::url_path(&(), Some(&key.namespace)));
    let request = requests.replace_subresource("status", &key.name, &PostParams::default(), body);
    match client.request::<K>(request.map_err(|error| failed(kube::Error::BuildRequest(error)))?).await {
        Ok(written) => cache.wrote(written),
        Err(error) if error::is_not_found(&error, &key.name) => {}
        Err(error) => return Err(failed(error)),
    }
    Ok(())
}

/// Whether an object that was deleted is still there: in its grace, or held by a finalizer.
pub fn still_exists(meta: &kube::api::ObjectMeta) -> bool {
    let grace = meta.deletion_grace_period_seconds.unwrap_or(0) > 0;
    let held = meta.finalizers.as_ref().is_some_and(|finalizers| !finalizers.is_empty());
    meta.deletion_timestamp.is_some() && (grace || held)
}
