//! The gRPC calls to plugins of a node: `pluginregistration/v1`, `dra/v1` and `dra-health/v1`, over sockets of the machine.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    time::Duration,
};

use http::uri::PathAndQuery;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::{
    Request,
    client::Grpc,
    transport::{Channel, Endpoint, Uri},
};
use tonic_prost::ProstCodec;
use tower::service_fn;

use super::{
    health::{WatchRequest, WatchResponse},
    record::PreparedDevice,
};

/// As upstream's: what a driver gets to prepare or unprepare.
const DRIVER_TIMEOUT: Duration = Duration::from_secs(45);
const REGISTRATION_TIMEOUT: Duration = Duration::from_secs(5);
/// Answers are short: whoever sends more is mistaken.
const LONGEST_ANSWER: usize = 4 << 20;

#[derive(Clone, PartialEq, prost::Message)]
pub struct InfoRequest {}

#[derive(Clone, PartialEq, prost::Message)]
pub struct PluginInfo {
    #[prost(string, tag = "1")]
    pub plugin_type: String,
    #[prost(string, tag = "2")]
    pub name: String,
    #[prost(string, tag = "3")]
    pub endpoint: String,
    #[prost(string, repeated, tag = "4")]
    pub supported_versions: Vec<String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct RegistrationStatus {
    #[prost(bool, tag = "1")]
    pub plugin_registered: bool,
    #[prost(string, tag = "2")]
    pub error: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct RegistrationStatusResponse {}

#[derive(Clone, PartialEq, prost::Message)]
pub struct ClaimRef {
    #[prost(string, tag = "1")]
    pub namespace: String,
    #[prost(string, tag = "2")]
    pub uid: String,
    #[prost(string, tag = "3")]
    pub name: String,
}

/// Of both calls.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ClaimsRequest {
    #[prost(message, repeated, tag = "1")]
    pub claims: Vec<ClaimRef>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct PrepareResponse {
    #[prost(map = "string, message", tag = "1")]
    pub claims: HashMap<String, ClaimPrepared>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct ClaimPrepared {
    #[prost(message, repeated, tag = "1")]
    pub devices: Vec<DeviceMessage>,
    #[prost(string, tag = "2")]
    pub error: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct DeviceMessage {
    #[prost(string, repeated, tag = "1")]
    pub request_names: Vec<String>,
    #[prost(string, tag = "2")]
    pub pool_name: String,
    #[prost(string, tag = "3")]
    pub device_name: String,
    #[prost(string, repeated, tag = "4")]
    pub cdi_device_ids: Vec<String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct UnprepareResponse {
    #[prost(map = "string, message", tag = "1")]
    pub claims: HashMap<String, ClaimUnprepared>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct ClaimUnprepared {
    #[prost(string, tag = "1")]
    pub error: String,
}

/// The version of the driver API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DriverVersion {
    V1,
    V1Beta1,
}

impl DriverVersion {
    /// The newest of those that a driver supports.
    pub fn select(supported: &[String]) -> Option<Self> {
        let has = |name: &str| supported.iter().any(|own| own == name);
        match (has("v1.DRAPlugin"), has("v1beta1.DRAPlugin")) {
            (true, _) => Some(Self::V1),
            (false, true) => Some(Self::V1Beta1),
            (false, false) => None,
        }
    }

    fn prepare(self) -> &'static str {
        match self {
            Self::V1 => "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources",
            Self::V1Beta1 => "/v1beta1.DRAPlugin/NodePrepareResources",
        }
    }

    fn unprepare(self) -> &'static str {
        match self {
            Self::V1 => "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodeUnprepareResources",
            Self::V1Beta1 => "/v1beta1.DRAPlugin/NodeUnprepareResources",
        }
    }
}

/// Where a driver is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverEndpoint {
    pub socket: PathBuf,
    pub version: DriverVersion,
    /// If the driver tells of the health of its devices.
    pub health: Option<HealthVersion>,
}

/// The version of the health API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HealthVersion {
    V1,
    V1Beta1,
    V1Alpha1,
}

impl HealthVersion {
    /// The newest of those that a driver supports.
    pub fn select(supported: &[String]) -> Option<Self> {
        let has = |name: &str| supported.iter().any(|own| own == name);
        let all = [
            ("v1.DRAResourceHealth", Self::V1),
            ("v1beta1.DRAResourceHealth", Self::V1Beta1),
            ("v1alpha1.DRAResourceHealth", Self::V1Alpha1),
        ];
        all.into_iter().find(|(name, _)| has(name)).map(|(_, version)| version)
    }

