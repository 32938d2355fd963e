//! The cluster's own certificates: made at the first start, renewed while the server runs.
//!
//! `<data-dir>/pki` holds three authorities, the server's certificate and the administrator's. Private keys are
//! readable by the owner alone. Authorities last ten years; the others one, and are renewed 90 days before their end
//! ([`renewal`]), or at a start when they no longer name every address they must.
//!
//! Whom clients trust (`ca`) never signs what nodes serve: that is signed by `node-ca`, which only
//! servers trust. So a node that was taken over can pose as itself, but not as the API.
//!
//! Servers that share a store share both authorities ([`share`]). A third, `front-proxy-ca`, is each server's own: it signs the
//! certificate with which a server passes requests on to other API servers, and is published with those of the other servers.

mod authority;
mod files;
mod issuer;
pub mod renewal;
mod request;
mod shared;

use std::{
    net::IpAddr,
    path::{Path, PathBuf},
    sync::Arc,
};

use base64::{Engine, prelude::BASE64_STANDARD};
use mainstay_files::Format;
use mainstay_tls::{RotatingCertificate, TlsError};
use parking_lot::RwLock;
use serde::{Deserialize, Serialize};
use serde_json::json;
use time::OffsetDateTime;

pub use self::{
    authority::Authority,
    files::write_private,
    issuer::{CertificateIssuer, CertificatePurpose},
    request::{Request, RequestError},
    shared::{ShareError, share},
};
use crate::auth::MASTERS;

/// Of the directory: PEM files, which bear no number of their own.
pub const FORMAT: Format = Format::new("the certificates of a server", 1);

/// The group of the certificate with which servers call agents.
pub const SERVERS: &str = "mainstay:servers";

/// Files of the authorities.
const CA: &str = "ca";
const NODE_CA: &str = "node-ca";
const FRONT_PROXY_CA: &str = "front-proxy-ca";

/// The name by which other API servers know a server that passes requests on.
pub const FRONT_PROXY_CLIENT: &str = "front-proxy-client";

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
    #[error("use the certificate of {name}")]
    Use {
        name: &'static str,
        #[source]
        source: TlsError,
    },
}

/// A certificate and its key, as PEM.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    pub certificate: String,
    pub key: String,
}

/// What a node needs to be a member.
pub struct NodeIdentity {
    /// Names the node to the API.
    pub client: Identity,
    /// What its agent presents to servers that call it.
    pub serving: Identity,
}

pub struct Pki {
    /// What clients, agents among them, recognise the server by.
    pub ca: String,
    /// What the server presents to its clients.
    pub serving: Arc<RotatingCertificate>,
    /// What the server presents to agents when it calls them.
    pub agent_client: Arc<RotatingCertificate>,
    /// What the server presents to other API servers when it passes requests on.
    pub front_proxy_client: Arc<RotatingCertificate>,
    admin: RwLock<Identity>,
    /// Signs the certificates of clients.
    pub authority: Arc<Authority>,
    /// Signs what agents present to servers.
    pub node_authority: Arc<Authority>,
    /// Signs [`Pki::front_proxy_client`], and nothing else.
    pub front_proxy_authority: Arc<Authority>,
    dir: PathBuf,
    /// What the server's certificate must name.
    names: Vec<String>,
}

/// Files of the leaf certificates.
const SERVER: &str = "server";
const ADMIN: &str = "admin";
/// Whose certificate is in memory alone.
const AGENT_CLIENT: &str = "agent-client";

impl Pki {
    /// Reads what is there and makes what is missing. `names` are what the server must answer to.
    pub fn open(dir: &Path, names: &[String]) -> Result<Self, PkiError> {
        Self::open_at(dir, names, OffsetDateTime::now_utc())
    }

