//! Bootstrap tokens of machines: a Secret in the kluster's `kube-system` that lets one machine join, for half an hour.

use std::{collections::BTreeMap, io::Read};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{ByteString, api::core::v1::Secret, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use mainstay_api::wellknown::{BOOTSTRAP_TOKEN_SECRET, mainstay::USES_LEFT, namespace::SYSTEM};
use sha2::{Digest, Sha256};

pub const LIFETIME: SignedDuration = SignedDuration::from_mins(30);
const ALPHABET: &[u8] = b"abcdefghijklmnopqrstuvwxyz0123456789";
const ID_LENGTH: usize = 6;
const SECRET_LENGTH: usize = 16;

/// Id and secret of a token; neither is shown in logs.
pub struct BootstrapToken {
    id: String,
    secret: String,
}

impl std::fmt::Debug for BootstrapToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "BootstrapToken({}…)", self.id)
    }
}

impl BootstrapToken {
    /// A token that nobody can guess.
    pub fn generate() -> std::io::Result<Self> {
        let mut source = std::fs::File::open("/dev/urandom")?;
        Ok(Self { id: random_text(&mut source, ID_LENGTH)?, secret: random_text(&mut source, SECRET_LENGTH)? })
    }

    /// As `mainstay agent` takes it: with the hash of the authority by which the machine recognises the server.
    pub fn join_token(&self, authority_der: &[u8]) -> String {
        let hash = Sha256::digest(authority_der);
        let hash: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{}.{}.{hash}", self.id, self.secret)
    }

    /// The Secret that makes it good, for one machine.
    pub fn secret(&self, machine: &str, now: Timestamp) -> Secret {
        let expires = now + LIFETIME;
        let expires = Timestamp::from_second(expires.as_second()).unwrap_or(expires);
        let data: BTreeMap<String, ByteString> = [
            ("token-id", self.id.clone()),
            ("token-secret", self.secret.clone()),
            ("description", format!("for machine {machine}")),
            ("usage-bootstrap-authentication", "true".to_owned()),
            ("usage-bootstrap-signing", "true".to_owned()),
            ("expiration", expires.to_string()),
        ]
        .into_iter()
        .map(|(key, value)| (key.to_owned(), ByteString(value.into_bytes())))
        .collect();
        Secret {
            metadata: ObjectMeta {
                name: Some(format!("bootstrap-token-{}", self.id)),
                namespace: Some(SYSTEM.to_owned()),
                annotations: Some([(USES_LEFT.to_owned(), "1".to_owned())].into()),
                ..ObjectMeta::default()
            },
            type_: Some(BOOTSTRAP_TOKEN_SECRET.to_owned()),
            data: Some(data),
            ..Secret::default()
        }
    }

    /// The name of its Secret.
    pub fn secret_name(&self) -> String {
        format!("bootstrap-token-{}", self.id)
    }
}

fn random_text(source: &mut impl Read, length: usize) -> std::io::Result<String> {
    let mut text = String::with_capacity(length);
    let mut byte = [0];
    while text.len() < length {
        source.read_exact(&mut byte)?;
        // Values beyond the last full round of the alphabet would favour its beginning.
        if usize::from(byte[0]) < 256 / ALPHABET.len() * ALPHABET.len() {
            text.push(char::from(ALPHABET[usize::from(byte[0]) % ALPHABET.len()]));
        }
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_good_for_one_machine_and_half_an_hour() {
        let token = BootstrapToken { id: "abcdef".to_owned(), secret: "0123456789abcdef".to_owned() };
        let secret = token.secret("kks-kate-small-ab2cd", "2026-01-01T00:00:00.5Z".parse().unwrap());
        assert_eq!(secret.metadata.name.as_deref(), Some("bootstrap-token-abcdef"));
        assert_eq!(secret.metadata.namespace.as_deref(), Some("kube-system"));
        assert_eq!(secret.type_.as_deref(), Some("bootstrap.kubernetes.io/token"));
        assert_eq!(secret.metadata.annotations.unwrap()[USES_LEFT], "1");
        let data = secret.data.unwrap();
        assert_eq!(data["expiration"].0, b"2026-01-01T00:30:00Z");
        assert_eq!(data["usage-bootstrap-authentication"].0, b"true");
        let join = token.join_token(b"der");
        assert!(join.starts_with("abcdef.0123456789abcdef.") && join.len() == 24 + 64, "{join}");
        assert_eq!(format!("{token:?}"), "BootstrapToken(abcdef…)");
    }

    #[test]
    fn no_two_tokens_are_alike() {
        let (one, other) = (BootstrapToken::generate().unwrap(), BootstrapToken::generate().unwrap());
        assert_ne!(one.secret, other.secret);
    }
}
