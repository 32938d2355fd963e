//! The store that all servers share, and each server's link to it.
//!
//! The store itself never fails: it stands for an etcd cluster that has a majority. What fails is the way to it. A link adds
//! latency, loses answers of commits that were made, hangs while the server is frozen or cut off, and is dead with its server.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use async_trait::async_trait;
use futures::future::BoxFuture;
use mainstay_store::{Entry, List, Listing, Op, Outcome, Revision, Store, StoreError, Txn, Watch, WatchEvent};
use parking_lot::Mutex;
use tokio::{
    sync::{Notify, watch},
    time::{sleep, timeout},
};

use super::{chance::Chance, mvcc_store::MvccStore};

/// A server gives up on a store that does not answer.
const STORE_TIMEOUT: Duration = Duration::from_secs(3);

/// What a commit did to one key.
pub struct Commit<'a> {
    pub server: usize,
    pub key: &'a str,
    pub revision: u64,
    /// Nothing if the key was deleted.
    pub value: Option<&'a [u8]>,
}

pub type Observer = Arc<dyn Fn(Commit<'_>) + Send + Sync>;

#[derive(Clone)]
pub struct SharedStore {
    pub memory: MvccStore,
    pub observer: Observer,
}

/// What a server's process and its way to the store are like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkState {
    Up,
    /// The process is stopped: what it was about to send goes out when it goes on.
    Frozen,
    /// The store cannot be reached.
    Cut,
    Dead,
}

/// How bad a link is while it is up.
#[derive(Clone, Copy, Debug)]
pub struct Quality {
    pub latency: Duration,
    /// How many of a thousand commits are made without their answer coming back.
    pub lost_answers: u32,
}

impl Quality {
    /// A round trip of a few milliseconds, so that some commits are under way when a server freezes.
    pub const FAIR: Self = Self { latency: Duration::from_millis(3), lost_answers: 0 };
}

pub struct StoreLink {
    pub server: usize,
    store: SharedStore,
    state: watch::Sender<LinkState>,
    quality: watch::Sender<Quality>,
    chance: Chance,
    armed: Mutex<Option<FreezeBeforeWrite>>,
}

/// A server that freezes between a decision and its write.
pub struct FreezeBeforeWrite {
    pub is_meant: Box<dyn Fn(&Op) -> bool + Send + Sync>,
    pub frozen: Arc<Notify>,
}

impl StoreLink {
    pub fn new(server: usize, store: SharedStore, chance: Chance) -> Arc<Self> {
        let quality = Quality::FAIR;
        let (state, quality) = (watch::Sender::new(LinkState::Up), watch::Sender::new(quality));
        Arc::new(Self { server, store, state, quality, chance, armed: Mutex::default() })
    }

    pub fn set(&self, state: LinkState) {
        self.state.send_if_modified(|current| {
            let is_news = *current != state && *current != LinkState::Dead;
            if is_news {
                *current = state;
            }
            is_news
        });
    }

    pub fn set_quality(&self, quality: Quality) {
        self.quality.send_replace(quality);
    }

    pub fn subscribe(&self) -> watch::Receiver<LinkState> {
        self.state.subscribe()
    }

    /// Arms or disarms: the server freezes right before it sends the next such write.
    pub fn freeze_before(&self, write: Option<FreezeBeforeWrite>) {
        *self.armed.lock() = write;
    }

    fn freeze_if_meant(&self, txn: &Txn) {
        let is_meant = |armed: &mut FreezeBeforeWrite| txn.ops.iter().any(|op| (armed.is_meant)(op));
        let Some(armed) = self.armed.lock().take_if(is_meant) else { return };
        self.set(LinkState::Frozen);
        armed.frozen.notify_one();
    }

    /// One way to the store or back.
    async fn pass(&self) -> Result<(), StoreError> {
        let latency = self.quality.borrow().latency;
        if !latency.is_zero() {
            sleep(self.chance.up_to(latency)).await;
        }
        let mut state = self.state.subscribe();
        if *state.borrow_and_update() == LinkState::Up {
            return Ok(());
        }
        let thawed = state.wait_for(|state| *state != LinkState::Frozen).await;
        let is_cut = matches!(thawed.map(|state| *state), Ok(LinkState::Cut));
        if is_cut {
            let mended = state.wait_for(|state| matches!(state, LinkState::Up | LinkState::Dead));
            if timeout(STORE_TIMEOUT, mended).await.is_err() {
                return Err(StoreError::Timeout { why: "cut off from the store".into() });
            }
        }
        match *self.state.borrow() {
            LinkState::Dead => Err(StoreError::Unavailable { why: "the server is dead".into() }),
            LinkState::Up | LinkState::Frozen | LinkState::Cut => Ok(()),
        }
    }
}

