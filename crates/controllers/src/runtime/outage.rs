//! One warning when a list or watch begins to fail, one line when it works again, and nothing in between.
//!
//! A watch that ends or whose version was compacted is routine and no outage: the next attempt decides. That a watch
//! works again is known from the first list or change that it delivers.

use std::fmt::Display;

use kube::runtime::watcher;
use tokio::time::Instant;

pub struct Outage<R> {
    resource: R,
    since: Option<Instant>,
}

impl<R: Display> Outage<R> {
    pub fn new(resource: R) -> Self {
        Self { resource, since: None }
    }

    /// A list or watch failed.
    pub fn failed(&mut self, error: &watcher::Error) {
        let routine = matches!(error, watcher::Error::WatchError(_) | watcher::Error::WatchFailed(_));
        if routine || self.since.is_some() {
            tracing::debug!(resource = %self.resource, %error, "a watch ended; retrying");
            return;
        }
        self.since = Some(Instant::now());
        tracing::warn!(resource = %self.resource, %error, "cannot list or watch; retrying");
    }

    /// Something was delivered.
    pub fn worked(&mut self) {
        if let Some(since) = self.since.take() {
            tracing::info!(resource = %self.resource, after = ?since.elapsed(), "list and watch work again");
        }
    }

    #[cfg(test)]
    fn is_over(&self) -> bool {
        self.since.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_outage_begins_with_a_failed_list_and_ends_with_what_is_delivered() {
        let mut outage = Outage::new("pods");
        outage.failed(&watcher::Error::WatchFailed(kube::Error::TlsRequired));
        assert!(outage.is_over(), "a watch that ended is routine");
        outage.failed(&watcher::Error::InitialListFailed(kube::Error::TlsRequired));
        outage.failed(&watcher::Error::WatchStartFailed(kube::Error::TlsRequired));
        assert!(!outage.is_over());
        outage.worked();
        assert!(outage.is_over());
    }
}
