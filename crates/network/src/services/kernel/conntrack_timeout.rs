//! Conntrack timeouts for Service connections: how soon an unanswered SYN is balanced anew.
//!
//! A client retransmits its SYN after a second. By then the conntrack entry of the first one has timed out, so that the
//! retransmission passes the NAT chains again and may get another backend.

use std::{fs, time::Duration};

use crate::nft::Batch;

/// The first retransmission timeout of TCP (RFC 6298).
const SYN_SENT: Duration = Duration::from_secs(1);
const ESTABLISHED_SYSCTL: &str = "/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_established";
/// The kernel's default in seconds. The sysctl is not there before something uses conntrack.
const ESTABLISHED_DEFAULT: u64 = 432_000;

/// The `ct timeout` object that connections to backends get.
///
/// Its timeouts other than that of `SYN_SENT` are copies of the sysctls, made when the object is created.
/// Administrators change that of `ESTABLISHED`, so it is part of the object's name: after a change the table no
/// longer matches, and is repaired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConntrackTimeout {
    established: u64,
}

impl ConntrackTimeout {
    /// With the sysctls of the network namespace of the calling thread.
    pub fn from_sysctl() -> Self {
        let established = fs::read_to_string(ESTABLISHED_SYSCTL).ok().and_then(|text| text.trim().parse().ok());
        Self { established: established.unwrap_or(ESTABLISHED_DEFAULT) }
    }

    #[cfg(test)]
    pub fn with_established(established: u64) -> Self {
        Self { established }
    }

    pub fn object_name(self) -> String {
        format!("syn-sent-1s-established-{}s", self.established)
    }

    pub fn add_to(self, batch: &mut Batch, table: &str) {
        batch.add_ct_timeout(table, &self.object_name(), SYN_SENT);
    }
}
