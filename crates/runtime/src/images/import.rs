//! Imports images from files: OCI layouts (directory or archive), what `docker save` writes, and archives of plain root filesystems.

use std::{
    collections::BTreeSet,
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
};

use rustix::fs::{Mode, OFlags, ResolveFlags};
use serde::Deserialize;

use super::{
    document::{self, Descriptor, DocumentError, Manifest, ParsedConfig},
    extract,
    layers::{self, ExpectedLayer, LayerError},
    name,
    store::ImageStore,
};
use crate::error::RuntimeError;

const DEEPEST: usize = 3;
const ROUNDS: usize = 3;
/// No honest description of an image is larger.
const MOST_JSON: u64 = 16 << 20;

#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    #[error("read {path}")]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(
        "{0} holds neither an OCI layout nor what `docker save` writes; give a name to import it as a root filesystem"
    )]
    NotAnImage(PathBuf),
    #[error(
        "{0} is no image archive: it is neither a tar archive (plain, gzip or zstd) nor the directory of an OCI layout"
    )]
    NotAnArchive(PathBuf),
    #[error("{0} holds no image for this machine")]
    Empty(PathBuf),
    #[error("the archive holds {0} images, which cannot all have one name")]
    SeveralImages(usize),
    #[error("{0}")]
    Name(String),
    #[error("{path} in the image")]
    Document {
        path: String,
        #[source]
        source: DocumentError,
    },
    #[error("{0} in the image is not what its name says")]
    Corrupt(String),
    #[error("unpack the archive")]
    Unpack(#[source] extract::ExtractError),
    #[error(transparent)]
    Layer(#[from] LayerError),
    #[error(transparent)]
    Store(#[from] RuntimeError),
}

type Result<T> = std::result::Result<T, ImportError>;

/// An image that is now there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImportedImage {
    pub id: String,
    /// Empty if the archive did not name it.
    pub tags: Vec<String>,
}

/// An image found in an archive, not yet in the store.
struct ArchiveImage {
    config: Vec<u8>,
    /// Path and, if it is named by it, digest of each layer.
    layers: Vec<(String, Option<String>)>,
    tags: Vec<String>,
    /// Of its manifest.
    digest: Option<String>,
}

impl ImageStore {
    /// Imports all images of `source`; with `name`, the only one, under that name.
    pub fn import(&self, source: &Path, name: Option<&str>) -> Result<Vec<ImportedImage>> {
        let name = name.map(RequestedName::parse).transpose()?;
        let read = |e| ImportError::Read { path: source.into(), source: e };
        let file = File::open(source).map_err(read)?;
        if file.metadata().map_err(read)?.is_dir() {
            return self.import_from(source, source, name.as_ref());
        }
        // What the operating system did not refuse, the decompressor or the archive reader did.
        let unpacked = |e: io::Error| match e.raw_os_error() {
            Some(_) => read(e),
            None => ImportError::NotAnArchive(source.into()),
        };
        let (kind, observed) = layers::unpack(&file, detect_kind).map_err(unpacked)?;
        match (kind.map_err(unpacked)?, &name) {
            (ArchiveKind::Images, _) => {
                let scratch = self.inner.files.scratch().map_err(read)?;
                let plain = layers::decompress(File::open(source).map_err(read)?).map_err(read)?;
                extract::extract(plain, scratch.path(), &[]).map_err(ImportError::Unpack)?;
                self.import_from(scratch.path(), source, name.as_ref())
            }
            (ArchiveKind::RootFilesystem, Some(name)) => {
                let (json, parsed) = plain_config(&observed.plain)?;
                let open = |_: usize| File::open(source).map(|file| (file, None));
                self.add_image(&layers::digest(&json), &parsed, name.tags(), &[], open).map(|imported| vec![imported])
            }
            (ArchiveKind::RootFilesystem, None) => Err(ImportError::NotAnImage(source.into())),
        }
    }

    fn import_from(&self, directory: &Path, source: &Path, name: Option<&RequestedName>) -> Result<Vec<ImportedImage>> {
        let layout = Layout::open(directory)?;
        let mut images = match layout.read("manifest.json") {
            Ok(json) => layout.docker(&json)?,
            Err(_) => match layout.read("index.json") {
                Ok(json) => layout.oci(&json, name)?,
                Err(_) => return Err(ImportError::NotAnImage(source.into())),
            },
        };
        if let Some(name) = name {
            match images.as_mut_slice() {
                [image] if !name.with_tag && name.matches_repository(&image.tags) => {}
                [image] => image.tags = name.tags(),
                images => return Err(ImportError::SeveralImages(images.len())),
            }
        }
        if images.is_empty() {
            return Err(ImportError::Empty(source.into()));
        }
        images.into_iter().map(|image| self.import_one(&layout, image)).collect()
    }

    fn import_one(&self, layout: &Layout, image: ArchiveImage) -> Result<ImportedImage> {
        let document = |source| ImportError::Document { path: "the configuration".into(), source };
        let parsed = document::parse_config(&image.config).map_err(document)?;
        if parsed.diff_ids.len() != image.layers.len() {
            let (layers, ids) = (image.layers.len(), parsed.diff_ids.len());
            return Err(document(DocumentError::Layers { layers, ids }));
        }
        let repositories: BTreeSet<String> =
            image.tags.iter().filter_map(|tag| name::parse(tag).ok()).map(|name| name::repository(&name)).collect();
        let digests: Vec<String> = image
            .digest
            .iter()
            .flat_map(|digest| repositories.iter().map(move |repository| format!("{repository}@{digest}")))
            .collect();
        let open = |number: usize| {
            let (path, digest) = &image.layers[number];
            layout.file(path).map(|file| (file, digest.clone()))
        };
        self.add_image(&layers::digest(&image.config), &parsed, image.tags.clone(), &digests, open)
    }

    fn add_image(
        &self,
        id: &str,
        parsed: &ParsedConfig,
        tags: Vec<String>,
        digests: &[String],
        open: impl Fn(usize) -> io::Result<(File, Option<String>)>,
    ) -> Result<ImportedImage> {
        let files = &self.inner.files;
        let chain = layers::chain_ids(&parsed.diff_ids);
        for _ in 0..ROUNDS {
            for (number, diff_id) in parsed.diff_ids.iter().enumerate() {
                if layers::exists(files, &chain[number]) {
                    continue;
                }
                let path = || PathBuf::from(diff_id);
                let (blob, digest) = open(number).map_err(|source| ImportError::Read { path: path(), source })?;
                let wanted = ExpectedLayer {
                    chain_id: &chain[number],
                    diff_id,
                    digest: digest.as_deref(),
                    below: &chain[..number],
                };
                layers::add(files, &wanted, blob)?;
            }
            if self.commit(id, parsed, &tags, digests)? {
                return Ok(ImportedImage { id: id.to_owned(), tags });
            }
        }
        Err(RuntimeError::failed("import an image", "its layers are removed as fast as they are added").into())
    }
}

/// What the caller calls the image.
struct RequestedName {
    reference: oci_client::Reference,
    /// Not only by default.
    with_tag: bool,
}

impl RequestedName {
    fn parse(name: &str) -> Result<Self> {
        let reference = name::parse(name).map_err(|e| ImportError::Name(e.to_string()))?;
        if reference.digest().is_some() {
            return Err(ImportError::Name(format!("{name}: a digest is not for choosing")));
        }
        Ok(Self { with_tag: name.rsplit('/').next().is_some_and(|last| last.contains(':')), reference })
    }

    /// They are this name, and say the tag as well.
    fn matches_repository(&self, tags: &[String]) -> bool {
        let start = format!("{}:", name::repository(&self.reference));
        !tags.is_empty() && tags.iter().all(|tag| tag.starts_with(&start))
    }

    fn tags(&self) -> Vec<String> {
        name::tagged(&self.reference).into_iter().collect()
    }
}

enum ArchiveKind {
    Images,
    RootFilesystem,
}

/// What an archive is, by what lies at its top.
fn detect_kind(archive: &mut dyn Read) -> io::Result<ArchiveKind> {
    let mut kind = ArchiveKind::RootFilesystem;
    for entry in tar::Archive::new(archive).entries()? {
        let entry = entry?;
        let path = entry.path_bytes();
        let name = path.strip_prefix(b"./").unwrap_or(&path);
        if matches!(name, b"manifest.json" | b"oci-layout" | b"index.json") {
            kind = ArchiveKind::Images;
        }
    }
    Ok(kind)
}

/// What describes an archive that describes nothing itself.
fn plain_config(diff_id: &str) -> Result<(Vec<u8>, ParsedConfig)> {
    let json = serde_json::json!({
        "os": "linux",
        "architecture": std::env::consts::ARCH,
        "config": {},
        "rootfs": { "type": "layers", "diff_ids": [diff_id] },
    });
    let json = json.to_string().into_bytes();
    let parsed = document::parse_config(&json)
        .map_err(|source| ImportError::Document { path: "the configuration".into(), source })?;
    Ok((json, parsed))
}

/// A directory that holds images. Its links lead nowhere but into itself.
struct Layout {
    root: File,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct DockerEntry {
    config: String,
    repo_tags: Option<Vec<String>>,
    layers: Vec<String>,
}

impl Layout {
    fn open(directory: &Path) -> Result<Self> {
        let root = File::open(directory).map_err(|source| ImportError::Read { path: directory.into(), source })?;
        Ok(Self { root })
    }

    fn file(&self, path: &str) -> io::Result<File> {
        let how = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        // Not to wait for ever for the writer of a pipe.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = File::from(rustix::fs::openat2(&self.root, path, flags, Mode::empty(), how)?);
        if !file.metadata()?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "is not a file"));
        }
        Ok(file)
    }

    fn read(&self, path: &str) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let read = self.file(path).and_then(|file| file.take(MOST_JSON).read_to_end(&mut bytes));
        read.map_err(|source| ImportError::Read { path: path.into(), source })?;
        Ok(bytes)
    }

    /// What `docker save` lists in `manifest.json`.
    fn docker(&self, json: &[u8]) -> Result<Vec<ArchiveImage>> {
        let entries: Vec<DockerEntry> = document::read("manifest", json)
            .map_err(|source| ImportError::Document { path: "manifest.json".into(), source })?;
        entries
            .into_iter()
            .map(|entry| {
                let tags =
                    entry.repo_tags.unwrap_or_default().iter().map(|tag| full_name(tag)).collect::<Result<_>>()?;
                let layers = entry.layers.into_iter().map(|path| (path, None)).collect();
                Ok(ArchiveImage { config: self.read(&entry.config)?, layers, tags, digest: None })
            })
            .collect()
    }

    fn oci(&self, json: &[u8], name: Option<&RequestedName>) -> Result<Vec<ArchiveImage>> {
        let document = |source| ImportError::Document { path: "index.json".into(), source };
        let Manifest::Index(entries) = document::parse_manifest(json).map_err(document)? else {
            return Err(document(DocumentError::NotAnImage));
        };
        let mut images: Vec<ArchiveImage> = Vec::new();
        for entry in &entries {
            // Signatures and the like, and images for other machines.
            if entry.platform.is_some() && document::for_this_machine(std::slice::from_ref(entry)).is_err() {
                continue;
            }
            let mut found = self.oci_image(entry)?;
            found.tags = tags(entry, name)?;
            // One image under several names is one entry per name.
            match images.iter_mut().find(|known| known.config == found.config) {
                Some(known) => known.tags.append(&mut found.tags),
                None => images.push(found),
            }
        }
        Ok(images)
    }

    fn oci_image(&self, entry: &Descriptor) -> Result<ArchiveImage> {
        let document = |source| ImportError::Document { path: entry.digest.clone(), source };
        let mut json = self.blob(&entry.digest)?;
        for _ in 0..DEEPEST {
            match document::parse_manifest(&json).map_err(document)? {
                Manifest::Image { config, layers } => {
                    let layers = layers
                        .into_iter()
                        .map(|layer| Ok((blob_path(&layer.digest)?, Some(layer.digest))))
                        .collect::<Result<_>>()?;
                    let config = self.blob(&config.digest)?;
                    return Ok(ArchiveImage { config, layers, tags: Vec::new(), digest: Some(entry.digest.clone()) });
                }
                Manifest::Index(entries) => {
                    let entry = document::for_this_machine(&entries).map_err(document)?;
                    json = self.blob(&entry.digest)?;
                }
            }
        }
        Err(document(DocumentError::NotAnImage))
    }

    /// Verified.
    fn blob(&self, digest: &str) -> Result<Vec<u8>> {
        let bytes = self.read(&blob_path(digest)?)?;
        if layers::digest(&bytes) != digest {
            return Err(ImportError::Corrupt(digest.to_owned()));
        }
        Ok(bytes)
    }
}

