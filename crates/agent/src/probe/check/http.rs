//! `GET` a URL. 200 to 399 is good; redirects are followed on the same host only; certificates are not
//! verified, since nobody gives pods one that their own address matches.

use std::{net::IpAddr, str::FromStr, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri, header};
use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::{Container, HTTPGetAction};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use rustls::pki_types::ServerName;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    task::JoinSet,
};

use super::{KEPT, Outcome, join, port, target_host, tcp};

const MOST_REDIRECTS: usize = 10;

/// What a path may not contain as it is; what is already encoded stays.
const UNSAFE: &AsciiSet = &CONTROLS.add(b' ').add(b'"').add(b'<').add(b'>').add(b'`').add(b'{').add(b'}').add(b'\\');

/// A request, with everything looked up.
#[derive(Clone, Debug)]
pub struct Request {
    url: ProbeUrl,
    headers: HeaderMap,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct ProbeUrl {
    tls: bool,
    host: String,
    port: u16,
    /// With its query; begins with `/` unless empty.
    path: String,
}

pub struct ProbeResponse {
    pub status: StatusCode,
    /// As much of it as is kept.
    pub body: Bytes,
}

impl Request {
    pub fn new(
        get: &HTTPGetAction,
        container: &Container,
        address: Option<IpAddr>,
        user_agent: &'static str,
    ) -> Result<Self, String> {
        let tls = get.scheme.as_deref().is_some_and(|scheme| scheme.eq_ignore_ascii_case("https"));
        let host = target_host(get.host.as_deref(), address)?;
        let path = path_of(get.path.as_deref().unwrap_or_default());
        let url = ProbeUrl { tls, host, port: port(&get.port, container)?, path };
        let given = get.http_headers.iter().flatten().map(|header| (&header.name, &header.value));
        Ok(Self { url, headers: request_headers(given, user_agent)? })
    }

    /// Of a URL that a program of the machine is checked by.
    pub fn from_url(url: &str, headers: &[(String, String)], user_agent: &'static str) -> Result<Self, String> {
        let nowhere = ProbeUrl { tls: false, host: String::new(), port: 0, path: String::new() };
        let is_absolute = ["http://", "https://"].iter().any(|scheme| url.starts_with(scheme));
        let (url, _) = Some(url)
            .filter(|_| is_absolute)
            .and_then(|url| nowhere.resolve(url))
            .filter(|(url, _)| !url.host.is_empty())
            .ok_or_else(|| "must be a URL such as http://127.0.0.1:8080/health".to_owned())?;
        Ok(Self { url, headers: request_headers(headers.iter().map(|(name, value)| (name, value)), user_agent)? })
    }

    /// Asks, and follows redirects to the same host; one to another host is the answer.
    pub async fn send(self, timeout: Duration) -> Result<ProbeResponse, String> {
        let first = self.url.clone();
        let late = || {
            let why = "context deadline exceeded (Client.Timeout exceeded while awaiting headers)";
            format!("Get {:?}: {why}", first.to_string())
        };
        tokio::time::timeout(timeout, self.follow(timeout)).await.unwrap_or_else(|_| Err(late()))
    }

    async fn follow(mut self, timeout: Duration) -> Result<ProbeResponse, String> {
        let first = self.url.host.clone();
        for _ in 0..MOST_REDIRECTS {
            let describe = |why: String| format!("Get {:?}: {why}", self.url.to_string());
            let (answer, location) = get(&self.url, &self.headers, timeout).await.map_err(describe)?;
            let next = location.filter(|_| answer.status.is_redirection()).and_then(|to| self.url.resolve(&to));
            match next {
                Some((next, _)) if next.host != first => return Ok(answer),
                Some((next, named)) => {
                    if named {
                        self.headers.remove(header::HOST);
                    }
                    self.url = next;
                }
                None => return Ok(answer),
            }
        }
        Err(format!("Get {:?}: stopped after {MOST_REDIRECTS} redirects", self.url.to_string()))
    }
}

fn request_headers<'a>(
    given: impl IntoIterator<Item = (&'a String, &'a String)>,
    user_agent: &'static str,
) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::new();
    for (name, value) in given {
        let key = HeaderName::from_str(name).map_err(|_| format!("invalid header name {name:?}"))?;
        headers.append(key, HeaderValue::from_str(value).map_err(|_| format!("invalid value of header {name:?}"))?);
    }
    headers.entry(header::USER_AGENT).or_insert(HeaderValue::from_static(user_agent));
    match headers.get(header::ACCEPT) {
        None => drop(headers.insert(header::ACCEPT, HeaderValue::from_static("*/*"))),
        Some(accept) if accept.is_empty() => drop(headers.remove(header::ACCEPT)),
        Some(_) => {}
    }
    Ok(headers)
}

