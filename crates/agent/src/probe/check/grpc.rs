//! gRPC probe: `grpc.health.v1.Health/Check` without TLS, as upstream does it.

use std::time::Duration;

use http::uri::PathAndQuery;
use tonic::{
    Code, Request,
    client::Grpc,
    transport::{Channel, Endpoint},
};
use tonic_prost::ProstCodec;

use super::{Outcome, USER_AGENT, format_duration, join};

/// The two messages of `grpc/health/v1/health.proto` that matter here.
#[derive(Clone, PartialEq, prost::Message)]
pub struct HealthCheckRequest {
    #[prost(string, tag = "1")]
    pub service: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct HealthCheckResponse {
    #[prost(enumeration = "ServingStatus", tag = "1")]
    pub status: i32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
#[repr(i32)]
pub enum ServingStatus {
    Unknown = 0,
    Serving = 1,
    NotServing = 2,
    ServiceUnknown = 3,
}

pub async fn attempt(host: &str, port: u16, service: &str, timeout: Duration) -> Outcome {
    let started = tokio::time::Instant::now();
    let address = join(host, port);
    let late = || {
        let within = format_duration(timeout);
        format!("timeout: failed to connect service {address:?} within {within}: context deadline exceeded")
    };
    let channel = match tokio::time::timeout(timeout, connect(&address)).await {
        Ok(Ok(channel)) => channel,
        // Upstream retries a refused connection until the time is over, and says only this.
        Ok(Err(_)) | Err(_) => return Outcome::Failure(late()),
    };
    let left = timeout.saturating_sub(started.elapsed());
    let status = match tokio::time::timeout(left, check(channel, service)).await {
        Err(_) => {
            return Outcome::Failure(format!(
                "timeout: health rpc did not complete within {}",
                format_duration(timeout)
            ));
        }
        Ok(Ok(status)) => status,
        Ok(Err(status)) => {
            return Outcome::Failure(match status.code() {
                Code::Unimplemented => format!(
                    "error: this server does not implement the grpc health protocol (grpc.health.v1.Health): {}",
                    status.message()
                ),
                Code::DeadlineExceeded => {
                    format!("timeout: health rpc did not complete within {}", format_duration(timeout))
                }
                code => {
                    format!("error: health rpc probe failed: rpc error: code = {code:?} desc = {}", status.message())
                }
            });
        }
    };
    match status {
        ServingStatus::Serving => Outcome::Success,
        other => {
            let status_text = match other {
                ServingStatus::Unknown => "UNKNOWN",
                ServingStatus::NotServing => "NOT_SERVING",
                ServingStatus::ServiceUnknown | ServingStatus::Serving => "SERVICE_UNKNOWN",
            };
            Outcome::Failure(format!("service unhealthy (responded with {status_text:?})"))
        }
    }
}

async fn connect(address: &str) -> Result<Channel, tonic::transport::Error> {
    Endpoint::from_shared(format!("http://{address}"))?.user_agent(USER_AGENT)?.connect().await
}

async fn check(channel: Channel, service: &str) -> Result<ServingStatus, tonic::Status> {
    let mut client = Grpc::new(channel);
    client.ready().await.map_err(|error| tonic::Status::unavailable(error.to_string()))?;
    let request = Request::new(HealthCheckRequest { service: service.to_owned() });
    let path = PathAndQuery::from_static("/grpc.health.v1.Health/Check");
    let codec = ProstCodec::<HealthCheckRequest, HealthCheckResponse>::default();
    Ok(client.unary(request, path, codec).await?.into_inner().status())
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use bytes::Bytes;
    use futures::stream;
    use http::{HeaderMap, HeaderValue, Response};
    use http_body_util::{BodyExt, StreamBody};
    use hyper::body::Frame;
    use hyper_util::rt::{TokioExecutor, TokioIo};
    use prost::Message;
    use tokio::net::TcpListener;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(10);

    /// A server that says this of the service `known`, and that it does not know any other.
    async fn serve(status: ServingStatus) -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let answer = move |request: http::Request<hyper::body::Incoming>| async move {
            assert_eq!(request.uri().path(), "/grpc.health.v1.Health/Check");
            assert!(request.headers()["user-agent"].to_str().unwrap().starts_with(USER_AGENT));
            let body = request.into_body().collect().await.unwrap().to_bytes();
            let asked = HealthCheckRequest::decode(&body[5..]).unwrap();
            let mut trailers = HeaderMap::new();
            let mut frames: Vec<Result<Frame<Bytes>, Infallible>> = Vec::new();
            if asked.service == "known" {
                let message = HealthCheckResponse { status: status.into() }.encode_to_vec();
                let framed = [&[0, 0, 0, 0, message.len() as u8], &message[..]].concat();
                frames.push(Ok(Frame::data(framed.into())));
                trailers.insert("grpc-status", HeaderValue::from_static("0"));
            } else {
                trailers.insert("grpc-status", HeaderValue::from_static("12"));
                trailers.insert("grpc-message", HeaderValue::from_static("unknown"));
            }
            frames.push(Ok(Frame::trailers(trailers)));
            let body = StreamBody::new(stream::iter(frames));
            Ok::<_, Infallible>(Response::builder().header("content-type", "application/grpc").body(body).unwrap())
        };
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let service = hyper::service::service_fn(answer);
                let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                tokio::spawn(server.serve_connection(TokioIo::new(stream), service));
            }
        });
        port
    }

    #[tokio::test]
    async fn only_serving_is_good() {
        let port = serve(ServingStatus::Serving).await;
        assert_eq!(attempt("127.0.0.1", port, "known", PATIENCE).await, Outcome::Success);
        let port = serve(ServingStatus::NotServing).await;
        let status_text = Outcome::Failure("service unhealthy (responded with \"NOT_SERVING\")".into());
        assert_eq!(attempt("127.0.0.1", port, "known", PATIENCE).await, status_text);
    }

    #[tokio::test]
    async fn a_server_without_the_protocol_or_none_at_all_has_failed() {
        let port = serve(ServingStatus::Serving).await;
        let Outcome::Failure(status_text) = attempt("127.0.0.1", port, "", PATIENCE).await else {
            panic!("it answered")
        };
        assert!(
            status_text.starts_with("error: this server does not implement the grpc health protocol"),
            "{status_text}"
        );
        let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
        let status_text =
            format!("timeout: failed to connect service \"127.0.0.1:{free}\" within 10s: context deadline exceeded");
        assert_eq!(attempt("127.0.0.1", free, "", PATIENCE).await, Outcome::Failure(status_text));
    }
}
