//! Keys that seal values, in upstream's envelopes.
//!
//! | provider | prefix | then |
//! |---|---|---|
//! | `secretbox` | `k8s:enc:secretbox:v1:KEY:` | 24 bytes of nonce, XSalsa20-Poly1305 with the tag in front |
//! | `aesgcm` | `k8s:enc:aesgcm:v1:KEY:` | 12 bytes of nonce, AES-GCM with the tag behind; the key in the store is authenticated with it |
//! | `kms` | `k8s:enc:kms:v2:NAME:` | see [`super::kms`] |
//!
//! Nonces are random. That bounds how much one key may seal: for `secretbox` there is no bound in practice; upstream advises
//! to rotate keys of `aesgcm` every 200,000 writes, which is why keys that we make are for `secretbox`.

use std::sync::Arc;

use aes_gcm::{
    Aes128Gcm, Aes256Gcm, AesGcm,
    aead::{Aead, KeyInit, Payload, consts::U12},
    aes::Aes192,
};
use base64::{Engine, prelude::BASE64_STANDARD};
use crypto_secretbox::{XSalsa20Poly1305, aead::Aead as _, aead::KeyInit as _};
use ring::rand::{SecureRandom, SystemRandom};

use super::{
    encryption_config::NamedKey,
    kms::{KmsProvider, KmsSealError},
};

/// What every envelope begins with.
pub const ENVELOPE: &[u8] = b"k8s:enc:";

