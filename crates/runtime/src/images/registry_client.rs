//! HTTP requests to one image registry: login by its token server, manifests, blobs.
//!
//! Whoever may name an image names the registry, which may be anybody. So nothing that one sends is read without bounds: manifests,
//! tokens and refusals are small, and a blob is a stream that the caller bounds. (`oci-client`, which parses names for us, reads
//! answers to their end, whatever their length.)

use std::time::Duration;

use oci_client::{
    Reference,
    errors::{OciEnvelope, OciErrorCode},
};
use parking_lot::Mutex;
use reqwest::{
    Client, RequestBuilder, Response, StatusCode,
    header::{ACCEPT, HeaderMap, RANGE, WWW_AUTHENTICATE},
};

use super::{Auth, PullError, layers, request_error};

const MANIFESTS: &str = "application/vnd.oci.image.manifest.v1+json, application/vnd.oci.image.index.v1+json, \
    application/vnd.docker.distribution.manifest.v2+json, application/vnd.docker.distribution.manifest.list.v2+json";
/// No honest manifest is larger; containerd has the same limit.
const MAX_MANIFEST: usize = 8 << 20;
const MAX_TOKEN: usize = 1 << 20;
/// Of a refusal only the message is of use.
const MAX_REFUSAL: usize = 64 << 10;

/// How requests prove who asks.
#[derive(Clone)]
enum Credentials {
    None,
    Basic { username: String, password: String },
    Bearer(String),
}

