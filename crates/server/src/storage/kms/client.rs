//! Unary gRPC calls over a unix socket: as much of gRPC as a KMS plugin needs.

use std::{path::PathBuf, time::Duration};

use bytes::{BufMut, Bytes, BytesMut};
use http::{Request, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use mainstay_errors::error_chain;
use prost::Message;
use tokio::net::UnixStream;
use tokio_util::task::AbortOnDropHandle;

const SERVICE: &str = "/v2.KeyManagementService";
/// Flag and length before a message.
const FRAME: usize = 5;
/// No answer of a plugin is longer.
const MAX_ANSWER: usize = 1 << 20;

/// Why a call failed.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("{method} of the KMS plugin at {}: {why}", socket.display())]
pub struct CallError {
    method: &'static str,
    socket: PathBuf,
    why: String,
    /// The plugin did not answer at all.
    pub is_outage: bool,
}

/// Why there is no message of the plugin.
enum ExchangeError {
    NoAnswer(String),
    /// What the plugin said instead.
    Refused(String),
}

pub struct PluginClient {
    pub socket: PathBuf,
    pub timeout: Duration,
}

impl PluginClient {
    pub async fn call<A: Message + Default>(
        &self,
        method: &'static str,
        message: &impl Message,
    ) -> Result<A, CallError> {
        let failed = |why, is_outage| CallError { method, socket: self.socket.clone(), why, is_outage };
        let calling = self.exchange(method, message.encode_to_vec());
        let answer = match tokio::time::timeout(self.timeout, calling).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(ExchangeError::Refused(why))) => return Err(failed(why, false)),
            Ok(Err(ExchangeError::NoAnswer(why))) => return Err(failed(why, true)),
            Err(_) => return Err(failed(format!("no answer within {:?}", self.timeout), true)),
        };
        A::decode(answer).map_err(|error| failed(error.to_string(), false))
    }

    async fn exchange(&self, method: &str, message: Vec<u8>) -> Result<Bytes, ExchangeError> {
        let unanswered = |error: &(dyn std::error::Error + 'static)| ExchangeError::NoAnswer(error_chain(error));
        let socket = UnixStream::connect(&self.socket).await.map_err(|error| unanswered(&error))?;
        let connected = http2::handshake(TokioExecutor::new(), TokioIo::new(socket)).await;
        let (mut sender, connection) = connected.map_err(|error| unanswered(&error))?;
        let _connection = AbortOnDropHandle::new(tokio::spawn(connection)); // a call is all it is for
        let mut body = BytesMut::with_capacity(FRAME + message.len());
        body.put_u8(0);
        body.put_u32(u32::try_from(message.len()).map_err(|error| unanswered(&error))?);
        body.put_slice(&message);
        let request = Request::post(format!("http://localhost{SERVICE}/{method}"))
            .header(header::CONTENT_TYPE, "application/grpc")
            .header(header::TE, "trailers")
            .body(Full::new(body.freeze()))
            .map_err(|error| unanswered(&error))?;
        let response = sender.send_request(request).await.map_err(|error| unanswered(&error))?;
        read_answer(response).await.map_err(ExchangeError::Refused)
    }
}

async fn read_answer(response: http::Response<hyper::body::Incoming>) -> Result<Bytes, String> {
    let (head, body) = response.into_parts();
    let collected = Limited::new(body, MAX_ANSWER).collect().await.map_err(|error| error.to_string())?;
    let text = |headers: &http::HeaderMap, name: &str| {
        headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned)
    };
    let trailers = collected.trailers().cloned().unwrap_or_default();
    let find = |name: &str| text(&trailers, name).or_else(|| text(&head.headers, name));
    match find("grpc-status").as_deref() {
        Some("0") => {}
        Some(code) => return Err(format!("code {code}: {}", find("grpc-message").unwrap_or_default())),
        None => return Err(format!("HTTP status {}", head.status)),
    }
    let bytes = collected.to_bytes();
    let (frame, message) = bytes.split_at_checked(FRAME).ok_or("an answer without a message")?;
    let length = u32::from_be_bytes([frame[1], frame[2], frame[3], frame[4]]) as usize;
    if frame[0] != 0 || message.len() != length {
        return Err("an answer that is not one plain message".to_owned());
    }
    Ok(bytes.slice(FRAME..))
}
