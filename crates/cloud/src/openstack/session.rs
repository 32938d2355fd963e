//! A session with one cloud: logs in, keeps the token fresh, and makes calls with deadlines and retries.
//!
//! The token is renewed a while before it expires, by whoever calls first, and once after a 401; of several calls that need a new one, one logs in and the
//! others wait. A session is cheap to clone; all clones share token and connections.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use futures::StreamExt;
use jiff::{SignedDuration, Timestamp};
use reqwest::{Method, Response, header::HeaderValue};
use rustls::ClientConfig;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tokio::sync::Mutex;

use super::{
    CallRecord, CallRecorder, CloudConfig, CloudError, ConfigError, SecretText, Service,
    catalog::{CatalogEntry, Endpoints, pick_endpoints},
    clouds_yaml::{Credential, Identifier, Scope},
    error::{Call, parse_error_body},
    retry::{Repeat, delay_before_retry, parse_retry_after},
};

/// A token is replaced this long before it expires.
const RENEW_BEFORE: SignedDuration = SignedDuration::from_mins(5);
/// The longest answer that is read: lists come in pages of a thousand.
const MAX_BODY: usize = 32 << 20;
/// The header that says which version of a service's API is meant.
pub(super) const API_VERSION: &str = "OpenStack-API-Version";
/// Of a list; more means that the service pages in circles.
const MAX_PAGES: usize = 1000;
/// Of a list, in all its pages: more fills the memory, since an object of two bytes takes hundreds here.
const MAX_OBJECTS: usize = 100_000;

/// How long calls may take.
#[derive(Clone, Copy, Debug)]
pub struct Deadlines {
    /// One attempt.
    pub attempt: Duration,
    /// A call with all its attempts.
    pub call: Duration,
}

impl Default for Deadlines {
    fn default() -> Self {
        Self { attempt: Duration::from_secs(30), call: Duration::from_secs(90) }
    }
}

#[derive(Clone)]
pub struct Session {
    shared: Arc<Shared>,
}

struct Shared {
    config: CloudConfig,
    http: reqwest::Client,
    deadlines: Deadlines,
    recorder: Arc<dyn CallRecorder>,
    login: Mutex<Option<Arc<Login>>>,
}

/// What a login gave.
struct Login {
    token: SecretText,
    expires: Timestamp,
    endpoints: Endpoints,
    project: Option<String>,
    user: String,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("cloud", &self.shared.config.name).finish_non_exhaustive()
    }
}

/// A call before it is made. Made by the modules of the services.
pub(super) struct Request {
    pub service: Service,
    pub operation: &'static str,
    pub method: Method,
    /// Below the service's endpoint.
    pub path: String,
    pub query: Vec<(String, String)>,
    pub headers: Vec<(&'static str, String)>,
    pub body: Option<Value>,
    pub repeat: Repeat,
}

impl Request {
    pub fn get(service: Service, operation: &'static str, path: impl Into<String>) -> Self {
        Self::new(service, operation, Method::GET, path, Repeat::Harmless)
    }

    pub fn delete(service: Service, operation: &'static str, path: impl Into<String>) -> Self {
        Self::new(service, operation, Method::DELETE, path, Repeat::Harmless)
    }

    /// A create or an action: repeated only if it certainly did not happen.
    pub fn post(service: Service, operation: &'static str, path: impl Into<String>, body: Value) -> Self {
        let request = Self::new(service, operation, Method::POST, path, Repeat::Harmful);
        Self { body: Some(body), ..request }
    }

    /// A write of a whole (fields, at least), which a repeat does not change.
    pub fn put(service: Service, operation: &'static str, path: impl Into<String>, body: Value) -> Self {
        let request = Self::new(service, operation, Method::PUT, path, Repeat::Harmless);
        Self { body: Some(body), ..request }
    }

    fn new(service: Service, operation: &'static str, method: Method, path: impl Into<String>, repeat: Repeat) -> Self {
        let (query, headers) = (Vec::new(), Vec::new());
        Self { service, operation, method, path: path.into(), query, headers, body: None, repeat }
    }

