//! The public keys of an issuer: found by OpenID discovery, fetched when a token names a key that is not known yet, and
//! when those that are known are some minutes old, so that a key that the issuer has retired is not believed for long.
//!
//! Fetching has limits, because anybody can name unknown keys: one fetch at a time, a pause between two, seconds for
//! each, and documents of at most a mebibyte. While the issuer does not answer, the keys that are known stay good.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::Uri;
use http_body_util::{BodyExt, Empty, Limited};
use hyper_rustls::HttpsConnector;
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use jiff::{SignedDuration, Timestamp};
use jsonwebtoken::{
    DecodingKey,
    jwk::{Jwk, JwkSet},
};
use parking_lot::RwLock;
use rustls::{ClientConfig, RootCertStore};
use serde::{Deserialize, de::DeserializeOwned};
use tokio::sync::Mutex;

use super::config::{ConfigError, IssuerConfig};

const BETWEEN_FETCHES: SignedDuration = SignedDuration::from_secs(10);
/// Keys that were fetched longer ago are fetched anew when a token comes. Upstream's are used until a token names another key.
const MAX_AGE: SignedDuration = SignedDuration::from_mins(5);
const FETCH_TIMEOUT: Duration = Duration::from_secs(5);
const MAX_DOCUMENT: usize = 1 << 20;

#[derive(Debug, thiserror::Error)]
enum FetchError {
    #[error("{url} does not answer: {why}")]
    Unreachable { url: String, why: String },
    #[error("{url} answers with {code}")]
    Code { url: String, code: u16 },
    #[error("{url} is not what it should be: {why}")]
    Unreadable { url: String, why: String },
    #[error("it calls itself {found:?}, not {wanted:?}")]
    OtherIssuer { found: String, wanted: String },
}

#[derive(Deserialize)]
struct ProviderMetadata {
    issuer: String,
    jwks_uri: String,
}

pub struct IssuerKeys {
    issuer: String,
    discovery: String,
    client: Client<HttpsConnector<HttpConnector>, Empty<Bytes>>,
    keys: RwLock<FetchedKeys>,
    /// When a fetch was last tried. Held while one is under way.
    last_attempt: Mutex<Option<Timestamp>>,
}

#[derive(Default)]
struct FetchedKeys {
    keys: Vec<Jwk>,
    fetched_at: Option<Timestamp>,
}

impl IssuerKeys {
    pub fn new(config: &IssuerConfig) -> Result<Self, ConfigError> {
        let fail = |problem: String| ConfigError { field: "issuer.certificateAuthority".to_owned(), problem };
        let mut roots = RootCertStore::empty();
        if config.certificate_authority.is_empty() {
            let found = rustls_native_certs::load_native_certs();
            roots.add_parsable_certificates(found.certs);
        } else {
            roots = mainstay_tls::root_store(&config.certificate_authority).map_err(|error| fail(error.to_string()))?;
            if roots.is_empty() {
                return Err(fail("has no certificate in PEM form".to_owned()));
            }
        }
        let tls = ClientConfig::builder_with_provider(mainstay_tls::provider())
            .with_safe_default_protocol_versions()
            .map_err(|error| fail(error.to_string()))?
            .with_root_certificates(Arc::new(roots))
            .with_no_client_auth();
        let https = hyper_rustls::HttpsConnectorBuilder::new().with_tls_config(tls).https_only().enable_http1().build();
        let discovery = match &*config.discovery_url {
            "" => format!("{}/.well-known/openid-configuration", config.url.trim_end_matches('/')),
            url => url.to_owned(),
        };
        Ok(Self {
            issuer: config.url.clone(),
            discovery,
            client: Client::builder(TokioExecutor::new()).build(https),
            keys: RwLock::default(),
            last_attempt: Mutex::default(),
        })
    }

    /// The keys that a token may be signed with: the one it names, or all if it names none.
    pub async fn candidates(&self, id: Option<&str>, now: Timestamp) -> Vec<DecodingKey> {
        let known = self.known(id);
        let mut last_attempt = if known.is_empty() {
            // Whoever comes while another fetches waits for the same answer.
            self.last_attempt.lock().await
        } else if self.are_fresh(now) {
            return known;
        } else {
            match self.last_attempt.try_lock() {
                Ok(last_attempt) => last_attempt,
                Err(_) => return known,
            }
        };
        if last_attempt.is_none_or(|last| elapsed(last, now) >= BETWEEN_FETCHES) {
            match self.fetch().await {
                Ok(keys) => *self.keys.write() = FetchedKeys { keys, fetched_at: Some(now) },
                Err(error) => tracing::warn!(issuer = self.issuer, %error, "cannot fetch the keys of a token issuer"),
            }
            *last_attempt = Some(now);
        }
        self.known(id)
    }

    fn are_fresh(&self, now: Timestamp) -> bool {
        self.keys.read().fetched_at.is_some_and(|fetched_at| elapsed(fetched_at, now) < MAX_AGE)
    }

    fn known(&self, id: Option<&str>) -> Vec<DecodingKey> {
        let fetched = self.keys.read();
        let named = fetched.keys.iter().filter(|key| id.is_none() || key.common.key_id.as_deref() == id);
        named.filter_map(|key| DecodingKey::from_jwk(key).ok()).collect()
    }

    async fn fetch(&self) -> Result<Vec<Jwk>, FetchError> {
        let found: ProviderMetadata = self.get(&self.discovery).await?;
        if found.issuer != self.issuer {
            return Err(FetchError::OtherIssuer { found: found.issuer, wanted: self.issuer.clone() });
        }
        let set: JwkSet = self.get(&found.jwks_uri).await?;
        Ok(set.keys)
    }

    async fn get<T: DeserializeOwned>(&self, url: &str) -> Result<T, FetchError> {
        let unreachable = |why: String| FetchError::Unreachable { url: url.to_owned(), why };
        let unreadable = |why: String| FetchError::Unreadable { url: url.to_owned(), why };
        let uri: Uri = url.parse().map_err(|error: http::uri::InvalidUri| unreadable(error.to_string()))?;
        let fetched = async {
            let response = self.client.get(uri).await.map_err(|error| unreachable(with_cause(&error)))?;
            let code = response.status();
            if !code.is_success() {
                return Err(FetchError::Code { url: url.to_owned(), code: code.as_u16() });
            }
            let body = Limited::new(response.into_body(), MAX_DOCUMENT).collect().await;
            Ok(body.map_err(|error| unreadable(error.to_string()))?.to_bytes())
        };
        let bytes =
            tokio::time::timeout(FETCH_TIMEOUT, fetched).await.map_err(|_| unreachable("timed out".to_owned()))??;
        serde_json::from_slice(&bytes).map_err(|error| unreadable(error.to_string()))
    }
}

/// A clock that was set back does not make anything young.
fn elapsed(since: Timestamp, now: Timestamp) -> SignedDuration {
    now.duration_since(since).abs()
}

fn with_cause(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
