//! Images in the store of a CRI runtime.

use async_trait::async_trait;

use super::{
    call::{ACTION_TIMEOUT, CallContext, Client, PULL_TIMEOUT, QUERY_TIMEOUT, with_timeout},
    host_image, proto,
};
use crate::{
    error::RuntimeError,
    images::{Auth, DiskUsage, HOST_IMAGE, Image, Images, PullError},
    port::Result,
};

pub struct CriImages {
    client: Client,
}

impl CriImages {
    pub(super) fn new(client: Client) -> Self {
        Self { client }
    }
}

fn spec(image: &str) -> Option<proto::ImageSpec> {
    Some(proto::ImageSpec { image: image.to_owned() })
}

pub(super) async fn find(client: &Client, reference: &str) -> Result<Option<proto::Image>> {
    let request = proto::ImageStatusRequest { image: spec(reference) };
    let context = CallContext { doing: "look for an image", what: "image", id: reference };
    Ok(with_timeout(QUERY_TIMEOUT, context, client.images().image_status(request)).await?.image)
}

fn image(image: proto::Image) -> Image {
    Image {
        id: image.id,
        tags: image.repo_tags,
        digests: image.repo_digests,
        size: image.size,
        user: image.uid.map_or(image.username, |uid| uid.value.to_string()),
        created_at: None,
    }
}

#[async_trait]
impl Images for CriImages {
    async fn list(&self) -> Result<Vec<Image>> {
        let context = CallContext { doing: "list images", what: "runtime", id: "" };
        let request = proto::ListImagesRequest::default();
        let images = with_timeout(QUERY_TIMEOUT, context, self.client.images().list_images(request)).await?.images;
        Ok(images.into_iter().map(image).collect())
    }

    async fn find(&self, reference: &str) -> Result<Option<Image>> {
        if reference == HOST_IMAGE {
            return Err(host_image());
        }
        Ok(find(&self.client, reference).await?.map(image))
    }

    async fn pull(&self, reference: &str, auth: Option<&Auth>) -> std::result::Result<Image, PullError> {
        if reference == HOST_IMAGE {
            return Err(host_image().into());
        }
        let auth = auth.map(|auth| match auth.token.is_empty() {
            true => proto::AuthConfig {
                username: auth.username.clone(),
                password: auth.password.clone(),
                ..Default::default()
            },
            false => proto::AuthConfig { registry_token: auth.token.clone(), ..Default::default() },
        });
        let request = proto::PullImageRequest { image: spec(reference), auth };
        let context = CallContext { doing: "pull an image", what: "image", id: reference };
        let pulled = with_timeout(PULL_TIMEOUT, context, self.client.images().pull_image(request)).await;
        let pulled = pulled.map_err(|error| refusal(reference, error))?;
        let found = find(&self.client, &pulled.image_ref).await?.or(find(&self.client, reference).await?);
        found.map(image).ok_or_else(|| PullError::Failed {
            reference: reference.to_owned(),
            why: "the runtime pulled it but does not have it".to_owned(),
        })
    }

    async fn remove(&self, id: &str) -> Result<()> {
        let containers = self.client.containers(Default::default()).await?;
        if let Some(user) = containers.iter().find(|c| c.image_ref == id) {
            return Err(RuntimeError::Invalid { why: format!("container {} is made of image {id}", user.id) });
        }
        let request = proto::RemoveImageRequest { image: spec(id) };
        let context = CallContext { doing: "remove an image", what: "image", id };
        match with_timeout(ACTION_TIMEOUT, context, self.client.images().remove_image(request)).await {
            Err(RuntimeError::NotFound { .. }) => Ok(()),
            answer => answer.map(|_| ()),
        }
    }

    async fn usage(&self) -> Result<DiskUsage> {
        let context = CallContext { doing: "ask for the size of images", what: "runtime", id: "" };
        let answer = with_timeout(QUERY_TIMEOUT, context, self.client.images().image_fs_info(proto::Empty {})).await?;
        let value = |v: Option<proto::UInt64Value>| v.map_or(0, |v| v.value);
        Ok(answer.image_filesystems.into_iter().fold(DiskUsage::default(), |sum, one| DiskUsage {
            bytes: sum.bytes + value(one.used_bytes),
            inodes: sum.inodes + value(one.inodes_used),
        }))
    }
}

/// Runtimes say most of it in words only.
fn refusal(reference: &str, error: RuntimeError) -> PullError {
    let reference = reference.to_owned();
    let why = match error {
        RuntimeError::NotFound { .. } => return PullError::NotFound { reference },
        RuntimeError::Failed { why, .. } | RuntimeError::Invalid { why } => why,
        other => return PullError::Runtime(other),
    };
    let says = |words: &[&str]| words.iter().any(|word| why.contains(word));
    if says(&["invalid reference format", "failed to parse image reference", "repository name must be"]) {
        PullError::InvalidName { reference, why }
    } else if says(&["authorization failed", "pull access denied", "unauthorized", "401 ", "403 ", "denied"]) {
        PullError::Refused { reference, why }
    } else if says(&[": not found", "manifest unknown"]) {
        PullError::NotFound { reference }
    } else {
        PullError::Failed { reference, why }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_distinguished_by_their_words() {
        let of = |why: &str| refusal("r", RuntimeError::failed("pull", why));
        assert!(matches!(of("failed to resolve reference \"x\": y: not found"), PullError::NotFound { .. }));
        assert!(matches!(of("pull access denied, repository does not exist"), PullError::Refused { .. }));
        assert!(matches!(of("unexpected status: 401 Unauthorized"), PullError::Refused { .. }));
        assert!(matches!(of("failed to parse image reference \"A\": …"), PullError::InvalidName { .. }));
        assert!(matches!(of("dial tcp: lookup x: no such host"), PullError::Failed { .. }));
        let gone = refusal("r", RuntimeError::Unavailable { why: String::new() });
        assert!(matches!(gone, PullError::Runtime(RuntimeError::Unavailable { .. })));
    }
}
