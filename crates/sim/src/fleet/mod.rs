//! Many hollow machines, driven together.
//!
//! One timer serves all of them ([`timers`]): offers, renewed before their time is over and when room comes back, and
//! heartbeats. One watch of all pods serves them too, unless each is to have its own as real agents have
//! ([`Watching::Each`]), which is how to find out what those cost the server ([`follow`]). If asked to, each also
//! holds a table of where Services end ([`tables`]). A few tasks tell the API what became of
//! pods. A machine itself is a few hundred bytes.

mod follow;
mod register;
mod tables;
mod timers;

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use futures::StreamExt;
use kube::Client;
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc, watch};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub use tables::Tables;

use crate::{
    conduct::{Conduct, Faults},
    ledger::Ledger,
    machine::{Answer, Machine, Shape},
    pod::Pod,
    reporter::{What, Word},
};

/// Tasks that tell the API of pods, and how much each tells at once.
const TELLERS: usize = 4;
const AT_ONCE: usize = 16;
/// How long a machine waits before it tells again what the API did not take.
const AGAIN: Duration = Duration::from_millis(200);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watching {
    /// One watch of all pods.
    Together,
    /// One watch for each machine, as agents have.
    Each,
}

#[derive(Clone, Debug)]
pub struct Settings {
    pub count: usize,
    /// Machines are named `<prefix>-<number>`.
    pub prefix: String,
    pub shape: Shape,
    /// From a pod's arrival to its report that it is ready; never, if there is none.
    pub start_delay: Option<Duration>,
    /// How long a pod takes to stop; never longer than its grace period.
    pub stop_delay: Duration,
    pub faults: Faults,
    pub watching: Watching,
    /// Each follows Services, and says how far it has come.
    pub tables: bool,
}

impl Settings {
    pub fn new(count: usize) -> Self {
        Self {
            count,
            prefix: "hollow".to_owned(),
            shape: Shape::default(),
            start_delay: Some(Duration::ZERO),
            stop_delay: Duration::ZERO,
            faults: Faults::default(),
            watching: Watching::Together,
            tables: false,
        }
    }
}

/// How the API is reached.
#[derive(Clone)]
pub struct Access {
    /// May do everything.
    pub admin: Client,
    /// For the machine of this name.
    pub machine: Arc<dyn Fn(&str) -> Client + Send + Sync>,
}

impl Access {
    /// One client for everything.
    pub fn shared(client: Client) -> Self {
        let admin = client.clone();
        Self { admin, machine: Arc::new(move |_| client.clone()) }
    }
}

/// What the machines say of themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// Offers and heartbeats.
    Offering,
    /// Heartbeats only: nothing can be placed.
    Held,
    /// Nothing at all, without being gone.
    Quiet,
}

/// What the machines did so far.
#[derive(Debug, Default)]
pub struct Counters {
    pub offers: AtomicU64,
    pub beats: AtomicU64,
    pub started: AtomicU64,
    pub stopped: AtomicU64,
    pub refused: AtomicU64,
    /// Requests that failed; each is made again.
    pub failed: AtomicU64,
}

struct Slot {
    name: String,
    client: Client,
    machine: Mutex<Machine>,
    /// The first three numbers of its pods' addresses, if it has any.
    range: Option<String>,
}

pub struct Fleet {
    settings: Settings,
    access: Access,
    slots: Vec<Slot>,
    by_name: HashMap<String, usize>,
    started: Instant,
    /// Whether the API has offers; without them, holding means cordoning.
    offers: bool,
    pace: watch::Sender<Pace>,
    /// A machine has room that nobody knows of.
    news: Notify,
    words: Vec<mpsc::UnboundedSender<Word>>,
    heard: Mutex<Vec<mpsc::UnboundedReceiver<Word>>>,
    ledger: Arc<Ledger>,
    pub counters: Counters,
    pub tables: Tables,
}

impl Fleet {
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    pub fn ledger(&self) -> &Arc<Ledger> {
        &self.ledger
    }

    pub fn name(&self, machine: usize) -> &str {
        &self.slots[machine].name
    }

    /// How many pods each machine holds.
    pub fn holds(&self) -> Vec<usize> {
        self.slots.iter().map(|slot| slot.machine.lock().holds()).collect()
    }

