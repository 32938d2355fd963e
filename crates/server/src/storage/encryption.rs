//! Encryption at rest of a running server: its key file, the re-encryption of what lies in the store, and rotation.
//!
//! At the first start a key is made and claimed by a record in the store that it seals. A server that finds such a record and
//! lacks the key (a second server on the same etcd, or a backup restored elsewhere) makes none of its own, for then two
//! servers would write Secrets that the other cannot read: it logs what to copy, serves everything else, and fails reads and
//! writes of Secrets by name.
//!
//! What is stored plainly, or under another key than the first of the configuration, is re-encrypted in the background after
//! every start. A rotation puts a new key in front, re-encrypts everything, and drops the others. Its state is the file alone:
//! whenever it is interrupted, the file has every key that is in use, and the next start or rotation completes it.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use futures::future::join_all;
use mainstay_api::registry::Registry;
use mainstay_store::{Compare, Entry, Expect, List, Op, Outcome, Store, StoreError, Txn};
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use super::{
    codec::Codec,
    encoded_store::{EncodedStore, Writers},
    encryption_config::{ConfigError, EncryptionConfiguration, NamedKey},
    keyring::{Keyring, MissingKey},
    kms::KmsProvider,
    provider::{KeyError, ProviderKey},
};
use crate::objects::keys;

/// Name of the key file in the data directory.
pub const FILE: &str = "encryption-config.yaml";

/// Entries that are looked at between two requests to the store.
const PAGE: usize = 500;
const RETRY: Duration = Duration::from_secs(30);

#[derive(Debug, thiserror::Error)]
pub enum EncryptionError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("{}", file.display())]
    Key { file: PathBuf, source: KeyError },
    #[error("read or write the encrypted part of the store")]
    Store(#[from] StoreError),
    #[error(
        "another server of this cluster made a key first: copy its {FILE} to {}, and start again", file.display()
    )]
    Overtaken { file: PathBuf },
}

#[derive(Debug, thiserror::Error)]
pub enum RotateError {
    #[error("a rotation is under way")]
    UnderWay,
    #[error("{missing} is in use, and not in {}: copy the file of a server that has it", file.display())]
    Lacking { missing: MissingKey, file: PathBuf },
    #[error("the key is that of KMS plugin {name:?}, and rotated there: new values have the new key at once")]
    Plugin { name: String },
    #[error("nothing is encrypted by a key of {}", file.display())]
    NothingEncrypted { file: PathBuf },
    #[error(
        "{count} servers share this store, and each needs the new key before the first writes with it: add a key as the last \
         provider of {} on each of them and restart it, then make it the first on each and restart it, then remove the old one",
        file.display()
    )]
    SeveralServers { count: usize, file: PathBuf },
    #[error(transparent)]
    Encryption(#[from] EncryptionError),
}

/// What a rotation has done.
#[derive(Debug, PartialEq, Eq)]
pub struct Rotation {
    pub key: String,
    pub reencrypted: usize,
}

/// Encryption at rest of one server.
pub struct Encryption {
    file: PathBuf,
    registry: Registry,
    store: Arc<EncodedStore>,
    missing: Option<MissingKey>,
    rotating: Mutex<()>,
}

impl Encryption {
    /// Reads the key file, or makes it if the store holds nothing encrypted yet.
    pub async fn open(
        store: Arc<dyn Store>,
        file: PathBuf,
        registry: Registry,
        writers: Writers,
    ) -> Result<Self, EncryptionError> {
        let in_use = envelope_in_use(&*store, &registry).await?;
        let mut config = EncryptionConfiguration::load(&file)?;
        let is_new = config.is_none() && in_use.is_none();
        if is_new {
            config = make_config(&file, &registry)?;
        }
        let keyring = config.as_ref().map(|config| Keyring::new(config, &registry)).transpose();
        let keyring = keyring.map_err(|source| EncryptionError::Key { file: file.clone(), source })?;
        if let Some(ring) = &keyring {
            join_all(ring.plugins().iter().map(|plugin| plugin.refresh())).await;
            if let Some(entry) = &in_use {
                ring.resolve(&entry.value).await;
            }
        }
        // What a plugin protects that does not answer now is not lost.
        let opens = |entry: &Entry| {
            keyring
                .as_ref()
                .is_some_and(|ring| ring.open(&entry.key, &entry.value).is_some() || ring.has_sealed(&entry.value))
        };
        let missing = in_use.filter(|entry| !opens(entry)).and_then(|entry| MissingKey::of_envelope(&entry.value));
        let keyring = match (&missing, keyring) {
            (None, Some(keyring)) => keyring,
            (Some(missing), others) => {
                tracing::error!(key = %missing, file = %file.display(),
                    "Secrets are encrypted by a key that this server lacks and can be neither read nor written; \
                     copy the file from a server that has it");
                Keyring::lacking(missing, others, &registry)
            }
            (None, None) => Keyring::default(),
        };
        let codec = Arc::new(Codec::new(registry.clone(), keyring));
        let store = Arc::new(EncodedStore::new(store, codec, writers));
        let encryption = Self { file, registry, store, missing, rotating: Mutex::new(()) };
        let is_sealing = encryption.plugins().iter().all(|plugin| plugin.problem().is_none());
        if encryption.missing.is_none() && is_sealing {
            encryption.claim(is_new).await?;
        }
        Ok(encryption)
    }

