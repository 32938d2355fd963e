//! gRPC calls to a CRI runtime: each with a time limit, and with its status turned into a [`RuntimeError`].

use std::{collections::HashMap, future::Future, path::PathBuf, time::Duration};

use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::{
    Code, Request, Response, Status,
    transport::{Channel, Endpoint, Uri},
};
use tower::service_fn;

use super::proto::{
    self, Empty, image_service_client::ImageServiceClient, runtime_service_client::RuntimeServiceClient,
};
use crate::{
    error::RuntimeError,
    observed::{ContainerId, SandboxId},
    port::Result,
};

/// For questions.
pub const QUERY_TIMEOUT: Duration = Duration::from_secs(15);
/// For what makes or ends processes.
pub const ACTION_TIMEOUT: Duration = Duration::from_secs(120);
/// For fetching an image.
pub const PULL_TIMEOUT: Duration = Duration::from_secs(60 * 60);
/// Answers with the output of commands are long.
const LONGEST_ANSWER: usize = 64 << 20;

#[derive(Clone, Debug)]
pub struct Client {
    runtime: RuntimeServiceClient<Channel>,
    images: ImageServiceClient<Channel>,
}

/// What a call does, and to which object, for error messages.
#[derive(Clone, Copy)]
pub struct CallContext<'a> {
    pub doing: &'static str,
    pub what: &'static str,
    pub id: &'a str,
}

impl Client {
    pub fn new(address: &str) -> Result<Self> {
        let path = PathBuf::from(address.strip_prefix("unix://").unwrap_or(address));
        if !path.is_absolute() {
            let why = format!("{address:?} is not the address of a CRI runtime: a path or unix:///a/path");
            return Err(RuntimeError::Invalid { why });
        }
        let connector = service_fn(move |_: Uri| {
            let path = path.clone();
            async move { UnixStream::connect(path).await.map(TokioIo::new) }
        });
        // The name is for the `:authority` header only.
        let endpoint = Endpoint::from_static("http://localhost").connect_timeout(Duration::from_secs(5));
        let channel = endpoint.connect_with_connector_lazy(connector);
        Ok(Self {
            runtime: RuntimeServiceClient::new(channel.clone()).max_decoding_message_size(LONGEST_ANSWER),
            images: ImageServiceClient::new(channel).max_decoding_message_size(LONGEST_ANSWER),
        })
    }

    pub fn runtime(&self) -> RuntimeServiceClient<Channel> {
        self.runtime.clone()
    }

    pub fn images(&self) -> ImageServiceClient<Channel> {
        self.images.clone()
    }

    pub async fn version(&self) -> Result<proto::VersionResponse> {
        let request = proto::VersionRequest { version: "v1".to_owned() };
        let context = CallContext { doing: "ask for the version", what: "runtime", id: "" };
        with_timeout(QUERY_TIMEOUT, context, self.runtime().version(request)).await
    }

    pub async fn sandboxes(&self, labels: HashMap<String, String>) -> Result<Vec<proto::PodSandbox>> {
        let filter = proto::PodSandboxFilter { label_selector: labels, ..Default::default() };
        let request = proto::ListPodSandboxRequest { filter: Some(filter) };
        let context = CallContext { doing: "list sandboxes", what: "runtime", id: "" };
        Ok(with_timeout(QUERY_TIMEOUT, context, self.runtime().list_pod_sandbox(request)).await?.items)
    }

    pub async fn containers(&self, labels: HashMap<String, String>) -> Result<Vec<proto::Container>> {
        let filter = proto::ContainerFilter { label_selector: labels, ..Default::default() };
        let request = proto::ListContainersRequest { filter: Some(filter) };
        let context = CallContext { doing: "list containers", what: "runtime", id: "" };
        Ok(with_timeout(QUERY_TIMEOUT, context, self.runtime().list_containers(request)).await?.containers)
    }

    pub async fn sandbox_status(&self, id: &str, verbose: bool) -> Result<proto::PodSandboxStatusResponse> {
        let request = proto::PodSandboxStatusRequest { pod_sandbox_id: id.to_owned(), verbose };
        let context = CallContext { doing: "ask for the status of a sandbox", what: "sandbox", id };
        with_timeout(QUERY_TIMEOUT, context, self.runtime().pod_sandbox_status(request)).await
    }

    pub async fn container_status(&self, id: &str, verbose: bool) -> Result<proto::ContainerStatusResponse> {
        let request = proto::ContainerStatusRequest { container_id: id.to_owned(), verbose };
        let context = CallContext { doing: "ask for the status of a container", what: "container", id };
        with_timeout(QUERY_TIMEOUT, context, self.runtime().container_status(request)).await
    }