    fn watch(self) -> &'static str {
        match self {
            Self::V1 => "/v1.DRAResourceHealth/NodeWatchResources",
            Self::V1Beta1 => "/v1beta1.DRAResourceHealth/NodeWatchResources",
            Self::V1Alpha1 => "/v1alpha1.DRAResourceHealth/NodeWatchResources",
        }
    }
}

impl DriverEndpoint {
    pub async fn prepare(&self, claim: &ClaimRef) -> Result<Vec<PreparedDevice>, String> {
        let request = ClaimsRequest { claims: vec![claim.clone()] };
        let response: PrepareResponse = call(&self.socket, self.version.prepare(), request, DRIVER_TIMEOUT).await?;
        let answer = response.claims.get(&claim.uid).ok_or("the driver gave no answer for the claim")?;
        if !answer.error.is_empty() {
            return Err(answer.error.clone());
        }
        let device = |device: &DeviceMessage| PreparedDevice {
            requests: device.request_names.clone(),
            pool: device.pool_name.clone(),
            device: device.device_name.clone(),
            cdi_devices: device.cdi_device_ids.clone(),
        };
        Ok(answer.devices.iter().map(device).collect())
    }

    pub async fn unprepare(&self, claim: &ClaimRef) -> Result<(), String> {
        let request = ClaimsRequest { claims: vec![claim.clone()] };
        let response: UnprepareResponse = call(&self.socket, self.version.unprepare(), request, DRIVER_TIMEOUT).await?;
        let answer = response.claims.get(&claim.uid).ok_or("the driver gave no answer for the claim")?;
        if answer.error.is_empty() { Ok(()) } else { Err(answer.error.clone()) }
    }
}

pub async fn plugin_info(socket: &Path) -> Result<PluginInfo, String> {
    call(socket, "/pluginregistration.Registration/GetInfo", InfoRequest {}, REGISTRATION_TIMEOUT).await
}

pub async fn notify(socket: &Path, result: Result<(), String>) -> Result<(), String> {
    let status = RegistrationStatus { plugin_registered: result.is_ok(), error: result.err().unwrap_or_default() };
    let path = "/pluginregistration.Registration/NotifyRegistrationStatus";
    call::<_, RegistrationStatusResponse>(socket, path, status, REGISTRATION_TIMEOUT).await.map(drop)
}

/// The reports of a driver, as long as its connection lasts.
pub struct HealthStream {
    pub reports: tonic::Streaming<WatchResponse>,
    _connection: Grpc<Channel>,
}

pub async fn watch_health(socket: &Path, version: HealthVersion) -> Result<HealthStream, String> {
    let opened = async {
        let mut client = connect(socket).await?;
        let codec = ProstCodec::<WatchRequest, WatchResponse>::default();
        let path = PathAndQuery::from_static(version.watch());
        let answer = client.server_streaming(Request::new(WatchRequest {}), path, codec).await;
        let reports = answer.map(tonic::Response::into_inner).map_err(|status| rpc_error(&status))?;
        Ok(HealthStream { reports, _connection: client })
    };
    within(REGISTRATION_TIMEOUT, opened).await
}

/// One call on a connection of its own: they are few, and a driver may be another process the next time.
async fn call<I, O>(socket: &Path, path: &'static str, request: I, timeout: Duration) -> Result<O, String>
where
    I: prost::Message + 'static,
    O: prost::Message + Default + 'static,
{
    let called = async {
        let mut client = connect(socket).await?;
        let codec = ProstCodec::<I, O>::default();
        let answer = client.unary(Request::new(request), PathAndQuery::from_static(path), codec).await;
        answer.map(tonic::Response::into_inner).map_err(|status| rpc_error(&status))
    };
    within(timeout, called).await
}

async fn connect(socket: &Path) -> Result<Grpc<Channel>, String> {
    let socket = socket.to_owned();
    let connector = service_fn(move |_: Uri| {
        let socket = socket.clone();
        async move { UnixStream::connect(socket).await.map(TokioIo::new) }
    });
    // The name is for the `:authority` header only.
    let endpoint = Endpoint::from_static("http://localhost").connect_timeout(REGISTRATION_TIMEOUT);
    let channel =
        endpoint.connect_with_connector(connector).await.map_err(|error| mainstay_errors::error_chain(&error))?;
    let mut client = Grpc::new(channel).max_decoding_message_size(LONGEST_ANSWER);
    client.ready().await.map_err(|error| mainstay_errors::error_chain(&error))?;
    Ok(client)
}

fn rpc_error(status: &tonic::Status) -> String {
    format!("rpc error: code = {:?} desc = {}", status.code(), status.message())
}

async fn within<T>(timeout: Duration, work: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    tokio::time::timeout(timeout, work)
        .await
        .unwrap_or_else(|_| Err(format!("no answer within {} s", timeout.as_secs())))
}
