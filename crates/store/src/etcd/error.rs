//! Errors of etcd calls by what they mean for the caller: not sent, unknown whether carried out, refused.
//!
//! etcd tells its errors apart by text as much as by code, so the texts are matched here and
//! nowhere else.

use mainstay_errors::error_chain;
use tonic::{Code, ConnectError, Status};

/// Why a call did not do what it was sent for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum EtcdError {
    /// Certainly not carried out: nobody was reached, or the member turned it away unread.
    Unsent {
        why: String,
    },
    /// Certainly not carried out: the members are about to elect a leader.
    Leaderless {
        why: String,
    },
    /// Possibly carried out.
    Unknown {
        why: String,
    },
    /// Possibly carried out; no response came in time.
    Late {
        why: String,
    },
    /// The token is none (any more); not carried out.
    Token {
        why: String,
    },
    Compacted,
    Future,
    NoSpace,
    /// With the limit, if etcd named it.
    TooLarge {
        limit: Option<usize>,
    },
    /// Refused for good.
    Refused {
        why: String,
    },
}

impl EtcdError {
    pub fn from_status(status: &Status) -> Self {
        let text = status.message();
        let why = || error_chain(status);
        match status.code() {
            Code::OutOfRange if text.contains("required revision has been compacted") => Self::Compacted,
            Code::OutOfRange if text.contains("required revision is a future revision") => Self::Future,
            Code::ResourceExhausted if text.contains("database space exceeded") => Self::NoSpace,
            Code::ResourceExhausted if text.contains("received message larger than max") => {
                Self::TooLarge { limit: limit(text) }
            }
            Code::ResourceExhausted if text.contains("too many requests") => Self::Unsent { why: text.into() },
            Code::InvalidArgument if text.contains("request is too large") => Self::TooLarge { limit: None },
            Code::InvalidArgument if text.contains("too many operations") => {
                Self::Refused { why: format!("{text} (etcd's --max-txn-ops)") }
            }
            Code::Unauthenticated => Self::Token { why: text.into() },
            Code::InvalidArgument if text.contains("revision of auth store is old") => Self::Token { why: text.into() },
            Code::InvalidArgument if text.contains("user name is empty") => Self::Token { why: text.into() },
            Code::Unavailable if text.contains("etcdserver: no leader") => Self::Leaderless { why: text.into() },
            Code::Unavailable if never_connected(status) => Self::Unsent { why: why() },
            Code::Unavailable if text.contains("request timed out") => Self::Late { why: text.into() },
            Code::DeadlineExceeded => Self::Late { why: why() },
            Code::Unavailable | Code::Cancelled | Code::Unknown | Code::Internal | Code::Aborted => {
                Self::Unknown { why: why() }
            }
            Code::Ok
            | Code::InvalidArgument
            | Code::NotFound
            | Code::AlreadyExists
            | Code::PermissionDenied
            | Code::ResourceExhausted
            | Code::FailedPrecondition
            | Code::OutOfRange
            | Code::Unimplemented
            | Code::DataLoss => Self::Refused { why: why() },
        }
    }

    /// Whether another attempt may help, and cannot do harm even to a write.
    pub fn is_unsent(&self) -> bool {
        matches!(self, Self::Unsent { .. } | Self::Leaderless { .. })
    }

    /// Whether it is the way to etcd that failed, or the member at its end.
    pub fn is_outage(&self) -> bool {
        self.is_unsent() || matches!(self, Self::Unknown { .. } | Self::Late { .. })
    }
}

fn never_connected(status: &Status) -> bool {
    let mut source = std::error::Error::source(status);
    while let Some(cause) = source {
        if cause.is::<ConnectError>() {
            return true;
        }
        source = cause.source();
    }
    false
}

/// The limit in "received message larger than max (SIZE vs. LIMIT)".
fn limit(text: &str) -> Option<usize> {
    text.rsplit_once("vs. ")?.1.trim_end_matches(')').parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_distinguished_by_their_text() {
        let of = |code, text: &str| EtcdError::from_status(&Status::new(code, text));
        assert_eq!(
            of(Code::OutOfRange, "etcdserver: mvcc: required revision has been compacted"),
            EtcdError::Compacted
        );
        assert_eq!(of(Code::OutOfRange, "etcdserver: mvcc: required revision is a future revision"), EtcdError::Future);
        assert_eq!(of(Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded"), EtcdError::NoSpace);
        assert_eq!(
            of(Code::ResourceExhausted, "grpc: received message larger than max (9 vs. 7)"),
            EtcdError::TooLarge { limit: Some(7) }
        );
        assert!(of(Code::Unavailable, "etcdserver: no leader").is_unsent());
        assert!(!of(Code::Unavailable, "etcdserver: leader changed").is_unsent());
        assert!(!of(Code::PermissionDenied, "etcdserver: permission denied").is_outage());
    }

    #[test]
    fn a_broken_connection_leaves_the_outcome_unknown() {
        let fault = EtcdError::from_status(&Status::unavailable("connection reset by peer"));
        assert!(fault.is_outage() && !fault.is_unsent(), "{fault:?}");
    }
}
