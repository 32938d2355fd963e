//! Tells programs in pods that their configuration changed: signals, commands, requests, evictions; and asks them to judge a new version.

use std::time::Duration;

use futures::future::BoxFuture;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Limited};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client,
    api::{AttachParams, DeleteParams, EvictParams, Preconditions},
    client::Body,
    core::Status,
};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};

use super::plan::Outcome;
use crate::runtime::{ApiError, Context, error};

/// How much of a command's output an error repeats.
const MAX_OUTPUT: usize = 512;
/// How much of an answer is read that may be the API's own refusal.
const MAX_STATUS: usize = 64 << 10;
/// How long a signal may take.
const SIGNAL_TIMEOUT: u32 = 10;

/// What is done in a pod when it has a new version.
#[derive(Clone, Debug, PartialEq)]
pub enum PodAction {
    Nothing,
    Signal {
        container: String,
        signal: String,
    },
    Exec {
        container: String,
        command: Vec<String>,
        timeout: u32,
    },
    Http {
        port: i32,
        path: String,
        method: String,
        timeout: u32,
    },
    /// It is evicted; its workload makes another one.
    Restart,
}

impl PodAction {
    /// The container that has to run for it.
    pub fn container(&self) -> Option<&str> {
        match self {
            Self::Signal { container, .. } | Self::Exec { container, .. } => Some(container),
            Self::Nothing | Self::Http { .. } | Self::Restart => None,
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct NotifyRequest {
    pub pod: String,
    pub action: PodAction,
    /// Whether what a command prints may be shown: not if it can have read a Secret.
    pub show_output: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotifyResult {
    Notified,
    Failed(String),
}

/// A command in a container.
#[derive(Clone, Debug)]
pub struct PodCommand {
    pub namespace: String,
    pub pod: String,
    pub container: String,
    pub command: Vec<String>,
    pub stdin: Option<Content>,
    pub timeout: Duration,
}

/// A request to a port of a pod.
#[derive(Clone, Debug)]
pub struct PodRequest {
    pub namespace: String,
    pub pod: String,
    pub port: i32,
    pub path: String,
    pub method: String,
    pub timeout: Duration,
}

/// Content of a version, which logs do not show.
#[derive(Clone, PartialEq, Eq)]
pub struct Content(pub String);

impl std::fmt::Debug for Content {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

/// How a command or a request ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommandResult {
    Succeeded,
    /// How it failed, and what it printed.
    Failed {
        how: String,
        output: String,
    },
}

/// Reaches programs in pods. Fails only if the pod could not be asked at all, which says nothing about the program.
pub trait ConsumerNotifier: Send + Sync + 'static {
    fn run(&self, command: PodCommand) -> BoxFuture<'_, Result<CommandResult, ApiError>>;
    fn request(&self, request: PodRequest) -> BoxFuture<'_, Result<CommandResult, ApiError>>;
}

/// Notifies a pod.
pub async fn notify(
    notifier: &dyn ConsumerNotifier,
    namespace: &str,
    request: &NotifyRequest,
) -> Result<NotifyResult, ApiError> {
    let seconds = |timeout: u32| Duration::from_secs(timeout.into());
    let command = |container: &str, command: Vec<String>, timeout: u32| PodCommand {
        namespace: namespace.to_owned(),
        pod: request.pod.clone(),
        container: container.to_owned(),
        command,
        stdin: None,
        timeout: seconds(timeout),
    };
    let result = match &request.action {
        PodAction::Nothing | PodAction::Restart => CommandResult::Succeeded,
        PodAction::Signal { container, signal } => {
            let signal = signal.strip_prefix("SIG").unwrap_or(signal);
            let kill = ["kill".to_owned(), format!("-{signal}"), "1".to_owned()];
            notifier.run(command(container, kill.into(), SIGNAL_TIMEOUT)).await?
        }
        PodAction::Exec { container, command: program, timeout } => {
            notifier.run(command(container, program.clone(), *timeout)).await?
        }
        PodAction::Http { port, path, method, timeout } => {
            let request = PodRequest {
                namespace: namespace.to_owned(),
                pod: request.pod.clone(),
                port: *port,
                path: path.clone(),
                method: method.clone(),
                timeout: seconds(*timeout),
            };
            notifier.request(request).await?
        }
    };
    Ok(match result {
        CommandResult::Succeeded => NotifyResult::Notified,
        CommandResult::Failed { how, output } => NotifyResult::Failed(failure(&how, &output, request.show_output)),
    })
}

fn failure(how: &str, output: &str, show_output: bool) -> String {
    let output = output.trim();
    if show_output && !output.is_empty() { format!("{how}: {output}") } else { how.to_owned() }
}

/// A version that a command in a pod is to judge.
#[derive(Clone, Debug, PartialEq)]
pub struct ValidateRequest {
    pub pod: String,
    pub container: String,
    pub command: Vec<String>,
    pub timeout: u32,
    pub content: Content,
    pub show_output: bool,
}

pub async fn validate(
    notifier: &dyn ConsumerNotifier,
    namespace: &str,
    request: ValidateRequest,
) -> Result<Outcome, ApiError> {
    let pod = request.pod.clone();
    let command = PodCommand {
        namespace: namespace.to_owned(),
        pod: request.pod,
        container: request.container,
        command: request.command,
        stdin: Some(request.content),
        timeout: Duration::from_secs(request.timeout.into()),
    };
    Ok(match notifier.run(command).await? {
        CommandResult::Succeeded => Outcome::Valid,
        CommandResult::Failed { how, output } => {
            Outcome::Invalid(format!("validate in pod {pod}: {}", failure(&how, &output, request.show_output)))
        }
    })
}

/// Evicts a pod, unless a disruption budget forbids it for now.
pub async fn evict(context: &Context, namespace: &str, pod: &str, uid: &str) -> Result<Outcome, ApiError> {
    let pods: Api<Pod> = Api::namespaced(context.client.clone(), namespace);
    let preconditions = Some(Preconditions { uid: Some(uid.to_owned()), resource_version: None });
    let params = EvictParams {
        delete_options: Some(DeleteParams { preconditions, ..DeleteParams::default() }),
        ..EvictParams::default()
    };
    match pods.evict(pod, &params).await {
        Ok(_) => Ok(Outcome::Done),
        Err(error) if error::is_not_found(&error, pod) || error::has_code(&error, 409) => Ok(Outcome::Done),
        Err(error) if error::has_code(&error, 429) => Ok(Outcome::Blocked),
        Err(error) => Err(ApiError::new(format!("evict pod {namespace}/{pod}"), error)),
    }
}

/// Reaches pods by subresources of the API: `exec` and `proxy`.
pub struct ApiNotifier {
    client: Client,
}

impl ApiNotifier {
    pub fn new(client: Client) -> Self {
        Self { client }
    }

    async fn exec(&self, command: PodCommand) -> Result<CommandResult, ApiError> {
        let PodCommand { namespace, pod, container, command, stdin, timeout } = command;
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &namespace);
        let params = AttachParams {
            container: Some(container.clone()),
            stdin: stdin.is_some(),
            stdout: true,
            stderr: true,
            ..AttachParams::default()
        };
        let doing = format!("run a command in container {container} of pod {namespace}/{pod}");
        let program = command.first().cloned().unwrap_or_default();
        let overdue = || {
            let how = format!("{program}: not finished after {} s", timeout.as_secs());
            Ok(CommandResult::Failed { how, output: String::new() })
        };
        let deadline = tokio::time::Instant::now() + timeout;
        let Ok(connected) = tokio::time::timeout_at(deadline, pods.exec(&pod, command, &params)).await else {
            return overdue();
        };
        let mut process = connected.map_err(ApiError::when(doing))?;
        let pipe = process.stdin();
        let feed = async move {
            if let (Some(mut pipe), Some(Content(content))) = (pipe, stdin) {
                // A command that does not read all of it may judge all the same.
                let _ = pipe.write_all(content.as_bytes()).await;
                let _ = pipe.shutdown().await;
            }
        };
        let (stdout, stderr, status) = (process.stdout(), process.stderr(), process.take_status());
        let ended = async {
            match status {
                Some(status) => status.await,
                None => None,
            }
        };
        let run = async { tokio::join!(feed, read_start(stdout), read_start(stderr), ended) };
        let Ok(((), stdout, stderr, status)) = tokio::time::timeout_at(deadline, run).await else {
            process.abort(); // hangs up, which nothing else would
            return overdue();
        };
        let output = if stderr.is_empty() { stdout } else { stderr };
        Ok(match status {
            Some(status) if status.status.as_deref() == Some("Success") => CommandResult::Succeeded,
            Some(status) => {
                let how = status.message.unwrap_or_else(|| "failed".to_owned());
                CommandResult::Failed { how: format!("{program}: {how}"), output }
            }
            None => CommandResult::Failed { how: format!("{program}: the connection ended before it did"), output },
        })
    }

    async fn send(&self, request: PodRequest) -> Result<CommandResult, ApiError> {
        let PodRequest { namespace, pod, port, path, method, timeout } = request;
        let path = path.trim_start_matches('/');
        let uri = format!("/api/v1/namespaces/{namespace}/pods/{pod}:{port}/proxy/{path}");
        let doing = format!("send a request to pod {namespace}/{pod}");
        let built = Request::builder().method(method.as_str()).uri(uri).body(Body::empty());
        let built = built.map_err(|error| ApiError::new(doing.clone(), kube::Error::HttpError(error)))?;
        let how = match tokio::time::timeout(timeout, self.ask(built)).await {
            Ok(Ok(code)) if code.is_success() => return Ok(CommandResult::Succeeded),
            Ok(Ok(code)) => format!("{method} :{port}/{path} was answered with {}", code.as_u16()),
            Ok(Err(error)) => return Err(ApiError::new(doing, error)),
            Err(_) => format!("{method} :{port}/{path} was not answered within {} s", timeout.as_secs()),
        };
        Ok(CommandResult::Failed { how, output: String::new() })
    }
}

impl ApiNotifier {
    /// How a pod answers. Its body may be of any length, and is not read; an error is the API's own, such as a pod that is gone.
    async fn ask(&self, request: Request<Body>) -> Result<StatusCode, kube::Error> {
        let answer = self.client.send(request).await?;
        let code = answer.status();
        if code != StatusCode::NOT_FOUND {
            return Ok(code);
        }
        let Ok(body) = Limited::new(answer.into_body(), MAX_STATUS).collect().await else { return Ok(code) };
        match serde_json::from_slice::<Status>(&body.to_bytes()) {
            Ok(status) if status.code == code.as_u16() && status.details.is_some() => {
                Err(kube::Error::Api(Box::new(status)))
            }
            _ => Ok(code),
        }
    }
}

impl ConsumerNotifier for ApiNotifier {
    fn run(&self, command: PodCommand) -> BoxFuture<'_, Result<CommandResult, ApiError>> {
        Box::pin(self.exec(command))
    }

    fn request(&self, request: PodRequest) -> BoxFuture<'_, Result<CommandResult, ApiError>> {
        Box::pin(self.send(request))
    }
}

