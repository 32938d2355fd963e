//! The protocol between agent and shim: frames of a length and JSON over a unix socket, with file
//! descriptors beside them. One request per connection; `Watch`, `Exec` and `Attach` stay open.

use std::{
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::PathBuf,
};

use mainstay_files::Format;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::record::RunRecord;
use crate::observed::ContainerId;

/// The version of this protocol and of `launch.json`. A shim says its own when it starts, and may be older than the agent: requests
/// that an older one does not know are not sent to it. It rises when a message is added or changes its meaning.
pub const PROTOCOL: Format = Format::new("the protocol of a pod's shim", 1);

/// Longest frame.
pub const MAX_FRAME: usize = 4 << 20;
const MAX_FDS: usize = 4;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Answered with `Runs` now and after every change.
    Watch,
    /// Answered with `Started` once the program runs.
    Start {
        container: ContainerId,
    },
    /// To its first process, or to all that is in it.
    Kill {
        container: ContainerId,
        signal: i32,
        all: bool,
    },
    /// The descriptors beside it become the process's streams, in this order. Answered with `Begun` (and the terminal's
    /// descriptor), later with `Ended`.
    Exec {
        container: ContainerId,
        command: Vec<String>,
        tty: bool,
        streams: Streams,
        timeout_ms: Option<u64>,
    },
    /// The descriptors beside it are read from (input) and written to (output). Answered with `Begun`, later with `Ended`.
    Attach {
        container: ContainerId,
        streams: Streams,
    },
    /// On an attached connection.
    Resize {
        width: u16,
        height: u16,
    },
    Reopen {
        container: ContainerId,
    },
    /// Of one that has ended.
    Forget {
        container: ContainerId,
    },
    /// Stop all containers when the time in this file is up; without one, run on. The file is looked at now. Unknown to shims of
    /// versions before fences, which close the connection.
    Fence {
        file: Option<PathBuf>,
    },
    /// Kill everything and go.
    Shutdown,
}

/// Which descriptors come with a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Streams {
    pub stdin: bool,
    pub stdout: bool,
    pub stderr: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Response {
    Done,
    Runs(Vec<RunRecord>),
    Started(RunRecord),
    Begun,
    Ended { exit_code: i32, timed_out: bool },
    Failed { why: FailureKind, text: String },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FailureKind {
    NotFound,
    /// The program could not begin.
    Start,
    /// It makes no sense as things are.
    State,
    Other,
}

pub fn encode<T: Serialize>(message: &T) -> io::Result<Vec<u8>> {
    let mut frame = vec![0; 4];
    serde_json::to_writer(&mut frame, message)?;
    let length = u32::try_from(frame.len() - 4).map_err(io::Error::other)?;
    frame[..4].copy_from_slice(&length.to_le_bytes());
    Ok(frame)
}

/// Bytes and descriptors that have come, until they make a whole frame.
#[derive(Default)]
pub struct FrameReader {
    bytes: Vec<u8>,
    fds: Vec<OwnedFd>,
}

pub enum ReadOutcome {
    Data,
    Closed,
    WouldBlock,
}

impl FrameReader {
    /// One read of a socket.
    pub fn fill(&mut self, socket: impl AsFd) -> io::Result<ReadOutcome> {
        let mut buffer = [0; 4096];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        match rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut buffer)], &mut control, flags) {
            Ok(received) => {
                for message in control.drain() {
                    if let RecvAncillaryMessage::ScmRights(fds) = message {
                        self.fds.extend(fds);
                    }
                }
                if received.bytes == 0 {
                    return Ok(ReadOutcome::Closed);
                }
                self.bytes.extend_from_slice(&buffer[..received.bytes]);
                Ok(ReadOutcome::Data)
            }
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Ok(ReadOutcome::WouldBlock),
            Err(error) => Err(error.into()),
        }
    }

    /// The next whole frame, with all descriptors that have come so far.
    pub fn take<T: DeserializeOwned>(&mut self) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
        let Some(head) = self.bytes.first_chunk::<4>() else { return Ok(None) };
        let length = u32::from_le_bytes(*head) as usize;
        if length > MAX_FRAME {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a frame that is too long"));
        }
        let Some(body) = self.bytes.get(4..4 + length) else { return Ok(None) };
        let message = serde_json::from_slice(body)?;
        self.bytes.drain(..4 + length);
        if self.bytes.is_empty() {
            self.bytes.shrink_to(4096);
        }
        Ok(Some((message, std::mem::take(&mut self.fds))))
    }
}

/// Sends some of `bytes`, and the descriptors with the first of them.
pub fn send(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "too many descriptors"));
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    Ok(rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags)?)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_frame_arrives_whole_with_its_descriptors() {
        let (here, there) = UnixStream::pair().unwrap();
        let request = Request::Attach {
            container: ContainerId("c".into()),
            streams: Streams { stdin: true, ..Default::default() },
        };
        let frame = encode(&request).unwrap();
        let (first, rest) = frame.split_at(7);
        assert_eq!(send(&here, first, &[here.as_fd()]).unwrap(), 7);
        let mut frames = FrameReader::default();
        frames.fill(&there).unwrap();
        assert!(frames.take::<Request>().unwrap().is_none());
        assert_eq!(send(&here, rest, &[]).unwrap(), rest.len());
        frames.fill(&there).unwrap();
        let (got, fds) = frames.take::<Request>().unwrap().unwrap();
        assert_eq!(got, request);
        assert_eq!(fds.len(), 1);
        drop(here);
        drop(fds);
        assert!(matches!(frames.fill(&there).unwrap(), ReadOutcome::Closed));
    }

    #[test]
    fn a_length_beyond_reason_is_refused() {
        let mut frames = FrameReader { bytes: u32::MAX.to_le_bytes().to_vec(), fds: Vec::new() };
        assert!(frames.take::<Request>().is_err());
    }
}
