//! Which key seals which resource, and all keys that open.

use std::{fmt, sync::Arc};

use mainstay_api::registry::Registry;

use super::{
    encryption_config::{EncryptionConfiguration, ProviderConfiguration, ResourceConfiguration},
    kms::{KmsConfiguration, KmsProvider},
    provider::{KeyError, ProviderKey, sealed_by},
};
use crate::objects::keys;

/// How values below a prefix are written.
#[derive(Clone)]
pub enum WriteRule {
    Plain,
    Seal(Arc<ProviderKey>),
    /// The cluster encrypts them by a key that this server lacks.
    Refuse(MissingKey),
}

/// A key that the store's values need and this server's configuration lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingKey {
    pub provider: String,
    pub name: String,
}

impl MissingKey {
    pub fn of_envelope(stored: &[u8]) -> Option<Self> {
        let (provider, name) = sealed_by(stored)?;
        Some(Self { provider: provider.to_owned(), name: name.to_owned() })
    }
}

impl fmt::Display for MissingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "key {:?} of {}", self.name, self.provider)
    }
}

/// By default, nothing is sealed.
#[derive(Default)]
pub struct Keyring {
    rules: Vec<(String, WriteRule)>,
    /// Every key, each of which may open what it sealed wherever that lies.
    keys: Vec<Arc<ProviderKey>>,
}

impl Keyring {
    pub fn new(config: &EncryptionConfiguration, registry: &Registry) -> Result<Self, KeyError> {
        let (mut rules, mut keys) = (Vec::new(), Vec::new());
        let mut plugins = Vec::new();
        for resources in &config.resources {
            let own = provider_keys(resources, &mut plugins)?;
            let rule = match resources.providers.first() {
                None | Some(ProviderConfiguration::Identity(_)) => WriteRule::Plain,
                Some(_) => own.first().cloned().map_or(WriteRule::Plain, WriteRule::Seal),
            };
            let covered = prefixes(registry, |group, plural| resources.covers(group, plural));
            rules.extend(covered.into_iter().map(|prefix| (prefix, rule.clone())));
            keys.extend(own);
        }
        Ok(Self { rules, keys })
    }

    /// Of a server that lacks the key: opens what it can with the keys it has, seals nothing, and writes nothing of what is to be
    /// sealed.
    pub fn lacking(missing: &MissingKey, others: Option<Self>, registry: &Registry) -> Self {
        let encrypted = |group: &str, plural: &str| {
            registry.stored().any(|d| d.encrypted_at_rest && d.group == group && d.plural == plural)
        };
        let refused = prefixes(registry, encrypted).into_iter();
        let mut rules: Vec<_> = refused.map(|prefix| (prefix, WriteRule::Refuse(missing.clone()))).collect();
        let Keyring { rules: others, keys } = others.unwrap_or_default();
        rules.extend(others.into_iter().map(|(prefix, rule)| match rule {
            WriteRule::Plain => (prefix, WriteRule::Plain),
            WriteRule::Seal(_) | WriteRule::Refuse(_) => (prefix, WriteRule::Refuse(missing.clone())),
        }));
        Self { rules, keys }
    }

    /// The same that also opens what the keys of another sealed: what is read from history may be older than a rotation.
    pub fn also_opening(mut self, other: &Self) -> Self {
        self.keys.extend(other.keys.iter().cloned());
        self
    }

    pub fn rule(&self, store_key: &str) -> &WriteRule {
        let rule = self.rules.iter().find(|(prefix, _)| store_key.starts_with(prefix.as_str()));
        rule.map_or(&WriteRule::Plain, |(_, rule)| rule)
    }

    /// Whether values below a prefix may be sealed, as far as this keyring says.
    pub fn covers_any_below(&self, prefix: &str) -> bool {
        self.rules.iter().any(|(rule, _)| rule.starts_with(prefix) || prefix.starts_with(rule.as_str()))
    }

    /// The prefixes of what is sealed, and the key that seals it now.
    pub fn sealed_prefixes(&self) -> impl Iterator<Item = (&str, &Arc<ProviderKey>)> {
        self.rules.iter().filter_map(|(prefix, rule)| match rule {
            WriteRule::Seal(key) => Some((prefix.as_str(), key)),
            WriteRule::Plain | WriteRule::Refuse(_) => None,
        })
    }

    /// The KMS plugins of all keys, each once.
    pub fn plugins(&self) -> Vec<Arc<KmsProvider>> {
        let mut plugins: Vec<Arc<KmsProvider>> = Vec::new();
        for plugin in self.keys.iter().filter_map(|key| key.plugin()) {
            if !plugins.iter().any(|known| Arc::ptr_eq(known, plugin)) {
                plugins.push(plugin.clone());
            }
        }
        plugins
    }

    /// Has KMS plugins decrypt the key of a value, so that [`Keyring::open`] can open it.
    pub async fn resolve(&self, stored: &[u8]) {
        for key in self.keys.iter().filter(|key| key.has_sealed(stored)) {
            if let Some(plugin) = key.plugin() {
                plugin.resolve(stored).await;
            }
        }
    }

    /// Whether a key of this name and provider is configured, whether or not it can open anything now.
    pub fn has_sealed(&self, stored: &[u8]) -> bool {
        self.keys.iter().any(|key| key.plugin().is_some() && key.has_sealed(stored))
    }

    pub fn open(&self, store_key: &str, stored: &[u8]) -> Option<Vec<u8>> {
        self.keys.iter().filter(|key| key.has_sealed(stored)).find_map(|key| key.open(store_key, stored))
    }
}

/// The keys of a part of the configuration. A plugin that several parts name is one plugin.
fn provider_keys(
    resources: &ResourceConfiguration,
    plugins: &mut Vec<(KmsConfiguration, Arc<KmsProvider>)>,
) -> Result<Vec<Arc<ProviderKey>>, KeyError> {
    let mut keys = Vec::new();
    for provider in &resources.providers {
        let (named, make): (_, fn(&_) -> _) = match provider {
            ProviderConfiguration::Kms(config) => {
                let known = plugins.iter().find(|(known, _)| known == config).map(|(_, plugin)| plugin.clone());
                let plugin = match known {
                    Some(plugin) => plugin,
                    None if plugins.iter().any(|(known, _)| known.name == config.name) => {
                        return Err(KeyError::Kms(format!("two kms providers have the name {:?}", config.name)));
                    }
                    None => {
                        let plugin = Arc::new(KmsProvider::new(config).map_err(KeyError::Kms)?);
                        plugins.push((config.clone(), plugin.clone()));
                        plugin
                    }
                };
                keys.push(Arc::new(ProviderKey::kms(plugin)));
                continue;
            }
            ProviderConfiguration::Secretbox(named) => (named, ProviderKey::secretbox),
            ProviderConfiguration::AesGcm(named) => (named, ProviderKey::aes_gcm),
            ProviderConfiguration::Identity(_) => continue,
        };
        for key in &named.keys {
            keys.push(Arc::new(make(key)?));
        }
    }
    Ok(keys)
}

/// Where the resources lie for which this holds. The cluster's own authorities and signing keys are treated as Secrets are.
fn prefixes(registry: &Registry, covers: impl Fn(&str, &str) -> bool) -> Vec<String> {
    let own = if covers("", "secrets") { &keys::SENSITIVE[..] } else { &[] };
    let resources = registry.stored().filter(|d| covers(&d.group, &d.plural)).map(|d| keys::prefix(d, None));
    resources.chain(own.iter().map(|key| (*key).to_owned())).collect()
}