pub async fn attempt(request: Request, timeout: Duration) -> Outcome {
    match request.send(timeout).await {
        Err(why) => Outcome::Failure(why),
        Ok(ProbeResponse { status, body }) => match status.as_u16() {
            200..300 => Outcome::Success,
            300..400 => {
                let body = String::from_utf8_lossy(&body);
                Outcome::Warning(format!("Probe terminated redirects, Response body: {body}"))
            }
            other => Outcome::Failure(format!("HTTP probe failed with statuscode: {other}")),
        },
    }
}

impl ProbeUrl {
    /// Where a `Location` leads from here, and whether it named a host.
    fn resolve(&self, location: &str) -> Option<(Self, bool)> {
        let here = |path: &str| Some((Self { path: path_of(path), ..self.clone() }, false));
        if let Some(rest) = location.strip_prefix("//") {
            let scheme = if self.tls { "https" } else { "http" };
            return self.resolve(&format!("{scheme}://{rest}"));
        }
        if location.starts_with('/') {
            return here(location);
        }
        if !location.contains("://") {
            let base = self.path.split('?').next().unwrap_or_default();
            let directory = base.rfind('/').map_or("/", |at| &base[..=at]);
            return here(&format!("{directory}{location}"));
        }
        let uri: Uri = location.split('#').next()?.parse().ok()?;
        let tls = match uri.scheme_str()? {
            "http" => false,
            "https" => true,
            _ => return None,
        };
        let host = uri.host()?.trim_start_matches('[').trim_end_matches(']').to_owned();
        let port = uri.port_u16().unwrap_or(if tls { 443 } else { 80 });
        Some((Self { tls, host, port, path: uri.path_and_query().map(ToString::to_string).unwrap_or_default() }, true))
    }
}

impl std::fmt::Display for ProbeUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let scheme = if self.tls { "https" } else { "http" };
        write!(f, "{scheme}://{}{}", join(&self.host, self.port), self.path)
    }
}

/// A path (and query) as it can be sent.
fn path_of(path: &str) -> String {
    let path = path.split('#').next().unwrap_or_default();
    let slash = if path.is_empty() || path.starts_with('/') { "" } else { "/" };
    format!("{slash}{}", utf8_percent_encode(path, UNSAFE))
}

async fn get(
    url: &ProbeUrl,
    headers: &HeaderMap,
    timeout: Duration,
) -> Result<(ProbeResponse, Option<String>), String> {
    let stream = tcp::connect(&url.host, url.port, timeout).await?;
    if !url.tls {
        return exchange(stream, url, headers).await;
    }
    let name = ServerName::try_from(url.host.clone()).map_err(|error| error.to_string())?;
    let config = mainstay_tls::insecure_client_config().map_err(|error| error.to_string())?;
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let stream = connector.connect(name, stream).await.map_err(|error| format!("tls: {error}"))?;
    exchange(stream, url, headers).await
}

async fn exchange<S>(stream: S, url: &ProbeUrl, headers: &HeaderMap) -> Result<(ProbeResponse, Option<String>), String>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
    // Dropped with this future, whatever becomes of it.
    let mut carrier = JoinSet::new();
    carrier.spawn(connection);
    let path = match url.path.as_str() {
        "" => "/".to_owned(),
        query if query.starts_with('?') => format!("/{query}"),
        path => path.to_owned(),
    };
    let mut request = http::Request::get(path).body(Empty::<Bytes>::new()).map_err(|error| error.to_string())?;
    request.headers_mut().extend(headers.clone());
    if !headers.contains_key(header::HOST) {
        let host = HeaderValue::from_str(&join(&url.host, url.port)).map_err(|error| error.to_string())?;
        request.headers_mut().insert(header::HOST, host);
    }
    request.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    let response = sender.send_request(request).await.map_err(describe_error)?;
    let (parts, body) = response.into_parts();
    let location = parts.headers.get(header::LOCATION).and_then(|value| value.to_str().ok()).map(str::to_owned);
    Ok((ProbeResponse { status: parts.status, body: head(body).await }, location))
}

/// The beginning of a body; what comes after is not waited for.
async fn head(body: hyper::body::Incoming) -> Bytes {
    let mut body = Limited::new(body, KEPT);
    let mut retained = Vec::new();
    while let Some(Ok(frame)) = body.frame().await {
        retained.extend_from_slice(frame.data_ref().map_or(&[], |data| data));
    }
    retained.into()
}

fn describe_error(error: hyper::Error) -> String {
    use std::error::Error as _;
    if error.is_incomplete_message() || error.is_closed() {
        return "EOF".to_owned();
    }
    let reset = |e: &(dyn std::error::Error + 'static)| {
        e.downcast_ref::<std::io::Error>().is_some_and(|e| e.kind() == std::io::ErrorKind::ConnectionReset)
    };
    if error.source().is_some_and(reset) {
        return "read: connection reset by peer".to_owned();
    }
    error.to_string()
}

#[cfg(test)]
mod tests;
