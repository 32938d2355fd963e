//! Names that are not ours: others are asked, and what they say is kept for as long as they allow.
//!
//! The same question is asked once at a time, however many wait for it. When nobody answers, or not soon, what was true
//! last is better than nothing (RFC 8767), and the asking goes on behind it. So a machine whose resolvers are gone for an
//! hour goes on finding what it has found before.

mod cache;
mod upstream;

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
use self::cache::{Cache, Cached};
use super::{
    answer::{Age, Answer},
    query::Code,
};

/// How long a client waits before it gets what is out of date.
const PATIENCE: Duration = Duration::from_millis(1800);

/// Questions that are asked at the same time, each with a socket of its own.
const MOST_ASKED: usize = 512;

type Asking = Shared<BoxFuture<'static, Option<Arc<Answer>>>>;

pub struct Forwarder {
    upstreams: RwLock<Arc<[SocketAddr]>>,
    /// Ourselves, whom we never ask.
    own: SocketAddr,
    cache: Mutex<Cache>,
    asked: Mutex<HashMap<Question, Asking>>,
    places: Arc<Semaphore>,
}

impl Forwarder {
    pub fn new(own: SocketAddr, upstreams: Vec<SocketAddr>) -> Self {
        let forwarder = Self {
            upstreams: RwLock::new(Arc::new([])),
            own,
            cache: Mutex::default(),
            asked: Mutex::default(),
            places: Arc::new(Semaphore::new(MOST_ASKED)),
        };
        forwarder.set_upstreams(upstreams);
        forwarder
    }

    pub fn set_upstreams(&self, mut upstreams: Vec<SocketAddr>) {
        upstreams.retain(|upstream| *upstream != self.own);
        *self.upstreams.write() = upstreams.into();
    }

    /// What is known without asking.
    pub fn known(&self, question: &Question) -> Option<(Arc<Answer>, Age)> {
        match self.cache.lock().find(question, Instant::now()) {
            Cached::Fresh(answer, age) => Some((answer, age)),
            Cached::Stale { .. } | Cached::Nothing => None,
        }
    }

    pub async fn resolve(self: &Arc<Self>, question: Question) -> (Arc<Answer>, Age) {
        let cached = self.cache.lock().find(&question, Instant::now());
        match cached {
            Cached::Fresh(answer, age) => (answer, age),
            Cached::Stale { answer, ask: false } => (answer, Age::Stale),
            Cached::Stale { answer, ask: true } => match tokio::time::timeout(PATIENCE, self.ask(question)).await {
                Ok(Some(new)) => (new, Age::NEW),
                Ok(None) | Err(_) => (answer, Age::Stale),
            },
            Cached::Nothing => {
                let answer = self.ask(question).await;
                (answer.unwrap_or_else(|| Arc::new(Answer::only(Code::Failed))), Age::NEW)
            }
        }
    }

    /// Joins those who ask the same. The asking goes on when nobody waits for it any more.
    fn ask(self: &Arc<Self>, question: Question) -> Asking {
        let mut asked = self.asked.lock();
        if let Some(asking) = asked.get(&question) {
            return asking.clone();
        }
        let (forwarder, key) = (self.clone(), question.clone());
        let task = tokio::spawn(async move {
            let answer = forwarder.ask_upstreams(&key).await;
            forwarder.asked.lock().remove(&key);
            answer
        });
        let asking = task.map(|answer| answer.ok().flatten()).boxed().shared();
        asked.insert(question, asking.clone());
        asking
    }

    async fn ask_upstreams(&self, question: &Question) -> Option<Arc<Answer>> {
        let upstreams = self.upstreams.read().clone();
        let heard = match self.places.try_acquire() {
            Ok(_place) => upstream::ask(&upstreams, question).await,
            Err(_) => None,
        };
        let mut cache = self.cache.lock();
        match heard {
            Some(heard) => {
                let answer = Arc::new(heard.answer);
                cache.store(question.clone(), answer.clone(), heard.keep, heard.bytes, Instant::now());
                Some(answer)
            }
            None => {
                cache.failed(question, Instant::now());
                None
            }
        }
    }
}