    /// As [`Pki::open`], at this time.
    pub fn open_at(dir: &Path, names: &[String], now: OffsetDateTime) -> Result<Self, PkiError> {
        files::prepare(dir)?;
        let authority = |name: &str| {
            let identity = match files::load(dir, name)? {
                Some(identity) => identity,
                None => files::store(dir, name, authority::make(name)?)?,
            };
            Authority::from_identity(&identity)
                .map_err(|part| PkiError::Damaged { path: dir.join(format!("{name}.{part}")) })
        };
        let ca = authority(CA)?;
        let node_ca = authority(NODE_CA)?;
        let front_proxy_ca = authority(FRONT_PROXY_CA)?;
        let leaf = |name: &str, wanted: &[String], make: &dyn Fn() -> Result<Identity, PkiError>| match files::load(
            dir, name,
        )?
        .filter(|identity| authority::usable(identity, wanted, now))
        {
            Some(identity) => Ok(identity),
            None => files::store(dir, name, make()?),
        };
        let server = leaf(SERVER, names, &|| server_certificate(&ca, names, now))?;
        let admin = leaf(ADMIN, &[], &|| admin_certificate(&ca, now))?;
        let agent_client = agent_client_certificate(&ca, now)?;
        let front_proxy_client = front_proxy_certificate(&front_proxy_ca, now)?;
        Ok(Self {
            ca: ca.certificate().to_owned(),
            serving: Arc::new(rotating(SERVER, &server)?),
            agent_client: Arc::new(rotating(AGENT_CLIENT, &agent_client)?),
            front_proxy_client: Arc::new(rotating(FRONT_PROXY_CLIENT, &front_proxy_client)?),
            admin: RwLock::new(admin),
            authority: Arc::new(ca),
            node_authority: Arc::new(node_ca),
            front_proxy_authority: Arc::new(front_proxy_ca),
            dir: dir.to_owned(),
            names: names.to_vec(),
        })
    }

    /// A node's certificates without a request for them: for the agent in the same process.
    pub fn issue_node(&self, name: &str, addresses: &[IpAddr]) -> Result<NodeIdentity, PkiError> {
        self.issue_node_at(name, addresses, OffsetDateTime::now_utc())
    }

    fn issue_node_at(&self, name: &str, addresses: &[IpAddr], now: OffsetDateTime) -> Result<NodeIdentity, PkiError> {
        let user = format!("system:node:{name}");
        let names: Vec<String> = addresses.iter().map(IpAddr::to_string).chain([name.to_owned()]).collect();
        Ok(NodeIdentity {
            client: self.authority.client(&user, Some("system:nodes"), now)?,
            serving: self.node_authority.server(&user, Some("system:nodes"), &names, now)?,
        })
    }

    /// A kubeconfig with everything an administrator needs, and nothing to install.
    pub fn kubeconfig(&self, server: &str) -> String {
        let encode = |text: &str| BASE64_STANDARD.encode(text);
        let admin = self.admin.read();
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "mainstay",
            "clusters": [{ "name": "mainstay", "cluster": {
                "server": server, "certificate-authority-data": encode(&self.ca),
            } }],
            "users": [{ "name": "mainstay-admin", "user": {
                "client-certificate-data": encode(&admin.certificate),
                "client-key-data": encode(&admin.key),
            } }],
            "contexts": [{ "name": "mainstay", "context": { "cluster": "mainstay", "user": "mainstay-admin" } }],
        });
        mainstay_api::encode::to_yaml(&config)
    }
}

fn server_certificate(ca: &Authority, names: &[String], now: OffsetDateTime) -> Result<Identity, PkiError> {
    ca.server("mainstay", None, names, now)
}

fn admin_certificate(ca: &Authority, now: OffsetDateTime) -> Result<Identity, PkiError> {
    ca.client("mainstay-admin", Some(MASTERS), now)
}

fn agent_client_certificate(ca: &Authority, now: OffsetDateTime) -> Result<Identity, PkiError> {
    ca.client("mainstay-server", Some(SERVERS), now)
}

fn front_proxy_certificate(ca: &Authority, now: OffsetDateTime) -> Result<Identity, PkiError> {
    ca.client(FRONT_PROXY_CLIENT, None, now)
}

