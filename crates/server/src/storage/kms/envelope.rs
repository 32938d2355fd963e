//! A value sealed by a key that is derived from a seed for this one value, as upstream's newest servers do.
//!
//! `info (32 bytes) | nonce (12 bytes) | AES-256-GCM`, with the key HKDF-Expand-SHA256(seed, info), and the value's key in the store authenticated
//! with it. A key that is used once has no bound on how much the seed protects.

use aes_gcm::{
    Aes256Gcm,
    aead::{Aead, KeyInit, Payload},
};
use ring::{
    hkdf,
    rand::{SecureRandom, SystemRandom},
};

pub const SEED: usize = 32;
const INFO: usize = 32;
const NONCE: usize = 12;

/// What protects values, in the plain.
#[derive(Clone)]
pub enum DataKey {
    /// A seed from which keys are derived.
    Seed([u8; SEED]),
    /// A key of upstream's older servers, which sealed many values.
    Key(Box<Aes256Gcm>),
}

struct KeyLength;

impl hkdf::KeyType for KeyLength {
    fn len(&self) -> usize {
        32
    }
}

impl DataKey {
    pub fn generate() -> Option<(Self, [u8; SEED])> {
        let mut seed = [0; SEED];
        SystemRandom::new().fill(&mut seed).ok()?;
        Some((Self::Seed(seed), seed))
    }

    /// From what the plugin decrypted.
    pub fn parse(plain: &[u8], is_seed: bool) -> Option<Self> {
        match is_seed {
            true => plain.try_into().ok().map(Self::Seed),
            false => Aes256Gcm::new_from_slice(plain).ok().map(|cipher| Self::Key(Box::new(cipher))),
        }
    }

    fn derive(seed: &[u8; SEED], info: &[u8]) -> Option<Aes256Gcm> {
        let mut key = [0; 32];
        let prk = hkdf::Prk::new_less_safe(hkdf::HKDF_SHA256, seed);
        prk.expand(&[info], KeyLength).ok()?.fill(&mut key).ok()?;
        Aes256Gcm::new_from_slice(&key).ok()
    }

    pub fn seal(&self, store_key: &str, plain: &[u8]) -> Option<Vec<u8>> {
        let Self::Seed(seed) = self else { return None }; // older servers' keys only open
        let (mut info, mut nonce) = ([0; INFO], [0; NONCE]);
        let random = SystemRandom::new();
        random.fill(&mut info).ok()?;
        random.fill(&mut nonce).ok()?;
        let payload = Payload { msg: plain, aad: store_key.as_bytes() };
        let sealed = Self::derive(seed, &info)?.encrypt(&nonce.into(), payload).ok()?;
        Some([&info[..], &nonce, &sealed].concat())
    }

    pub fn open(&self, store_key: &str, sealed: &[u8]) -> Option<Vec<u8>> {
        let derived;
        let (cipher, sealed) = match self {
            Self::Seed(seed) => {
                let (info, sealed) = sealed.split_at_checked(INFO)?;
                derived = Self::derive(seed, info)?;
                (&derived, sealed)
            }
            Self::Key(cipher) => (&**cipher, sealed),
        };
        let (nonce, sealed) = sealed.split_first_chunk::<NONCE>()?;
        cipher.decrypt(&(*nonce).into(), Payload { msg: sealed, aad: store_key.as_bytes() }).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_bound_to_its_seed_and_its_place() {
        let (key, _) = DataKey::generate().unwrap();
        let (first, second) = (key.seal("/a", b"hunter2").unwrap(), key.seal("/a", b"hunter2").unwrap());
        assert_ne!(first[..INFO], second[..INFO], "every value has a key of its own");
        assert_eq!(key.open("/a", &first).as_deref(), Some(&b"hunter2"[..]));
        assert_eq!(key.open("/b", &first), None);
        assert_eq!(DataKey::generate().unwrap().0.open("/a", &first), None);
        for end in 0..first.len() {
            assert_eq!(key.open("/a", &first[..end]), None);
        }
    }

    #[test]
    fn keys_are_derived_as_rfc_5869_says() {
        // Test case 1 of the RFC, the step after extraction.
        let prk: Vec<u8> = (0..64)
            .step_by(2)
            .map(|at| {
                let hex = "077709362c2e32df0ddc3f0dc47bba6390b6c73bb50f9c3122ec844ad7c2b3e5";
                u8::from_str_radix(&hex[at..at + 2], 16).unwrap()
            })
            .collect();
        let info: Vec<u8> = (0xf0..=0xf9).collect();
        let mut key = [0; 32];
        let prk = hkdf::Prk::new_less_safe(hkdf::HKDF_SHA256, &prk);
        prk.expand(&[&info[..]], KeyLength).unwrap().fill(&mut key).unwrap();
        let hex: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf");
    }
}
