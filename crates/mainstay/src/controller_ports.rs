//! What controllers get from the server beside its API: the keys that sign certificates and tokens, deletes of many objects at
//! once, and objects written anew in the form in which they are stored now.

use std::{sync::Arc, time::Duration};

use futures::{FutureExt, future::BoxFuture};
use jiff::Timestamp;
use mainstay_controllers::{
    CertificateAuthority, CertificateRequest, ExpiringKind, ExpirySweeper, MigrationFailure, Signer, StorageMigrator,
    SweepError, TokenSignError, TokenSigner, TokenSubject,
};
use mainstay_server::{
    auth::secret_token,
    event_expiry,
    fence::Fence,
    handler::Handler,
    pki::{CertificateIssuer, CertificatePurpose, Request},
    storage_migration,
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

pub struct StoreSweeper {
    pub handler: Arc<Handler>,
    /// The term in which it runs, if other servers may lead.
    pub fence: Option<Arc<Fence>>,
}

impl ExpirySweeper for StoreSweeper {
    fn interval(&self) -> Duration {
        event_expiry::interval(&self.handler)
    }

    fn sweep(&self, kind: ExpiringKind, now: Timestamp) -> BoxFuture<'_, Result<(), SweepError>> {
        async move {
            let Self { handler, fence } = self;
            match kind {
                ExpiringKind::Events => event_expiry::sweep_events(handler, now, fence.as_deref()).await?,
                ExpiringKind::BootstrapTokens => {
                    event_expiry::sweep_bootstrap_tokens(handler, now, fence.as_deref()).await?;
                }
                ExpiringKind::PodCertificateRequests => {
                    event_expiry::sweep_pod_certificate_requests(handler, now, fence.as_deref()).await?;
                }
            }
            Ok(())
        }
        .boxed()
    }
}

pub struct StoreMigrator {
    pub handler: Arc<Handler>,
    /// The term in which it runs, if other servers may lead.
    pub fence: Option<Arc<Fence>>,
}

impl StorageMigrator for StoreMigrator {
    fn migrate<'a>(&'a self, group: &'a str, resource: &'a str) -> BoxFuture<'a, Result<u64, MigrationFailure>> {
        async move {
            match storage_migration::migrate(&self.handler, group, resource, self.fence.as_deref()).await {
                Ok(migration) => {
                    tracing::info!(
                        group,
                        resource,
                        rewritten = migration.rewritten,
                        "objects are in their stored form"
                    );
                    Ok(migration.revision.0)
                }
                Err(error) if error.is_final() => Err(MigrationFailure::Final(error.to_string())),
                Err(error) => Err(MigrationFailure::Retry(error.into())),
            }
        }
        .boxed()
    }
}

/// Signs with the key of all tokens of service accounts.
pub struct ServerTokenSigner(pub Arc<Handler>);

impl TokenSigner for ServerTokenSigner {
    fn sign<'a>(&'a self, subject: &'a TokenSubject) -> BoxFuture<'a, Result<String, TokenSignError>> {
        async move {
            let TokenSubject { namespace, account, account_uid, secret } = subject;
            let signed = secret_token::sign(&self.0, namespace, secret, account, account_uid).await;
            signed.map_err(|error| error.message().to_owned().into())
        }
        .boxed()
    }
}