    /// What the runtime can do.
    pub async fn status(&self) -> Result<proto::StatusResponse> {
        let context = CallContext { doing: "ask for the runtime's features", what: "runtime", id: "" };
        with_timeout(QUERY_TIMEOUT, context, self.runtime().status(proto::StatusRequest { verbose: false })).await
    }

    pub async fn stop_sandbox(&self, id: &SandboxId) -> Result<Empty> {
        let request = proto::StopPodSandboxRequest { pod_sandbox_id: id.0.clone() };
        let context = CallContext { doing: "stop a sandbox", what: "sandbox", id: &id.0 };
        with_timeout(ACTION_TIMEOUT, context, self.runtime().stop_pod_sandbox(request)).await
    }

    pub async fn remove_sandbox(&self, id: &SandboxId) -> Result<Empty> {
        let request = proto::RemovePodSandboxRequest { pod_sandbox_id: id.0.clone() };
        let context = CallContext { doing: "remove a sandbox", what: "sandbox", id: &id.0 };
        with_timeout(ACTION_TIMEOUT, context, self.runtime().remove_pod_sandbox(request)).await
    }

    pub async fn update_container(&self, id: &ContainerId, linux: proto::LinuxContainerResources) -> Result<()> {
        let request = proto::UpdateContainerResourcesRequest { container_id: id.0.clone(), linux: Some(linux) };
        let context = CallContext { doing: "change a container's limits", what: "container", id: &id.0 };
        with_timeout(ACTION_TIMEOUT, context, self.runtime().update_container_resources(request)).await.map(|_| ())
    }

    pub async fn reopen_log(&self, id: &ContainerId) -> Result<()> {
        let request = proto::ReopenContainerLogRequest { container_id: id.0.clone() };
        let context = CallContext { doing: "reopen a container's log", what: "container", id: &id.0 };
        with_timeout(QUERY_TIMEOUT, context, self.runtime().reopen_container_log(request)).await.map(|_| ())
    }
}

/// Waits for the answer, but not for ever.
pub async fn with_timeout<T>(
    limit: Duration,
    context: CallContext<'_>,
    call: impl Future<Output = std::result::Result<Response<T>, Status>>,
) -> Result<T> {
    match tokio::time::timeout(limit, call).await {
        Ok(Ok(answer)) => Ok(answer.into_inner()),
        Ok(Err(status)) => Err(to_runtime_error(&status, context, limit)),
        Err(_) => Err(RuntimeError::Timeout { doing: context.doing.to_owned(), after: limit }),
    }
}

/// Adds the deadline for the runtime's own use, so that it gives up when we do.
pub fn with_deadline<T>(limit: Duration, message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(limit);
    request
}

fn to_runtime_error(status: &Status, context: CallContext<'_>, limit: Duration) -> RuntimeError {
    let why = status.message().to_owned();
    match status.code() {
        Code::Unavailable => RuntimeError::Unavailable { why },
        // The connection broke under the call.
        Code::Unknown | Code::Cancelled | Code::Internal if std::error::Error::source(status).is_some() => {
            RuntimeError::Unavailable { why }
        }
        Code::DeadlineExceeded => RuntimeError::Timeout { doing: context.doing.to_owned(), after: limit },
        Code::NotFound => RuntimeError::NotFound { what: context.what, id: context.id.to_owned() },
        Code::InvalidArgument => RuntimeError::Invalid { why },
        _ => RuntimeError::failed(context.doing, why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTEXT: CallContext<'_> = CallContext { doing: "try", what: "sandbox", id: "abc" };

    #[test]
    fn statuses_become_what_they_mean() {
        let of = |code| to_runtime_error(&Status::new(code, "words"), CONTEXT, QUERY_TIMEOUT);
        assert!(matches!(of(Code::Unavailable), RuntimeError::Unavailable { .. }));
        assert!(matches!(of(Code::NotFound), RuntimeError::NotFound { what: "sandbox", id } if id == "abc"));
        assert!(matches!(of(Code::DeadlineExceeded), RuntimeError::Timeout { .. }));
        assert!(matches!(of(Code::InvalidArgument), RuntimeError::Invalid { why } if why == "words"));
        assert_eq!(of(Code::Unknown).to_string(), "try: words");
    }

    #[test]
    fn an_address_is_an_absolute_path() {
        for bad in ["containerd.sock", "unix://relative", "tcp://127.0.0.1:1", ""] {
            assert!(matches!(Client::new(bad), Err(RuntimeError::Invalid { .. })), "{bad}");
        }
    }

    #[tokio::test]
    async fn a_runtime_that_is_not_there_is_unavailable() {
        let client = Client::new("/nowhere/at/all.sock").expect("the address is fine");
        let error = client.version().await.expect_err("nobody answers");
        assert!(matches!(error, RuntimeError::Unavailable { .. }), "{error:?}");
        assert!(error.to_string().ends_with(": No such file or directory (os error 2)"), "{error}");
    }
}
