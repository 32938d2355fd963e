//! The cluster's own certificates, made at the first start and renewed before they end.
//!
//! `<data-dir>/pki` holds the CA, the server's certificate and the administrator's. Private keys are
//! readable by the owner alone. The CA lasts ten years; the others one, and are made anew when
//! they have less than a month left or no longer name every address they must.

use std::{
    fs,
    io::Write,
    net::IpAddr,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use base64::{Engine, prelude::BASE64_STANDARD};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};
use serde_json::json;
use time::{Duration, OffsetDateTime};
use x509_parser::prelude::{FromDer, GeneralName, Pem, X509Certificate};

use crate::auth::MASTERS;

const CA_LIFE: Duration = Duration::days(3650);
const LEAF_LIFE: Duration = Duration::days(365);
const RENEW_BEFORE: Duration = Duration::days(30);
/// Clocks of clients may be behind.
const BACKDATE: Duration = Duration::hours(1);

#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    #[error("{action} {}", path.display())]
    File {
        action: &'static str,
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("make a certificate for {name}")]
    Make {
        name: String,
        #[source]
        source: rcgen::Error,
    },
    #[error("{} does not hold a usable certificate and key; move it away to have a new one made", path.display())]
    Damaged { path: PathBuf },
}

/// A certificate and its key, as PEM.
#[derive(Clone)]
pub struct Identity {
    pub certificate: String,
    pub key: String,
}

pub struct Pki {
    pub ca: String,
    pub server: Identity,
    pub admin: Identity,
}

impl Pki {
    /// Reads what is there and makes what is missing. `names` are what the server must answer to.
    pub fn open(dir: &Path, names: &[String]) -> Result<Self, PkiError> {
        fs::create_dir_all(dir).map_err(|source| PkiError::File { action: "create", path: dir.into(), source })?;
        let ca = match load(dir, "ca")? {
            Some(identity) => identity,
            None => store(dir, "ca", make_ca()?)?,
        };
        let key = KeyPair::from_pem(&ca.key).map_err(|_| PkiError::Damaged { path: dir.join("ca.key") })?;
        let issuer = Issuer::from_ca_cert_pem(&ca.certificate, key)
            .map_err(|_| PkiError::Damaged { path: dir.join("ca.crt") })?;
        let leaf = |name: &str, wanted: &[String], make: &dyn Fn() -> Result<Identity, PkiError>| match load(dir, name)?
            .filter(|identity| usable(identity, wanted))
        {
            Some(identity) => Ok(identity),
            None => store(dir, name, make()?),
        };
        let server = leaf("server", names, &|| make_server(&issuer, names))?;
        let admin = leaf("admin", &[], &|| make_client(&issuer, "mainstay-admin", &[MASTERS]))?;
        Ok(Self { ca: ca.certificate, server, admin })
    }

    /// A kubeconfig with everything an administrator needs, and nothing to install.
    pub fn kubeconfig(&self, server: &str) -> String {
        let encode = |text: &str| BASE64_STANDARD.encode(text);
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "mainstay",
            "clusters": [{ "name": "mainstay", "cluster": {
                "server": server, "certificate-authority-data": encode(&self.ca),
            } }],
            "users": [{ "name": "mainstay-admin", "user": {
                "client-certificate-data": encode(&self.admin.certificate),
                "client-key-data": encode(&self.admin.key),
            } }],
            "contexts": [{ "name": "mainstay", "context": { "cluster": "mainstay", "user": "mainstay-admin" } }],
        });
        serde_saphyr::to_string(&config).unwrap_or_default()
    }
}

/// Writes a file that only its owner may read, in one step.
pub fn write_private(path: &Path, content: &str) -> Result<(), PkiError> {
    let fail = |action: &'static str, path: &Path| {
        let path = path.to_owned();
        move |source| PkiError::File { action, path, source }
    };
    let temporary = path.with_extension("new");
    let _ = fs::remove_file(&temporary);
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&temporary)
        .map_err(fail("create", &temporary))?;
    file.write_all(content.as_bytes()).and_then(|()| file.sync_all()).map_err(fail("write", &temporary))?;
    fs::rename(&temporary, path).map_err(fail("write", path))
}

fn load(dir: &Path, name: &str) -> Result<Option<Identity>, PkiError> {
    let read = |extension: &str| {
        let path = dir.join(format!("{name}.{extension}"));
        match fs::read_to_string(&path) {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(PkiError::File { action: "read", path, source }),
        }
    };
    Ok(read("crt")?.zip(read("key")?).map(|(certificate, key)| Identity { certificate, key }))
}

fn store(dir: &Path, name: &str, identity: Identity) -> Result<Identity, PkiError> {
    write_private(&dir.join(format!("{name}.key")), &identity.key)?;
    write_private(&dir.join(format!("{name}.crt")), &identity.certificate)?;
    Ok(identity)
}

