//! A lean HTTP/1.1 client over TLS: one connection, one request at a time.

use std::{path::Path, sync::Arc};

use anyhow::{Context, anyhow, bail};
use base64::{Engine, prelude::BASE64_STANDARD};
use bytes::Bytes;
use http::{Method, Request, Response, Uri, header};
use http_body_util::{BodyExt, Full};
use hyper::{body::Incoming, client::conn::http1::SendRequest};
use hyper_util::rt::TokioIo;
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// A server and the right to use it.
#[derive(Clone)]
pub struct Target {
    host: String,
    port: u16,
    tls: TlsConnector,
    /// The same without a client certificate, for who has a token.
    tls_for_tokens: TlsConnector,
    token: Option<String>,
}

impl Target {
    /// The same server, as somebody with a token.
    pub fn with_token(&self, token: &str) -> Self {
        Self { tls: self.tls_for_tokens.clone(), token: Some(token.to_owned()), ..self.clone() }
    }

    pub fn from_kubeconfig(file: &Path) -> anyhow::Result<Self> {
        let config: Value = serde_saphyr::from_str(&std::fs::read_to_string(file)?)?;
        let (cluster, user) = (&config["clusters"][0]["cluster"], &config["users"][0]["user"]);
        let url: Uri = cluster["server"].as_str().context("no server in the kubeconfig")?.parse()?;
        let pem = |within: &Value, name: &str| -> anyhow::Result<Option<Vec<u8>>> {
            match (within[format!("{name}-data")].as_str(), within[name].as_str()) {
                (Some(data), _) => Ok(Some(BASE64_STANDARD.decode(data)?)),
                (None, Some(file)) => Ok(Some(std::fs::read(file)?)),
                (None, None) => Ok(None),
            }
        };
        let mut roots = RootCertStore::empty();
        let ca = pem(cluster, "certificate-authority")?.context("no CA in the kubeconfig")?;
        for certificate in CertificateDer::pem_slice_iter(&ca) {
            roots.add(certificate.map_err(|e| anyhow!("{e:?}"))?)?;
        }
        let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots);
        let tls_for_tokens = TlsConnector::from(Arc::new(builder.clone().with_no_client_auth()));
        let certificate = pem(user, "client-certificate")?;
        let key = pem(user, "client-key")?;
        let tls = match (certificate, key) {
            (Some(certificate), Some(key)) => {
                let chain = CertificateDer::pem_slice_iter(&certificate)
                    .collect::<Result<Vec<_>, _>>()
                    .map_err(|e| anyhow!("{e:?}"))?;
                builder
                    .with_client_auth_cert(chain, PrivateKeyDer::from_pem_slice(&key).map_err(|e| anyhow!("{e:?}"))?)?
            }
            _ => builder.with_no_client_auth(),
        };
        Ok(Self {
            host: url.host().context("no host in the server's URL")?.to_owned(),
            port: url.port_u16().unwrap_or(443),
            tls: TlsConnector::from(Arc::new(tls)),
            tls_for_tokens,
            token: user["token"].as_str().map(str::to_owned),
        })
    }

    pub async fn connect(&self) -> anyhow::Result<Connection> {
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await?;
        stream.set_nodelay(true)?;
        let stream = self.tls.connect(ServerName::try_from(self.host.clone())?, stream).await?;
        let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(async move {
            let _ = connection.await;
        });
        Ok(Connection { sender, host: format!("{}:{}", self.host, self.port), token: self.token.clone() })
    }
}

pub struct Connection {
    sender: SendRequest<Full<Bytes>>,
    host: String,
    token: Option<String>,
}

impl Connection {
    pub async fn send(&mut self, method: Method, path: &str, body: Bytes) -> anyhow::Result<Response<Incoming>> {
        self.send_as(method, path, body, "application/json").await
    }

    async fn send_as(
        &mut self,
        method: Method,
        path: &str,
        body: Bytes,
        media_type: &str,
    ) -> anyhow::Result<Response<Incoming>> {
        let mut request = Request::builder().method(method).uri(path).header(header::HOST, &self.host);
        if let Some(token) = &self.token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        if !body.is_empty() {
            request = request.header(header::CONTENT_TYPE, media_type);
        }
        self.sender.ready().await?;
        Ok(self.sender.send_request(request.body(Full::new(body))?).await?)
    }

    /// Sends and reads the answer to its end; anything but success is an error.
    pub async fn call(&mut self, method: Method, path: &str, body: Bytes) -> anyhow::Result<Bytes> {
        answer(self.send(method, path, body).await?).await
    }

    /// Applies on the server.
    pub async fn apply(&mut self, path: &str, body: Bytes) -> anyhow::Result<Bytes> {
        answer(self.send_as(Method::PATCH, path, body, "application/apply-patch+yaml").await?).await
    }

    /// Sends and counts the bytes of the answer without keeping them.
    pub async fn drain(&mut self, method: Method, path: &str) -> anyhow::Result<usize> {
        let response = self.send(method, path, Bytes::new()).await?;
        let code = response.status();
        let mut body = response.into_body();
        let mut length = 0;
        while let Some(frame) = body.frame().await {
            length += frame?.data_ref().map_or(0, Bytes::len);
        }
        if !code.is_success() {
            bail!("{code} for {path}");
        }
        Ok(length)
    }
}

async fn answer(response: Response<Incoming>) -> anyhow::Result<Bytes> {
    let code = response.status();
    let body = response.into_body().collect().await?.to_bytes();
    if !code.is_success() {
        bail!("{code}: {}", String::from_utf8_lossy(&body[..body.len().min(500)]));
    }
    Ok(body)
}
