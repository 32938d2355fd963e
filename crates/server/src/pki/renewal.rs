//! Renews the server's certificates while it runs.
//!
//! Once an hour the certificates are looked at, and those that end within 90 days are replaced: first in the data
//! directory, then in memory, from where the next handshake takes them. Connections that exist are left alone. The
//! administrator's kubeconfig is rewritten in one step; copies of it are good until the certificate in them ends.
//!
//! A renewal that fails is logged and tried again an hour later; until then the old certificate is in use.

use std::{net::IpAddr, path::PathBuf, sync::Arc, time::Duration};

use mainstay_tls::RotatingCertificate;
use time::OffsetDateTime;
use tokio_util::sync::CancellationToken;

use super::{
    ADMIN, AGENT_CLIENT, FRONT_PROXY_CLIENT, Identity, Pki, PkiError, SERVER, admin_certificate,
    agent_client_certificate,
    authority::{self, RENEW_BEFORE},
    files, front_proxy_certificate, server_certificate, write_private,
};

/// Short enough that a clock that was set is noticed the same day.
const INTERVAL: Duration = Duration::from_secs(3600);

/// Certificates of the agent in the same process, which has no server to ask for new ones.
pub struct NodeCertificates {
    pub name: String,
    pub addresses: Vec<IpAddr>,
    pub client: Arc<RotatingCertificate>,
    pub serving: Arc<RotatingCertificate>,
}

/// Renews everything that this process presents, and the administrator's kubeconfig.
pub struct CertificateRenewer {
    pki: Arc<Pki>,
    kubeconfig: PathBuf,
    /// Of the server, as the kubeconfig names it.
    url: String,
    node: Option<NodeCertificates>,
    /// The administrator's certificate was renewed, and the kubeconfig has not been written since.
    is_kubeconfig_outdated: bool,
}

impl CertificateRenewer {
    pub fn new(pki: Arc<Pki>, kubeconfig: PathBuf, url: String, node: Option<NodeCertificates>) -> Self {
        Self { pki, kubeconfig, url, node, is_kubeconfig_outdated: false }
    }

    pub async fn run(mut self, stop: CancellationToken) {
        loop {
            match self.renew_due(OffsetDateTime::now_utc()) {
                Ok(renewed) => {
                    for certificate in renewed {
                        tracing::info!(certificate, "renewed a certificate of this server");
                    }
                }
                Err(error) => {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(error, "cannot renew the certificates of this server; will try again in an hour");
                }
            }
            if stop.run_until_cancelled(tokio::time::sleep(INTERVAL)).await.is_none() {
                return;
            }
        }
    }

    /// Renews what ends within [`RENEW_BEFORE`]; says which.
    pub fn renew_due(&mut self, now: OffsetDateTime) -> Result<Vec<&'static str>, PkiError> {
        let mut renewed = self.pki.renew_due(now)?;
        if let Some(node) = &self.node
            && (ends_soon(&node.client, now) || ends_soon(&node.serving, now))
        {
            let issued = self.pki.issue_node_at(&node.name, &node.addresses, now)?;
            replace("node", &node.client, &issued.client)?;
            replace("node", &node.serving, &issued.serving)?;
            renewed.push("node");
        }
        self.is_kubeconfig_outdated |= renewed.contains(&ADMIN);
        if self.is_kubeconfig_outdated {
            write_private(&self.kubeconfig, &self.pki.kubeconfig(&self.url))?;
            self.is_kubeconfig_outdated = false;
        }
        Ok(renewed)
    }
}

impl Pki {
    /// Renews the leaf certificates that end within [`RENEW_BEFORE`]; says which.
    fn renew_due(&self, now: OffsetDateTime) -> Result<Vec<&'static str>, PkiError> {
        let mut renewed = Vec::new();
        if ends_soon(&self.serving, now) {
            let identity = server_certificate(&self.authority, &self.names, now)?;
            replace(SERVER, &self.serving, &files::store(&self.dir, SERVER, identity)?)?;
            renewed.push(SERVER);
        }
        if ends_soon(&self.agent_client, now) {
            replace(AGENT_CLIENT, &self.agent_client, &agent_client_certificate(&self.authority, now)?)?;
            renewed.push(AGENT_CLIENT);
        }
        if ends_soon(&self.front_proxy_client, now) {
            let identity = front_proxy_certificate(&self.front_proxy_authority, now)?;
            replace(FRONT_PROXY_CLIENT, &self.front_proxy_client, &identity)?;
            renewed.push(FRONT_PROXY_CLIENT);
        }
        if !authority::usable(&self.admin.read(), &[], now) {
            let identity = admin_certificate(&self.authority, now)?;
            *self.admin.write() = files::store(&self.dir, ADMIN, identity)?;
            renewed.push(ADMIN);
        }
        Ok(renewed)
    }
}

