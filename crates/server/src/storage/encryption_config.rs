//! Upstream's encryption configuration (`apiserver.config.k8s.io/v1`, kind `EncryptionConfiguration`): the file that holds the
//! keys by which resources are encrypted in the store. An upstream API server given the same file reads what we wrote.
//!
//! Of upstream's providers, `secretbox`, `aesgcm`, `kms` (version 2) and `identity` are understood. The first provider of a resource encrypts,
//! all of them decrypt. A file that is not understood wholly is refused: a server that ignored a part of it would write
//! Secrets in another form than its operator asked for.

use std::{fmt, fs, io, path::Path, path::PathBuf};

use base64::{Engine, prelude::BASE64_STANDARD};
use mainstay_api::{decode, encode, registry::Registry};
use mainstay_files::{Durability, PRIVATE_FILE, restrict_file, write_atomic};
use ring::rand::{SecureRandom, SystemRandom};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::kms::KmsConfiguration;

const KIND: &str = "EncryptionConfiguration";
const API_VERSION: &str = "apiserver.config.k8s.io/v1";
/// Bytes of a key of `secretbox`.
const SECRETBOX_KEY: usize = 32;

#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("{action} {}", path.display())]
    File { action: &'static str, path: PathBuf, source: io::Error },
    #[error("{}: {why}", path.display())]
    Invalid { path: PathBuf, why: String },
    #[error("the system gives no random bytes for a key")]
    Random,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct EncryptionConfiguration {
    kind: String,
    api_version: String,
    pub resources: Vec<ResourceConfiguration>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResourceConfiguration {
    /// `secrets`, `deployments.apps`, `*.apps`, `*.*`.
    pub resources: Vec<String>,
    pub providers: Vec<ProviderConfiguration>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProviderConfiguration {
    Secretbox(Keys),
    AesGcm(Keys),
    Kms(KmsConfiguration),
    Identity(NoFields),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NoFields {}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Keys {
    pub keys: Vec<NamedKey>,
}

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NamedKey {
    pub name: String,
    /// In base64.
    pub secret: String,
}

impl fmt::Debug for NamedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NamedKey").field("name", &self.name).finish_non_exhaustive()
    }
}

impl NamedKey {
    /// A new key for `secretbox`, with a name that no other key has: backups outlive rotations, and errors name keys.
    pub fn generate() -> Result<Self, ConfigError> {
        let (mut name, mut secret) = ([0; 4], [0; SECRETBOX_KEY]);
        let random = SystemRandom::new();
        random.fill(&mut name).and_then(|()| random.fill(&mut secret)).map_err(|_| ConfigError::Random)?;
        let name = format!("key-{:08x}", u32::from_be_bytes(name));
        Ok(Self { name, secret: BASE64_STANDARD.encode(secret) })
    }
}

impl EncryptionConfiguration {
    /// The configuration of a new cluster: the kinds whose descriptor asks for it, under one key.
    pub fn generate(registry: &Registry) -> Result<Self, ConfigError> {
        let resources = registry.stored().filter(|d| d.encrypted_at_rest).map(|d| d.qualified()).collect();
        let providers = vec![
            ProviderConfiguration::Secretbox(Keys { keys: vec![NamedKey::generate()?] }),
            ProviderConfiguration::Identity(NoFields {}),
        ];
        let resources = vec![ResourceConfiguration { resources, providers }];
        Ok(Self { kind: KIND.to_owned(), api_version: API_VERSION.to_owned(), resources })
    }

    /// The file, if there is one. It is closed to other users.
    pub fn load(path: &Path) -> Result<Option<Self>, ConfigError> {
        let file = |action| move |source| ConfigError::File { action, path: path.to_owned(), source };
        let bytes = match fs::read(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            read => read.map_err(file("read"))?,
        };
        if let Some(restricted) = restrict_file(path).map_err(file("restrict"))? {
            tracing::warn!(path = %path.display(), mode = format!("{:o}", restricted.previous_mode),
                "other users could read the keys that encrypt Secrets; the file is private from now on");
        }
        Self::parse(&bytes).map(Some).map_err(|why| ConfigError::Invalid { path: path.to_owned(), why })
    }

    fn parse(bytes: &[u8]) -> Result<Self, String> {
        let value: Value = decode::yaml(bytes).map_err(|error| error.to_string())?.value;
        let config: Self = serde_json::from_value(value).map_err(|error| {
            // Messages of the parser name fields, never values of keys: those are text wherever text is expected.
            format!("{error}; of the providers, secretbox, aesgcm, kms and identity are supported")
        })?;
        if config.kind != KIND || config.api_version != API_VERSION {
            return Err(format!("must be of kind {KIND} and apiVersion {API_VERSION}"));
        }
        for (index, resource) in config.resources.iter().enumerate() {
            if resource.providers.is_empty() {
                return Err(format!("resources[{index}].providers: at least one provider is required"));
            }
        }
        Ok(config)
    }

    /// Writes the file in one step: after a crash it is either the old one or the new one.
    pub fn save(&self, path: &Path) -> Result<(), ConfigError> {
        let value = serde_json::to_value(self)
            .map_err(|error| ConfigError::Invalid { path: path.to_owned(), why: error.to_string() })?;
        write_atomic(path, encode::to_yaml(&value).as_bytes(), PRIVATE_FILE, Durability::Durable)
            .map_err(|source| ConfigError::File { action: "write", path: path.to_owned(), source })
    }

    /// The same with a new key in front of all others, wherever something is encrypted by keys of this file.
    pub fn with_new_key(&self, key: &NamedKey) -> Self {
        let mut config = self.clone();
        for resource in config.resources.iter_mut().filter(|resource| resource.encrypts()) {
            let provider = ProviderConfiguration::Secretbox(Keys { keys: vec![key.clone()] });
            resource.providers.insert(0, provider);
        }
        config
    }

    /// The same with the keys that encrypt, and without those that only decrypt.
    pub fn without_old_keys(&self) -> Self {
        let mut config = self.clone();
        for resource in config.resources.iter_mut().filter(|resource| resource.encrypts()) {
            let mut is_first = true;
            for provider in &mut resource.providers {
                if let ProviderConfiguration::Secretbox(Keys { keys }) | ProviderConfiguration::AesGcm(Keys { keys }) =
                    provider
                {
                    keys.truncate(usize::from(std::mem::take(&mut is_first)));
                }
            }
            resource.providers.retain(|provider| match provider {
                ProviderConfiguration::Secretbox(Keys { keys }) | ProviderConfiguration::AesGcm(Keys { keys }) => {
                    !keys.is_empty()
                }
                ProviderConfiguration::Kms(_) | ProviderConfiguration::Identity(_) => true,
            });
        }
        config
    }

    /// The KMS plugin that encrypts something, if one does.
    pub fn encrypting_plugin(&self) -> Option<&str> {
        self.resources.iter().find_map(|resource| match resource.providers.first() {
            Some(ProviderConfiguration::Kms(kms)) => Some(kms.name.as_str()),
            _ => None,
        })
    }

    pub fn encrypts(&self) -> bool {
        self.resources.iter().any(ResourceConfiguration::encrypts)
    }
}

impl ResourceConfiguration {
    fn encrypts(&self) -> bool {
        !matches!(self.providers.first(), None | Some(ProviderConfiguration::Identity(_)))
    }

    /// Whether a pattern of this configuration stands for `resource` of `group`.
    pub fn covers(&self, group: &str, resource: &str) -> bool {
        self.resources.iter().any(|pattern| match pattern.split_once('.') {
            None => group.is_empty() && pattern == resource,
            Some(("*", "*")) => true,
            Some(("*", wanted)) => wanted == group,
            Some((wanted, of)) => wanted == resource && of == group,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const UPSTREAM: &str = "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n  \
        - resources: [secrets, deployments.apps]\n    providers:\n    - aesgcm:\n        keys:\n        - name: key1\n          \
        secret: c2VjcmV0IGlzIHNlY3VyZQ==\n    - secretbox:\n        keys:\n        - {name: key2, secret: YQ==}\n    - identity: {}\n";

    #[test]
    fn a_generated_file_is_private_and_reads_back_as_upstreams() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("encryption-config.yaml");
        assert_eq!(EncryptionConfiguration::load(&path).unwrap(), None);
        let made = EncryptionConfiguration::generate(&Registry::builtin()).unwrap();
        made.save(&path).unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o7777, 0o600);
        assert_eq!(EncryptionConfiguration::load(&path).unwrap().as_ref(), Some(&made));
        assert_eq!(made.resources[0].resources, ["secrets"]);
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains("kind: EncryptionConfiguration") && text.contains("secretbox:"), "{text}");
        let second = EncryptionConfiguration::generate(&Registry::builtin()).unwrap();
        assert_ne!(made, second);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        EncryptionConfiguration::load(&path).unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o7777, 0o600);
    }

    #[test]
    fn what_is_not_understood_is_refused_and_named() {
        let config = EncryptionConfiguration::parse(UPSTREAM.as_bytes()).unwrap();
        assert!(config.resources[0].covers("", "secrets") && config.resources[0].covers("apps", "deployments"));
        assert!(!config.resources[0].covers("", "deployments") && !config.resources[0].covers("", "configmaps"));
        for (from, to, expected) in [
            ("aesgcm", "rot13", "rot13"),
            ("EncryptionConfiguration", "Config", "must be of kind"),
            ("identity: {}", "identity: {a: 1}", "unknown field"),
            ("name: key1", "name: 1", "invalid type"),
        ] {
            let error = EncryptionConfiguration::parse(UPSTREAM.replace(from, to).as_bytes()).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn a_rotation_adds_a_key_in_front_and_then_drops_the_others() {
        let config = EncryptionConfiguration::parse(UPSTREAM.as_bytes()).unwrap();
        let key = NamedKey::generate().unwrap();
        let both = config.with_new_key(&key);
        assert_eq!(both.resources[0].providers.len(), 4);
        let last = both.without_old_keys();
        let expected = ProviderConfiguration::Secretbox(Keys { keys: vec![key] });
        assert_eq!(last.resources[0].providers, [expected, ProviderConfiguration::Identity(NoFields {})]);
    }

    #[test]
    fn keys_are_not_shown() {
        let shown = format!("{:?}", EncryptionConfiguration::parse(UPSTREAM.as_bytes()).unwrap());
        assert!(shown.contains("key1") && !shown.contains("c2Vj"), "{shown}");
    }
}
