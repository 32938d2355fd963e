//! A driver of devices for the tests: a plugin of the node that prepares claims by writing specs of the Container Device Interface.
//!
//! It speaks gRPC over HTTP/2 by hand, as far as three services with five calls need it, and asks the API which devices a claim got,
//! as real drivers do. Each device becomes an environment variable and a device node. It is a thread of the test's
//! process: dropped, it is dead, and its socket and its specs are gone.

use std::{
    collections::{BTreeMap, HashMap},
    convert::Infallible,
    fs,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    thread::JoinHandle,
};

use bytes::Bytes;
use futures::{StreamExt, stream, stream::BoxStream};
use http::{HeaderMap, HeaderValue, Response};
use http_body_util::{BodyExt, StreamBody};
use hyper::{
    body::{Frame, Incoming},
    service::service_fn,
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::{Api, Client};
use prost::Message;
use serde_json::json;
use tokio::{net::UnixListener, sync::watch};
use tokio_util::sync::CancellationToken;

use super::Cluster;

const CDI: &str = "/var/run/cdi";

#[derive(Clone, PartialEq, Message)]
struct PluginInfo {
    #[prost(string, tag = "1")]
    plugin_type: String,
    #[prost(string, tag = "2")]
    name: String,
    #[prost(string, tag = "3")]
    endpoint: String,
    #[prost(string, repeated, tag = "4")]
    supported_versions: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
struct RegistrationStatus {
    #[prost(bool, tag = "1")]
    plugin_registered: bool,
    #[prost(string, tag = "2")]
    error: String,
}

#[derive(Clone, PartialEq, Message)]
struct ClaimRef {
    #[prost(string, tag = "1")]
    namespace: String,
    #[prost(string, tag = "2")]
    uid: String,
    #[prost(string, tag = "3")]
    name: String,
}

#[derive(Clone, PartialEq, Message)]
struct ClaimsRequest {
    #[prost(message, repeated, tag = "1")]
    claims: Vec<ClaimRef>,
}

#[derive(Clone, PartialEq, Message)]
struct PrepareResponse {
    #[prost(map = "string, message", tag = "1")]
    claims: HashMap<String, Prepared>,
}

#[derive(Clone, PartialEq, Message)]
struct Prepared {
    #[prost(message, repeated, tag = "1")]
    devices: Vec<Device>,
    #[prost(string, tag = "2")]
    error: String,
}

#[derive(Clone, PartialEq, Message)]
struct Device {
    #[prost(string, repeated, tag = "1")]
    request_names: Vec<String>,
    #[prost(string, tag = "2")]
    pool_name: String,
    #[prost(string, tag = "3")]
    device_name: String,
    #[prost(string, repeated, tag = "4")]
    cdi_device_ids: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
struct UnprepareResponse {
    #[prost(map = "string, message", tag = "1")]
    claims: HashMap<String, Unprepared>,
}

#[derive(Clone, PartialEq, Message)]
struct Unprepared {
    #[prost(string, tag = "1")]
    error: String,
}

#[derive(Clone, PartialEq, Message)]
struct HealthList {
    #[prost(message, repeated, tag = "1")]
    devices: Vec<DeviceHealth>,
}

#[derive(Clone, PartialEq, Message)]
struct DeviceHealth {
    #[prost(message, optional, tag = "1")]
    device: Option<DeviceIdentifier>,
    #[prost(int32, tag = "2")]
    health: i32,
    #[prost(int64, tag = "4")]
    health_check_timeout_seconds: i64,
    #[prost(string, tag = "5")]
    message: String,
}

#[derive(Clone, PartialEq, Message)]
struct DeviceIdentifier {
    #[prost(string, tag = "1")]
    pool_name: String,
    #[prost(string, tag = "2")]
    device_name: String,
}

/// What the driver was asked, for tests to look at.
#[derive(Default)]
struct State {
    registered: bool,
    /// Names of the claims that are prepared, by uid.
    prepared: BTreeMap<String, String>,
    prepares: usize,
    unprepares: usize,
}

pub struct DeviceDriver {
    name: String,
    socket: PathBuf,
    state: Arc<Mutex<State>>,
    health: watch::Sender<HealthList>,
    stop: CancellationToken,
    thread: Option<JoinHandle<()>>,
}

impl DeviceDriver {
    /// Starts a driver on the one node of a cluster.
    pub fn start(cluster: &Cluster, name: &str) -> Self {
        let directory = cluster.data_dir().join("plugins_registry");
        fs::create_dir_all(&directory).expect("make the directory of plugins");
        let socket = directory.join(format!("{name}.sock"));
        let _ = fs::remove_file(&socket);
        let (state, stop) = (Arc::<Mutex<State>>::default(), CancellationToken::new());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let client = runtime.block_on(cluster.client());
        let (health, reports) = watch::channel(HealthList::default());
        let plugin = Plugin { name: name.to_owned(), client, state: state.clone(), reports };
        let listener = {
            let _entered = runtime.enter();
            UnixListener::bind(&socket).expect("bind the driver's socket")
        };
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            runtime.block_on(stopped.run_until_cancelled(serve(listener, plugin)));
        });
        Self { name: name.to_owned(), socket, state, health, stop, thread: Some(thread) }
    }

    pub fn is_registered(&self) -> bool {
        self.state.lock().expect("the state").registered
    }

    /// Tells of the health of one device; of others nothing is said.
    pub fn report_health(&self, pool: &str, device: &str, is_healthy: bool, message: &str) {
        let device = DeviceIdentifier { pool_name: pool.to_owned(), device_name: device.to_owned() };
        let (health, message) = (if is_healthy { 1 } else { 2 }, message.to_owned());
        let report = DeviceHealth { device: Some(device), health, health_check_timeout_seconds: 3600, message };
        self.health.send_replace(HealthList { devices: vec![report] });
    }

    /// Names of the claims that are prepared.
    pub fn prepared(&self) -> Vec<String> {
        let mut names: Vec<String> = self.state.lock().expect("the state").prepared.values().cloned().collect();
        names.sort();
        names
    }

    /// How often it was asked to prepare, and to unprepare.
    pub fn calls(&self) -> (usize, usize) {
        let state = self.state.lock().expect("the state");
        (state.prepares, state.unprepares)
    }
}

impl Drop for DeviceDriver {
    fn drop(&mut self) {
        self.stop.cancel();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let _ = fs::remove_file(&self.socket);
        for file in fs::read_dir(CDI).into_iter().flatten().flatten() {
            if file.file_name().to_string_lossy().starts_with(&format!("{}-", self.name)) {
                let _ = fs::remove_file(file.path());
            }
        }
    }
}

#[derive(Clone)]
struct Plugin {
    name: String,
    client: Client,
    state: Arc<Mutex<State>>,
    reports: watch::Receiver<HealthList>,
}

async fn serve(listener: UnixListener, plugin: Plugin) {
    while let Ok((stream, _)) = listener.accept().await {
        let plugin = plugin.clone();
        tokio::spawn(async move {
            let service = service_fn(move |request| answer(plugin.clone(), request));
            let connection = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            let _ = connection.serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

type GrpcResponse = Response<StreamBody<BoxStream<'static, Result<Frame<Bytes>, Infallible>>>>;

fn frame(message: &[u8]) -> Frame<Bytes> {
    let length = u32::try_from(message.len()).expect("short answers").to_be_bytes();
    Frame::data(Bytes::from([&[0][..], &length, message].concat()))
}

/// Every report from now on, without end.
fn health_reports(reports: watch::Receiver<HealthList>) -> BoxStream<'static, Result<Frame<Bytes>, Infallible>> {
    let next = |(mut reports, is_first): (watch::Receiver<HealthList>, bool)| async move {
        if !is_first && reports.changed().await.is_err() {
            return None;
        }
        let message = reports.borrow_and_update().encode_to_vec();
        Some((Ok(frame(&message)), (reports, false)))
    };
    stream::unfold((reports, true), next).boxed()
}

async fn answer(plugin: Plugin, request: http::Request<Incoming>) -> Result<GrpcResponse, Infallible> {
    let method = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
    let body = request.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    let message = body.get(5..).unwrap_or_default();
    let reply = match method.as_str() {
        "GetInfo" => PluginInfo {
            plugin_type: "DRAPlugin".to_owned(),
            name: plugin.name.clone(),
            endpoint: String::new(),
            supported_versions: vec!["v1.DRAPlugin".to_owned(), "v1.DRAResourceHealth".to_owned()],
        }
        .encode_to_vec(),
        "NotifyRegistrationStatus" => {
            let status = RegistrationStatus::decode(message).unwrap_or_default();
            plugin.state.lock().expect("the state").registered = status.plugin_registered;
            Vec::new()
        }
        "NodePrepareResources" => {
            let mut claims = HashMap::new();
            for claim in ClaimsRequest::decode(message).unwrap_or_default().claims {
                let prepared = plugin.prepare(&claim).await;
                let error = |error| Prepared { devices: vec![], error };
                claims.insert(claim.uid, prepared.unwrap_or_else(error));
            }
            PrepareResponse { claims }.encode_to_vec()
        }
        "NodeUnprepareResources" => {
            let mut claims = HashMap::new();
            for claim in ClaimsRequest::decode(message).unwrap_or_default().claims {
                plugin.unprepare(&claim);
                claims.insert(claim.uid, Unprepared::default());
            }
            UnprepareResponse { claims }.encode_to_vec()
        }
        "NodeWatchResources" => {
            let response = Response::builder().header("content-type", "application/grpc");
            return Ok(response.body(StreamBody::new(health_reports(plugin.reports))).expect("a stream"));
        }
        other => panic!("an unknown call: {other}"),
    };
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    let frames = vec![Ok(frame(&reply)), Ok(Frame::trailers(trailers))];
    let response = Response::builder().header("content-type", "application/grpc");
    Ok(response.body(StreamBody::new(stream::iter(frames).boxed())).expect("an answer"))
}

impl Plugin {
    fn spec_file(&self, claim_uid: &str) -> PathBuf {
        Path::new(CDI).join(format!("{}-{claim_uid}.json", self.name))
    }

    async fn prepare(&self, claim: &ClaimRef) -> Result<Prepared, String> {
        let claims: Api<ResourceClaim> = Api::namespaced(self.client.clone(), &claim.namespace);
        let object = claims.get(&claim.name).await.map_err(|error| error.to_string())?;
        let allocation = object.status.and_then(|status| status.allocation).ok_or("it is not allocated")?;
        let results = allocation.devices.and_then(|devices| devices.results).unwrap_or_default();
        let kind = format!("{}/dev", self.name);
        let (mut described, mut devices) = (Vec::new(), Vec::new());
        for result in results.iter().filter(|result| result.driver == self.name) {
            let name = format!("{}-{}", claim.uid, result.device);
            let variable = format!("DEVICE_{}={}", result.request.to_uppercase(), result.device);
            let node =
                json!({ "path": format!("/dev/{}", result.device), "hostPath": "/dev/null", "permissions": "rw" });
            let edits = json!({ "env": [variable], "deviceNodes": [node] });
            described.push(json!({ "name": name, "containerEdits": edits }));
            devices.push(Device {
                request_names: vec![result.request.clone()],
                pool_name: result.pool.clone(),
                device_name: result.device.clone(),
                cdi_device_ids: vec![format!("{kind}={name}")],
            });
        }
        let spec = json!({ "cdiVersion": "0.6.0", "kind": kind, "devices": described });
        fs::create_dir_all(CDI).map_err(|error| error.to_string())?;
        fs::write(self.spec_file(&claim.uid), spec.to_string()).map_err(|error| error.to_string())?;
        let mut state = self.state.lock().expect("the state");
        state.prepares += 1;
        state.prepared.insert(claim.uid.clone(), claim.name.clone());
        Ok(Prepared { devices, error: String::new() })
    }

    fn unprepare(&self, claim: &ClaimRef) {
        let _ = fs::remove_file(self.spec_file(&claim.uid));
        let mut state = self.state.lock().expect("the state");
        state.unprepares += 1;
        state.prepared.remove(&claim.uid);
    }
}
