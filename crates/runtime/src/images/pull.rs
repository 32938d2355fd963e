//! Pulls an image: manifest, configuration, then the layers that are not there yet, fetched beside each other and extracted one
//! upon the other. Until the last step nothing counts; what was completed before an interruption is not done again.

use std::sync::Arc;

use futures::StreamExt;
use mainstay_errors::error_chain;
use oci_client::Reference;
use tokio_util::task::AbortOnDropHandle;

use super::{
    Auth, Image, Images, PullError,
    document::{self, Descriptor, Manifest},
    layers::{self, ExpectedLayer},
    name,
    registry::{Blob, Registry},
    store::ImageStore,
};
use crate::error::RuntimeError;

/// Layers fetched at the same time.
const PARALLEL: usize = 3;
/// An index of indexes of indexes is no image.
const DEEPEST: usize = 3;
/// Layers may be collected between being found and being named; then they are fetched again.
const ROUNDS: usize = 3;

struct Layer {
    descriptor: Descriptor,
    diff_id: String,
    chain_id: String,
    below: Vec<String>,
}

pub async fn pull(store: &ImageStore, reference: &str, auth: Option<&Auth>) -> Result<Image, PullError> {
    let name = name::parse(reference)?;
    let registry = Arc::new(Registry::open(reference, &name, auth, &store.inner.options).await?);
    let (config, descriptors, digest) = resolve(&registry).await?;
    let json = registry.config(&config).await?;
    let parsed = document::parse_config(&json).map_err(|e| registry.failed(error_chain(&e)))?;
    if descriptors.len() != parsed.diff_ids.len() {
        let (layers, ids) = (descriptors.len(), parsed.diff_ids.len());
        return Err(registry.failed(document::DocumentError::Layers { layers, ids }.to_string()));
    }
    let chain_ids = layers::chain_ids(&parsed.diff_ids);
    let layers = || {
        descriptors.iter().zip(&parsed.diff_ids).enumerate().map(|(number, (descriptor, diff_id))| Layer {
            descriptor: descriptor.clone(),
            diff_id: diff_id.clone(),
            chain_id: chain_ids[number].clone(),
            below: chain_ids[..number].to_vec(),
        })
    };
    for _ in 0..ROUNDS {
        fetch(store, &registry, layers().collect()).await?;
        if commit(store, &config.digest, &parsed, &name, &digest)? {
            let image = store.find(&config.digest).await?;
            return image.ok_or_else(|| registry.failed("it was removed as soon as it was there".to_owned()));
        }
    }
    Err(registry.failed("its layers are removed as fast as they are fetched".to_owned()))
}

/// Down from the name to the image for this machine: configuration, layers, and the digest of what is named.
async fn resolve(registry: &Registry) -> Result<(Descriptor, Vec<Descriptor>, String), PullError> {
    let (mut json, named) = registry.manifest(None).await?;
    for _ in 0..DEEPEST {
        let manifest = document::parse_manifest(&json).map_err(|e| registry.failed(error_chain(&e)))?;
        match manifest {
            Manifest::Image { config, layers } => return Ok((config, layers, named)),
            Manifest::Index(entries) => {
                let entry = document::for_this_machine(&entries).map_err(|e| registry.failed(error_chain(&e)))?;
                json = registry.manifest(Some(&entry.digest)).await?.0;
            }
        }
    }
    Err(registry.failed("it is an index of nothing but indexes".to_owned()))
}

fn commit(
    store: &ImageStore,
    id: &str,
    parsed: &document::ParsedConfig,
    name: &Reference,
    digest: &str,
) -> Result<bool, PullError> {
    let tags: Vec<String> = if name.digest().is_some() { Vec::new() } else { name::tagged(name).into_iter().collect() };
    Ok(store.commit(id, parsed, &tags, &[name::with_digest(name, digest)])?)
}

async fn fetch(store: &ImageStore, registry: &Arc<Registry>, layers: Vec<Layer>) -> Result<(), PullError> {
    // Each in a task of its own, so that one is not starved while another is extracted. A layer's lock is held from before its
    // download until it is extracted; who holds one waits only for layers below it, so nobody waits in a circle.
    let downloads = layers.into_iter().map(|layer| {
        let (store, registry) = (store.clone(), registry.clone());
        AbortOnDropHandle::new(tokio::spawn(async move {
            let lock = store.layer_lock(&layer.chain_id).lock_owned().await;
            if layers::exists(&store.inner.files, &layer.chain_id) {
                return Ok((layer, None));
            }
            let blob = registry.blob(&store.inner.files, &layer.descriptor).await?;
            Ok::<_, PullError>((layer, Some((blob, lock))))
        }))
    });
    let mut downloads = futures::stream::iter(downloads).buffered(PARALLEL);
    while let Some(done) = downloads.next().await {
        let (layer, fetched) = done.map_err(|e| registry.failed(e.to_string()))??;
        if let Some((blob, _lock)) = fetched {
            extract(store, registry, layer, blob).await?;
        }
    }
    Ok(())
}

async fn extract(store: &ImageStore, registry: &Registry, layer: Layer, blob: Blob) -> Result<(), PullError> {
    let files = store.inner.files.clone();
    let work = tokio::task::spawn_blocking(move || {
        let wanted = ExpectedLayer {
            chain_id: &layer.chain_id,
            diff_id: &layer.diff_id,
            digest: None, // verified when fetched
            below: &layer.below,
        };
        let added = blob
            .open()
            .map_err(|e| e.to_string())
            .and_then(|content| layers::add(&files, &wanted, content).map_err(|e| error_chain(&e)));
        blob.discard();
        added
    });
    let added = work.await.map_err(|e| PullError::Runtime(RuntimeError::failed("extract a layer", e)))?;
    added.map_err(|why| registry.failed(why))
}

#[cfg(test)]
#[path = "pull/tests.rs"]
mod tests;
