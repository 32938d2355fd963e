//! Rotation of the node's client and serving certificates before they expire, with the current certificate and no token.

use std::{
    net::IpAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use jiff::Timestamp;
use kube::Client;
use tokio_util::sync::CancellationToken;

use super::{
    JoinError,
    files::Files,
    request::{self, Purpose},
};
use crate::tls::{Identity, TlsError};

/// How soon a renewal that failed is tried again.
const RETRY_DELAY: Duration = Duration::from_secs(60);
/// Clocks jump: the time is looked at this often even if nothing is due.
const LONGEST: Duration = Duration::from_secs(3600);

/// Keeps the identity current until `stop`. The client is one that acts as this machine.
pub async fn renew(
    identity: Identity,
    client: Client,
    node: String,
    addresses: Vec<IpAddr>,
    directory: PathBuf,
    stop: CancellationToken,
) {
    // Not all machines that joined together renew together.
    let share = 0.7 + 0.2 * fastrand::f64();
    loop {
        let now = Timestamp::now().as_second();
        let ends = [&identity.client, &identity.serving].map(|current| due(current.validity(), share));
        let wait = match ends.into_iter().min() {
            Some(due) if due > now => Duration::from_secs(due.abs_diff(now)).min(LONGEST),
            _ => match renew_if_due(&identity, &client, &node, &addresses, &directory, share).await {
                Ok(()) => continue,
                Err(error) => {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(error, "cannot renew the node's certificates; will retry");
                    RETRY_DELAY
                }
            },
        };
        if stop.run_until_cancelled(tokio::time::sleep(wait)).await.is_none() {
            return;
        }
    }
}

/// Renews both certificates, however long they are good for yet.
pub async fn renew_now(
    identity: &Identity,
    client: &Client,
    node: &str,
    addresses: &[IpAddr],
    directory: &Path,
) -> Result<(), JoinError> {
    renew_if_due(identity, client, node, addresses, directory, 0.0).await
}

/// When a certificate is to be renewed: when this share of its life is over.
fn due(validity: Option<(i64, i64)>, share: f64) -> i64 {
    let Some((from, until)) = validity else { return 0 };
    from + ((until - from) as f64 * share) as i64
}

async fn renew_if_due(
    identity: &Identity,
    client: &Client,
    node: &str,
    addresses: &[IpAddr],
    directory: &Path,
    share: f64,
) -> Result<(), JoinError> {
    let files = Files::open(directory)?;
    let now = Timestamp::now().as_second();
    for (purpose, current) in [(Purpose::Client, &identity.client), (Purpose::Serving(addresses), &identity.serving)] {
        if due(current.validity(), share) > now {
            continue;
        }
        let pair = request::obtain(client, node, &purpose, &files).await?;
        current.replace(&pair.certificate, &pair.key).map_err(TlsError::from)?;
        files.set_pair(purpose.file(), &pair)?;
        tracing::info!(purpose = purpose.file(), "renewed a certificate of the node");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_renewed_well_before_it_ends() {
        assert_eq!(due(Some((1000, 2000)), 0.8), 1800);
        assert_eq!(due(None, 0.8), 0, "one that cannot be read is renewed now");
    }
}