#[async_trait]
impl Store for StoreLink {
    async fn get(&self, key: &str) -> Result<(Option<Arc<Entry>>, Revision), StoreError> {
        self.pass().await?;
        self.store.memory.get(key).await
    }

    async fn list(&self, query: List<'_>) -> Result<Listing, StoreError> {
        self.pass().await?;
        self.store.memory.list(query).await
    }

    async fn commit(&self, txn: Txn) -> Result<Outcome, StoreError> {
        self.freeze_if_meant(&txn);
        self.pass().await?;
        let ops = txn.ops.clone();
        let outcome = self.store.memory.commit(txn).await?;
        if let Outcome::Committed(Revision(revision)) = outcome {
            for op in &ops {
                let (key, value) = match op {
                    Op::Put { key, value } => (key, Some(&value[..])),
                    Op::Delete { key } => (key, None),
                };
                (self.store.observer)(Commit { server: self.server, key, revision, value });
            }
        }
        if self.chance.per_mille(self.quality.borrow().lost_answers) {
            sleep(STORE_TIMEOUT).await;
            return Err(StoreError::Timeout { why: "the answer was lost".into() });
        }
        self.pass().await?;
        Ok(outcome)
    }

    async fn watch(&self, prefix: &str, after: Revision) -> Result<Box<dyn Watch>, StoreError> {
        self.pass().await?;
        let inner = self.store.memory.watch(prefix, after).await?;
        let (state, quality) = (self.state.subscribe(), self.quality.subscribe());
        Ok(Box::new(LinkWatch { inner, state, quality, chance: self.chance.clone(), arrived: None }))
    }

    async fn compact(&self, at: Revision) -> Result<(), StoreError> {
        self.pass().await?;
        self.store.memory.compact(at).await
    }

    async fn revision(&self) -> Result<Revision, StoreError> {
        self.pass().await?;
        self.store.memory.revision().await
    }
}

/// Returns once the server is not frozen.
pub async fn wait_thawed(mut state: watch::Receiver<LinkState>) {
    let _ = state.wait_for(|state| *state != LinkState::Frozen).await;
}

/// Polls a future of a server only while that is not frozen: its timers fire when it goes on.
pub struct Freezable {
    work: BoxFuture<'static, ()>,
    state: watch::Receiver<LinkState>,
    thaw: Option<BoxFuture<'static, ()>>,
}

impl Freezable {
    pub fn new(link: &StoreLink, work: impl Future<Output = ()> + Send + 'static) -> Self {
        Self { work: Box::pin(work), state: link.subscribe(), thaw: None }
    }
}

impl Future for Freezable {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if *self.state.borrow() == LinkState::Frozen {
            let thaw = wait_thawed(self.state.clone());
            if self.thaw.insert(Box::pin(thaw)).as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
        }
        self.work.as_mut().poll(context)
    }
}

struct LinkWatch {
    inner: Box<dyn Watch>,
    state: watch::Receiver<LinkState>,
    quality: watch::Receiver<Quality>,
    chance: Chance,
    /// On its way; kept here so that a call that is dropped loses nothing.
    arrived: Option<WatchEvent>,
}

#[async_trait]
impl Watch for LinkWatch {
    async fn next(&mut self) -> Result<WatchEvent, StoreError> {
        if self.arrived.is_none() {
            let ended = self.state.wait_for(|state| matches!(state, LinkState::Dead | LinkState::Cut));
            tokio::select! {
                biased;
                _ = ended => return Err(StoreError::Unavailable { why: "the watch was cut off".into() }),
                event = self.inner.next() => self.arrived = Some(event?),
            }
        }
        let latency = self.quality.borrow().latency;
        if !latency.is_zero() {
            sleep(self.chance.up_to(latency)).await;
        }
        wait_thawed(self.state.clone()).await;
        self.arrived.take().ok_or(StoreError::Closing)
    }

    fn request_progress(&mut self) {
        self.inner.request_progress();
    }
}
