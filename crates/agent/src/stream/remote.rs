//! A client at the other end of a connection, as a process sees it: input, outputs, a terminal's size, and a
//! place to say how it ended. Which protocol carries that makes no difference here.

use bytes::{Bytes, BytesMut};
use mainstay_runtime::session::{Input, Output, Session, TerminalSize};
use mainstay_spdy::server::{self as spdy, Closed};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    sync::mpsc,
};
use tokio_util::sync::CancellationToken;

use super::channels;

const PIECE: usize = 32 * 1024;

/// Where bytes for the client go.
pub enum Sink {
    Spdy(spdy::Writer),
    Channel(channels::Writer),
}

impl Sink {
    pub async fn send(&self, bytes: Bytes) -> Result<(), Closed> {
        match self {
            Self::Spdy(stream) => stream.send(bytes).await,
            Self::Channel(channel) => channel.send(bytes).await,
        }
    }

    /// No more comes here. Channels of a WebSocket have no such word.
    pub async fn finish(&self) -> Result<(), Closed> {
        match self {
            Self::Spdy(stream) => stream.finish().await,
            Self::Channel(_) => Ok(()),
        }
    }
}

pub struct Remote {
    /// Ends where the client's input ends.
    pub stdin: Option<mpsc::Receiver<Bytes>>,
    pub stdout: Option<Sink>,
    pub stderr: Option<Sink>,
    pub error: Sink,
    /// Whether the client understands a `Status` on the error stream; older ones take any text for a failure.
    pub statuses: bool,
    pub sizes: Option<mpsc::Receiver<TerminalSize>>,
    pub gone: CancellationToken,
}

/// How a session ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExecOutcome {
    Succeeded,
    Exited(i32),
    Failed(String),
}

impl ExecOutcome {
    /// What is written to the error stream.
    pub fn status_text(&self, statuses: bool) -> Option<String> {
        if statuses {
            return Some(self.status().to_string());
        }
        match self {
            Self::Succeeded => None,
            Self::Exited(_) | Self::Failed(_) => self.status()["message"].as_str().map(str::to_owned),
        }
    }

    fn status(&self) -> Value {
        match self {
            Self::Succeeded => json!({ "metadata": {}, "status": "Success" }),
            Self::Exited(code) => json!({
                "metadata": {}, "status": "Failure", "reason": "NonZeroExitCode",
                "message": format!("command terminated with non-zero exit code: exit status {code}"),
                "details": { "causes": [{ "reason": "ExitCode", "message": code.to_string() }] },
            }),
            Self::Failed(why) => json!({
                "metadata": {}, "status": "Failure", "reason": "InternalError", "code": 500,
                "message": format!("Internal error occurred: {why}"),
                "details": { "causes": [{ "message": why }] },
            }),
        }
    }
}

impl Remote {
    /// Connects the client to a process until the process has ended or the client is gone. `None` in the latter case.
    pub async fn connect(&mut self, session: Session) -> Option<Result<i32, mainstay_runtime::RuntimeError>> {
        let Session { stdin, stdout, stderr, resize, exit } = session;
        let (from, sizes) = (self.stdin.take(), self.sizes.take());
        let input = async {
            if let (Some(from), Some(to)) = (from, stdin) {
                feed(from, to).await;
            }
        };
        let resizes = async {
            if let Some(mut sizes) = sizes {
                while let Some(size) = sizes.recv().await {
                    if resize.send(size).await.is_err() {
                        break;
                    }
                }
            }
        };
        let process = async {
            let output = async {
                tokio::join!(copy(stdout, self.stdout.as_ref()), copy(stderr, self.stderr.as_ref()));
            };
            let ((), exit) = tokio::join!(output, exit);
            exit
        };
        tokio::select! {
            exit = process => Some(exit),
            () = self.gone.cancelled() => None,
            // What feeds it may end before the process does.
            () = async { tokio::join!(input, resizes); std::future::pending().await } => None,
        }
    }