fn blob_path(digest: &str) -> Result<String> {
    let hex = name::hex(digest).ok_or_else(|| ImportError::Corrupt(digest.to_owned()))?;
    Ok(format!("blobs/sha256/{hex}"))
}

/// Names in an index are whole names, or only tags; those say something together with a name given.
fn tags(entry: &Descriptor, name: Option<&RequestedName>) -> Result<Vec<String>> {
    let annotation = |key: &str| entry.annotations.get(key).map(String::as_str).filter(|value| !value.is_empty());
    if let Some(whole) = annotation("io.containerd.image.name") {
        return full_name(whole).map(|tag| vec![tag]);
    }
    match (annotation("org.opencontainers.image.ref.name"), name) {
        (Some(whole), _) if whole.contains(['/', ':']) => full_name(whole).map(|tag| vec![tag]),
        (Some(tag), Some(name)) => {
            full_name(&format!("{}:{tag}", name::repository(&name.reference))).map(|tag| vec![tag])
        }
        _ => Ok(Vec::new()),
    }
}

fn full_name(name: &str) -> Result<String> {
    let name = name::parse(name).map_err(|e| ImportError::Name(e.to_string()))?;
    Ok(name::tagged(&name).unwrap_or_else(|| name.whole()))
}

#[cfg(test)]
#[path = "import/tests.rs"]
mod tests;
