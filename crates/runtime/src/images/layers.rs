//! Layers of the image store: verified and extracted once, shared by all images that name them.
//!
//! A layer is known by its chain id: the digest of everything from the lowest layer up to it. It is extracted in a
//! scratch directory and renamed into place when its content, twice digested (as sent and as unpacked), is what was
//! promised and lies on the disk.

use std::{
    fs::{self, File},
    io::{self, BufReader, Read},
    path::PathBuf,
};

use mainstay_files::{DiskUsage, Durability, PRIVATE_FILE, create_private_dir, write_atomic};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{
    extract::{self, ExtractError},
    files::{Files, create_image_root},
};

#[derive(Debug, thiserror::Error)]
pub enum LayerError {
    #[error("{0:?} is not a digest that is understood")]
    Digest(String),
    #[error("the {what} has the digest {found}, not {expected}")]
    Mismatch { what: &'static str, expected: String, found: String },
    #[error("extract layer {diff_id}")]
    Extract {
        diff_id: String,
        #[source]
        source: ExtractError,
    },
    #[error("keep layer {diff_id}")]
    Io {
        diff_id: String,
        #[source]
        source: io::Error,
    },
}

#[derive(Serialize, Deserialize)]
struct LayerUsage {
    bytes: u64,
    inodes: u64,
}

/// The chain id of each layer, lowest first.
pub fn chain_ids(diff_ids: &[String]) -> Vec<String> {
    let mut chain: Vec<String> = Vec::with_capacity(diff_ids.len());
    for diff_id in diff_ids {
        chain.push(match chain.last() {
            None => diff_id.clone(),
            Some(below) => digest(format!("{below} {diff_id}").as_bytes()),
        });
    }
    chain
}

pub fn digest(bytes: &[u8]) -> String {
    format_digest(Sha256::digest(bytes).as_slice())
}

pub fn format_digest(hash: &[u8]) -> String {
    let hex: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}

pub fn exists(files: &Files, chain_id: &str) -> bool {
    files.layer(chain_id).is_some_and(|path| path.is_dir())
}

pub fn usage(files: &Files, chain_id: &str) -> io::Result<DiskUsage> {
    let path = files.layer(chain_id).ok_or(io::ErrorKind::InvalidInput)?;
    let usage_file: LayerUsage = serde_json::from_slice(&fs::read(path.join("layer.json"))?)?;
    Ok(DiskUsage { bytes: usage_file.bytes, inodes: usage_file.inodes })
}

/// What a layer must be, and where it belongs.
pub struct ExpectedLayer<'a> {
    pub chain_id: &'a str,
    pub diff_id: &'a str,
    /// Of the archive as it comes, if that was not verified before.
    pub digest: Option<&'a str>,
    /// Chain ids of the layers below it, lowest first.
    pub below: &'a [String],
}

/// Verifies and extracts. Does nothing if the layer is there.
pub fn add(files: &Files, wanted: &ExpectedLayer<'_>, blob: impl Read) -> Result<(), LayerError> {
    let target = files.layer(wanted.chain_id).ok_or_else(|| LayerError::Digest(wanted.chain_id.to_owned()))?;
    if target.is_dir() {
        return Ok(());
    }
    let failed = |source| LayerError::Io { diff_id: wanted.diff_id.to_owned(), source };
    let lower: Vec<PathBuf> =
        wanted.below.iter().rev().filter_map(|id| files.layer(id)).map(|path| path.join("fs")).collect();
    let scratch = files.scratch().map_err(failed)?;
    let made = scratch.path().join("layer");
    create_private_dir(&made).map_err(failed)?;
    create_image_root(&made.join("fs")).map_err(failed)?;
    let unpacked = unpack(blob, |archive| extract::extract(archive, &made.join("fs"), &lower));
    let (extracted, observed) = unpacked.map_err(failed)?;
    // What is wrong with the content matters more than how it failed to unpack.
    if let Some(expected) = wanted.digest {
        compare("archive of a layer", expected, &observed.compressed)?;
    }
    let usage = extracted.map_err(|source| LayerError::Extract { diff_id: wanted.diff_id.to_owned(), source })?;
    compare("content of a layer", wanted.diff_id, &observed.plain)?;
    let usage_file = LayerUsage { bytes: usage.bytes, inodes: usage.inodes };
    let usage_file = serde_json::to_vec(&usage_file).map_err(|e| failed(e.into()))?;
    // Synced below, with all the rest.
    write_atomic(&made.join("layer.json"), &usage_file, PRIVATE_FILE, Durability::Volatile).map_err(failed)?;
    let synced = File::open(&made).and_then(|made| rustix::fs::syncfs(made).map_err(Into::into));
    synced.map_err(failed)?;
    match fs::rename(&made, &target) {
        Err(_) if target.is_dir() => {} // someone else was faster
        Err(e) => return Err(failed(e)),
        Ok(()) => File::open(files.layers()).and_then(|layers| layers.sync_all()).map_err(failed)?,
    }
    Ok(())
}

fn compare(what: &'static str, expected: &str, found: &str) -> Result<(), LayerError> {
    if expected == found {
        return Ok(());
    }
    Err(LayerError::Mismatch { what, expected: expected.to_owned(), found: found.to_owned() })
}

/// The digests of what was read.
pub struct BlobDigests {
    pub compressed: String,
    pub plain: String,
}

/// Gives the plain content of a blob, compressed or not, to `work`, and digests all of it even if `work` does not want it.
pub fn unpack<T, E>(
    blob: impl Read,
    work: impl FnOnce(&mut dyn Read) -> Result<T, E>,
) -> io::Result<(Result<T, E>, BlobDigests)> {
    let mut outer = HashingReader::new(blob);
    let mut plain = HashingReader::new(decompress(&mut outer)?);
    let result = work(&mut plain);
    if result.is_ok() {
        io::copy(&mut plain, &mut io::sink())?;
    }
    let plain = plain.digest();
    io::copy(&mut outer, &mut io::sink())?;
    Ok((result, BlobDigests { plain, compressed: outer.digest() }))
}

/// By what it begins with, not by what it is called.
pub fn decompress<'a>(blob: impl Read + 'a) -> io::Result<Box<dyn Read + 'a>> {
    let mut magic = [0; 4];
    let mut read = 0;
    let mut blob = BufReader::with_capacity(128 << 10, blob);
    while read < magic.len() {
        match blob.read(&mut magic[read..])? {
            0 => break,
            more => read += more,
        }
    }
    let whole = io::Cursor::new(magic).take(read as u64).chain(blob);
    Ok(match magic {
        [0x1f, 0x8b, ..] => Box::new(flate2::read::MultiGzDecoder::new(whole)),
        [0x28, 0xb5, 0x2f, 0xfd] => Box::new(zstd::stream::read::Decoder::new(whole)?),
        _ => Box::new(whole),
    })
}

struct HashingReader<R> {
    inner: R,
    hash: Sha256,
}

impl<R: Read> HashingReader<R> {
    fn new(inner: R) -> Self {
        Self { inner, hash: Sha256::new() }
    }

    fn digest(self) -> String {
        format_digest(self.hash.finalize().as_slice())
    }
}

impl<R: Read> Read for HashingReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.hash.update(&buffer[..read]);
        Ok(read)
    }
}

#[cfg(test)]
#[path = "layers/tests.rs"]
mod tests;
