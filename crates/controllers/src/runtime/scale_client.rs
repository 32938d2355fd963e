//! The `scale` subresource of objects of any kind: how many replicas they want and have.

use k8s_openapi::api::autoscaling::v1::Scale;
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, PostParams},
    core::{GroupVersionKind, Request},
    discovery,
};

use super::error;

/// Why there is no scale.
#[derive(Debug, thiserror::Error)]
pub enum ScaleError {
    #[error("no matches for kind {kind:?} in version {api_version:?}")]
    NoKind { kind: String, api_version: String },
    #[error("{resource} does not implement the scale subresource")]
    NotScalable { resource: String },
    #[error("{}", error::message(.0))]
    Api(kube::Error),
}

/// An object by the words of a reference to it.
#[derive(Clone, Copy, Debug)]
pub struct ScaleReference<'a> {
    pub namespace: &'a str,
    pub api_version: &'a str,
    pub kind: &'a str,
    pub name: &'a str,
}

/// The scale of an object, and its resource.
pub async fn get(client: &Client, target: ScaleReference<'_>) -> Result<(ApiResource, Scale), ScaleError> {
    let (group, version) = target.api_version.split_once('/').unwrap_or(("", target.api_version));
    let kind = GroupVersionKind::gvk(group, version, target.kind);
    let no_kind = || ScaleError::NoKind { kind: target.kind.to_owned(), api_version: target.api_version.to_owned() };
    let (resource, capabilities) = discovery::pinned_kind(client, &kind).await.map_err(|error| match error {
        kube::Error::Discovery(_) => no_kind(),
        error if error::has_code(&error, 404) => no_kind(),
        error => ScaleError::Api(error),
    })?;
    if !capabilities.subresources.iter().any(|(sub, _)| sub.plural == "scale") {
        let resource = if group.is_empty() { resource.plural } else { format!("{}.{group}", resource.plural) };
        return Err(ScaleError::NotScalable { resource });
    }
    let request = Request::new(url(client, target.namespace, &resource)).get_subresource("scale", target.name);
    let request = request.map_err(|error| ScaleError::Api(kube::Error::BuildRequest(error)))?;
    let scale = client.request(request).await.map_err(ScaleError::Api)?;
    Ok((resource, scale))
}

/// Writes a scale, unless the object changed since the scale was read.
pub async fn replace(
    client: &Client,
    namespace: &str,
    resource: &ApiResource,
    scale: &Scale,
) -> Result<Scale, kube::Error> {
    let name = scale.metadata.name.as_deref().unwrap_or_default();
    let body = serde_json::to_vec(scale).map_err(kube::Error::SerdeError)?;
    let requests = Request::new(url(client, namespace, resource));
    let request = requests.replace_subresource("scale", name, &PostParams::default(), body);
    client.request(request.map_err(kube::Error::BuildRequest)?).await
}

fn url(client: &Client, namespace: &str, resource: &ApiResource) -> String {
    Api::<DynamicObject>::namespaced_with(client.clone(), namespace, resource).resource_url().to_owned()
}
