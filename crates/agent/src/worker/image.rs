//! Resolves images: already present, or pulled with the pod's pull secrets.

use std::{collections::BTreeMap, time::Instant};

use base64::{Engine, engine::general_purpose::STANDARD};
use k8s_openapi::api::core::v1::{Pod, Secret};
use mainstay_runtime::{
    PodUid,
    images::{Auth, HOST_IMAGE, Image, PullError},
};
use serde::Deserialize;

use super::{WorkerContext, retry_state::FailureKind};
use crate::events::EventType;

pub struct NoImage {
    pub kind: FailureKind,
    pub message: String,
}

/// An image that a pod needs, and how it may be fetched.
pub struct ImageRequest<'a> {
    /// Whose it is; none for an image volume.
    pub container: Option<&'a str>,
    pub reference: &'a str,
    pub policy: &'a str,
}

impl ImageRequest<'_> {
    fn record(&self, context: &WorkerContext, pod: &Pod, event_type: EventType, reason: &'static str, message: String) {
        match self.container {
            Some(name) => context.events.container(pod, name, event_type, reason, message),
            None => context.events.pod(pod, event_type, reason, message),
        }
    }
}

pub async fn resolve(context: &WorkerContext, pod: &Pod, request: &ImageRequest<'_>) -> Result<Image, NoImage> {
    let ImageRequest { reference, policy, container } = *request;
    let images = context.runtime.images();
    let found = images.find(reference).await.map_err(|error| NoImage {
        kind: FailureKind::Create,
        message: format!("failed to look for image {reference:?}: {error}"),
    })?;
    match (found, policy) {
        (Some(image), _) if reference == HOST_IMAGE => Ok(image),
        (Some(image), "IfNotPresent" | "Never") => {
            let text = format!("{} {reference:?} already present on machine", kind(container));
            request.record(context, pod, EventType::Normal, "Pulled", text);
            Ok(image)
        }
        (None, "Never") => {
            let message = format!("{} {reference:?} is not present with pull policy of Never", kind(container));
            request.record(context, pod, EventType::Warning, "ErrImageNeverPull", message.clone());
            Err(NoImage { kind: FailureKind::NeverPull, message })
        }
        (Some(_), _) => pull(context, pod, request).await.map_err(|mut failure| {
            // Somebody imported it, or it was pulled while the registry could be reached.
            let hint = format!("image {reference:?} is on this machine; imagePullPolicy IfNotPresent would use it");
            request.record(context, pod, EventType::Normal, "ImagePresent", hint.clone());
            failure.message = format!("{}; {hint}", failure.message);
            failure
        }),
        (None, _) => pull(context, pod, request).await,
    }
}

/// As upstream calls it in messages.
fn kind(container: Option<&str>) -> &'static str {
    if container.is_some() { "Container image" } else { "Image" }
}

async fn pull(context: &WorkerContext, pod: &Pod, request: &ImageRequest<'_>) -> Result<Image, NoImage> {
    let reference = request.reference;
    let say = |event_type, reason, text: String| request.record(context, pod, event_type, reason, text);
    say(EventType::Normal, "Pulling", format!("Pulling image {reference:?}"));
    let since = Instant::now();
    let mut last = None;
    for auth in credentials(context, pod, reference).await {
        match context.runtime.images().pull(reference, auth.as_ref()).await {
            Ok(image) => {
                let took = since.elapsed().as_millis();
                let text = format!(
                    "Successfully pulled image {reference:?} in {took}ms ({took}ms including waiting). Image size: {} bytes.",
                    image.size
                );
                say(EventType::Normal, "Pulled", text);
                return Ok(image);
            }
            Err(error) => last = Some(error),
        }
    }
    let (kind, message, cause) = match last {
        Some(error @ PullError::InvalidName { .. }) => {
            (FailureKind::InvalidImageName, error.to_string(), error.cause())
        }
        Some(error) => (FailureKind::Pull, error.to_string(), error.cause()),
        None => (FailureKind::Pull, "nobody to ask".to_owned(), "nobody to ask".to_owned()),
    };
    say(EventType::Warning, "Failed", format!("Failed to pull image {reference:?}: {cause}"));
    say(EventType::Warning, "Failed", "Error: ErrImagePull".to_owned());
    Err(NoImage { kind, message })
}

