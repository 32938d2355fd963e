//! Sessions of exec and attach: standard streams of a process in a container, its terminal size and its exit code.

use std::pin::Pin;

use futures::future::BoxFuture;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::mpsc,
};

use crate::error::RuntimeError;

pub type Input = Pin<Box<dyn AsyncWrite + Send>>;
pub type Output = Pin<Box<dyn AsyncRead + Send>>;

pub trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// A connection into a pod.
pub type Tunnel = Box<dyn Duplex>;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exec {
    pub command: Vec<String>,
    pub tty: bool,
    pub stdin: bool,
    pub stdout: bool,
    /// Never with a terminal.
    pub stderr: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attach {
    pub tty: bool,
    pub stdin: bool,
    pub stdout: bool,
    pub stderr: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TerminalSize {
    pub width: u16,
    pub height: u16,
}

/// Dropping it ends the connection, not the process.
pub struct Session {
    /// Shutting it down is end-of-file for the process.
    pub stdin: Option<Input>,
    pub stdout: Option<Output>,
    pub stderr: Option<Output>,
    pub resize: mpsc::Sender<TerminalSize>,
    /// The exit code, once the process has ended and all output has been delivered to the streams.
    pub exit: BoxFuture<'static, Result<i32, RuntimeError>>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExecOutput {
    pub exit_code: i32,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
}
