//! How soon the kernel forgets a connection that nobody answered.

use std::{fs, time::Duration};

use crate::nft::Batch;

/// Clients repeat their first packet after a second.
const UNANSWERED: Duration = Duration::from_secs(1);
const ESTABLISHED: &str = "/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_established";
/// The kernel's own, in seconds. It says so only once something needs its memory of connections.
const STOCK: u64 = 432_000;

/// The time limits that connections to backends get. Apart from how long they may be unanswered they are
/// the machine's own, but as they were when the rules were made: so the one that administrators change is part of
/// their name, and where it was changed the rules are not as they should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Again {
    established: u64,
}

impl Again {
    pub fn here() -> Self {
        let told = fs::read_to_string(ESTABLISHED).ok().and_then(|text| text.trim().parse().ok());
        Self { established: told.unwrap_or(STOCK) }
    }

    #[cfg(test)]
    pub fn with_established(established: u64) -> Self {
        Self { established }
    }

    /// The name of the limits.
    pub fn limits(self) -> String {
        format!("again-{}", self.established)
    }

    pub fn write(self, batch: &mut Batch, table: &str) {
        batch.time_limits(table, &self.limits(), UNANSWERED);
    }
}
