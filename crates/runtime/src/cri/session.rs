//! Exec and attach sessions through the streaming server of a CRI runtime.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures::FutureExt;
use mainstay_spdy::{Headers, client::Writer};
use tokio::{
    io::{AsyncReadExt, DuplexStream},
    sync::mpsc,
};
use tokio_util::sync::CancellationToken;

use super::{
    Inner,
    call::{CallContext, QUERY_TIMEOUT, with_timeout},
    container::begins_processes,
    proto, streams,
};
use crate::{
    error::RuntimeError,
    observed::ContainerId,
    port::Result,
    session::{Attach, Exec, Session, TerminalSize},
};

/// Which streams there are.
#[derive(Clone, Copy)]
struct StreamSet {
    stdin: bool,
    stdout: bool,
    stderr: bool,
    tty: bool,
}

/// How it went, once it is over.
type ExitFuture = futures::future::BoxFuture<'static, std::result::Result<i32, RuntimeError>>;

impl Inner {
    pub(super) async fn open_exec(&self, id: &ContainerId, exec: &Exec) -> Result<Session> {
        let request = proto::ExecRequest {
            container_id: id.0.clone(),
            cmd: exec.command.clone(),
            tty: exec.tty,
            stdin: exec.stdin,
            stdout: exec.stdout,
            stderr: exec.stderr && !exec.tty,
        };
        let context = CallContext { doing: "run a command", what: "container", id: &id.0 };
        let url = with_timeout(QUERY_TIMEOUT, context, self.client.runtime().exec(request)).await?.url;
        let streams_wanted =
            StreamSet { stdin: exec.stdin, stdout: exec.stdout, stderr: exec.stderr && !exec.tty, tty: exec.tty };
        open(&url, streams_wanted).await
    }

