//! The image store of the built-in runtime.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, Weak},
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::{
    Auth, DiskUsage, HOST_IMAGE, Image, Images, PullError, VOLUME_PREFIX,
    closed_files::closed_paths,
    collect::{self, Candidate},
    document::{ImageConfig, ParsedConfig},
    files::{Files, IndexSignature},
    index::{Index, Record},
    layers, pull,
    rootfs::{self, Owners, Rootfs},
};
use crate::{error::RuntimeError, port::Result};

/// Layers that no image names are left alone this long: someone may be about to name them.
const ORPHAN_AGE: Duration = Duration::from_secs(3600);

#[derive(Clone, Debug)]
pub struct Options {
    /// Directories of the machine that are empty in the image `host`.
    pub hidden: Vec<PathBuf>,
    /// Finds more such directories, each time a container of that image is made: data directories of other instances.
    pub find_hidden: fn() -> io::Result<Vec<PathBuf>>,
    /// Registries spoken to without TLS, as `host` or `host:port`. Those on this machine are anyway.
    pub insecure: Vec<String>,
    /// A registry that sends nothing for so long has failed.
    pub stall: Duration,
    /// Images used within this time are not collected.
    pub young: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            hidden: vec!["/run".into(), "/tmp".into()],
            find_hidden: || Ok(Vec::new()),
            insecure: Vec::new(),
            stall: Duration::from_secs(60),
            young: Duration::from_secs(120),
        }
    }
}

/// Images on this machine, shared by all clones and with other processes that open the same directory.
///
/// What is not `async` here waits for the disk: call it where waiting is allowed.
#[derive(Clone)]
pub struct ImageStore {
    pub(super) inner: Arc<Inner>,
}

pub(super) struct Inner {
    pub files: Files,
    pub options: Options,
    cached: Mutex<Option<(IndexSignature, Arc<Index>)>>,
    /// Who fetches or extracts a layer holds its lock; others wait and then find it there.
    busy: Mutex<HashMap<String, Weak<tokio::sync::Mutex<()>>>>,
}

impl ImageStore {
    pub fn open(directory: &Path) -> Result<Self> {
        Self::open_with(directory, Options::default())
    }

