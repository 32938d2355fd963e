//! One KMS plugin: the seed that seals now, the seeds that it gave back, and its health.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::RwLock;
use prost::Message;
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::{
    client::{CallError, PluginClient},
    envelope::DataKey,
    messages::{
        DecryptRequest, DecryptResponse, EncryptRequest, EncryptResponse, EncryptedDekSourceType, EncryptedObject,
        StatusRequest, StatusResponse,
    },
};

/// How often the plugin is asked how it is: while it is well, and while it is not.
const INTERVAL: Duration = Duration::from_secs(60);
const INTERVAL_UNHEALTHY: Duration = Duration::from_secs(10);
/// How long a seed seals after the plugin last said that its key id is the current one.
const SEED_TTL: Duration = Duration::from_secs(3 * 60);
/// Seeds that are remembered, each of one key id and one server.
const MAX_SEEDS: usize = 1000;
/// After a plugin did not answer, it is not asked to decrypt for so long: who waits for one answer need not wait for the next.
const OUTAGE_PAUSE: Duration = Duration::from_secs(2);
const MAX_KEY_ID: usize = 1024;
const MAX_ANNOTATIONS: usize = 32 * 1024;

/// Of the provider `kms` in an EncryptionConfiguration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct KmsConfiguration {
    api_version: String,
    pub name: String,
    /// `unix:///path/of/the.sock`.
    endpoint: String,
    /// As Go writes it: `3s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    timeout: Option<String>,
}

impl KmsConfiguration {
    fn client(&self) -> Result<PluginClient, String> {
        let name = &self.name;
        if self.api_version != "v2" {
            return Err(format!("kms provider {name:?}: apiVersion must be v2"));
        }
        if name.is_empty() || name.contains(':') {
            return Err(format!("kms provider {name:?}: name must be neither empty nor contain a colon"));
        }
        let path = self.endpoint.strip_prefix("unix://").filter(|path| path.starts_with('/'));
        let Some(path) = path else {
            return Err(format!("kms provider {name:?}: endpoint must be unix:// and the absolute path of a socket"));
        };
        let timeout = match &self.timeout {
            None => Duration::from_secs(3),
            Some(text) => {
                mainstay_api::duration::parse_duration(text).filter(|timeout| !timeout.is_zero()).ok_or_else(|| {
                    format!("kms provider {name:?}: timeout {text:?} must be a positive duration such as 3s")
                })?
            }
        };
        Ok(PluginClient { socket: PathBuf::from(path), timeout })
    }
}

/// The seed that seals, with what goes into every envelope.
#[derive(Clone)]
struct CurrentSeed {
    key: DataKey,
    key_id: String,
    encrypted: Vec<u8>,
    annotations: BTreeMap<String, Vec<u8>>,
    confirmed: Instant,
}

#[derive(Default)]
struct State {
    current: Option<CurrentSeed>,
    /// By what the plugin encrypted them to.
    seeds: HashMap<Vec<u8>, DataKey>,
    /// Why the plugin is not well, since it was last asked.
    problem: Option<String>,
}

pub struct KmsProvider {
    name: String,
    prefix: String,
    client: PluginClient,
    state: RwLock<State>,
    /// Since when the plugin is known not to answer. Held while it decrypts, so that all who need the same seed ask once.
    decrypting: tokio::sync::Mutex<Option<Instant>>,
}

impl fmt::Debug for KmsProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KmsProvider").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Why a value cannot be sealed.
#[derive(Debug, thiserror::Error)]
pub enum KmsSealError {
    #[error("KMS plugin {name:?} has not encrypted a key yet: {why}")]
    NotReady { name: String, why: String },
    #[error("KMS plugin {name:?} has not confirmed its key id for {SEED_TTL:?}: {why}")]
    Expired { name: String, why: String },
    #[error("the value could not be encrypted")]
    Cipher,
}

