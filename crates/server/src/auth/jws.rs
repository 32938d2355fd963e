//! Signed tokens (RFC 7515, compact form) with one algorithm: ECDSA on P-256 with SHA-256.
//!
//! One algorithm means that nothing has to be chosen: a token that says it is signed in another way,
//! or not at all, is simply not ours.

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD as BASE64};
use ring::{
    digest,
    rand::SystemRandom,
    signature::{
        ECDSA_P256_SHA256_FIXED, ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _, UnparsedPublicKey,
    },
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

const ALGORITHM: &str = "ES256";
/// What precedes the point in a DER-encoded public key on P-256.
const SPKI_PREFIX: [u8; 26] = [
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce,
    0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum JwsError {
    #[error("the key is not usable")]
    Key,
    #[error("cannot sign")]
    Sign,
    #[error("not a signed token")]
    Malformed,
    #[error("signed with another key")]
    Foreign,
    #[error("the signature does not match")]
    Forged,
}

#[derive(Serialize, Deserialize)]
struct Header {
    alg: String,
    #[serde(default)]
    kid: String,
}

pub struct Key {
    pair: EcdsaKeyPair,
    id: String,
}

impl Key {
    /// A new key, as PKCS #8.
    pub fn generate() -> Result<Vec<u8>, JwsError> {
        let made = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &SystemRandom::new());
        Ok(made.map_err(|_| JwsError::Key)?.as_ref().to_vec())
    }

    pub fn parse(pkcs8: &[u8]) -> Result<Self, JwsError> {
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, pkcs8, &SystemRandom::new())
            .map_err(|_| JwsError::Key)?;
        let spki = [&SPKI_PREFIX, pair.public_key().as_ref()].concat();
        let id = BASE64.encode(digest::digest(&digest::SHA256, &spki));
        Ok(Self { pair, id })
    }

    pub fn sign(&self, claims: &impl Serialize) -> Result<String, JwsError> {
        let header = Header { alg: ALGORITHM.to_owned(), kid: self.id.clone() };
        let encode = |bytes: Result<Vec<u8>, _>| bytes.map(|bytes| BASE64.encode(bytes)).map_err(|_| JwsError::Sign);
        let signed = format!("{}.{}", encode(serde_json::to_vec(&header))?, encode(serde_json::to_vec(claims))?);
        let signature = self.pair.sign(&SystemRandom::new(), signed.as_bytes()).map_err(|_| JwsError::Sign)?;
        Ok(format!("{signed}.{}", BASE64.encode(signature)))
    }

    /// The claims of a token that this key signed.
    pub fn verify<C: DeserializeOwned>(&self, token: &str) -> Result<C, JwsError> {
        let (signed, signature) = token.rsplit_once('.').ok_or(JwsError::Malformed)?;
        let (header, claims) = signed.split_once('.').ok_or(JwsError::Malformed)?;
        let decode = |text: &str| BASE64.decode(text).map_err(|_| JwsError::Malformed);
        let header: Header = serde_json::from_slice(&decode(header)?).map_err(|_| JwsError::Malformed)?;
        if header.alg != ALGORITHM || header.kid != self.id {
            return Err(JwsError::Foreign);
        }
        let public = UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, self.pair.public_key().as_ref());
        public.verify(signed.as_bytes(), &decode(signature)?).map_err(|_| JwsError::Forged)?;
        serde_json::from_slice(&decode(claims)?).map_err(|_| JwsError::Malformed)
    }

    /// The public half, as RFC 7517 has it.
    pub fn jwk(&self) -> Value {
        let point = self.pair.public_key().as_ref(); // 4, then x and y of 32 bytes each
        let (x, y) = point.get(1..).unwrap_or_default().split_at(point.len().saturating_sub(1) / 2);
        json!({
            "use": "sig", "kty": "EC", "kid": self.id, "crv": "P-256", "alg": ALGORITHM,
            "x": BASE64.encode(x), "y": BASE64.encode(y),
        })
    }
}

/// Whether this looks like a signed token at all.
pub fn is_compact(token: &str) -> bool {
    token.split('.').count() == 3
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> Key {
        Key::parse(&Key::generate().unwrap()).unwrap()
    }

    #[test]
    fn what_was_signed_is_read_back() {
        let key = key();
        let token = key.sign(&json!({"sub": "a"})).unwrap();
        assert!(is_compact(&token));
        assert_eq!(key.verify::<Value>(&token).unwrap(), json!({"sub": "a"}));
    }

    #[test]
    fn what_was_changed_or_signed_by_others_is_not_believed() {
        let key = key();
        let token = key.sign(&json!({"sub": "a"})).unwrap();
        let parts: Vec<&str> = token.split('.').collect();
        let forged = format!("{}.{}.{}", parts[0], BASE64.encode(r#"{"sub":"b"}"#), parts[2]);
        assert_eq!(key.verify::<Value>(&forged).unwrap_err(), JwsError::Forged);
        assert_eq!(self::key().verify::<Value>(&token).unwrap_err(), JwsError::Foreign);
        for alg in ["none", "HS256", "RS256"] {
            let header = BASE64.encode(json!({"alg": alg, "kid": key.id}).to_string());
            let unsigned = format!("{header}.{}.{}", parts[1], parts[2]);
            assert_eq!(key.verify::<Value>(&unsigned).unwrap_err(), JwsError::Foreign, "{alg}");
        }
        for nonsense in ["", "..", "a.b.c", "a.b"] {
            assert!(key.verify::<Value>(nonsense).is_err(), "{nonsense}");
        }
    }

    #[test]
    fn the_published_key_verifies_what_was_signed() {
        let key = key();
        let token = key.sign(&json!({})).unwrap();
        let jwk = key.jwk();
        let part = |name: &str| BASE64.decode(jwk[name].as_str().unwrap()).unwrap();
        let point = [vec![4], part("x"), part("y")].concat();
        let (signed, signature) = token.rsplit_once('.').unwrap();
        let public = UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, point);
        public.verify(signed.as_bytes(), &BASE64.decode(signature).unwrap()).unwrap();
        assert_eq!(jwk["kid"], key.id);
    }
}