fn ends_soon(certificate: &RotatingCertificate, now: OffsetDateTime) -> bool {
    certificate.validity().is_none_or(|(_, end)| end <= (now + RENEW_BEFORE).unix_timestamp())
}

fn replace(name: &'static str, current: &RotatingCertificate, new: &Identity) -> Result<(), PkiError> {
    current.replace(&new.certificate, &new.key).map_err(|source| PkiError::Use { name, source })
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt, path::Path};

    use ::time::Duration;

    use super::*;

    const ALL: [&str; 5] = [SERVER, AGENT_CLIENT, FRONT_PROXY_CLIENT, ADMIN, "node"];

    fn renewer(dir: &Path, now: OffsetDateTime) -> CertificateRenewer {
        let pki = Arc::new(Pki::open_at(dir, &["localhost".to_owned()], now).unwrap());
        let issued = pki.issue_node_at("a", &[], now).unwrap();
        let rotating =
            |identity: &Identity| Arc::new(RotatingCertificate::new(&identity.certificate, &identity.key).unwrap());
        let node = NodeCertificates {
            name: "a".to_owned(),
            addresses: Vec::new(),
            client: rotating(&issued.client),
            serving: rotating(&issued.serving),
        };
        CertificateRenewer::new(pki, dir.join("admin.kubeconfig"), "https://127.0.0.1:6443".to_owned(), Some(node))
    }

    #[test]
    fn certificates_are_renewed_ninety_days_before_their_end_and_not_again() {
        let (dir, start) = (tempfile::tempdir().unwrap(), OffsetDateTime::now_utc());
        let mut renewer = renewer(dir.path(), start);
        let end = |certificate: &RotatingCertificate| certificate.validity().unwrap().1;
        let first = end(&renewer.pki.serving);
        assert_eq!(renewer.renew_due(start + Duration::days(274)).unwrap(), [""; 0]);
        let later = start + Duration::days(276);
        assert_eq!(renewer.renew_due(later).unwrap(), ALL);
        let node = renewer.node.as_ref().unwrap();
        for certificate in [&renewer.pki.serving, &renewer.pki.agent_client, &node.client, &node.serving] {
            assert_eq!(end(certificate) - first, Duration::days(276).whole_seconds());
        }
        assert_eq!(renewer.renew_due(later).unwrap(), [""; 0]);
        let restarted = Pki::open_at(dir.path(), &["localhost".to_owned()], later).unwrap();
        assert_eq!(end(&restarted.serving), end(&renewer.pki.serving), "a restart finds the new one");
    }

    #[test]
    fn the_kubeconfig_is_rewritten_with_the_administrators_new_certificate() {
        let (dir, start) = (tempfile::tempdir().unwrap(), OffsetDateTime::now_utc());
        let mut renewer = renewer(dir.path(), start);
        let file = renewer.kubeconfig.clone();
        let first = renewer.pki.kubeconfig(&renewer.url);
        renewer.renew_due(start).unwrap();
        assert!(!file.exists(), "while nothing was renewed, it is the owner's");
        // What cannot be written is written at the next look.
        fs::create_dir(&file).unwrap();
        let later = start + Duration::days(300);
        assert!(renewer.renew_due(later).is_err());
        fs::remove_dir(&file).unwrap();
        assert_eq!(renewer.renew_due(later).unwrap(), [""; 0]);
        let written = fs::read_to_string(&file).unwrap();
        assert_ne!(written, first);
        assert_eq!(written, renewer.pki.kubeconfig(&renewer.url));
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    }
}