impl KmsProvider {
    pub fn new(config: &KmsConfiguration) -> Result<Self, String> {
        let client = config.client()?;
        let prefix = format!("k8s:enc:kms:v2:{}:", config.name);
        let state = State { problem: Some("it was not asked yet".to_owned()), ..State::default() };
        Ok(Self {
            name: config.name.clone(),
            prefix,
            client,
            state: RwLock::new(state),
            decrypting: tokio::sync::Mutex::default(),
        })
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Why the plugin is not well, if it is not.
    pub fn problem(&self) -> Option<String> {
        self.state.read().problem.clone()
    }

    pub fn seal(&self, store_key: &str, plain: &[u8]) -> Result<Vec<u8>, KmsSealError> {
        let state = self.state.read();
        let why = || state.problem.clone().unwrap_or_default();
        let Some(current) = &state.current else {
            return Err(KmsSealError::NotReady { name: self.name.clone(), why: why() });
        };
        if current.confirmed.elapsed() > SEED_TTL {
            return Err(KmsSealError::Expired { name: self.name.clone(), why: why() });
        }
        let object = EncryptedObject {
            encrypted_data: current.key.seal(store_key, plain).ok_or(KmsSealError::Cipher)?,
            key_id: current.key_id.clone(),
            encrypted_dek_source: current.encrypted.clone(),
            annotations: current.annotations.clone(),
            encrypted_dek_source_type: EncryptedDekSourceType::HkdfSha256XnonceAesGcmSeed.into(),
        };
        Ok([self.prefix.as_bytes(), &object.encode_to_vec()].concat())
    }

    fn parse(&self, stored: &[u8]) -> Option<EncryptedObject> {
        EncryptedObject::decode(stored.strip_prefix(self.prefix.as_bytes())?).ok()
    }

    /// Whether a value was sealed under the key id that is the plugin's now.
    pub fn is_by_current_key(&self, stored: &[u8]) -> bool {
        let state = self.state.read();
        let current = state.current.as_ref().map(|current| &current.key_id);
        self.parse(stored).is_some_and(|object| Some(&object.key_id) == current)
    }

    /// What was sealed, if its seed is known; see [`KmsProvider::resolve`].
    pub fn open(&self, store_key: &str, stored: &[u8]) -> Option<Vec<u8>> {
        let object = self.parse(stored)?;
        let key = self.state.read().seeds.get(&object.encrypted_dek_source).cloned()?;
        key.open(store_key, &object.encrypted_data)
    }

    /// Has the plugin decrypt the seed of a value, unless it is known.
    pub async fn resolve(&self, stored: &[u8]) {
        let Some(object) = self.parse(stored) else { return };
        let is_known = || self.state.read().seeds.contains_key(&object.encrypted_dek_source);
        if is_known() {
            return;
        }
        let mut outage = self.decrypting.lock().await;
        if is_known() || outage.is_some_and(|since| since.elapsed() < OUTAGE_PAUSE) {
            return;
        }
        let is_seed = object.encrypted_dek_source_type == i32::from(EncryptedDekSourceType::HkdfSha256XnonceAesGcmSeed);
        let EncryptedObject { key_id, encrypted_dek_source: ciphertext, annotations, .. } = object;
        let request = DecryptRequest { ciphertext: ciphertext.clone(), uid: uid(), key_id, annotations };
        let answer = self.client.call::<DecryptResponse>("Decrypt", &request).await;
        *outage = answer.as_ref().err().filter(|error| error.is_outage).map(|_| Instant::now());
        match answer {
            Ok(answer) => match DataKey::parse(&answer.plaintext, is_seed) {
                Some(key) => self.remember(ciphertext, key),
                None => tracing::error!(plugin = self.name, "the KMS plugin decrypted a key of the wrong length"),
            },
            Err(error) => tracing::warn!(plugin = self.name, %error, "the KMS plugin did not decrypt a key"),
        }
    }

    fn remember(&self, encrypted: Vec<u8>, key: DataKey) {
        let mut state = self.state.write();
        if state.seeds.len() >= MAX_SEEDS {
            state.seeds.clear(); // they are asked for again
        }
        state.seeds.insert(encrypted, key);
    }

    /// Asks the plugin how it is, and for a new seed if its key id is another.
    pub async fn refresh(&self) {
        let problem = self.ask().await.err();
        if problem.is_none() {
            *self.decrypting.lock().await = None;
        }
        let mut state = self.state.write();
        match (&problem, &state.problem) {
            (Some(problem), known) if Some(problem) != known.as_ref() => {
                let is_sealing = state.current.is_some();
                tracing::error!(plugin = self.name, problem, is_sealing, "the KMS plugin is not well; will ask again");
            }
            (None, Some(_)) => tracing::info!(plugin = self.name, "the KMS plugin is well"),
            (Some(_), _) | (None, None) => {}
        }
        state.problem = problem;
    }

    async fn ask(&self) -> Result<(), String> {
        let text = |error: CallError| error.to_string();
        let status: StatusResponse = self.client.call("Status", &StatusRequest {}).await.map_err(text)?;
        if !["v2", "v2beta1"].contains(&status.version.as_str()) {
            return Err(format!("expected version v2 or v2beta1, got {:?}", status.version));
        }
        if status.healthz != "ok" {
            return Err(format!("healthz is {:?}", status.healthz));
        }
        check_key_id(&status.key_id)?;
        if let Some(current) = &mut self.state.write().current
            && current.key_id == status.key_id
        {
            current.confirmed = Instant::now();
            return Ok(());
        }
        let (key, seed) = DataKey::generate().ok_or("the system gives no random bytes")?;
        let request = EncryptRequest { plaintext: seed.to_vec(), uid: uid() };
        let answer: EncryptResponse = self.client.call("Encrypt", &request).await.map_err(text)?;
        check_key_id(&answer.key_id)?;
        if answer.key_id != status.key_id {
            return Err(format!("encrypted by key id {:?} while its status says {:?}", answer.key_id, status.key_id));
        }
        if answer.ciphertext.is_empty() || answer.ciphertext == seed {
            return Err("it did not encrypt the key".to_owned());
        }
        let size: usize = answer.annotations.iter().map(|(name, value)| name.len() + value.len()).sum();
        if size > MAX_ANNOTATIONS {
            return Err(format!("annotations of {size} bytes; {MAX_ANNOTATIONS} are the most"));
        }
        if let Some(name) = answer.annotations.keys().find(|name| !name.contains('.')) {
            return Err(format!("annotation {name:?} must be a fully qualified domain name"));
        }
        self.remember(answer.ciphertext.clone(), key.clone());
        let EncryptResponse { ciphertext: encrypted, key_id, annotations } = answer;
        tracing::info!(plugin = self.name, key_id, "the KMS plugin encrypts by this key id from now on");
        self.state.write().current =
            Some(CurrentSeed { key, key_id, encrypted, annotations, confirmed: Instant::now() });
        Ok(())
    }

    /// Keeps the seed current until `stop`.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        loop {
            let interval = if self.problem().is_some() { INTERVAL_UNHEALTHY } else { INTERVAL };
            if stop.run_until_cancelled(tokio::time::sleep(interval)).await.is_none() {
                return;
            }
            self.refresh().await;
        }
    }

    /// The key id that an envelope names, for tests that look into one.
    #[cfg(test)]
    pub fn key_id_of(&self, stored: &[u8]) -> Option<String> {
        self.parse(stored).map(|object| object.key_id)
    }
}

fn check_key_id(key_id: &str) -> Result<(), String> {
    match key_id.len() {
        0 => Err("its key id is empty".to_owned()),
        length if length > MAX_KEY_ID => Err(format!("its key id has {length} bytes; {MAX_KEY_ID} are the most")),
        _ => Ok(()),
    }
}

fn uid() -> String {
    Uuid::new_v4().to_string()
}
