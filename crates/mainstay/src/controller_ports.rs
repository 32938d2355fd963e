//! What controllers get from the server beside its API: the keys that sign certificates, and deletes of many objects at
//! once.

use std::{sync::Arc, time::Duration};

use futures::{FutureExt, future::BoxFuture};
use jiff::Timestamp;
use mainstay_controllers::{CertificateAuthority, CertificateRequest, ExpiringKind, ExpirySweeper, Signer, SweepError};
use mainstay_server::{
    event_expiry,
    handler::Handler,
    pki::{CertificateIssuer, CertificatePurpose, Request},
};

pub struct ServerAuthority(pub CertificateIssuer);

impl CertificateAuthority for ServerAuthority {
    fn read(&self, request: &[u8]) -> Result<CertificateRequest, String> {
        let request = Request::parse(request).map_err(|error| error.to_string())?;
        Ok(CertificateRequest {
            common_name: request.common_name,
            common_names: request.common_names,
            organizations: request.organizations,
            has_host_names: !request.dns_names.is_empty() || !request.addresses.is_empty(),
            has_other_names: request.other_names,
            public_key: request.public_key,
        })
    }

    fn sign(&self, request: &[u8], signer: Signer, seconds: Option<i32>) -> Result<String, String> {
        let purpose = match signer {
            Signer::NodeServing => CertificatePurpose::NodeServing,
            Signer::NodeClient | Signer::Client => CertificatePurpose::Client,
        };
        self.0.issue(request, purpose, seconds)
    }
}

pub struct StoreSweeper(pub Arc<Handler>);

impl ExpirySweeper for StoreSweeper {
    fn interval(&self) -> Duration {
        event_expiry::interval(&self.0)
    }

    fn sweep(&self, kind: ExpiringKind, now: Timestamp) -> BoxFuture<'_, Result<(), SweepError>> {
        async move {
            match kind {
                ExpiringKind::Events => event_expiry::sweep_events(&self.0, now).await?,
                ExpiringKind::BootstrapTokens => event_expiry::sweep_bootstrap_tokens(&self.0, now).await?,
            }
            Ok(())
        }
        .boxed()
    }
}