    pub fn query(mut self, name: &str, value: impl Into<String>) -> Self {
        self.query.push((name.to_owned(), value.into()));
        self
    }

    pub fn header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    /// The same, where a repeat does no harm although its method does not say so.
    pub fn harmless(mut self) -> Self {
        self.repeat = Repeat::Harmless;
        self
    }

    fn call(&self) -> Call {
        let method = match self.method.as_str() {
            "GET" => "GET",
            "POST" => "POST",
            "PUT" => "PUT",
            "DELETE" => "DELETE",
            "PATCH" => "PATCH",
            _ => "HEAD",
        };
        Call { service: self.service, operation: self.operation, method, path: self.path.clone() }
    }
}

impl Session {
    /// A session that logs in when it is first used.
    pub fn new(config: CloudConfig) -> Result<Self, ConfigError> {
        Self::with(config, Deadlines::default(), Arc::new(()))
    }

    pub fn with(
        config: CloudConfig,
        deadlines: Deadlines,
        recorder: Arc<dyn CallRecorder>,
    ) -> Result<Self, ConfigError> {
        let http = http_client(&config, deadlines)?;
        Ok(Self { shared: Arc::new(Shared { config, http, deadlines, recorder, login: Mutex::new(None) }) })
    }

    /// The cloud's name in the configuration.
    pub fn cloud_name(&self) -> &str {
        &self.shared.config.name
    }

    pub fn region(&self) -> Option<&str> {
        self.shared.config.region.as_deref()
    }

    /// The authorities of the cloud, as PEM, if its configuration names some.
    pub fn authorities(&self) -> Option<&str> {
        self.shared.config.authorities.as_deref()
    }

    pub fn auth_url(&self) -> &str {
        &self.shared.config.auth_url
    }

    /// The id of the project of the login.
    pub async fn project_id(&self) -> Result<String, CloudError> {
        self.login().await?.project.clone().ok_or(CloudError::NoProject)
    }

    /// The id of the user of the login.
    pub async fn user_id(&self) -> Result<String, CloudError> {
        Ok(self.login().await?.user.clone())
    }

    /// Whether the catalog has the service.
    pub async fn has_service(&self, service: Service) -> Result<bool, CloudError> {
        Ok(self.login().await?.endpoints.contains_key(&service))
    }

    /// A token of this login, for programs that are given one.
    pub async fn token(&self) -> Result<SecretText, CloudError> {
        Ok(self.login().await?.token.clone())
    }

    /// Makes a call that answers with JSON.
    pub(super) async fn call<T: DeserializeOwned>(&self, request: Request) -> Result<T, CloudError> {
        self.execute(&request, |body| serde_json::from_slice(body)).await
    }

    /// Makes a call whose answer is of no interest.
    pub(super) async fn call_without_answer(&self, request: Request) -> Result<(), CloudError> {
        self.execute(&request, |_| Ok(())).await
    }

