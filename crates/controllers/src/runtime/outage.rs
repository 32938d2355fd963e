//! One warning when a list, a watch or the API as a whole begins to fail, one line when it works again, and nothing in
//! between.
//!
//! A watch that ends or whose version was compacted is routine and no outage: the next attempt decides. That a watch
//! works again is known from the first list or change that it delivers.

use std::fmt::Display;

use mainstay_watch::WatchError;
use tokio::time::Instant;

use super::ApiError;

pub struct Outage<R> {
    resource: R,
    since: Option<Instant>,
}

impl<R: Display> Outage<R> {
    pub fn new(resource: R) -> Self {
        Self { resource, since: None }
    }

    /// A list or watch failed.
    pub fn failed(&mut self, error: &WatchError) {
        let routine = error.is_routine();
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

/// An outage of the API as one controller sees it: however many keys fail, that is one warning.
#[derive(Default)]
pub struct ApiOutage {
    since: Option<Instant>,
}

impl ApiOutage {
    /// A reconcile ended so; says whether that has to be logged.
    pub fn observe(&mut self, controller: &'static str, result: Result<(), &ApiError>) -> bool {
        match result {
            Err(error) if error.is_unavailable() => {
                let is_new = self.since.is_none();
                self.since.get_or_insert_with(Instant::now);
                is_new
            }
            answered => {
                if let Some(since) = self.since.take() {
                    tracing::info!(controller, after = ?since.elapsed(), "the API answers again");
                }
                answered.is_err()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_outage_of_the_api_is_one_warning_and_a_refusal_is_none_of_it() {
        let mut outage = ApiOutage::default();
        let down = ApiError::new("get pod", kube::Error::TlsRequired);
        let refused = serde_json::json!({ "message": "no", "reason": "Invalid", "code": 422 });
        let refused = ApiError::new("create pod", kube::Error::Api(serde_json::from_value(refused).unwrap()));
        assert!(outage.observe("x", Err(&down)));
        assert!(!outage.observe("x", Err(&down)), "the second key that fails is no news");
        assert!(outage.observe("x", Err(&refused)), "what the API refuses is");
        assert!(outage.observe("x", Err(&down)), "and ended the outage");
        assert!(!outage.observe("x", Ok(())));
        assert!(outage.observe("x", Err(&down)));
    }

    #[tokio::test]
    async fn an_outage_begins_with_a_failed_list_and_ends_with_what_is_delivered() {
        let mut outage = Outage::new("pods");
        outage.failed(&WatchError::Read(std::io::ErrorKind::ConnectionReset.into()));
        assert!(outage.is_over(), "a watch that ended is routine");
        outage.failed(&WatchError::List(kube::Error::TlsRequired));
        outage.failed(&WatchError::Watch(kube::Error::TlsRequired));
        assert!(!outage.is_over());
        outage.worked();
        assert!(outage.is_over());
    }
}