    /// The image `host` does not show the data directory either, if `directory` is `<data>/runtime/images`.
    pub fn open_with(directory: &Path, mut options: Options) -> Result<Self> {
        let failed = |e| RuntimeError::failed(format!("open the image store {}", directory.display()), e);
        let files = Files::open(directory).map_err(failed)?;
        files.tidy().map_err(failed)?;
        if files.root().ends_with("runtime/images") {
            options.hidden.extend(files.root().ancestors().nth(2).map(Path::to_path_buf));
        }
        let inner = Inner { files, options, cached: Mutex::default(), busy: Mutex::default() };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// How an image wants to be run. The image `host` wants nothing in particular.
    pub fn config(&self, image_id: &str) -> Result<ImageConfig> {
        if image_id == HOST_IMAGE {
            return Ok(ImageConfig::default());
        }
        self.record(image_id).map(|(_, record)| record.config)
    }

    /// A root filesystem of the container's own, mounted. Asked again, the same.
    pub fn prepare_rootfs(&self, image_id: &str, container_id: &str) -> Result<Rootfs> {
        self.prepare_rootfs_for(image_id, container_id, None)
    }

    /// One whose files belong to the ids of a pod's user namespace.
    pub fn prepare_rootfs_for(
        &self,
        image_id: &str,
        container_id: &str,
        owners: Option<&Owners<'_>>,
    ) -> Result<Rootfs> {
        let files = &self.inner.files;
        let _lock = files.lock_shared().map_err(|e| RuntimeError::failed("lock the image store", e))?;
        let (id, layers) = if image_id == HOST_IMAGE {
            (HOST_IMAGE.to_owned(), Vec::new())
        } else {
            let (id, record) = self.record(image_id)?;
            (id, record.layers)
        };
        let hidden = if id == HOST_IMAGE { self.hidden_paths()? } else { Vec::new() };
        let rootfs = rootfs::prepare(files, &id, &layers, container_id, &hidden, owners)?;
        if let Err(error) = files.touch(&id) {
            tracing::debug!(%error, image = id, "cannot record the last use of an image");
        }
        Ok(rootfs)
    }

    /// What the image `host` does not show of the machine.
    fn hidden_paths(&self) -> Result<Vec<PathBuf>> {
        let options = &self.inner.options;
        let found = (options.find_hidden)()
            .map_err(|e| RuntimeError::failed("find the data directories that the image host must not show", e))?;
        let closed = closed_paths(Path::new("/"))
            .map_err(|e| RuntimeError::failed("find the files that the image host must not show", e))?;
        Ok(options.hidden.iter().cloned().chain(found).chain(closed).collect())
    }

    /// Unmounts and deletes it, if there is one. What is still mounted in it keeps it from being deleted.
    pub fn release_rootfs(&self, container_id: &str) -> Result<()> {
        rootfs::release(&self.inner.files, container_id)
    }

    /// What the container wrote to its root filesystem.
    pub fn rootfs_bytes(&self, container_id: &str) -> Result<u64> {
        rootfs::upper_bytes(&self.inner.files, container_id)
    }

    /// The containers whose root filesystem was prepared and not released.
    pub fn prepared(&self) -> Result<Vec<String>> {
        Ok(self.containers()?.into_iter().map(|(container, _)| container).collect())
    }

    fn containers(&self) -> Result<Vec<(String, String)>> {
        rootfs::list_prepared(&self.inner.files).map_err(|e| RuntimeError::failed("list the root filesystems", e))
    }

    pub(super) fn index(&self) -> Result<Arc<Index>> {
        let files = &self.inner.files;
        let failed = |e| RuntimeError::failed(format!("read {}", files.index().display()), e);
        let now = files.signature();
        let mut cached = self.inner.cached.lock();
        if let Some((observed, index)) = &*cached
            && *observed == now
        {
            return Ok(index.clone());
        }
        let index = Arc::new(files.read_index().map_err(failed)?);
        *cached = Some((now, index.clone()));
        Ok(index)
    }

    fn record(&self, reference: &str) -> Result<(String, Record)> {
        let index = self.index()?;
        let found = index.find(reference).map(|(id, record)| (id.clone(), record.clone()));
        found.ok_or_else(|| RuntimeError::ImageMissing { image: reference.to_owned() })
    }

    /// Makes layers that are all there an image. `false` if a layer went meanwhile.
    pub(super) fn commit(&self, id: &str, parsed: &ParsedConfig, tags: &[String], digests: &[String]) -> Result<bool> {
        let files = &self.inner.files;
        let failed = |e| RuntimeError::failed("write the image index", e);
        let chain = layers::chain_ids(&parsed.diff_ids);
        let _lock = files.lock().map_err(failed)?;
        let mut size = 0;
        for layer in &chain {
            if !layers::exists(files, layer) {
                return Ok(false);
            }
            size += layers::usage(files, layer).map_err(failed)?.bytes;
        }
        let mut index = files.read_index().map_err(failed)?;
        let record = Record {
            tags: tags.iter().cloned().collect(),
            digests: digests.iter().cloned().collect(),
            layers: chain,
            size,
            created_at: parsed.created_at,
            added_at: Timestamp::now(),
            config: parsed.config.clone(),
        };
        index.insert(id, record);
        files.touch(id).map_err(failed)?;
        files.write_index(&index).map_err(failed)?;
        Ok(true)
    }

    /// Gives an image one more name, and answers it in full. A name that another image had is this one's from now on.
    pub fn add_name(&self, reference: &str, name: &str) -> Result<String> {
        let invalid = |why: String| RuntimeError::Invalid { why };
        let parsed = super::name::parse(name).map_err(|error| invalid(error.to_string()))?;
        let tag = super::name::tagged(&parsed).filter(|_| parsed.digest().is_none());
        let tag = tag.ok_or_else(|| invalid(format!("{name:?} is a digest; give a name and a tag, as in web:v1")))?;
        if name == HOST_IMAGE {
            return Err(invalid(format!("the name {HOST_IMAGE} is this machine's")));
        }
        if reference == HOST_IMAGE {
            return Err(invalid(format!("the image {HOST_IMAGE} is this machine; it has no other name")));
        }
        let files = &self.inner.files;
        let failed = |e| RuntimeError::failed("write the image index", e);
        let _lock = files.lock().map_err(failed)?;
        let mut index = files.read_index().map_err(failed)?;
        let found = index.find(reference).map(|(id, record)| (id.clone(), record.clone()));
        let (id, record) = found.ok_or_else(|| RuntimeError::ImageMissing { image: reference.to_owned() })?;
        index.insert(&id, Record { tags: BTreeSet::from([tag.clone()]), ..record.clone() });
        if let Some(named) = index.images.get_mut(&id) {
            named.tags.extend(record.tags);
        }
        files.write_index(&index).map_err(failed)?;
        Ok(tag)
    }

    /// Removes the image, or only this one of its names if it has others. Answers the bytes freed.
    pub fn remove_name(&self, reference: &str) -> Result<u64> {
        let name = super::name::parse(reference).ok();
        let tag = name.as_ref().filter(|name| name.digest().is_none()).and_then(super::name::tagged);
        self.remove_images(|index| {
            let Some((id, record)) = index.find(reference) else { return Vec::new() };
            let id = id.clone();
            match &tag {
                Some(tag) if record.tags.contains(tag) && record.tags.len() > 1 => {
                    if let Some(record) = index.images.get_mut(&id) {
                        record.tags.remove(tag);
                    }
                    Vec::new()
                }
                _ => vec![id],
            }
        })
    }

    /// Removes images that nothing uses, the least recently used first, until so many bytes are free. Answers how
    /// many are. `in_use` adds to what this store's own containers are made of.
    pub fn collect(&self, in_use: &BTreeSet<String>, bytes_to_free: u64) -> Result<u64> {
        let files = &self.inner.files;
        let failed = |e| RuntimeError::failed("collect unused images", e);
        let mut in_use = in_use.clone();
        in_use.extend(self.containers()?.into_iter().map(|(_, image)| image));
        let young = SystemTime::now().checked_sub(self.inner.options.young).unwrap_or(SystemTime::UNIX_EPOCH);
        let orphans = self.remove_orphans().map_err(failed)?;
        let freed = self.remove_images(|index| {
            let candidates: Vec<Candidate> = index
                .images
                .iter()
                .map(|(id, record)| Candidate {
                    id: id.clone(),
                    layers: record.layers.clone(),
                    last_used: files.last_used(id).unwrap_or(record.added_at.into()),
                })
                .collect();
            let all: BTreeSet<&String> = index.images.values().flat_map(|record| &record.layers).collect();
            let size = |layer: &String| layers::usage(files, layer).map(|usage| usage.bytes).unwrap_or(0);
            let sizes: BTreeMap<String, u64> = all.into_iter().map(|layer| (layer.clone(), size(layer))).collect();
            collect::choose(&candidates, &in_use, &sizes, young, bytes_to_free.saturating_sub(orphans))
        })?;
        Ok(orphans + freed)
    }

    /// Lets `choose` pick images to remove, with the store locked; removes those that no container is made of, and the layers
    /// that only they had.
    fn remove_images(&self, choose: impl FnOnce(&mut Index) -> Vec<String>) -> Result<u64> {
        let files = &self.inner.files;
        let failed = |e| RuntimeError::failed("remove an image", e);
        let scratch = files.scratch().map_err(failed)?;
        let mut freed = 0;
        {
            let _lock = files.lock().map_err(failed)?;
            let before = files.read_index().map_err(failed)?;
            let mut index = before.clone();
            let chosen = choose(&mut index);
            let containers = self.containers()?;
            let mut layers = BTreeSet::new();
            for id in chosen {
                if let Some((container, _)) = containers.iter().find(|(_, image)| *image == id) {
                    return Err(RuntimeError::Invalid {
                        why: format!("image {id} is in use by container {container}"),
                    });
                }
                if let Some(record) = index.images.remove(&id) {
                    layers.extend(record.layers);
                }
                if let Some(used) = files.used(&id) {
                    let _ = fs::remove_file(used);
                }
            }
            if index != before {
                files.write_index(&index).map_err(failed)?;
            }
            for (number, layer) in index.unused(&layers).iter().enumerate() {
                freed += layers::usage(files, layer).map(|usage| usage.bytes).unwrap_or(0);
                if let Some(path) = files.layer(layer).filter(|path| path.exists()) {
                    fs::rename(path, scratch.path().join(number.to_string())).map_err(failed)?;
                }
            }
        }
        drop(scratch); // deletes, with the store unlocked
        Ok(freed)
    }

    /// Layers that were extracted for an image that never came to be.
    fn remove_orphans(&self) -> std::io::Result<u64> {
        let files = &self.inner.files;
        let scratch = files.scratch()?;
        let _lock = files.lock()?;
        let index = files.read_index()?;
        let mut freed = 0;
        for entry in fs::read_dir(files.layers())? {
            let entry = entry?;
            let id = format!("sha256:{}", entry.file_name().to_string_lossy());
            let age = SystemTime::now().duration_since(entry.metadata()?.modified()?).unwrap_or_default();
            if age > ORPHAN_AGE && !index.unused([&id]).is_empty() {
                freed += layers::usage(files, &id).map(|usage| usage.bytes).unwrap_or(0);
                fs::rename(entry.path(), scratch.path().join(entry.file_name()))?;
            }
        }
        Ok(freed)
    }

    /// One at a time per layer, within this process.
    pub(super) fn layer_lock(&self, layer: &str) -> Arc<tokio::sync::Mutex<()>> {
        let mut busy = self.inner.busy.lock();
        busy.retain(|_, lock| lock.strong_count() > 0);
        if let Some(lock) = busy.get(layer).and_then(Weak::upgrade) {
            return lock;
        }
        let lock = Arc::new(tokio::sync::Mutex::new(()));
        busy.insert(layer.to_owned(), Arc::downgrade(&lock));
        lock
    }
}

fn host_image() -> Image {
    Image { id: HOST_IMAGE.to_owned(), tags: vec![HOST_IMAGE.to_owned()], ..Image::default() }
}

#[async_trait]
impl Images for ImageStore {
    async fn list(&self) -> Result<Vec<Image>> {
        let index = self.index()?;
        Ok(std::iter::once(host_image()).chain(index.images.iter().map(|(id, record)| record.image(id))).collect())
    }