const SECRETBOX_NONCE: usize = 24;
const AES_NONCE: usize = 12;

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum KeyError {
    #[error("key {name:?}: its secret is not base64")]
    NotBase64 { name: String },
    #[error("key {name:?} of {provider}: its secret has {length} bytes; {expected}")]
    Length { name: String, provider: &'static str, length: usize, expected: &'static str },
    #[error("{0}")]
    Kms(String),
    #[error("a key of {provider} has the name {name:?}, which must be neither empty nor contain a colon")]
    Name { name: String, provider: &'static str },
}

#[derive(Debug, thiserror::Error)]
pub enum SealError {
    #[error("the value could not be encrypted")]
    Cipher,
    #[error(transparent)]
    Kms(#[from] KmsSealError),
}

enum Cipher {
    Secretbox(Box<XSalsa20Poly1305>),
    Aes128(Box<Aes128Gcm>),
    Aes192(Box<AesGcm<Aes192, U12>>),
    Aes256(Box<Aes256Gcm>),
    Kms(Arc<KmsProvider>),
}

/// One key of one provider.
pub struct ProviderKey {
    /// `k8s:enc:secretbox:v1:key1:`.
    prefix: String,
    cipher: Cipher,
}

impl ProviderKey {
    pub fn secretbox(key: &NamedKey) -> Result<Self, KeyError> {
        let (prefix, secret) = parts("secretbox", key)?;
        let cipher = XSalsa20Poly1305::new_from_slice(&secret)
            .map_err(|_| length("secretbox", key, &secret, "it must have 32"))?;
        Ok(Self { prefix, cipher: Cipher::Secretbox(Box::new(cipher)) })
    }

    pub fn aes_gcm(key: &NamedKey) -> Result<Self, KeyError> {
        let (prefix, secret) = parts("aesgcm", key)?;
        let wrong = |_| length("aesgcm", key, &secret, "it must have 16, 24 or 32");
        let cipher = match secret.len() {
            16 => Cipher::Aes128(Box::new(Aes128Gcm::new_from_slice(&secret).map_err(wrong)?)),
            24 => Cipher::Aes192(Box::new(AesGcm::new_from_slice(&secret).map_err(wrong)?)),
            _ => Cipher::Aes256(Box::new(Aes256Gcm::new_from_slice(&secret).map_err(wrong)?)),
        };
        Ok(Self { prefix, cipher })
    }

    pub fn kms(plugin: Arc<KmsProvider>) -> Self {
        Self { prefix: plugin.prefix().to_owned(), cipher: Cipher::Kms(plugin) }
    }

    /// The plugin that protects this key, if one does.
    pub fn plugin(&self) -> Option<&Arc<KmsProvider>> {
        match &self.cipher {
            Cipher::Kms(plugin) => Some(plugin),
            Cipher::Secretbox(_) | Cipher::Aes128(_) | Cipher::Aes192(_) | Cipher::Aes256(_) => None,
        }
    }

    /// Whether a stored value was sealed by a key of this provider and name.
    pub fn has_sealed(&self, stored: &[u8]) -> bool {
        stored.starts_with(self.prefix.as_bytes())
    }

    /// Whether a stored value was sealed as this key would seal it now.
    pub fn seals_alike(&self, stored: &[u8]) -> bool {
        self.has_sealed(stored) && self.plugin().is_none_or(|plugin| plugin.is_by_current_key(stored))
    }

    /// Seals the value of a key in the store.
    pub fn seal(&self, store_key: &str, plain: &[u8]) -> Result<Vec<u8>, SealError> {
        if let Cipher::Kms(plugin) = &self.cipher {
            return Ok(plugin.seal(store_key, plain)?);
        }
        let mut nonce = [0; SECRETBOX_NONCE];
        let nonce = match self.cipher {
            Cipher::Secretbox(_) | Cipher::Kms(_) => &mut nonce[..],
            Cipher::Aes128(_) | Cipher::Aes192(_) | Cipher::Aes256(_) => &mut nonce[..AES_NONCE],
        };
        SystemRandom::new().fill(nonce).map_err(|_| SealError::Cipher)?;
        let payload = Payload { msg: plain, aad: store_key.as_bytes() };
        let aes_nonce = || <[u8; AES_NONCE]>::try_from(&nonce[..AES_NONCE]).map_err(|_| SealError::Cipher);
        let sealed = match &self.cipher {
            Cipher::Secretbox(cipher) => {
                cipher.encrypt(crypto_secretbox::Nonce::from_slice(nonce), plain).map_err(|_| SealError::Cipher)
            }
            Cipher::Aes128(cipher) => cipher.encrypt(&aes_nonce()?.into(), payload).map_err(|_| SealError::Cipher),
            Cipher::Aes192(cipher) => cipher.encrypt(&aes_nonce()?.into(), payload).map_err(|_| SealError::Cipher),
            Cipher::Aes256(cipher) => cipher.encrypt(&aes_nonce()?.into(), payload).map_err(|_| SealError::Cipher),
            Cipher::Kms(_) => Err(SealError::Cipher), // sealed above
        }?;
        Ok([self.prefix.as_bytes(), nonce, &sealed].concat())
    }

    /// What was sealed; `None` if it was not by this key, for this key in the store, or was changed since.
    pub fn open(&self, store_key: &str, stored: &[u8]) -> Option<Vec<u8>> {
        if let Cipher::Kms(plugin) = &self.cipher {
            return plugin.open(store_key, stored);
        }
        let sealed = stored.strip_prefix(self.prefix.as_bytes())?;
        if let Cipher::Secretbox(cipher) = &self.cipher {
            let (nonce, sealed) = sealed.split_at_checked(SECRETBOX_NONCE)?;
            return cipher.decrypt(crypto_secretbox::Nonce::from_slice(nonce), sealed).ok();
        }
        let (nonce, sealed) = sealed.split_first_chunk::<AES_NONCE>()?;
        let (nonce, payload) = ((*nonce).into(), Payload { msg: sealed, aad: store_key.as_bytes() });
        match &self.cipher {
            Cipher::Secretbox(_) | Cipher::Kms(_) => None,
            Cipher::Aes128(cipher) => cipher.decrypt(&nonce, payload).ok(),
            Cipher::Aes192(cipher) => cipher.decrypt(&nonce, payload).ok(),
            Cipher::Aes256(cipher) => cipher.decrypt(&nonce, payload).ok(),
        }
    }
}

fn parts(provider: &'static str, key: &NamedKey) -> Result<(String, Vec<u8>), KeyError> {
    if key.name.is_empty() || key.name.contains(':') {
        return Err(KeyError::Name { name: key.name.clone(), provider });
    }
    let secret = BASE64_STANDARD.decode(&key.secret).map_err(|_| KeyError::NotBase64 { name: key.name.clone() })?;
    Ok((format!("k8s:enc:{provider}:v1:{}:", key.name), secret))
}

fn length(provider: &'static str, key: &NamedKey, secret: &[u8], expected: &'static str) -> KeyError {
    KeyError::Length { name: key.name.clone(), provider, length: secret.len(), expected }
}

/// Provider and key by which an envelope was sealed, as it says.
pub fn sealed_by(stored: &[u8]) -> Option<(&str, &str)> {
    let head = stored.strip_prefix(ENVELOPE)?;
    let mut parts = head.splitn(4, |byte| *byte == b':').map(|part| std::str::from_utf8(part).ok());
    let (provider, _version, name) = (parts.next()??, parts.next()??, parts.next()??);
    Some((provider, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(length: usize) -> NamedKey {
        NamedKey { name: "k".to_owned(), secret: BASE64_STANDARD.encode(vec![7; length]) }
    }

    #[test]
    fn every_provider_opens_what_it_sealed_and_nothing_that_was_changed() {
        let keys = [
            ProviderKey::secretbox(&named(32)),
            ProviderKey::aes_gcm(&named(16)),
            ProviderKey::aes_gcm(&named(24)),
            ProviderKey::aes_gcm(&named(32)),
        ];
        for key in keys.map(Result::unwrap) {
            let (first, second) = (key.seal("/a", b"hunter2").unwrap(), key.seal("/a", b"hunter2").unwrap());
            assert_ne!(first, second, "nonces differ");
            assert!(!first.windows(7).any(|window| window == b"hunter2"));
            assert_eq!(key.open("/a", &first).as_deref(), Some(&b"hunter2"[..]));
            for at in [key.prefix.len(), first.len() - 1] {
                let mut changed = first.clone();
                changed[at] ^= 1;
                assert_eq!(key.open("/a", &changed), None);
            }
            for end in 0..first.len() {
                assert_eq!(key.open("/a", &first[..end]), None);
            }
            let moves = key.open("/b", &first).is_some();
            assert_eq!(moves, matches!(key.cipher, Cipher::Secretbox(_)), "aesgcm binds a value to its place");
        }
    }

    #[test]
    fn wrong_keys_are_named() {
        let error = ProviderKey::secretbox(&named(31)).err().unwrap().to_string();
        assert_eq!(error, "key \"k\" of secretbox: its secret has 31 bytes; it must have 32");
        assert!(ProviderKey::aes_gcm(&named(20)).is_err());
        let unnamed = NamedKey { name: "a:b".to_owned(), secret: String::new() };
        assert!(matches!(ProviderKey::aes_gcm(&unnamed), Err(KeyError::Name { .. })));
        assert_eq!(sealed_by(b"k8s:enc:secretbox:v1:key1:\xff\xfe"), Some(("secretbox", "key1")));
        assert_eq!(sealed_by(b"{}"), None);
    }
}