    /// The KMS plugins that this server uses.
    pub fn plugins(&self) -> Vec<Arc<KmsProvider>> {
        self.store.codec.keyring().plugins()
    }

    /// The store above which nothing is encrypted.
    pub fn store(&self) -> Arc<dyn Store> {
        self.store.clone()
    }

    /// Puts the record into the store by which other servers know that there is a key. Another may be faster.
    async fn claim(&self, is_new: bool) -> Result<(), EncryptionError> {
        let txn = Txn {
            compares: vec![Compare { key: keys::ENCRYPTION_CHECK.into(), expect: Expect::Absent }],
            ops: vec![Op::Put { key: keys::ENCRYPTION_CHECK.into(), value: Bytes::from_static(b"{}") }],
        };
        match self.store.commit(txn).await {
            Ok(Outcome::Committed(_)) => Ok(()),
            Ok(Outcome::Conflict { current }) => {
                let readable = current.iter().flatten().all(|entry| MissingKey::of_envelope(&entry.value).is_none());
                if readable {
                    return Ok(());
                }
                if is_new {
                    let _ = std::fs::remove_file(&self.file);
                }
                Err(EncryptionError::Overtaken { file: self.file.clone() })
            }
            // There are pods to delete; the record is made at the next start.
            Err(StoreError::NoSpace) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether a value lies in the store in the form in which it would be written now.
    pub async fn is_in_current_form(&self, key: &str) -> Result<bool, StoreError> {
        let EncodedStore { inner, codec, .. } = &*self.store;
        let (entry, _) = inner.get(key).await?;
        Ok(entry.is_none_or(|entry| codec.is_in_current_form(key, &entry.value)))
    }

    /// Re-encrypts what an earlier configuration wrote, until that is done or the server stops.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        let plugins = self.plugins().into_iter().map(|plugin| plugin.run(stop.clone()));
        tokio::join!(join_all(plugins), self.keep_encrypted(stop.clone()));
    }

    async fn keep_encrypted(&self, stop: CancellationToken) {
        loop {
            match stop.run_until_cancelled(self.reencrypt()).await {
                None | Some(Ok(0)) => return,
                Some(Ok(count)) => {
                    tracing::info!(count, "encrypted what was stored plainly or under an older key");
                    return;
                }
                Some(Err(error)) => {
                    tracing::warn!(%error, "not everything is encrypted yet; will try again");
                    if stop.run_until_cancelled(tokio::time::sleep(RETRY)).await.is_none() {
                        return;
                    }
                }
            }
        }
    }

    /// Writes anew what is not sealed by the key that seals now; returns how many that were.
    pub async fn reencrypt(&self) -> Result<usize, StoreError> {
        let keyring = self.store.codec.keyring();
        let mut count = 0;
        // A write that was given up before the key changed may still have been on its way: it came before those of this round.
        loop {
            let mut rewritten = 0;
            for (prefix, key) in keyring.sealed_prefixes() {
                rewritten += self.reencrypt_below(prefix, key).await?;
            }
            if rewritten == 0 {
                return Ok(count);
            }
            count += rewritten;
        }
    }

    async fn reencrypt_below(&self, prefix: &str, key: &ProviderKey) -> Result<usize, StoreError> {
        let EncodedStore { inner, codec, .. } = &*self.store;
        let (mut start, mut count) = (None::<String>, 0);
        loop {
            let query = List { prefix, start: start.as_deref(), limit: Some(PAGE), at: None };
            let listing = inner.list(query).await?;
            codec.resolve(listing.entries.iter()).await;
            for entry in listing.entries.iter().filter(|entry| !key.has_sealed(&entry.value)) {
                let Some(value) = codec.decode(&entry.key, &entry.value) else {
                    let error = super::unreadable_reason(&entry.value).unwrap_or_default();
                    tracing::error!(key = &*entry.key, error, "stored object cannot be re-encrypted");
                    continue;
                };
                let txn = Txn {
                    compares: vec![Compare { key: entry.key.clone(), expect: Expect::ModifiedAt(entry.modified) }],
                    ops: vec![Op::Put { key: entry.key.clone(), value }],
                };
                self.store.commit(txn).await?;
                count += 1;
            }
            match listing.entries.last() {
                Some(last) if listing.remaining > 0 => start = Some(format!("{}\0", last.key)),
                _ => return Ok(count),
            }
        }
    }

    /// Puts a new key in front, re-encrypts everything, and drops the older keys from the file.
    pub async fn rotate(&self) -> Result<Rotation, RotateError> {
        let _one = self.rotating.try_lock().map_err(|_| RotateError::UnderWay)?;
        let file = || self.file.clone();
        if let Some(missing) = self.missing.clone() {
            return Err(RotateError::Lacking { missing, file: file() });
        }
        let query = List { prefix: keys::SERVERS, ..List::default() };
        let count = self.store.list(query).await.map_err(EncryptionError::from)?.entries.len();
        if count > 1 {
            return Err(RotateError::SeveralServers { count, file: file() });
        }
        let config = EncryptionConfiguration::load(&self.file).map_err(EncryptionError::from)?;
        let config = config.filter(EncryptionConfiguration::encrypts);
        let config = config.ok_or_else(|| RotateError::NothingEncrypted { file: file() })?;
        if let Some(plugin) = config.encrypting_plugin() {
            return Err(RotateError::Plugin { name: plugin.to_owned() });
        }
        let key = NamedKey::generate().map_err(EncryptionError::from)?;
        let both = config.with_new_key(&key);
        self.take_over(&both).await?;
        let reencrypted = self.reencrypt().await.map_err(EncryptionError::from)?;
        self.take_over(&both.without_old_keys()).await?;
        Ok(Rotation { key: key.name, reencrypted })
    }

    /// Writes a configuration to the file and uses it from then on. What older keys sealed can still be opened until the server
    /// stops, because the store's history may hold it.
    async fn take_over(&self, config: &EncryptionConfiguration) -> Result<(), EncryptionError> {
        let keyring = Keyring::new(config, &self.registry);
        let keyring = keyring.map_err(|source| EncryptionError::Key { file: self.file.clone(), source })?;
        config.save(&self.file)?;
        self.store.set_keyring(keyring.also_opening(&self.store.codec.keyring())).await;
        Ok(())
    }
}

/// The configuration of a new cluster, unless its disk is full: a server has to start then, for there are pods to delete.
fn make_config(file: &Path, registry: &Registry) -> Result<Option<EncryptionConfiguration>, EncryptionError> {
    let made = EncryptionConfiguration::generate(registry)?;
    match made.save(file) {
        Err(ConfigError::File { source, .. }) if source.kind() == io::ErrorKind::StorageFull => {
            tracing::warn!(file = %file.display(), "the disk is full: no key is made, and Secrets are not encrypted");
            Ok(None)
        }
        saved => Ok(saved.map(|()| Some(made))?),
    }
}

/// An encrypted value of the store, if there is one: the record of the first server, or a value that another API server sealed.
async fn envelope_in_use(store: &dyn Store, registry: &Registry) -> Result<Option<Arc<Entry>>, StoreError> {
    let is_sealed = |entry: &Arc<Entry>| MissingKey::of_envelope(&entry.value).is_some();
    if let (Some(entry), _) = store.get(keys::ENCRYPTION_CHECK).await? {
        return Ok(Some(entry).filter(is_sealed));
    }
    for d in registry.stored().filter(|d| d.encrypted_at_rest) {
        let prefix = keys::prefix(d, None);
        let listing = store.list(List { prefix: &prefix, limit: Some(PAGE), ..List::default() }).await?;
        let sealed = listing.entries.into_iter().find(is_sealed);
        if sealed.is_some() {
            return Ok(sealed);
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests;