    /// From now on, a machine behaves like this.
    pub fn behave(&self, machine: usize, conduct: Conduct) {
        self.slots[machine].machine.lock().conduct = conduct;
    }

    /// Until asked to stop. The Nodes stay.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        let tasks = TaskTracker::new();
        for heard in self.heard.lock().drain(..) {
            tasks.spawn(self.clone().tell(heard, stop.clone()));
        }
        tasks.spawn(timers::run(self.clone(), stop.clone()));
        match self.settings.watching {
            Watching::Together => drop(tasks.spawn(follow::together(self.clone(), stop.clone()))),
            Watching::Each => {
                for machine in 0..self.slots.len() {
                    tasks.spawn(follow::one(self.clone(), machine, stop.clone()));
                }
            }
        }
        for machine in (0..self.slots.len()).filter(|_| self.settings.tables) {
            tasks.spawn(tables::hold(self.clone(), machine, stop.clone()));
        }
        tasks.close();
        tasks.wait().await;
    }

    /// Changes what the machines say; returns once it has been said.
    pub async fn set_pace(&self, pace: Pace) {
        let before = self.pace.send_replace(pace);
        match (before, pace) {
            (Pace::Offering, Pace::Held) => timers::withdraw(self).await,
            (Pace::Held, Pace::Offering) if !self.offers => timers::cordon(self, false).await,
            _ => {}
        }
    }

    fn is_silent(&self, machine: &Machine) -> bool {
        matches!(machine.conduct, Conduct::Silent { after } if self.started.elapsed() >= after)
    }

    /// A pod that is on a machine.
    fn arrived(&self, number: usize, pod: &Pod) {
        let mut machine = self.slots[number].machine.lock();
        if self.is_silent(&machine) {
            return;
        }
        let answer = machine.saw(pod);
        drop(machine);
        let (what, delay) = match answer {
            Answer::Nothing => return,
            Answer::Start => {
                let Some(delay) = self.settings.start_delay else { return };
                let containers = pod.spec.containers.iter();
                let containers = containers.map(|container| (container.name.clone(), container.image.clone()));
                (What::Runs { containers: containers.collect() }, delay)
            }
            Answer::Stop => {
                let grace = pod.metadata.deletion_grace_period_seconds.unwrap_or(0);
                let grace = Duration::from_secs(u64::try_from(grace).unwrap_or(0));
                (What::Gone, self.settings.stop_delay.min(grace))
            }
            Answer::Refuse { reason, message } => {
                self.news.notify_one();
                (What::Refused { reason, message }, Duration::ZERO)
            }
        };
        self.say(Word::of(number, pod, what), delay);
    }

    /// A pod that is no longer on a machine.
    fn left(&self, number: usize, pod: &Pod) {
        self.slots[number].machine.lock().lost(pod);
        self.news.notify_one();
    }

    fn say(&self, word: Word, delay: Duration) {
        let to = self.words[word.machine % self.words.len()].clone();
        if delay.is_zero() {
            let _ = to.send(word);
        } else {
            tokio::spawn(async move {
                tokio::time::sleep(delay).await;
                let _ = to.send(word);
            });
        }
    }

    async fn tell(self: Arc<Self>, heard: mpsc::UnboundedReceiver<Word>, stop: CancellationToken) {
        let telling = UnboundedReceiverStream::new(heard).for_each_concurrent(AT_ONCE, |word| {
            let fleet = self.clone();
            async move { fleet.tell_one(word).await }
        });
        stop.run_until_cancelled(telling).await;
    }

    async fn tell_one(&self, word: Word) {
        let slot = &self.slots[word.machine];
        if self.is_silent(&slot.machine.lock()) {
            return;
        }
        let address = slot.range.as_ref().map(|range| {
            let number = self.counters.started.load(Relaxed) % 250 + 2;
            format!("{range}.{number}")
        });
        if let Err(error) = word.tell(&slot.client, address).await {
            self.counters.failed.fetch_add(1, Relaxed);
            tracing::debug!(machine = slot.name, %error, "cannot tell of a pod; will try again");
            self.say(word, AGAIN);
            return;
        }
        let counter = match word.what {
            What::Runs { .. } => &self.counters.started,
            What::Gone => &self.counters.stopped,
            What::Refused { .. } => &self.counters.refused,
        };
        counter.fetch_add(1, Relaxed);
    }
}
