//! PKCS#10 requests: whose key they are signed by.

use p521::ecdsa::{Signature, VerifyingKey, signature::Verifier};
use x509_parser::{
    certification_request::X509CertificationRequest,
    oid_registry::{OID_NIST_EC_P521, OID_SIG_ECDSA_WITH_SHA512},
    prelude::FromDer,
};

/// The public key (SubjectPublicKeyInfo, in DER) of a request in DER, if the request is signed by it.
pub fn proven_key(der: &[u8]) -> Option<Vec<u8>> {
    let ([], request) = X509CertificationRequest::from_der(der).ok()? else { return None };
    // `ring` does not know P-521.
    if request.verify_signature().is_err() && !is_signed_by_p521(&request) {
        return None;
    }
    Some(request.certification_request_info.subject_pki.raw.to_vec())
}

fn is_signed_by_p521(request: &X509CertificationRequest<'_>) -> bool {
    let key = &request.certification_request_info.subject_pki;
    let curve = key.algorithm.parameters.as_ref().and_then(|parameters| parameters.as_oid().ok());
    if curve != Some(OID_NIST_EC_P521) || request.signature_algorithm.algorithm != OID_SIG_ECDSA_WITH_SHA512 {
        return false;
    }
    let Ok(key) = VerifyingKey::from_sec1_bytes(&key.subject_public_key.data) else { return false };
    let signature = Signature::from_der(&request.signature_value.data);
    signature.is_ok_and(|signature| key.verify(request.certification_request_info.raw, &signature).is_ok())
}