/// Those of the pod's pull secrets that concern this registry, best first, then nobody's.
async fn credentials(context: &WorkerContext, pod: &Pod, reference: &str) -> Vec<Option<Auth>> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let names = pod.spec.iter().flat_map(|spec| spec.image_pull_secrets.iter().flatten());
    let uid = PodUid(pod.metadata.uid.clone().unwrap_or_default());
    let mut found = Vec::new();
    for name in names {
        match context.objects.secret(&uid, namespace, &name.name).await {
            Ok(secret) => found.extend(matching(&secret, reference).map(Some)),
            Err(error) => {
                let text = format!("Unable to retrieve some image pull secrets ({}): {error}", name.name);
                context.events.pod(pod, EventType::Warning, "FailedToRetrieveImagePullSecret", text);
            }
        }
    }
    found.push(None);
    found
}

#[derive(Deserialize)]
struct DockerConfig {
    auths: BTreeMap<String, Entry>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Entry {
    username: String,
    password: String,
    auth: String,
    #[serde(rename = "registrytoken")]
    token: String,
}

fn matching(secret: &Secret, reference: &str) -> Option<Auth> {
    let data = secret.data.as_ref()?;
    let auths = match (data.get(".dockerconfigjson"), data.get(".dockercfg")) {
        (Some(json), _) => serde_json::from_slice::<DockerConfig>(&json.0).ok()?.auths,
        (None, Some(old)) => serde_json::from_slice(&old.0).ok()?,
        (None, None) => return None,
    };
    let place = full_name(reference);
    let concerns = |key: &str| {
        let key = key.trim_start_matches("https://").trim_start_matches("http://").trim_end_matches('/');
        let key = key.trim_end_matches("/v1").trim_end_matches("/v2");
        let key = if key == "index.docker.io" { "docker.io" } else { key };
        place == key || place.starts_with(&format!("{key}/"))
    };
    let (_, entry) = auths.iter().filter(|(key, _)| concerns(key)).max_by_key(|(key, _)| key.len())?;
    let decoded = STANDARD.decode(&entry.auth).ok().and_then(|bytes| String::from_utf8(bytes).ok());
    let pair = decoded.as_deref().and_then(|text| text.split_once(':'));
    let (username, password) = pair.unwrap_or((&entry.username, &entry.password));
    Some(Auth { username: username.into(), password: password.into(), token: entry.token.clone() })
}

/// `busybox` → `docker.io/library/busybox`.
fn full_name(reference: &str) -> String {
    match reference.split_once('/') {
        None => format!("docker.io/library/{reference}"),
        Some((first, _)) if first.contains(['.', ':']) || first == "localhost" => reference.to_owned(),
        Some(_) => format!("docker.io/{reference}"),
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::ByteString;

    use super::*;

    fn secret(json: &str) -> Secret {
        let data = BTreeMap::from([(".dockerconfigjson".to_owned(), ByteString(json.as_bytes().to_vec()))]);
        Secret { data: Some(data), ..Secret::default() }
    }

    #[test]
    fn the_most_particular_credentials_of_a_registry_win() {
        let json = r#"{"auths":{"reg.example":{"username":"a","password":"b"},
            "https://reg.example/team/":{"auth":"YzpkOmU="},"https://index.docker.io/v1/":{"username":"hub"}}}"#;
        let user = |reference: &str| matching(&secret(json), reference).map(|auth| (auth.username, auth.password));
        assert_eq!(user("reg.example/x:1"), Some(("a".into(), "b".into())));
        assert_eq!(user("reg.example/team/x"), Some(("c".into(), "d:e".into())));
        assert_eq!(user("busybox").unwrap().0, "hub");
        assert_eq!(user("reg.example.evil/x"), None);
    }
}
