//! Private keys of pod certificates, by `keyType`, each with the signing request that proves it. Takes a second for RSA: not for the threads of the runtime.
//!
//! `ring` signs for all of them but P-521, and generates no RSA keys: these two are RustCrypto's.

use p521::{
    ecdsa::{DerSignature, Signature, SigningKey, signature::RandomizedSigner},
    elliptic_curve::rand_core::OsRng,
    pkcs8::{EncodePrivateKey, EncodePublicKey, LineEnding},
};
use rcgen::{CertificateParams, DistinguishedName, KeyPair, SignatureAlgorithm};
use rustls::pki_types::PrivatePkcs8KeyDer;

/// `ecdsa-with-SHA512`, as DER.
const ECDSA_WITH_SHA512: [u8; 10] = [0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x04];
const INTEGER: u8 = 0x02;
const BIT_STRING: u8 = 0x03;
const SEQUENCE: u8 = 0x30;
/// The attributes of a request.
const CONTEXT_0: u8 = 0xa0;

pub struct PodKey {
    /// PKCS#8.
    pub pem: String,
    /// A PKCS#10 request without a subject, in DER, signed by the key.
    pub request: Vec<u8>,
}

#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    #[error(
        "keyType {0} is not supported; supported are ECDSAP256, ECDSAP384, ECDSAP521, ED25519, RSA3072 and RSA4096"
    )]
    Unsupported(String),
    #[error("generate a private key")]
    Generate(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("make a signing request")]
    Request(#[source] rcgen::Error),
}

impl PodKey {
    pub fn generate(key_type: &str) -> Result<Self, KeyError> {
        match key_type {
            "ECDSAP256" => of_ring(&rcgen::PKCS_ECDSA_P256_SHA256),
            "ECDSAP384" => of_ring(&rcgen::PKCS_ECDSA_P384_SHA384),
            "ED25519" => of_ring(&rcgen::PKCS_ED25519),
            "ECDSAP521" => p521(),
            "RSA3072" => rsa(3072),
            "RSA4096" => rsa(4096),
            other => Err(KeyError::Unsupported(other.to_owned())),
        }
    }

    fn new(key: &KeyPair) -> Result<Self, KeyError> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        let request = params.serialize_request(key).map_err(KeyError::Request)?;
        Ok(Self { pem: key.serialize_pem(), request: request.der().to_vec() })
    }
}

fn generate_error(error: impl std::error::Error + Send + Sync + 'static) -> KeyError {
    KeyError::Generate(Box::new(error))
}

fn of_ring(algorithm: &'static SignatureAlgorithm) -> Result<PodKey, KeyError> {
    PodKey::new(&KeyPair::generate_for(algorithm).map_err(generate_error)?)
}

fn rsa(bits: usize) -> Result<PodKey, KeyError> {
    let key = rsa::RsaPrivateKey::new(&mut OsRng, bits).map_err(generate_error)?;
    let der = rsa::pkcs8::EncodePrivateKey::to_pkcs8_der(&key).map_err(generate_error)?;
    let der = PrivatePkcs8KeyDer::from(der.as_bytes());
    let key = KeyPair::from_pkcs8_der_and_sign_algo(&der, &rcgen::PKCS_RSA_SHA256).map_err(generate_error)?;
    PodKey::new(&key)
}

fn p521() -> Result<PodKey, KeyError> {
    let key = p521::SecretKey::random(&mut OsRng);
    let pem = key.to_pkcs8_pem(LineEnding::LF).map_err(generate_error)?.to_string();
    let public = key.public_key().to_public_key_der().map_err(generate_error)?;
    let (version, subject) = (der(INTEGER, &[&[0]]), der(SEQUENCE, &[]));
    let info = der(SEQUENCE, &[&version, &subject, public.as_bytes(), &der(CONTEXT_0, &[])]);
    let signing = SigningKey::from_slice(&key.to_bytes()).map_err(generate_error)?;
    let signature: Signature = signing.try_sign_with_rng(&mut OsRng, &info).map_err(generate_error)?;
    let signature: DerSignature = signature.to_der();
    let algorithm = der(SEQUENCE, &[&ECDSA_WITH_SHA512]);
    // No bit of the last byte is unused.
    let signature = der(BIT_STRING, &[&[0], signature.as_bytes()]);
    Ok(PodKey { pem, request: der(SEQUENCE, &[&info, &algorithm, &signature]) })
}

/// A value of the distinguished encoding: tag, length, content.
fn der(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let content = parts.concat();
    let length = content.len().to_be_bytes();
    let significant = &length[length.iter().position(|byte| *byte != 0).unwrap_or(length.len() - 1)..];
    let mut encoded = vec![tag];
    match significant {
        [short] if *short < 0x80 => encoded.push(*short),
        long => {
            encoded.push(0x80 | u8::try_from(long.len()).unwrap_or(8));
            encoded.extend_from_slice(long);
        }
    }
    encoded.extend_from_slice(&content);
    encoded
}

#[cfg(test)]
mod tests {
    use x509_parser::{certification_request::X509CertificationRequest, prelude::FromDer};

    use super::*;

    #[test]
    fn every_type_of_key_proves_itself() {
        for (key_type, bits) in [
            ("ECDSAP256", 256),
            ("ECDSAP384", 384),
            ("ECDSAP521", 521),
            ("ED25519", 256),
            ("RSA3072", 3072),
            ("RSA4096", 4096),
        ] {
            let key = PodKey::generate(key_type).unwrap();
            assert!(key.pem.starts_with("-----BEGIN PRIVATE KEY-----\n"), "{key_type}");
            let (rest, request) = X509CertificationRequest::from_der(&key.request).unwrap();
            assert!(rest.is_empty() && request.certification_request_info.subject.iter().next().is_none());
            let public = request.certification_request_info.subject_pki.parsed().unwrap();
            let size = if key_type == "ED25519" { 256 } else { public.key_size() };
            assert!(size.abs_diff(bits) < 8, "{key_type}: {size}");
            // The API checks it the same way.
            assert!(mainstay_api::signing_request::proven_key(&key.request).is_some(), "{key_type}");
        }
    }

    #[test]
    fn lengths_are_encoded_as_short_as_may_be() {
        assert_eq!(der(SEQUENCE, &[]), [0x30, 0]);
        assert_eq!(der(SEQUENCE, &[&[1; 127]])[..2], [0x30, 127]);
        assert_eq!(der(SEQUENCE, &[&[1; 128]])[..3], [0x30, 0x81, 128]);
        assert_eq!(der(SEQUENCE, &[&[1; 300]])[..4], [0x30, 0x82, 1, 44]);
    }
}
