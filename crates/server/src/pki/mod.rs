//! The cluster's own certificates, made at the first start and renewed before they end.
//!
//! `<data-dir>/pki` holds two authorities, the server's certificate and the administrator's. Private keys are
//! readable by the owner alone. Authorities last ten years; the others one, and are made anew when
//! they have less than a month left or no longer name every address they must.
//!
//! Whom clients trust (`ca`) never signs what machines serve: that is signed by `node-ca`, which only
//! servers trust. So a machine that was taken over can pose as itself, but not as the API.
//!
//! Servers that share a store share both authorities ([`share`]).

mod authority;
mod files;
mod request;
mod shared;

use std::{
    net::IpAddr,
    path::{Path, PathBuf},
    sync::Arc,
};

use base64::{Engine, prelude::BASE64_STANDARD};
use serde::{Deserialize, Serialize};
use serde_json::json;

pub use self::{
    authority::Authority,
    files::write_private,
    request::{Request, RequestError},
    shared::{ShareError, share},
};
use crate::auth::MASTERS;

/// The group of the certificate with which servers call agents.
pub const SERVERS: &str = "mainstay:servers";

/// Files of the authorities.
const CA: &str = "ca";
const NODE_CA: &str = "node-ca";

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
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    pub certificate: String,
    pub key: String,
}

/// What a machine needs to be a member.
pub struct NodeIdentity {
    /// Names the machine to the API.
    pub client: Identity,
    /// What the machine shows to servers that call it.
    pub serving: Identity,
}

pub struct Pki {
    /// What clients, agents among them, recognise the server by.
    pub ca: String,
    pub server: Identity,
    pub admin: Identity,
    /// Signs the certificates of clients.
    pub authority: Arc<Authority>,
    /// Signs what machines show to servers.
    pub node_authority: Arc<Authority>,
}

impl Pki {
    /// Reads what is there and makes what is missing. `names` are what the server must answer to.
    pub fn open(dir: &Path, names: &[String]) -> Result<Self, PkiError> {
        files::prepare(dir)?;
        let authority = |name: &str| {
            let identity = match files::load(dir, name)? {
                Some(identity) => identity,
                None => files::store(dir, name, authority::make(name)?)?,
            };
            Authority::of(&identity).map_err(|part| PkiError::Damaged { path: dir.join(format!("{name}.{part}")) })
        };
        let ca = authority(CA)?;
        let node_ca = authority(NODE_CA)?;
        let leaf = |name: &str, wanted: &[String], make: &dyn Fn() -> Result<Identity, PkiError>| match files::load(
            dir, name,
        )?
        .filter(|identity| authority::usable(identity, wanted))
        {
            Some(identity) => Ok(identity),
            None => files::store(dir, name, make()?),
        };
        let server = leaf("server", names, &|| ca.server("mainstay", None, names))?;
        let admin = leaf("admin", &[], &|| ca.client("mainstay-admin", Some(MASTERS)))?;
        let pem = ca.certificate().to_owned();
        Ok(Self { ca: pem, server, admin, authority: Arc::new(ca), node_authority: Arc::new(node_ca) })
    }

    /// A machine's certificates without asking for them: for the agent in the same process.
    pub fn issue_node(&self, name: &str, addresses: &[IpAddr]) -> Result<NodeIdentity, PkiError> {
        let user = format!("system:node:{name}");
        let names: Vec<String> = addresses.iter().map(IpAddr::to_string).chain([name.to_owned()]).collect();
        Ok(NodeIdentity {
            client: self.authority.client(&user, Some(mainstay_api::wellknown::user::NODES_GROUP))?,
            serving: self.node_authority.server(&user, Some(mainstay_api::wellknown::user::NODES_GROUP), &names)?,
        })
    }

    /// What the server shows to agents when it calls them.
    pub fn issue_server_client(&self) -> Result<Identity, PkiError> {
        self.authority.client("mainstay-server", Some(SERVERS))
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
        mainstay_api::encode::to_yaml(&config)
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt};

    use super::*;

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
    fn the_kubeconfig_has_each_certificate_on_one_line() {
        let dir = tempfile::tempdir().unwrap();
        let pki = Pki::open(dir.path(), &names(&["localhost"])).unwrap();
        let config = pki.kubeconfig("https://localhost:6443");
        for (field, text) in [
            ("certificate-authority-data", &pki.ca),
            ("client-certificate-data", &pki.admin.certificate),
            ("client-key-data", &pki.admin.key),
        ] {
            let line = format!("{field}: {}", BASE64_STANDARD.encode(text));
            assert!(config.lines().any(|written| written.trim() == line), "{field} in\n{config}");
        }
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
