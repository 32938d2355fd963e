//! `grpc.health.v1.Health/Check`, without TLS, as upstream asks it.

use std::time::Duration;

use http::uri::PathAndQuery;
use tonic::{
    Code, Request,
    client::Grpc,
    transport::{Channel, Endpoint},
};
use tonic_prost::ProstCodec;

use super::{Outcome, USER_AGENT, join, shown};

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
        let within = shown(timeout);
        format!("timeout: failed to connect service {address:?} within {within}: context deadline exceeded")
    };
    let channel = match tokio::time::timeout(timeout, connect(&address)).await {
        Ok(Ok(channel)) => channel,
        // Upstream retries a refused connection until the time is over, and says only this.
        Ok(Err(_)) | Err(_) => return Outcome::Failure(late()),
    };
    let left = timeout.saturating_sub(started.elapsed());
    let status = match tokio::time::timeout(left, check(channel, service)).await {
        Err(_) => return Outcome::Failure(format!("timeout: health rpc did not complete within {}", shown(timeout))),
        Ok(Ok(status)) => status,
        Ok(Err(status)) => {
            return Outcome::Failure(match status.code() {
                Code::Unimplemented => format!(
                    "error: this server does not implement the grpc health protocol (grpc.health.v1.Health): {}",
                    status.message()
                ),
                Code::DeadlineExceeded => format!("timeout: health rpc did not complete within {}", shown(timeout)),
                code => {
                    format!("error: health rpc probe failed: rpc error: code = {code:?} desc = {}", status.message())
                }
            });
        }
    };
    match status {
        ServingStatus::Serving => Outcome::Success,
        other => {
            let said = match other {
                ServingStatus::Unknown => "UNKNOWN",
                ServingStatus::NotServing => "NOT_SERVING",
                ServingStatus::ServiceUnknown | ServingStatus::Serving => "SERVICE_UNKNOWN",
            };
            Outcome::Failure(format!("service unhealthy (responded with {said:?})"))
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
