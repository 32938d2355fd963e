//! Writes to pods whose results the scheduler learns from its watch: what the API answers is read, but not decoded into a pod.

use k8s_openapi::api::core::v1::Pod;
use kube::{
    Client, Resource,
    api::{DeleteParams, Patch, PatchParams, Preconditions},
    core::Request,
};
use serde::de::IgnoredAny;
use serde_json::Value;

use crate::core::view::PodKey;

pub async fn patch_status(client: &Client, pod: &PodKey, patch: &Patch<&Value>) -> Result<(), kube::Error> {
    let request = requests(pod).patch_subresource("status", &pod.name, &PatchParams::default(), patch);
    send(client, request).await
}

/// Deletes the pod with this uid, and no other of its name.
pub async fn delete(client: &Client, pod: &PodKey, uid: &str) -> Result<(), kube::Error> {
    let preconditions = Preconditions { uid: Some(uid.to_owned()), resource_version: None };
    let request = requests(pod).delete(&pod.name, &DeleteParams::default().preconditions(preconditions));
    send(client, request).await
}

fn requests(pod: &PodKey) -> Request {
    Request::new(Pod::url_path(&(), Some(&pod.namespace)))
}

async fn send(
    client: &Client,
    request: Result<http::Request<Vec<u8>>, kube::core::request::Error>,
) -> Result<(), kube::Error> {
    let IgnoredAny = client.request(request.map_err(kube::Error::BuildRequest)?).await?;
    Ok(())
}
