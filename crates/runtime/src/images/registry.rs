//! Client of one image registry: fetches manifests into memory and blobs into files, so that an interrupted download is resumed.

use std::{
    fs::{self, File, TryLockError},
    io::{self, Read},
    path::PathBuf,
    time::Duration,
};

use futures::StreamExt;
use mainstay_errors::error_chain;
use oci_client::Reference;
use reqwest::StatusCode;
use sha2::{Digest, Sha256};
use tokio::io::AsyncWriteExt;

use super::{
    Auth, PullError,
    document::Descriptor,
    files::Files,
    layers, name,
    registry_client::{RegistryClient, RequestError},
    store::Options,
};

/// No honest configuration is larger.
const MAX_CONFIG: usize = 8 << 20;
/// So often a blob is asked for within one pull, each time going on where the last try broke off.
const MAX_ATTEMPTS: u32 = 5;

/// One pull's conversation with a registry.
pub struct Registry {
    client: RegistryClient,
    reference: String,
    name: Reference,
    stall: Duration,
}

impl Registry {
    pub async fn open(
        reference: &str,
        name: &Reference,
        auth: Option<&Auth>,
        options: &Options,
    ) -> Result<Self, PullError> {
        // The first to install one wins; all of ours are the same.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let host = name.resolve_registry();
        let plain = is_loopback(host) || options.insecure.iter().any(|insecure| insecure == host);
        let client =
            RegistryClient::new(name, auth, plain, options.stall).map_err(|error| error.explain(reference, host))?;
        let registry = Self { client, reference: reference.to_owned(), name: name.clone(), stall: options.stall };
        registry.with_stall_timeout(registry.client.authenticate()).await?.map_err(|e| registry.explain(e))?;
        Ok(registry)
    }

    /// The manifest of the name, or the one with this digest, and its digest. Verified.
    pub async fn manifest(&self, digest: Option<&str>) -> Result<(Vec<u8>, String), PullError> {
        let name = match digest {
            Some(digest) => self.name.clone_with_digest(digest.to_owned()),
            None => self.name.clone(),
        };
        self.with_stall_timeout(self.client.manifest(&name)).await?.map_err(|e| self.explain(e))
    }

    /// A small blob. Verified.
    pub async fn config(&self, wanted: &Descriptor) -> Result<Vec<u8>, PullError> {
        let mut bytes = Vec::new();
        let answer =
            self.with_stall_timeout(self.client.blob(&wanted.digest, 0)).await?.map_err(|e| self.explain(e))?;
        let mut stream = answer.bytes_stream();
        while let Some(chunk) = self.with_stall_timeout(stream.next()).await? {
            bytes.extend(chunk.map_err(|e| self.failed(error_chain(&e)))?);
            if bytes.len() > MAX_CONFIG {
                return Err(self.failed("its configuration is too large".to_owned()));
            }
        }
        if layers::digest(&bytes) != wanted.digest {
            return Err(self.failed(format!("its configuration is not {}", wanted.digest)));
        }
        Ok(bytes)
    }

    /// Fetches a blob into a file, going on where an earlier attempt ended. Verified.
    pub async fn blob(&self, files: &Files, wanted: &Descriptor) -> Result<Blob, PullError> {
        let hex = name::hex(&wanted.digest)
            .ok_or_else(|| self.failed(format!("{:?} is not a digest that is understood", wanted.digest)))?;
        let blob = Blob::create(files, hex).map_err(|e| self.failed(format!("keep a layer: {e}")))?;
        let keep = |e: io::Error| self.failed(format!("keep a layer: {e}"));
        let mut resumed = blob.length() > 0;
        for attempt in 1.. {
            match self.fetch(&blob, wanted).await {
                Ok(()) => match blob.digest().await.map_err(keep)? {
                    found if found == wanted.digest => return Ok(blob),
                    // What an earlier attempt left may have been damaged.
                    _ if resumed => {
                        resumed = false;
                        blob.restart().map_err(keep)?;
                    }
                    found => {
                        let why = format!("a layer has the digest {found}, not {}", wanted.digest);
                        blob.discard();
                        return Err(self.failed(why));
                    }
                },
                Err(FetchError::Transient(error)) if attempt < MAX_ATTEMPTS => {
                    tracing::debug!(%error, attempt, "fetching a layer was interrupted");
                    tokio::time::sleep(Duration::from_millis(200) * attempt).await;
                }
                Err(FetchError::Transient(error) | FetchError::Final(error)) => return Err(error),
            }
        }
        Err(self.failed("the registry breaks off again and again".to_owned()))
    }