/// The beginning of what a command prints; the rest is read and dropped, so that it does not block.
async fn read_start(stream: Option<impl AsyncRead + Unpin>) -> String {
    let Some(mut stream) = stream else { return String::new() };
    let (mut start, mut buffer) = (Vec::new(), [0; 4096]);
    while let Ok(count) = stream.read(&mut buffer).await {
        if count == 0 {
            break;
        }
        let room = MAX_OUTPUT.saturating_sub(start.len());
        start.extend_from_slice(&buffer[..count.min(room)]);
    }
    String::from_utf8_lossy(&start).into_owned()
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use futures::stream;
    use http::Response;
    use http_body::Frame;
    use http_body_util::StreamBody;

    use super::*;

    /// A client whose every request is answered so, with a body that repeats itself for ever.
    fn answered_with(code: u16, body: &'static [u8]) -> ApiNotifier {
        let service = tower::service_fn(move |_: Request<Body>| async move {
            let endless = stream::repeat_with(move || Ok::<_, std::io::Error>(Frame::data(Bytes::from_static(body))));
            Ok::<_, std::io::Error>(Response::builder().status(code).body(StreamBody::new(endless)).unwrap())
        });
        ApiNotifier::new(Client::new(service, "default"))
    }

    fn request() -> PodRequest {
        PodRequest {
            namespace: "default".to_owned(),
            pod: "web".to_owned(),
            port: 80,
            path: "/reload".to_owned(),
            method: "GET".to_owned(),
            timeout: Duration::from_secs(60),
        }
    }

    #[tokio::test]
    async fn an_answer_without_an_end_is_judged_by_its_status() {
        let endless = &[b'x'; 16 << 10];
        assert_eq!(answered_with(200, endless).send(request()).await.unwrap(), CommandResult::Succeeded);
        for code in [404, 500] {
            let how = format!("GET :80/reload was answered with {code}");
            let failed = CommandResult::Failed { how, output: String::new() };
            assert_eq!(answered_with(code, endless).send(request()).await.unwrap(), failed);
        }
        assert_eq!(answered_with(200, b"\xff").send(request()).await.unwrap(), CommandResult::Succeeded, "no text");
    }

    #[tokio::test]
    async fn a_pod_that_the_api_does_not_know_is_no_answer_of_the_pod() {
        let service = tower::service_fn(|_: Request<Body>| async {
            let status =
                r#"{"kind":"Status","status":"Failure","code":404,"reason":"NotFound","details":{"name":"web"}}"#;
            Ok::<_, std::io::Error>(
                Response::builder().status(404).body(Body::from(status.as_bytes().to_vec())).unwrap(),
            )
        });
        let notifier = ApiNotifier::new(Client::new(service, "default"));
        assert!(notifier.send(request()).await.is_err());
    }
}