impl Credentials {
    fn apply(&self, request: RequestBuilder) -> RequestBuilder {
        match self {
            Self::None => request,
            Self::Basic { username, password } => request.basic_auth(username, Some(password)),
            Self::Bearer(token) => request.bearer_auth(token),
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// It could not be sent, or the answer broke off.
    #[error(transparent)]
    Http(#[from] reqwest::Error),
    #[error("the registry answered {code}{}", request_error::message_in_body(.body).map(|text| format!(": {text}")).unwrap_or_default())]
    Status { code: StatusCode, body: String },
    /// The token server refuses.
    #[error("{}", request_error::message_of_body(.0))]
    Login(String),
    #[error("{0} is larger than any may be")]
    TooLarge(&'static str),
    #[error("the answer of its token server has no token")]
    NoToken,
    #[error("its manifest has the digest {found}, not {wanted}")]
    Digest { wanted: String, found: String },
}

impl RequestError {
    /// A connection that broke and a server that is busy are worth another try.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Http(_) => true,
            Self::Status { code, .. } => code.is_server_error() || *code == StatusCode::TOO_MANY_REQUESTS,
            Self::Login(_) | Self::TooLarge(_) | Self::NoToken | Self::Digest { .. } => false,
        }
    }

    /// What it means for a pull of this reference.
    pub fn explain(self, reference: &str, registry: &str) -> PullError {
        let reference = reference.to_owned();
        match self {
            Self::Http(error) => {
                let host = error.url().and_then(|url| {
                    let host = url.host_str()?;
                    Some(url.port().map_or(host.to_owned(), |port| format!("{host}:{port}")))
                });
                let host = host.unwrap_or_else(|| registry.to_owned());
                PullError::Failed { reference, why: request_error::explain(&host, &error) }
            }
            Self::Status { code: StatusCode::UNAUTHORIZED, .. } => {
                PullError::Refused { reference, why: "401 Unauthorized".to_owned() }
            }
            Self::Status { code, ref body } => match (serde_json::from_str::<OciEnvelope>(body), code.as_u16()) {
                (Ok(envelope), _) => explain_envelope(reference, &envelope),
                (Err(_), 403) => PullError::Refused { reference, why: self.to_string() },
                (Err(_), 404) => PullError::NotFound { reference },
                (Err(_), _) => PullError::Failed { reference, why: self.to_string() },
            },
            Self::Login(_) => PullError::Refused { reference, why: self.to_string() },
            Self::TooLarge(_) | Self::NoToken | Self::Digest { .. } => {
                PullError::Failed { reference, why: self.to_string() }
            }
        }
    }
}

fn explain_envelope(reference: String, envelope: &OciEnvelope) -> PullError {
    use OciErrorCode::{BlobUnknown, Denied, ManifestUnknown, NameUnknown, NotFound, Unauthorized};
    let has = |codes: &[OciErrorCode]| envelope.errors.iter().any(|e| codes.contains(&e.code));
    if has(&[Unauthorized, Denied]) {
        PullError::Refused { reference, why: request_error::message_of(envelope) }
    } else if has(&[ManifestUnknown, NameUnknown, NotFound, BlobUnknown]) {
        PullError::NotFound { reference }
    } else {
        PullError::Failed { reference, why: request_error::message_of(envelope) }
    }
}

pub struct RegistryClient {
    http: Client,
    /// `https://registry.example/v2/`
    base: String,
    repository: String,
    login: Credentials,
    /// What the registry wants instead of the login.
    session: Mutex<Credentials>,
}

impl RegistryClient {
    pub fn new(name: &Reference, auth: Option<&Auth>, plain: bool, stall: Duration) -> Result<Self, RequestError> {
        let scheme = if plain { "http" } else { "https" };
        let login = match auth {
            Some(auth) if !auth.token.is_empty() => Credentials::Bearer(auth.token.clone()),
            Some(auth) if !auth.username.is_empty() => {
                Credentials::Basic { username: auth.username.clone(), password: auth.password.clone() }
            }
            _ => Credentials::None,
        };
        let http = Client::builder()
            .user_agent(concat!("mainstay/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(stall.min(Duration::from_secs(30)))
            .read_timeout(stall * 2) // the caller's is first
            .build()?;
        Ok(Self {
            http,
            base: format!("{scheme}://{}/v2/", name.resolve_registry()),
            repository: name.repository().to_owned(),
            session: Mutex::new(login.clone()),
            login,
        })
    }

    /// Asks the registry what it wants to know of us, and its token server for that.
    pub async fn authenticate(&self) -> Result<(), RequestError> {
        if matches!(self.login, Credentials::Bearer(_)) {
            return Ok(());
        }
        let answer = self.http.get(&self.base).send().await?;
        let session = match BearerChallenge::from_headers(answer.headers()) {
            Some(challenge) => self.fetch_token(&challenge).await?,
            None => self.login.clone(),
        };
        *self.session.lock() = session;
        Ok(())
    }

    async fn fetch_token(&self, challenge: &BearerChallenge) -> Result<Credentials, RequestError> {
        let scope = format!("repository:{}:pull", self.repository);
        let mut query = vec![("scope", scope.as_str())];
        query.extend(challenge.service.as_deref().map(|service| ("service", service)));
        let answer = self.login.apply(self.http.get(&challenge.realm).query(&query)).send().await?;
        if !answer.status().is_success() {
            return Err(RequestError::Login(read_refusal(answer).await?));
        }
        let body = read_whole(answer, MAX_TOKEN, "the token").await?;
        let answer: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
        // Some give both names to the one token.
        let token = ["token", "access_token"].iter().find_map(|field| answer[field].as_str());
        token.map(|token| Credentials::Bearer(token.to_owned())).ok_or(RequestError::NoToken)
    }

    /// The manifest of a tag or digest, and its digest. Verified.
    pub async fn manifest(&self, name: &Reference) -> Result<(Vec<u8>, String), RequestError> {
        let which = name.digest().or(name.tag()).unwrap_or("latest");
        let answer = self.get(&format!("manifests/{which}"), &[(ACCEPT.as_str(), MANIFESTS)]).await?;
        let body = read_whole(answer, MAX_MANIFEST, "its manifest").await?;
        let found = layers::digest(&body);
        match name.digest() {
            Some(wanted) if wanted != found => Err(RequestError::Digest { wanted: wanted.to_owned(), found }),
            _ => Ok((body, found)),
        }
    }

    /// The blob, from this byte on if the registry can do that: its answer says so.
    pub async fn blob(&self, digest: &str, from: u64) -> Result<Response, RequestError> {
        let range = format!("bytes={from}-");
        let headers: &[(&str, &str)] = if from > 0 { &[(RANGE.as_str(), &range)] } else { &[] };
        self.get(&format!("blobs/{digest}"), headers).await
    }

    /// Tokens expire while large images are pulled: whoever is refused logs in once more.
    async fn get(&self, path: &str, headers: &[(&str, &str)]) -> Result<Response, RequestError> {
        let url = format!("{}{}/{path}", self.base, self.repository);
        let request = || {
            let request = self.session.lock().apply(self.http.get(&url));
            headers.iter().fold(request, |request, (name, value)| request.header(*name, *value))
        };
        let mut answer = request().send().await?;
        if answer.status() == StatusCode::UNAUTHORIZED {
            self.authenticate().await?;
            answer = request().send().await?;
        }
        if answer.status().is_success() {
            return Ok(answer);
        }
        let code = answer.status();
        Err(RequestError::Status { code, body: read_refusal(answer).await? })
    }
}

async fn read_whole(mut answer: Response, most: usize, what: &'static str) -> Result<Vec<u8>, RequestError> {
    let mut body = Vec::new();
    while let Some(chunk) = answer.chunk().await? {
        if body.len() + chunk.len() > most {
            return Err(RequestError::TooLarge(what));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

/// As much of it as is of use.
async fn read_refusal(mut answer: Response) -> Result<String, RequestError> {
    let mut body = Vec::new();
    while let Some(chunk) = answer.chunk().await? {
        body.extend_from_slice(&chunk[..chunk.len().min(MAX_REFUSAL - body.len())]);
        if body.len() == MAX_REFUSAL {
            break;
        }
    }
    Ok(String::from_utf8_lossy(&body).into_owned())
}

/// Where to get a token, as `WWW-Authenticate` says.
#[derive(Debug, PartialEq, Eq)]
struct BearerChallenge {
    realm: String,
    service: Option<String>,
}

impl BearerChallenge {
    fn from_headers(headers: &HeaderMap) -> Option<Self> {
        headers.get_all(WWW_AUTHENTICATE).iter().find_map(|value| Self::parse(value.to_str().ok()?))
    }

    /// `Bearer realm="https://…",service="…"`; commas within quotes do not separate.
    fn parse(text: &str) -> Option<Self> {
        let (scheme, parameters) = text.trim().split_once(' ')?;
        if !scheme.eq_ignore_ascii_case("bearer") {
            return None;
        }
        let (mut realm, mut service) = (None, None);
        let mut rest = parameters.trim_start();
        while let Some((key, value)) = rest.split_once('=') {
            let (value, after) = match value.strip_prefix('"') {
                Some(quoted) => quoted.split_once('"')?,
                None => value.split_once(',').unwrap_or((value, "")),
            };
            match key.trim().to_ascii_lowercase().as_str() {
                "realm" => realm = Some(value.to_owned()),
                "service" => service = Some(value.to_owned()),
                _ => {}
            }
            rest = after.trim_start_matches([',', ' ']);
        }
        Some(Self { realm: realm?, service })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_challenge_is_read_whatever_its_order_and_quotes() {
        let parsed = |text| BearerChallenge::parse(text);
        let expected = |service: Option<&str>| {
            Some(BearerChallenge {
                realm: "https://auth.example/token?a=1,2".to_owned(),
                service: service.map(str::to_owned),
            })
        };
        let hub = r#"Bearer realm="https://auth.example/token?a=1,2",service="registry.example",scope="a:b:pull,push""#;
        assert_eq!(parsed(hub), expected(Some("registry.example")));
        let other = r#"bearer scope="x", service=registry.example, Realm="https://auth.example/token?a=1,2""#;
        assert_eq!(parsed(other), expected(Some("registry.example")));
        assert_eq!(parsed(r#"Bearer realm="https://auth.example/token?a=1,2""#), expected(None));
        for none in [r#"Basic realm="x""#, "Bearer", "Bearer service=x", r#"Bearer realm="x"#, ""] {
            assert_eq!(parsed(none), None, "{none}");
        }
    }
}