    pub(super) async fn attach(self: Arc<Self>, id: &ContainerId, attach: &Attach) -> Result<Session> {
        let request = proto::AttachRequest {
            container_id: id.0.clone(),
            stdin: attach.stdin,
            tty: attach.tty,
            stdout: attach.stdout,
            stderr: attach.stderr && !attach.tty,
        };
        let context = CallContext { doing: "attach to a container", what: "container", id: &id.0 };
        let url = with_timeout(QUERY_TIMEOUT, context, self.client.runtime().attach(request)).await?.url;
        let streams_wanted = StreamSet {
            stdin: attach.stdin,
            stdout: attach.stdout,
            stderr: attach.stderr && !attach.tty,
            tty: attach.tty,
        };
        let mut session = open(&url, streams_wanted).await?;
        // The error stream is about the connection; the code is the container's.
        let (inner, id, error_stream) = (self, id.clone(), session.exit);
        session.exit = async move {
            error_stream.await?;
            // The streams end a little before the container does.
            for _ in 0..100 {
                let status = inner.client.container_status(&id.0, false).await?.status.unwrap_or_default();
                if status.state() == proto::ContainerState::ContainerExited {
                    return Ok(status.exit_code);
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            Err(RuntimeError::failed("stay attached", "the runtime ended the connection"))
        }
        .boxed();
        Ok(session)
    }
}

async fn open(url: &str, streams_wanted: StreamSet) -> Result<Session> {
    let over = CancellationToken::new();
    let failed = |error| RuntimeError::failed("connect to the runtime's streams", error);
    let mut connection = streams::connect(url, over.clone()).await.map_err(failed)?;
    // In upstream's order; the server waits for all of them.
    let (_, error_stream) = connection.open_stream(stream_headers("error")).await.map_err(failed)?;
    let mut stdin = None;
    if streams_wanted.stdin {
        let (writer, _) = connection.open_stream(stream_headers("stdin")).await.map_err(failed)?;
        let (ours, theirs) = tokio::io::duplex(64 << 10);
        tokio::spawn(over.clone().run_until_cancelled_owned(copy_stdin(ours, writer)));
        stdin = Some(Box::pin(theirs) as _);
    }
    let mut stdout = None;
    if streams_wanted.stdout {
        stdout = Some(Box::pin(connection.open_stream(stream_headers("stdout")).await.map_err(failed)?.1) as _);
    }
    let mut stderr = None;
    if streams_wanted.stderr {
        stderr = Some(Box::pin(connection.open_stream(stream_headers("stderr")).await.map_err(failed)?.1) as _);
    }
    let (resize, sizes) = mpsc::channel(4);
    if streams_wanted.tty {
        let (writer, _) = connection.open_stream(stream_headers("resize")).await.map_err(failed)?;
        tokio::spawn(over.clone().run_until_cancelled_owned(send_sizes(sizes, writer)));
    }
    connection.run();
    let guard = over.drop_guard();
    let exit: ExitFuture = async move {
        let _guard = guard;
        read_exit(error_stream).await
    }
    .boxed();
    Ok(Session { stdin, stdout, stderr, resize, exit })
}

fn stream_headers(kind: &str) -> Headers {
    let mut headers = Headers::default();
    headers.insert("streamtype", kind);
    headers
}

/// Copies input until it ends, and says so.
async fn copy_stdin(mut from: DuplexStream, to: Writer) {
    let mut buffer = vec![0; 32 << 10];
    loop {
        match from.read(&mut buffer).await {
            Ok(0) | Err(_) => break,
            Ok(length) => {
                if to.send(Bytes::copy_from_slice(&buffer[..length])).await.is_err() {
                    return;
                }
            }
        }
    }
    let _ = to.finish().await;
}

async fn send_sizes(mut sizes: mpsc::Receiver<TerminalSize>, to: Writer) {
    while let Some(TerminalSize { width, height }) = sizes.recv().await {
        let line = format!("{{\"Width\":{width},\"Height\":{height}}}\n");
        if to.send(line.into()).await.is_err() {
            return;
        }
    }
}

async fn read_exit(mut error_stream: DuplexStream) -> std::result::Result<i32, RuntimeError> {
    let mut text = Vec::new();
    let _ = error_stream.read_to_end(&mut text).await;
    parse_exit_status(&text)
}

/// A `Status` of the Kubernetes API.
fn parse_exit_status(text: &[u8]) -> std::result::Result<i32, RuntimeError> {
    let doing = "run a command";
    let Ok(status) = serde_json::from_slice::<serde_json::Value>(text) else {
        let output = String::from_utf8_lossy(text);
        let why = if output.is_empty() { "the runtime ended the connection".into() } else { output };
        return Err(RuntimeError::failed(doing, why));
    };
    if status["status"] == "Success" {
        return Ok(0);
    }
    let causes = status["details"]["causes"].as_array();
    let code = causes.into_iter().flatten().find(|cause| cause["reason"] == "ExitCode");
    if let Some(code) = code.and_then(|cause| cause["message"].as_str()?.parse().ok()) {
        return Ok(code);
    }
    let why = status["message"].as_str().unwrap_or("failed without a reason").to_owned();
    Err(if begins_processes(&why) { RuntimeError::Start { why } } else { RuntimeError::failed(doing, why) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_are_codes_or_reasons() {
        let code = r#"{"status":"Failure","reason":"NonZeroExitCode","details":{"causes":[{"reason":"ExitCode","message":"5"}]}}"#;
        assert!(matches!(parse_exit_status(code.as_bytes()), Ok(5)));
        assert!(matches!(parse_exit_status(br#"{"status":"Success"}"#), Ok(0)));
        let missing = r#"{"status":"Failure","message":"OCI runtime exec failed: no such file"}"#;
        assert!(matches!(parse_exit_status(missing.as_bytes()), Err(RuntimeError::Start { .. })));
        assert!(matches!(parse_exit_status(b""), Err(RuntimeError::Failed { why, .. }) if why.contains("ended")));
    }
}
