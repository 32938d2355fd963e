//! A certificate authority: signs certificates of servers and clients.

use std::net::IpAddr;

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};
use time::{Duration, OffsetDateTime};
use x509_parser::prelude::{FromDer, GeneralName, Pem, X509Certificate};

use super::{Identity, PkiError, Request};

const CA_LIFE: Duration = Duration::days(3650);
const LEAF_LIFE: Duration = Duration::days(365);
/// A leaf certificate with less time left than this is renewed.
pub(super) const RENEW_BEFORE: Duration = Duration::days(90);
/// Clocks of clients may be behind, by more than an hour if somebody set the wrong time zone.
const BACKDATE: Duration = Duration::hours(2);
/// What is issued for less than this begins less far back as well, as upstream has it.
const SHORT_LIFE: Duration = Duration::hours(8);
const BACKDATE_SHORT: Duration = Duration::minutes(5);

pub struct Authority {
    certificate: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    /// The authority of a certificate and key; the error names the file ending of what is unusable.
    pub(super) fn from_identity(identity: &Identity) -> Result<Self, &'static str> {
        let key = KeyPair::from_pem(&identity.key).map_err(|_| "key")?;
        let issuer = Issuer::from_ca_cert_pem(&identity.certificate, key).map_err(|_| "crt")?;
        Ok(Self { certificate: identity.certificate.clone(), issuer })
    }

    /// The authority's own certificate, as PEM.
    pub fn certificate(&self) -> &str {
        &self.certificate
    }

    /// A certificate of a client: what the API takes as user and group.
    pub fn client(&self, user: &str, group: Option<&str>, now: OffsetDateTime) -> Result<Identity, PkiError> {
        let mut parameters = parameters(user, group, LEAF_LIFE, now);
        parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(parameters).map_err(cannot_make(user))
    }

    /// A certificate of something that is connected to under these names.
    pub fn server(
        &self,
        user: &str,
        group: Option<&str>,
        names: &[String],
        now: OffsetDateTime,
    ) -> Result<Identity, PkiError> {
        let fail = cannot_make(user);
        let mut parameters = parameters(user, group, LEAF_LIFE, now);
        for name in names {
            let alternative = match name.parse::<IpAddr>() {
                Ok(ip) => SanType::IpAddress(ip),
                Err(_) => SanType::DnsName(name.as_str().try_into().map_err(&fail)?),
            };
            parameters.subject_alt_names.push(alternative);
        }
        parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.sign(parameters).map_err(fail)
    }

    /// Signs what was asked for, for this purpose alone; as PEM.
    pub fn sign_request(
        &self,
        request: &Request,
        purpose: ExtendedKeyUsagePurpose,
        life: Option<Duration>,
    ) -> Result<String, rcgen::Error> {
        let life = life.unwrap_or(LEAF_LIFE).min(LEAF_LIFE);
        let mut asked = request.parsed.clone();
        let organization = request.organizations.first().map(String::as_str);
        let mut parameters = parameters(&request.common_name, organization, life, OffsetDateTime::now_utc());
        if purpose == ExtendedKeyUsagePurpose::ServerAuth {
            parameters.subject_alt_names = std::mem::take(&mut asked.params.subject_alt_names);
        }
        parameters.extended_key_usages = vec![purpose];
        parameters.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        parameters.use_authority_key_identifier_extension = true;
        asked.params = parameters;
        Ok(asked.signed_by(&self.issuer)?.pem())
    }

    fn sign(&self, mut parameters: CertificateParams) -> Result<Identity, rcgen::Error> {
        parameters.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        parameters.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate()?;
        let certificate = parameters.signed_by(&key, &self.issuer)?;
        Ok(Identity { certificate: certificate.pem(), key: key.serialize_pem() })
    }
}

/// A new authority, called after Mainstay and its file.
pub(super) fn make(name: &str) -> Result<Identity, PkiError> {
    let fail = cannot_make(name);
    let mut parameters = parameters(&format!("mainstay-{name}"), None, CA_LIFE, OffsetDateTime::now_utc());
    parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    parameters.key_usages =
        vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
    let key = KeyPair::generate().map_err(&fail)?;
    let certificate = parameters.self_signed(&key).map_err(&fail)?;
    Ok(Identity { certificate: certificate.pem(), key: key.serialize_pem() })
}

/// Whether a certificate need not be renewed yet: it is far from its end, belongs to its key, and has every name wanted.
pub(super) fn usable(identity: &Identity, wanted: &[String], now: OffsetDateTime) -> bool {
    let Some(Ok(pem)) = Pem::iter_from_buffer(identity.certificate.as_bytes()).next() else { return false };
    let Ok((_, certificate)) = X509Certificate::from_der(&pem.contents) else { return false };
    let ends = certificate.validity().not_after.timestamp();
    let lasts = ends > (now + RENEW_BEFORE).unix_timestamp();
    let mut named = Vec::new();
    if let Ok(Some(alternatives)) = certificate.subject_alternative_name() {
        for name in &alternatives.value.general_names {
            match name {
                GeneralName::DNSName(name) => named.push((*name).to_owned()),
                GeneralName::IPAddress(bytes) => named.extend(address(bytes).map(|ip| ip.to_string())),
                _ => {}
            }
        }
    }
    // Two files are not written at once: after a crash between them the key may be another certificate's.
    let public_key = &certificate.public_key().subject_public_key.data;
    let owns_key = KeyPair::from_pem(&identity.key).is_ok_and(|key| key.public_key_raw() == &**public_key);
    lasts && owns_key && wanted.iter().all(|name| named.contains(name))
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    <[u8; 4]>::try_from(bytes).map(IpAddr::from).or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok()
}

fn parameters(common_name: &str, organization: Option<&str>, life: Duration, now: OffsetDateTime) -> CertificateParams {
    let mut parameters = CertificateParams::default();
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, common_name);
    if let Some(organization) = organization {
        name.push(DnType::OrganizationName, organization);
    }
    parameters.distinguished_name = name;
    parameters.not_before = now - if life < SHORT_LIFE { BACKDATE_SHORT } else { BACKDATE };
    parameters.not_after = now + life;
    parameters
}

fn cannot_make(name: &str) -> impl Fn(rcgen::Error) -> PkiError {
    move |source| PkiError::Make { name: name.to_owned(), source }
}
