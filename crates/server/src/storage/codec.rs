//! One value to and from its stored form.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use mainstay_api::{protobuf, registry::Registry};
use mainstay_store::{Entry, Memo, Op, StoreError};
use parking_lot::RwLock;

use super::{
    keyring::{Keyring, MissingKey, WriteRule},
    provider::ENVELOPE,
    upstream_object,
};

/// What envelopes and protobuf have in common, and no JSON.
const ENCODED: &[u8] = b"k8s";
const KMS_ENVELOPE: &[u8] = b"k8s:enc:kms:";

pub struct Codec {
    registry: Registry,
    keyring: RwLock<Arc<Keyring>>,
}

/// What is cached beside a stored entry that is not as the API wants it.
#[derive(Default)]
struct Decoded(OnceLock<Arc<Entry>>);

impl Codec {
    pub fn new(registry: Registry, keyring: Keyring) -> Self {
        Self { registry, keyring: RwLock::new(Arc::new(keyring)) }
    }

    pub fn keyring(&self) -> Arc<Keyring> {
        self.keyring.read().clone()
    }

    pub fn set_keyring(&self, keyring: Keyring) {
        *self.keyring.write() = Arc::new(keyring);
    }

    /// The entry as the API wants it. One that cannot be decoded keeps its value, for which there is an [`unreadable_reason`].
    pub fn decode_entry(&self, stored: Arc<Entry>) -> Arc<Entry> {
        if !stored.value.starts_with(ENCODED) {
            return stored;
        }
        let Decoded(cached) = stored.memo.get_or_init(Decoded::default);
        if let Some(decoded) = cached.get() {
            return decoded.clone();
        }
        let Entry { key, created, modified, .. } = &*stored;
        let entry = |value| {
            Arc::new(Entry { key: key.clone(), value, created: *created, modified: *modified, memo: Memo::default() })
        };
        match self.decode(key, &stored.value) {
            Some(value) => cached.get_or_init(|| entry(value)).clone(),
            // Not cached: the key may be added.
            None => entry(stored.value.clone()),
        }
    }

    /// Makes sure that what KMS plugins protect can be decoded. Costs a look at the first bytes where nothing is.
    pub async fn resolve<'e>(&self, entries: impl Iterator<Item = &'e Arc<Entry>>) {
        for stored in entries.filter(|entry| entry.value.starts_with(KMS_ENVELOPE)) {
            let Decoded(cached) = stored.memo.get_or_init(Decoded::default);
            if cached.get().is_none() {
                self.keyring().resolve(&stored.value).await;
            }
        }
    }

    /// The value as the API wants it, if it can be had.
    pub fn decode(&self, store_key: &str, stored: &Bytes) -> Option<Bytes> {
        let opened = match stored.starts_with(ENVELOPE) {
            true => Bytes::from(self.keyring().open(store_key, stored)?),
            false => stored.clone(),
        };
        match opened.starts_with(protobuf::MAGIC) {
            true => upstream_object::to_json(&self.registry, &opened).ok(),
            false => Some(opened),
        }
    }

    /// Whether a stored value has the form that [`Codec::encode`] gives it.
    pub fn is_in_current_form(&self, store_key: &str, stored: &[u8]) -> bool {
        let keyring = self.keyring();
        match keyring.rule(store_key) {
            WriteRule::Plain | WriteRule::Refuse(_) => !stored.starts_with(ENCODED),
            WriteRule::Seal(with) => {
                let is_plain_within = |opened: Vec<u8>| !opened.starts_with(protobuf::MAGIC);
                with.seals_alike(stored) && keyring.open(store_key, stored).is_some_and(is_plain_within)
            }
        }
    }

    /// Whether any of these writes is to be sealed.
    pub fn seals(&self, ops: &[Op]) -> bool {
        let keyring = self.keyring();
        ops.iter().any(|op| matches!(op, Op::Put { key, .. } if matches!(keyring.rule(key), WriteRule::Seal(_))))
    }

    /// A write in the form in which it is stored.
    pub fn encode(&self, op: Op) -> Result<Op, StoreError> {
        let Op::Put { key, value } = op else { return Ok(op) };
        let keyring = self.keyring();
        let value = match keyring.rule(&key) {
            WriteRule::Plain => value,
            WriteRule::Seal(with) => {
                let sealed = with.seal(&key, &value);
                Bytes::from(sealed.map_err(|error| StoreError::Failed { why: format!("{key}: {error}").into() })?)
            }
            WriteRule::Refuse(missing) => {
                let why = format!("{key} is to be encrypted, and the cluster's {missing} is not known to this server");
                return Err(StoreError::Failed { why: why.into() });
            }
        };
        Ok(Op::Put { key, value })
    }
}

/// Why a value that [`Codec::decode_entry`] left as it was cannot be read; `None` if it is in no form of ours at all.
pub fn unreadable_reason(stored: &[u8]) -> Option<String> {
    if stored.starts_with(ENVELOPE) {
        let missing =
            MissingKey::of_envelope(stored).map_or_else(|| "an unknown provider".to_owned(), |k| k.to_string());
        return Some(format!("it is encrypted, and no key of this server decrypts it (it names {missing})"));
    }
    let error = protobuf::decode_stored(stored).err();
    error.filter(|_| stored.starts_with(protobuf::MAGIC)).map(|error| error.to_string())
}