    /// Deletes; what is not there counts as deleted. Says whether there was anything.
    pub(super) async fn call_delete(&self, request: Request) -> Result<bool, CloudError> {
        match self.execute(&request, |_| Ok(())).await {
            Ok(()) => Ok(true),
            Err(error) if error.is_not_found() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Reads; nothing if there is no such thing.
    pub(super) async fn call_optional<T: DeserializeOwned>(&self, request: Request) -> Result<Option<T>, CloudError> {
        match self.call(request).await {
            Ok(found) => Ok(Some(found)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Lists all pages. `field` holds the objects, `{field}_links` or `links` the address of the next page, as services do it.
    pub(super) async fn list<T: DeserializeOwned>(
        &self,
        mut request: Request,
        field: &str,
    ) -> Result<Vec<T>, CloudError> {
        let mut all = Vec::new();
        for _ in 0..MAX_PAGES {
            let (call, query) = (request.call(), request.query.clone());
            let mut page: Value = self.call(request).await?;
            let malformed = |source| CloudError::Malformed { call: call.clone(), source };
            let objects = page.get_mut(field).map(Value::take).unwrap_or(Value::Null);
            if all.len() + objects.as_array().map_or(0, Vec::len) > MAX_OBJECTS {
                return Err(CloudError::TooMany { call, limit: MAX_OBJECTS });
            }
            let objects: Vec<T> = serde_json::from_value(objects).map_err(malformed)?;
            let is_empty = objects.is_empty();
            all.extend(objects);
            let Some(next) = next_page(&page, field).filter(|_| !is_empty) else { return Ok(all) };
            if next == query {
                return Err(CloudError::TooMany { call, limit: all.len() }); // it leads to itself
            }
            request = Request { query: next, ..Request::get(call.service, call.operation, call.path) };
        }
        let call = Call { service: Service::Identity, operation: "list", method: "GET", path: field.to_owned() };
        Err(CloudError::TooMany { call, limit: all.len() })
    }

    /// Makes a call, in as many attempts as it needs; an answer that cannot be parsed counts as none.
    async fn execute<T>(
        &self,
        request: &Request,
        parse: fn(&[u8]) -> Result<T, serde_json::Error>,
    ) -> Result<T, CloudError> {
        let (began, deadlines) = (Instant::now(), self.shared.deadlines);
        let (mut failures, mut renewed) = (0, false);
        loop {
            let left = deadlines.call.saturating_sub(began.elapsed());
            let (outcome, login) = match self.login_within(left, &request.call()).await {
                Ok(login) => (self.attempt(request, &login, left).await, Some(login)),
                Err(error) => (Err(error), None),
            };
            let parsed = outcome
                .and_then(|body| parse(&body).map_err(|source| CloudError::Malformed { call: request.call(), source }));
            let (error, was_sent) = match (parsed, login) {
                (Ok(answer), _) => return Ok(answer),
                // Whatever the call is: a request with a bad token does nothing.
                (Err(error), Some(login)) if error.status() == Some(401) && !renewed => {
                    renewed = true;
                    self.forget_login(&login).await;
                    continue;
                }
                (Err(error), login) => (error, login.is_some()),
            };
            failures += 1;
            let left = deadlines.call.saturating_sub(began.elapsed());
            let repeat = if was_sent { request.repeat } else { Repeat::Harmless };
            let Some(delay) = delay_before_retry(&error, repeat, failures, left, fastrand::f64()) else {
                return Err(error);
            };
            tracing::debug!(
                error = mainstay_errors::error_chain(&error),
                ?delay,
                "call to the cloud failed; trying it again"
            );
            tokio::time::sleep(delay).await;
        }
    }

    async fn attempt(&self, request: &Request, login: &Login, left: Duration) -> Result<Vec<u8>, CloudError> {
        let url = format!("{}{}", self.endpoint(login, request.service)?, request.path);
        let mut token = HeaderValue::from_str(login.token.expose()).unwrap_or(HeaderValue::from_static(""));
        token.set_sensitive(true);
        let mut builder = self.shared.http.request(request.method.clone(), url).header("X-Auth-Token", token);
        builder = builder.header("Accept", "application/json");
        let names_version = request.headers.iter().any(|(name, _)| *name == API_VERSION);
        if let Some(version) = request.service.microversion().filter(|_| !names_version) {
            builder = builder.header(API_VERSION, version);
        }
        for (name, value) in &request.headers {
            builder = builder.header(*name, value);
        }
        if !request.query.is_empty() {
            builder = builder.query(&request.query);
        }
        if let Some(body) = &request.body {
            builder = builder.json(body);
        }
        let (_, body) = self.send(request.call(), builder, left).await?;
        Ok(body)
    }

    fn endpoint<'a>(&self, login: &'a Login, service: Service) -> Result<&'a str, CloudError> {
        match login.endpoints.get(&service) {
            Some(endpoint) => Ok(endpoint),
            // Keystone is where we logged in, whatever the catalog says of it.
            None => {
                let region = self.region().unwrap_or("(any)").to_owned();
                Err(CloudError::NoSuchService { service, region })
            }
        }
    }

    /// Sends one attempt, records it, and reads the answer.
    async fn send(
        &self,
        call: Call,
        builder: reqwest::RequestBuilder,
        left: Duration,
    ) -> Result<(AnswerHeaders, Vec<u8>), CloudError> {
        let began = Instant::now();
        let limit = self.shared.deadlines.attempt.min(left);
        let mut status = None;
        let result = tokio::time::timeout(limit, async {
            let response = builder.send().await.map_err(|error| failed_to_send(&call, error))?;
            status = Some(response.status().as_u16());
            read_answer(&call, response).await
        })
        .await
        .unwrap_or_else(|_| Err(CloudError::Timeout { call: call.clone(), after: limit }));
        let record = CallRecord { service: call.service, operation: call.operation, status, took: began.elapsed() };
        self.shared.recorder.record_call(&record);
        result
    }

    async fn login_within(&self, left: Duration, call: &Call) -> Result<Arc<Login>, CloudError> {
        let login = tokio::time::timeout(left, self.login()).await;
        login.unwrap_or_else(|_| Err(CloudError::Timeout { call: call.clone(), after: left }))
    }

    async fn login(&self) -> Result<Arc<Login>, CloudError> {
        let mut current = self.shared.login.lock().await;
        if let Some(login) = current.as_ref().filter(|login| Timestamp::now() < login.expires - RENEW_BEFORE) {
            return Ok(login.clone());
        }
        let login = Arc::new(self.authenticate().await?);
        *current = Some(login.clone());
        Ok(login)
    }

    async fn forget_login(&self, refused: &Arc<Login>) {
        let mut current = self.shared.login.lock().await;
        if current.as_ref().is_some_and(|current| Arc::ptr_eq(current, refused)) {
            *current = None;
        }
    }

    async fn authenticate(&self) -> Result<Login, CloudError> {
        #[derive(Deserialize)]
        struct Answer {
            token: Token,
        }
        #[derive(Deserialize)]
        struct Token {
            expires_at: Timestamp,
            #[serde(default)]
            catalog: Vec<CatalogEntry>,
            project: Option<Named>,
            user: Named,
        }
        #[derive(Deserialize)]
        struct Named {
            id: String,
        }
        let config = &self.shared.config;
        let path = "/auth/tokens".to_owned();
        let call = Call { service: Service::Identity, operation: "log in", method: "POST", path };
        let url = format!("{}/auth/tokens", config.auth_url);
        let body = login_body(&config.credential, &config.scope);
        let builder = self.shared.http.post(url).json(&body);
        let (response, body) = self.send(call.clone(), builder, self.shared.deadlines.attempt).await?;
        let answer: Answer =
            serde_json::from_slice(&body).map_err(|source| CloudError::Malformed { call: call.clone(), source })?;
        let token = response.token.ok_or_else(|| {
            let source = serde::de::Error::custom("it has no X-Subject-Token");
            CloudError::Malformed { call, source }
        })?;
        let Token { expires_at, catalog, project, user } = answer.token;
        let mut endpoints = pick_endpoints(&catalog, config.region.as_deref(), &config.interface);
        // Keystone is where we logged in, whatever the catalog says of it.
        endpoints.insert(Service::Identity, config.auth_url.clone());
        Ok(Login { token, expires: expires_at, endpoints, project: project.map(|project| project.id), user: user.id })
    }
}

/// What is kept of an answer's headers.
struct AnswerHeaders {
    token: Option<SecretText>,
}

async fn read_answer(call: &Call, response: Response) -> Result<(AnswerHeaders, Vec<u8>), CloudError> {
    let header = |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok());
    let retry_after = header("retry-after").and_then(parse_retry_after);
    let headers = AnswerHeaders { token: header("x-subject-token").map(SecretText::new) };
    let status = response.status();
    let mut body = Vec::new();
    let mut chunks = response.bytes_stream();
    while let Some(chunk) = chunks.next().await {
        let chunk =
            chunk.map_err(|source| CloudError::Transport { call: call.clone(), source: source.without_url() })?;
        if body.len() + chunk.len() > MAX_BODY {
            return Err(CloudError::TooLong { call: call.clone(), limit: MAX_BODY });
        }
        body.extend_from_slice(&chunk);
    }
    if status.is_success() {
        return Ok((headers, body));
    }
    let (kind, message) = parse_error_body(&body);
    Err(CloudError::Refused { call: call.clone(), status: status.as_u16(), kind, message, retry_after })
}

fn failed_to_send(call: &Call, error: reqwest::Error) -> CloudError {
    let (call, source) = (call.clone(), error.without_url());
    if source.is_connect() { CloudError::Connect { call, source } } else { CloudError::Transport { call, source } }
}

/// The query of the next page, where there is one. The rest of its address is ours: services behind proxies name themselves wrongly, and a token is sent to
/// nobody else.
fn next_page(page: &Value, field: &str) -> Option<Vec<(String, String)>> {
    // Glance: next. Keystone: links.next. Neutron, Nova, Cinder, Octavia: {field}_links.
    let of_field = || {
        let links = page.get(format!("{field}_links"))?.as_array()?;
        links.iter().find(|link| link["rel"] == "next")?["href"].as_str()
    };
    let next = page.get("next").and_then(Value::as_str);
    let next = next.or_else(|| page.pointer("/links/next").and_then(Value::as_str)).or_else(of_field)?;
    let (_, query) = next.split_once('?')?;
    Some(form_urlencoded::parse(query.as_bytes()).into_owned().collect())
}

fn login_body(credential: &Credential, scope: &Scope) -> Value {
    let identify = |identifier: &Identifier| match identifier {
        Identifier::Id(id) => json!({"id": id}),
        Identifier::Name(name) => json!({"name": name}),
    };
    let user_value = |user: &Identifier, domain: &Identifier| match user {
        Identifier::Id(id) => json!({"id": id}),
        Identifier::Name(name) => json!({"name": name, "domain": identify(domain)}),
    };
    let identity = match credential {
        Credential::Password { user, user_domain, password } => {
            let mut user = user_value(user, user_domain);
            user["password"] = json!(password.expose());
            json!({"methods": ["password"], "password": {"user": user}})
        }
        Credential::ApplicationCredential { credential, user, secret } => {
            let mut value = identify(credential);
            if let Some((user, domain)) = user {
                value["user"] = user_value(user, domain);
            }
            value["secret"] = json!(secret.expose());
            json!({"methods": ["application_credential"], "application_credential": value})
        }
        Credential::Token { token } => json!({"methods": ["token"], "token": {"id": token.expose()}}),
    };
    match scope {
        Scope::OfCredential => json!({"auth": {"identity": identity}}),
        Scope::Domain(domain) => json!({"auth": {"identity": identity, "scope": {"domain": identify(domain)}}}),
        Scope::Project { project, domain } => {
            let project = match project {
                Identifier::Id(id) => json!({"id": id}),
                Identifier::Name(name) => json!({"name": name, "domain": identify(domain)}),
            };
            json!({"auth": {"identity": identity, "scope": {"project": project}}})
        }
    }
}

fn http_client(config: &CloudConfig, deadlines: Deadlines) -> Result<reqwest::Client, ConfigError> {
    let unusable = |source: Box<dyn std::error::Error + Send + Sync>| ConfigError::Authorities {
        cloud: config.name.clone(),
        path: "cacert".into(),
        source,
    };
    let roots = match &config.authorities {
        Some(pem) => mainstay_tls::root_store(pem).map_err(|error| unusable(error.into()))?,
        None => {
            let mut roots = rustls::RootCertStore::empty();
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            roots
        }
    };
    let tls = ClientConfig::builder_with_provider(mainstay_tls::provider())
        .with_safe_default_protocol_versions()
        .map_err(|error| unusable(error.into()))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    reqwest::Client::builder()
        .tls_backend_preconfigured(tls)
        // What the environment says of proxies is not ours; redirects would carry the token elsewhere.
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(deadlines.attempt.min(Duration::from_secs(10)))
        .pool_idle_timeout(Duration::from_secs(30))
        .user_agent(concat!("mainstay/", env!("CARGO_PKG_VERSION")))
        .build()
        .map_err(|error| unusable(error.into()))
}

#[cfg(test)]
mod tests;