    async fn fetch(&self, blob: &Blob, wanted: &Descriptor) -> Result<(), FetchError> {
        let broken = |e: io::Error| self.failed(format!("keep a layer: {e}"));
        let mut length = blob.length();
        if wanted.size > 0 && length == wanted.size {
            return Ok(());
        }
        if wanted.size > 0 && length > wanted.size {
            blob.restart().map_err(broken)?;
            length = 0;
        }
        let answer = self.with_stall_timeout(self.client.blob(&wanted.digest, length)).await?;
        let answer = answer.map_err(|e| self.fetch_error(e))?;
        if length > 0 && answer.status() != StatusCode::PARTIAL_CONTENT {
            blob.restart().map_err(broken)?;
            length = 0;
        }
        let mut stream = answer.bytes_stream();
        let mut file = tokio::fs::OpenOptions::new().append(true).open(&blob.path).await.map_err(broken)?;
        let mut interrupted = None;
        while interrupted.is_none() {
            match self.with_stall_timeout(stream.next()).await {
                Ok(None) => break,
                Ok(Some(Ok(chunk))) => {
                    length += chunk.len() as u64;
                    if wanted.size > 0 && length > wanted.size {
                        blob.restart().map_err(broken)?;
                        return Err(self.failed("a layer is longer than its manifest says".to_owned()).into());
                    }
                    file.write_all(&chunk).await.map_err(broken)?;
                }
                Ok(Some(Err(e))) => interrupted = Some(FetchError::Transient(self.failed(error_chain(&e)))),
                Err(error) => interrupted = Some(error.into()),
            }
        }
        file.flush().await.map_err(broken)?;
        match interrupted {
            Some(error) => Err(error),
            None if length < wanted.size => {
                Err(FetchError::Transient(self.failed("the registry ended a layer too early".to_owned())))
            }
            None => Ok(()),
        }
    }

    /// A registry that says nothing has failed.
    async fn with_stall_timeout<T>(&self, work: impl Future<Output = T>) -> Result<T, PullError> {
        tokio::time::timeout(self.stall, work)
            .await
            .map_err(|_| self.failed(format!("the registry sent nothing for {:?}", self.stall)))
    }

    fn fetch_error(&self, error: RequestError) -> FetchError {
        let is_transient = error.is_transient();
        let error = self.explain(error);
        if is_transient { FetchError::Transient(error) } else { FetchError::Final(error) }
    }

    pub fn failed(&self, why: String) -> PullError {
        PullError::Failed { reference: self.reference.clone(), why }
    }

    fn explain(&self, error: RequestError) -> PullError {
        error.explain(&self.reference, self.name.resolve_registry())
    }
}

/// Why fetching did not come to its end.
enum FetchError {
    Transient(PullError),
    /// There is no point in asking again now. A registry that stalls has had its time already.
    Final(PullError),
}

impl From<PullError> for FetchError {
    fn from(error: PullError) -> Self {
        Self::Final(error)
    }
}

/// A blob in a file that only we write.
pub struct Blob {
    path: PathBuf,
    lock: File,
}

impl Blob {
    fn create(files: &Files, hex: &str) -> io::Result<Self> {
        let path = files.ingest(hex);
        let lock = mainstay_files::open_private(&path)?;
        match lock.try_lock() {
            Ok(()) => return Ok(Self { path, lock }),
            Err(TryLockError::WouldBlock) => {} // another process fetches it; two copies are better than one waiting
            Err(TryLockError::Error(e)) => return Err(e),
        }
        let path = files.ingest(&format!("{hex}.{}", uuid::Uuid::new_v4().simple()));
        let lock = mainstay_files::open_private(&path)?;
        lock.lock()?;
        Ok(Self { path, lock })
    }

    fn length(&self) -> u64 {
        self.lock.metadata().map(|found| found.len()).unwrap_or(0)
    }

    fn restart(&self) -> io::Result<()> {
        self.lock.set_len(0)
    }

    async fn digest(&self) -> io::Result<String> {
        let path = self.path.clone();
        let hash = tokio::task::spawn_blocking(move || {
            let (mut file, mut hash) = (File::open(path)?, Sha256::new());
            let mut buffer = vec![0; 256 << 10];
            loop {
                match file.read(&mut buffer)? {
                    0 => break,
                    read => hash.update(&buffer[..read]),
                }
            }
            Ok::<_, io::Error>(hash.finalize())
        });
        let hash = hash.await.map_err(io::Error::other)??;
        Ok(layers::format_digest(hash.as_slice()))
    }

    pub fn open(&self) -> io::Result<File> {
        File::open(&self.path)
    }

    pub fn discard(self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// `localhost:5000`, `127.0.0.1`, `[::1]:5000`
fn is_loopback(registry: &str) -> bool {
    let host = match registry.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or(rest),
        None => registry.split(':').next().unwrap_or(registry),
    };
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registries_on_this_machine_need_no_tls() {
        for host in ["localhost", "localhost:5000", "127.0.0.1:1", "127.8.8.8", "[::1]:5000"] {
            assert!(is_loopback(host), "{host}");
        }
        for host in ["localhost.example", "10.0.0.1:5000", "index.docker.io", "[2001:db8::1]:5000"] {
            assert!(!is_loopback(host), "{host}");
        }
    }
}