fn rotating(name: &'static str, identity: &Identity) -> Result<RotatingCertificate, PkiError> {
    RotatingCertificate::new(&identity.certificate, &identity.key).map_err(|source| PkiError::Use { name, source })
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, fs, os::unix::fs::PermissionsExt};

    use super::*;

    fn names(list: &[&str]) -> Vec<String> {
        list.iter().map(|s| (*s).to_owned()).collect()
    }

    fn files_of(dir: &Path) -> BTreeMap<String, String> {
        let files = fs::read_dir(dir).unwrap().map(|file| file.unwrap());
        files.map(|file| (file.file_name().into_string().unwrap(), fs::read_to_string(file.path()).unwrap())).collect()
    }

    #[test]
    fn a_key_of_another_certificate_is_replaced_with_its_certificate() {
        let dir = tempfile::tempdir().unwrap();
        Pki::open(dir.path(), &names(&["localhost"])).unwrap();
        let before = files_of(dir.path());
        fs::copy(dir.path().join("admin.key"), dir.path().join("server.key")).unwrap();
        Pki::open(dir.path(), &names(&["localhost"])).expect("a crash between two files is no reason to stay down");
        assert_ne!(files_of(dir.path())["server.crt"], before["server.crt"]);
    }

    #[test]
    fn certificates_hold_for_machines_whose_clocks_are_an_hour_off() {
        use x509_parser::prelude::{FromDer, Pem, X509Certificate};

        let (dir, now) = (tempfile::tempdir().unwrap(), time::OffsetDateTime::now_utc());
        let pki = Pki::open_at(dir.path(), &names(&["localhost"]), now).unwrap();
        let node = pki.issue_node("n", &[[192, 0, 2, 1].into()]).unwrap();
        let admin = pki.admin.read().certificate.clone();
        for pem in [&pki.ca, &admin, &node.client.certificate, &node.serving.certificate] {
            let pem = Pem::iter_from_buffer(pem.as_bytes()).next().unwrap().unwrap();
            let (_, certificate) = X509Certificate::from_der(&pem.contents).unwrap();
            let hour = 3600;
            assert!(certificate.validity().not_before.timestamp() < now.unix_timestamp() - hour);
            assert!(certificate.validity().not_after.timestamp() > now.unix_timestamp() + hour);
        }
        assert!(pki.serving.validity().unwrap().0 < now.unix_timestamp() - 3600);
    }

    #[test]
    fn a_second_start_keeps_every_certificate() {
        let dir = tempfile::tempdir().unwrap();
        let first = Pki::open(dir.path(), &names(&["localhost", "127.0.0.1"])).unwrap();
        let before = files_of(dir.path());
        let second = Pki::open(dir.path(), &names(&["localhost"])).unwrap();
        assert_eq!(first.ca, second.ca);
        assert_eq!(first.serving.validity(), second.serving.validity());
        assert_eq!(before, files_of(dir.path()));
    }

    #[test]
    fn the_kubeconfig_has_each_certificate_on_one_line() {
        let dir = tempfile::tempdir().unwrap();
        let pki = Pki::open(dir.path(), &names(&["localhost"])).unwrap();
        let admin = pki.admin.read();
        let config = pki.kubeconfig("https://localhost:6443");
        for (field, text) in [
            ("certificate-authority-data", &pki.ca),
            ("client-certificate-data", &admin.certificate),
            ("client-key-data", &admin.key),
        ] {
            let line = format!("{field}: {}", BASE64_STANDARD.encode(text));
            assert!(config.lines().any(|written| written.trim() == line), "{field} in\n{config}");
        }
    }

    #[test]
    fn a_new_address_makes_a_new_server_certificate_only() {
        let dir = tempfile::tempdir().unwrap();
        Pki::open(dir.path(), &names(&["localhost"])).unwrap();
        let before = files_of(dir.path());
        Pki::open(dir.path(), &names(&["localhost", "10.1.2.3"])).unwrap();
        let mut changed = files_of(dir.path());
        changed.retain(|name, content| before[name] != *content);
        assert_eq!(changed.keys().collect::<Vec<_>>(), ["server.crt", "server.key"]);
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