    async fn find(&self, reference: &str) -> Result<Option<Image>> {
        if reference == HOST_IMAGE {
            return Ok(Some(host_image()));
        }
        Ok(self.index()?.find(reference).map(|(id, record)| record.image(id)))
    }

    async fn pull(&self, reference: &str, auth: Option<&Auth>) -> std::result::Result<Image, PullError> {
        if reference == HOST_IMAGE {
            return Ok(host_image());
        }
        pull::pull(self, reference, auth).await
    }

    async fn remove(&self, id: &str) -> Result<()> {
        if id == HOST_IMAGE {
            return Err(RuntimeError::Invalid { why: "the image host is this machine; it cannot be removed".into() });
        }
        let (store, reference) = (self.clone(), id.to_owned());
        blocking(move || {
            store
                .remove_images(|index| index.find(&reference).map(|(id, _)| vec![id.clone()]).unwrap_or_default())
                .map(drop)
        })
        .await
    }

    async fn usage(&self) -> Result<DiskUsage> {
        let store = self.clone();
        blocking(move || {
            let index = store.index()?;
            let all: BTreeSet<&String> = index.images.values().flat_map(|record| &record.layers).collect();
            let mut total = DiskUsage::default();
            for usage in all.into_iter().filter_map(|layer| layers::usage(&store.inner.files, layer).ok()) {
                total.bytes += usage.bytes;
                total.inodes += usage.inodes;
            }
            Ok(total)
        })
        .await
    }

    async fn mount_volume(&self, image_id: &str, volume: &str) -> Result<PathBuf> {
        let (store, image_id, volume) = (self.clone(), image_id.to_owned(), volume.to_owned());
        blocking(move || store.prepare_rootfs(&image_id, &volume).map(|rootfs| rootfs.path)).await
    }

    async fn unmount_volumes(&self, prefix: &str) -> Result<()> {
        let (store, prefix) = (self.clone(), prefix.to_owned());
        blocking(move || {
            let prepared = store.prepared()?.into_iter();
            prepared
                .filter(|id| id.starts_with(VOLUME_PREFIX) && id.starts_with(&prefix))
                .try_for_each(|id| store.release_rootfs(&id))
        })
        .await
    }

    fn changes(&self) -> Option<watch::Receiver<u64>> {
        Some(super::watch::follow(self.inner.files.clone()))
    }
}

/// Work that waits for the disk, away from the tasks that must not wait.
pub(super) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(e) => Err(RuntimeError::failed("work on the image store", e)),
    }
}

#[cfg(test)]
#[path = "store/tests.rs"]
mod tests;
