//! Forwards names outside our zones to upstream servers, and caches the answers.
//!
//! Identical questions that are in flight are sent once. When no upstream server answers, or not soon, an expired
//! answer is served (serve-stale, RFC 8767) while the query goes on. So a machine whose upstream servers are gone for
//! an hour still resolves what it has resolved before.

mod cache;
mod upstream;

#[cfg(feature = "fuzzing")]
pub use self::upstream::fuzzing;

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use futures::{
    FutureExt,
    future::{BoxFuture, Shared},
};
use parking_lot::{Mutex, RwLock};
use tokio::sync::Semaphore;

pub use self::cache::Question;
use self::cache::{Cache, CacheLookup};
use super::{
    query::Rcode,
    response::{Age, Response},
};

/// How long a client waits for a fresh answer if there is a stale one (RFC 8767).
const STALE_TIMEOUT: Duration = Duration::from_millis(1800);

/// Queries in flight at a time, each with a socket of its own.
const MAX_IN_FLIGHT: usize = 512;

type InFlightQuery = Shared<BoxFuture<'static, Option<Arc<Response>>>>;

pub struct Forwarder {
    upstreams: RwLock<Arc<[SocketAddr]>>,
    /// Our own address, which is never an upstream server.
    own: SocketAddr,
    cache: Mutex<Cache>,
    in_flight: Mutex<HashMap<Question, InFlightQuery>>,
    permits: Arc<Semaphore>,
}

impl Forwarder {
    pub fn new(own: SocketAddr, upstreams: Vec<SocketAddr>) -> Self {
        let forwarder = Self {
            upstreams: RwLock::new(Arc::new([])),
            own,
            cache: Mutex::default(),
            in_flight: Mutex::default(),
            permits: Arc::new(Semaphore::new(MAX_IN_FLIGHT)),
        };
        forwarder.set_upstreams(upstreams);
        forwarder
    }

    pub fn set_upstreams(&self, mut upstreams: Vec<SocketAddr>) {
        upstreams.retain(|upstream| *upstream != self.own);
        *self.upstreams.write() = upstreams.into();
    }

    /// A fresh answer from the cache.
    pub fn cached(&self, question: &Question) -> Option<(Arc<Response>, Age)> {
        match self.cache.lock().lookup(question, Instant::now()) {
            CacheLookup::Fresh(answer, age) => Some((answer, age)),
            CacheLookup::Stale { .. } | CacheLookup::Miss => None,
        }
    }

    pub async fn resolve(self: &Arc<Self>, question: Question) -> (Arc<Response>, Age) {
        let found = self.cache.lock().lookup(&question, Instant::now());
        match found {
            CacheLookup::Fresh(answer, age) => (answer, age),
            CacheLookup::Stale { answer, refresh: false } => (answer, Age::Stale),
            CacheLookup::Stale { answer, refresh: true } => {
                match tokio::time::timeout(STALE_TIMEOUT, self.query(question)).await {
                    Ok(Some(new)) => (new, Age::NEW),
                    Ok(None) | Err(_) => (answer, Age::Stale),
                }
            }
            CacheLookup::Miss => {
                let answer = self.query(question).await;
                (answer.unwrap_or_else(|| Arc::new(Response::with_rcode(Rcode::ServFail))), Age::NEW)
            }
        }
    }

    /// Joins an identical query that is in flight. It goes on when no client waits for it any more.
    fn query(self: &Arc<Self>, question: Question) -> InFlightQuery {
        let mut in_flight = self.in_flight.lock();
        if let Some(query) = in_flight.get(&question) {
            return query.clone();
        }
        let (forwarder, key) = (self.clone(), question.clone());
        let task = tokio::spawn(async move {
            let answer = forwarder.query_upstreams(&key).await;
            forwarder.in_flight.lock().remove(&key);
            answer
        });
        let query = task.map(|answer| answer.ok().flatten()).boxed().shared();
        in_flight.insert(question, query.clone());
        query
    }

    async fn query_upstreams(&self, question: &Question) -> Option<Arc<Response>> {
        let upstreams = self.upstreams.read().clone();
        let answer = match self.permits.try_acquire() {
            Ok(_permit) => upstream::query_upstreams(&upstreams, question).await,
            Err(_) => None,
        };
        let mut cache = self.cache.lock();
        match answer {
            Some(answer) => {
                let response = Arc::new(answer.response);
                cache.store(question.clone(), response.clone(), answer.ttl, answer.bytes, Instant::now());
                Some(response)
            }
            None => {
                cache.store_failure(question, Instant::now());
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_server_itself_is_never_an_upstream() {
        let (own, other): (SocketAddr, SocketAddr) =
            ("10.96.0.10:53".parse().unwrap(), "192.0.2.1:53".parse().unwrap());
        let forwarder = Forwarder::new(own, vec![own, other]);
        assert_eq!(**forwarder.upstreams.read(), [other]);
        forwarder.set_upstreams(vec![own]);
        assert!(forwarder.upstreams.read().is_empty());
    }
}
