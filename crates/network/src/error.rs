//! Errors of pod networks and Services, with the operation that failed.

use nix::errno::Errno;

use crate::journal::JournalError;

#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    #[error("{doing}")]
    Netlink {
        doing: String,
        #[source]
        source: rtnetlink::Error,
    },
    #[error("{doing}")]
    System {
        doing: String,
        #[source]
        source: std::io::Error,
    },
    #[error(transparent)]
    Journal(#[from] JournalError),
}

impl NetworkError {
    pub fn netlink(doing: impl Into<String>) -> impl FnOnce(rtnetlink::Error) -> Self {
        move |source| Self::Netlink { doing: doing.into(), source }
    }

    pub fn system<E: Into<std::io::Error>>(doing: impl Into<String>) -> impl FnOnce(E) -> Self {
        move |source| Self::System { doing: doing.into(), source: source.into() }
    }
}

impl NetworkError {
    /// Whether the kernel does not know an object or operation that was used.
    pub fn is_unknown_to_kernel(&self) -> bool {
        let unknown = [Errno::ENOENT, Errno::EOPNOTSUPP].map(|errno| Some(errno as i32));
        matches!(self, Self::System { source, .. } if unknown.contains(&source.raw_os_error()))
    }

    /// The error and its causes in one line, for logs.
    pub fn chain(&self) -> String {
        mainstay_errors::error_chain(self)
    }
}

/// Whether the kernel answered with this errno.
pub fn is_errno(error: &rtnetlink::Error, errno: Errno) -> bool {
    matches!(error, rtnetlink::Error::NetlinkError(message) if message.raw_code() == -(errno as i32))
}
