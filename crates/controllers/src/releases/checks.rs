//! Checks before a wave that somebody else answers: HTTP and HTTPS requests, and commands in containers.
//!
//! A check takes no longer than it may, reads no more than it may, and says why it is not open. Requests are sent by this server;
//! commands run in the container that the Release names, through the API, and never on the server's machine.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures::future::join_all;
use http::{Request, Response, Uri};
use http_body_util::{BodyExt, Empty, LengthLimitError, Limited};
use hyper_rustls::{FixedServerNameResolver, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use mainstay_api::{
    release::{ExecGate, HttpGate, ReleaseGate, ReleaseWave},
    release_gate::{DEFAULT_EXEC_TIMEOUT_SECONDS, DEFAULT_HTTP_TIMEOUT_SECONDS, LONGEST_BODY},
};
use mainstay_errors::error_chain;
use mainstay_waves::Gate;
use rustls::{ClientConfig, RootCertStore, pki_types::ServerName};

use crate::{
    config_templates::notify::{ApiNotifier, CommandResult, ConsumerNotifier, PodCommand},
    objects::pod::Pod,
    runtime::{Cache, ObjectKey},
};

/// Whether somebody has to be asked to tell whether a gate is open.
pub fn is_asked(gate: &ReleaseGate) -> bool {
    gate.http.is_some() || gate.https.is_some() || gate.exec.is_some()
}

pub struct CheckClient {
    pods: Arc<Cache<Pod>>,
    commands: Arc<dyn ConsumerNotifier>,
}

impl CheckClient {
    pub fn new(client: kube::Client, pods: Arc<Cache<Pod>>) -> Self {
        Self { pods, commands: Arc::new(ApiNotifier::new(client)) }
    }

    /// Whether all checks before a wave are answered as they should be. They are asked at the same time, so that they take no longer
    /// than the slowest of them.
    pub async fn ask(&self, wave: &ReleaseWave) -> Gate {
        let asked = wave.gates.iter().map(|gate| async move {
            if let Some(own) = gate.http.as_ref().or(gate.https.as_ref()) {
                return check_url(own).await.map_err(|why| format!("{}: {why}", own.url));
            }
            match &gate.exec {
                Some(own) => self.run(own).await.map_err(|why| format!("pod {}/{}: {why}", own.namespace, own.pod)),
                None => Ok(()),
            }
        });
        match join_all(asked).await.into_iter().find_map(Result::err) {
            Some(why) => Gate::Closed { why },
            None => Gate::Open,
        }
    }

    async fn run(&self, own: &ExecGate) -> Result<(), String> {
        let pod = self.pods.get(&ObjectKey::new(&own.namespace, &own.pod)).ok_or("does not exist")?;
        let first = || pod.spec.containers.first().map(|container| container.name.clone());
        let container = own.container.clone().or_else(first).ok_or("has no container")?;
        let seconds = own.timeout_seconds.unwrap_or(DEFAULT_EXEC_TIMEOUT_SECONDS);
        let command = PodCommand {
            namespace: own.namespace.clone(),
            pod: own.pod.clone(),
            container,
            command: own.command.clone(),
            stdin: None,
            timeout: duration(seconds),
        };
        match self.commands.run(command).await {
            Ok(CommandResult::Succeeded) => Ok(()),
            Ok(CommandResult::Failed { how, output }) => {
                match output.lines().rev().find(|line| !line.trim().is_empty()) {
                    Some(line) => Err(format!("{how}: {}", line.trim())),
                    None => Err(how),
                }
            }
            Err(error) => Err(error_chain(&error)),
        }
    }
}

fn duration(seconds: i32) -> Duration {
    Duration::from_secs(u64::try_from(seconds).unwrap_or(1).max(1))
}

async fn check_url(own: &HttpGate) -> Result<(), String> {
    let limit = duration(own.timeout_seconds.unwrap_or(DEFAULT_HTTP_TIMEOUT_SECONDS));
    match tokio::time::timeout(limit, ask_url(own)).await {
        Ok(judged) => judged,
        Err(_) => Err(format!("no answer in {limit:?}")),
    }
}

/// Redirects are not followed.
async fn ask_url(own: &HttpGate) -> Result<(), String> {
    let uri: Uri = own.url.parse().map_err(|_| "is not a URL".to_owned())?;
    let is_https = uri.scheme_str() == Some("https");
    let request = Request::get(uri).header("user-agent", "mainstay-release-gate").body(Empty::<Bytes>::new());
    let request = request.map_err(|error| error.to_string())?;
    let answer = if is_https {
        let builder = HttpsConnectorBuilder::new().with_tls_config(tls_config(own).await?).https_only();
        let connector = match &own.server_name {
            Some(name) => {
                let name = ServerName::try_from(name.clone()).map_err(|error| error.to_string())?;
                builder.with_server_name_resolver(FixedServerNameResolver::new(name)).enable_http1().build()
            }
            None => builder.enable_http1().build(),
        };
        Client::builder(TokioExecutor::new()).build(connector).request(request).await
    } else {
        Client::builder(TokioExecutor::new()).build(HttpConnector::new()).request(request).await
    };
    judge(own, answer.map_err(|error| error_chain(&error))?).await
}

/// The body is read only if somebody wants to know it, and never more of it than allowed.
async fn judge<B>(own: &HttpGate, answer: Response<B>) -> Result<(), String>
where
    B: http_body::Body<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let status = answer.status().as_u16();
    if own.expect.is_none() || !own.expects_status(status) {
        return own.judge(status, "");
    }
    match Limited::new(answer.into_body(), LONGEST_BODY).collect().await {
        Ok(body) => own.judge(status, &String::from_utf8_lossy(&body.to_bytes())),
        Err(error) if error.is::<LengthLimitError>() => {
            Err(format!("answers {status} with more than {} KiB", LONGEST_BODY / 1024))
        }
        Err(error) => Err(format!("answers {status} and breaks off: {error}")),
    }
}

/// Trusts the given authorities, or else those that this machine trusts.
async fn tls_config(own: &HttpGate) -> Result<ClientConfig, String> {
    let roots = match &own.certificate_authority {
        Some(pem) => mainstay_tls::root_store(pem).map_err(|error| error_chain(&error))?,
        None => {
            let found = tokio::task::spawn_blocking(rustls_native_certs::load_native_certs).await;
            let mut roots = RootCertStore::empty();
            roots.add_parsable_certificates(found.map_err(|error| error.to_string())?.certs);
            roots
        }
    };
    if roots.is_empty() {
        return Err("no certificate authority is known: set certificateAuthority".to_owned());
    }
    let config = ClientConfig::builder_with_provider(mainstay_tls::provider()).with_safe_default_protocol_versions();
    Ok(config.map_err(|error| error.to_string())?.with_root_certificates(roots).with_no_client_auth())
}

#[cfg(test)]
mod tests;
