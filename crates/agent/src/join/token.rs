//! Join tokens: `<id>.<secret>.<sha256 of the CA certificate>`.
//!
//! Id and secret are for the server to recognise the machine; the hash is for the machine to recognise the
//! server before it trusts it with anything.

use std::{fmt, str::FromStr};

use rustls::pki_types::{CertificateDer, pem::PemObject};
use sha2::{Digest, Sha256};

#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    id: String,
    secret: String,
    /// Of the CA's certificate in DER form.
    hash: [u8; 32],
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the token is not one that `mainstay token create` prints: ID.SECRET.HASH")]
pub struct NotAToken;

impl Token {
    pub fn new(id: &str, secret: &str, ca: &str) -> Option<Self> {
        Some(Self { id: id.to_owned(), secret: secret.to_owned(), hash: hash_of(ca)? })
    }

    /// What the API takes as bearer token.
    pub fn bearer(&self) -> String {
        format!("{}.{}", self.id, self.secret)
    }

    /// Whether this is the authority that was meant.
    pub fn vouches_for(&self, ca: &str) -> bool {
        hash_of(ca) == Some(self.hash)
    }
}

/// The hash of the first certificate of a PEM file.
fn hash_of(ca: &str) -> Option<[u8; 32]> {
    let der = CertificateDer::from_pem_slice(ca.as_bytes()).ok()?;
    Some(Sha256::digest(&der).into())
}

impl FromStr for Token {
    type Err = NotAToken;

    fn from_str(text: &str) -> Result<Self, NotAToken> {
        let word = |text: &str, length: usize| {
            text.len() == length && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
        };
        let parts: Vec<&str> = text.trim().split('.').collect();
        let [id, secret, hash] = parts[..] else { return Err(NotAToken) };
        if !word(id, 6) || !word(secret, 16) || !word(hash, 64) {
            return Err(NotAToken);
        }
        let mut bytes = [0; 32];
        for (byte, digits) in bytes.iter_mut().zip(hash.as_bytes().chunks(2)) {
            let digits = std::str::from_utf8(digits).map_err(|_| NotAToken)?;
            *byte = u8::from_str_radix(digits, 16).map_err(|_| NotAToken)?;
        }
        Ok(Self { id: id.to_owned(), secret: secret.to_owned(), hash: bytes })
    }
}

/// In full, to be handed to somebody.
impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.", self.id, self.secret)?;
        self.hash.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Without the secret, for logs.
impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({}…)", self.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ca() -> String {
        rcgen::generate_simple_self_signed(vec!["ca".to_owned()]).unwrap().cert.pem()
    }

    #[test]
    fn a_token_is_read_back_as_it_was_written() {
        let ca = ca();
        let token = Token::new("abcdef", "0123456789abcdef", &ca).unwrap();
        let read: Token = token.to_string().parse().unwrap();
        assert_eq!(read, token);
        assert_eq!(read.bearer(), "abcdef.0123456789abcdef");
        assert!(read.vouches_for(&ca));
        assert!(!read.vouches_for(&self::ca()));
        assert!(!format!("{token:?}").contains("0123456789"));
    }

    #[test]
    fn anything_else_is_refused() {
        let hash = "0".repeat(64);
        for text in ["", "abcdef.0123456789abcdef", &format!("abcdef.short.{hash}"), &format!("{hash}.a.b"), "a.b.c.d"]
        {
            assert_eq!(text.parse::<Token>(), Err(NotAToken), "{text}");
        }
        assert!(format!("abcdef.0123456789abcdef.{}", "g".repeat(64)).parse::<Token>().is_err());
    }
}
