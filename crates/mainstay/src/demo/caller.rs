//! Calls an address over and over and counts successes and failures.

use std::{
    net::IpAddr,
    time::{Duration, Instant},
};

use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::{SERVICE_PORT, web};

/// Longer than a connection is held.
const PATIENCE: Duration = Duration::from_secs(15);

#[derive(Debug, Default)]
pub struct CallStatistics {
    pub answered: u32,
    pub failed: u32,
    /// The longest that an answer took.
    pub longest: Duration,
    pub last_error: Option<String>,
}

pub struct Caller {
    stop: CancellationToken,
    calls: JoinHandle<CallStatistics>,
}

impl Caller {
    pub fn start(address: IpAddr) -> Self {
        let stop = CancellationToken::new();
        Self { calls: tokio::spawn(call(address, stop.clone())), stop }
    }

    /// After the call under way.
    pub async fn stop(self) -> anyhow::Result<CallStatistics> {
        self.stop.cancel();
        Ok(self.calls.await?)
    }
}

async fn call(address: IpAddr, stop: CancellationToken) -> CallStatistics {
    let mut calls = CallStatistics::default();
    while !stop.is_cancelled() {
        let began = Instant::now();
        match web::ask_within((address, SERVICE_PORT), PATIENCE).await {
            Ok(_) => {
                calls.answered += 1;
                calls.longest = calls.longest.max(began.elapsed());
            }
            Err(error) => {
                calls.failed += 1;
                calls.last_error = Some(format!("{error:#}"));
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    }
    calls
}