    /// Says how it ended, and that nothing more comes.
    pub async fn finish(self, ended: &ExecOutcome) {
        for sink in [&self.stdout, &self.stderr].into_iter().flatten() {
            let _ = sink.finish().await;
        }
        if let Some(text) = ended.status_text(self.statuses) {
            let _ = self.error.send(text.into()).await;
        }
        let _ = self.error.finish().await;
    }
}

/// Input of the client to the process. A process that closed its input is not an error.
async fn feed(mut from: mpsc::Receiver<Bytes>, mut to: Input) {
    while let Some(bytes) = from.recv().await {
        if to.write_all(&bytes).await.is_err() || to.flush().await.is_err() {
            break;
        }
    }
    let _ = to.shutdown().await;
    drop(to);
    while from.recv().await.is_some() {} // nobody reads it, but the client must not get stuck
}

/// Output of the process to the client. Output that the client does not want is thrown away.
async fn copy(from: Option<Output>, to: Option<&Sink>) {
    let Some(mut from) = from else { return };
    let mut buffer = BytesMut::new();
    loop {
        buffer.reserve(PIECE);
        match from.read_buf(&mut buffer).await {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        let bytes = buffer.split().freeze();
        if let Some(to) = to
            && to.send(bytes).await.is_err()
        {
            return;
        }
    }
}

/// Sizes of a terminal out of the JSON that clients send, however it is cut.
pub fn sizes(mut from: mpsc::Receiver<Bytes>) -> mpsc::Receiver<TerminalSize> {
    let (to, sizes) = mpsc::channel(4);
    tokio::spawn(async move {
        let mut text = Vec::new();
        while let Some(bytes) = from.recv().await {
            text.extend_from_slice(&bytes);
            for size in parse_sizes(&mut text) {
                if to.send(size).await.is_err() {
                    return;
                }
            }
        }
    });
    sizes
}

/// Takes every whole size off the front.
fn parse_sizes(text: &mut Vec<u8>) -> Vec<TerminalSize> {
    #[derive(Deserialize)]
    struct Size {
        #[serde(rename = "Width")]
        width: u16,
        #[serde(rename = "Height")]
        height: u16,
    }
    let mut found = Vec::new();
    let mut values = serde_json::Deserializer::from_slice(text).into_iter::<Size>();
    let mut taken = 0;
    loop {
        match values.next() {
            Some(Ok(size)) => found.push(TerminalSize { width: size.width, height: size.height }),
            Some(Err(error)) if error.is_eof() => break,
            Some(Err(_)) => {
                taken = text.len(); // nonsense: begin afresh
                text.drain(..taken);
                return found;
            }
            None => break,
        }
        taken = values.byte_offset();
    }
    text.drain(..taken);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_however_they_are_cut() {
        let size = |width, height| TerminalSize { width, height };
        let mut text = br#"{"Width":80,"Height":24}{"Wid"#.to_vec();
        assert_eq!(parse_sizes(&mut text), [size(80, 24)]);
        text.extend_from_slice(b"th\":100,\"Height\":50}\n");
        assert_eq!(parse_sizes(&mut text), [size(100, 50)]);
        assert_eq!(parse_sizes(&mut b"nonsense".to_vec()), []);
    }

    #[test]
    fn an_exit_code_is_reported_as_clients_look_for_it() {
        let status: Value = serde_json::from_str(&ExecOutcome::Exited(3).status_text(true).unwrap()).unwrap();
        assert_eq!((&status["status"], &status["reason"]), (&json!("Failure"), &json!("NonZeroExitCode")));
        assert_eq!(status["details"]["causes"], json!([{ "reason": "ExitCode", "message": "3" }]));
        assert_eq!(ExecOutcome::Succeeded.status_text(false), None);
        assert_eq!(ExecOutcome::Succeeded.status_text(true).unwrap(), r#"{"metadata":{},"status":"Success"}"#);
        assert_eq!(ExecOutcome::Failed("oh".into()).status_text(false).unwrap(), "Internal error occurred: oh");
    }
}