/// Whether a certificate is good for a while yet and names everything wanted.
fn usable(identity: &Identity, wanted: &[String]) -> bool {
    let Some(Ok(pem)) = Pem::iter_from_buffer(identity.certificate.as_bytes()).next() else { return false };
    let Ok((_, certificate)) = X509Certificate::from_der(&pem.contents) else { return false };
    let ends = certificate.validity().not_after.timestamp();
    let lasts = ends > (OffsetDateTime::now_utc() + RENEW_BEFORE).unix_timestamp();
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
    lasts && KeyPair::from_pem(&identity.key).is_ok() && wanted.iter().all(|name| named.contains(name))
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    <[u8; 4]>::try_from(bytes).map(IpAddr::from).or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok()
}

fn parameters(common_name: &str, organizations: &[&str], life: Duration) -> CertificateParams {
    let mut parameters = CertificateParams::default();
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, common_name);
    for organization in organizations {
        name.push(DnType::OrganizationName, *organization);
    }
    parameters.distinguished_name = name;
    parameters.not_before = OffsetDateTime::now_utc() - BACKDATE;
    parameters.not_after = OffsetDateTime::now_utc() + life;
    parameters
}

fn made(name: &str) -> impl Fn(rcgen::Error) -> PkiError {
    move |source| PkiError::Make { name: name.to_owned(), source }
}

fn make_ca() -> Result<Identity, PkiError> {
    let fail = made("the CA");
    let mut parameters = parameters("mainstay-ca", &[], CA_LIFE);
    parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    parameters.key_usages =
        vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
    let key = KeyPair::generate().map_err(&fail)?;
    let certificate = parameters.self_signed(&key).map_err(&fail)?;
    Ok(Identity { certificate: certificate.pem(), key: key.serialize_pem() })
}

fn make_server(issuer: &Issuer<'_, KeyPair>, names: &[String]) -> Result<Identity, PkiError> {
    let fail = made("the server");
    let mut parameters = parameters("mainstay", &[], LEAF_LIFE);
    for name in names {
        let alternative = match name.parse::<IpAddr>() {
            Ok(ip) => SanType::IpAddress(ip),
            Err(_) => SanType::DnsName(name.as_str().try_into().map_err(&fail)?),
        };
        parameters.subject_alt_names.push(alternative);
    }
    parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    sign(issuer, parameters).map_err(fail)
}

/// A client certificate; what the API takes as user and groups.
pub fn make_client(issuer: &Issuer<'_, KeyPair>, user: &str, groups: &[&str]) -> Result<Identity, PkiError> {
    let mut parameters = parameters(user, groups, LEAF_LIFE);
    parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    sign(issuer, parameters).map_err(made(user))
}

fn sign(issuer: &Issuer<'_, KeyPair>, mut parameters: CertificateParams) -> Result<Identity, rcgen::Error> {
    parameters.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    parameters.use_authority_key_identifier_extension = true;
    let key = KeyPair::generate()?;
    let certificate = parameters.signed_by(&key, issuer)?;
    Ok(Identity { certificate: certificate.pem(), key: key.serialize_pem() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn names(list: &[&str]) -> Vec<String> {
        list.iter().map(|s| (*s).to_owned()).collect()
    }

    #[test]
    fn a_second_start_keeps_every_certificate() {
        let dir = tempfile::tempdir().unwrap();
        let first = Pki::open(dir.path(), &names(&["localhost", "127.0.0.1"])).unwrap();
        let second = Pki::open(dir.path(), &names(&["localhost"])).unwrap();
        assert_eq!(first.ca, second.ca);
        assert_eq!(first.server.certificate, second.server.certificate);
        assert_eq!(first.admin.certificate, second.admin.certificate);
    }

    #[test]
    fn a_new_address_makes_a_new_server_certificate_only() {
        let dir = tempfile::tempdir().unwrap();
        let first = Pki::open(dir.path(), &names(&["localhost"])).unwrap();
        let second = Pki::open(dir.path(), &names(&["localhost", "10.1.2.3"])).unwrap();
        assert_eq!(first.ca, second.ca);
        assert_ne!(first.server.certificate, second.server.certificate);
        assert_eq!(first.admin.certificate, second.admin.certificate);
    }

    #[test]
    fn keys_are_for_the_owner_alone() {
        let dir = tempfile::tempdir().unwrap();
        Pki::open(dir.path(), &names(&["localhost"])).unwrap();
        for file in fs::read_dir(dir.path()).unwrap() {
            let mode = file.as_ref().unwrap().metadata().unwrap().permissions().mode() & 0o777;
            assert_eq!(mode, 0o600, "{file:?}");
        }
    }

    #[test]
    fn damage_is_named_not_papered_over() {
        let dir = tempfile::tempdir().unwrap();
        Pki::open(dir.path(), &names(&["localhost"])).unwrap();
        fs::write(dir.path().join("ca.key"), "garbage").unwrap();
        let error = Pki::open(dir.path(), &names(&["localhost"])).err().expect("refused");
        assert!(error.to_string().contains("ca.key"), "{error}");
    }
}
