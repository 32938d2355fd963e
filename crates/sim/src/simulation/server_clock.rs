//! Wall clocks of server processes: each is off by its own time, jumps by itself, and drifts.
//!
//! There is one process, so [`virtual_libc`](super::virtual_libc) has to know on whose behalf it is asked. A future that is wrapped in
//! [`OnServer`] says so while it is polled. Tasks that it spawns meanwhile belong to the same server: they are known by their ids, which
//! tokio gives in order. Who belongs to no server has the true time.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use futures::future::BoxFuture;

/// How a server's wall clock differs from the true time.
#[derive(Clone, Copy, Debug, Default)]
struct ClockError {
    /// Nanoseconds by which it is ahead.
    offset: i64,
    /// Nanoseconds by which it gets ahead in a second.
    drift: i64,
}

#[derive(Default)]
struct Clocks {
    errors: Vec<ClockError>,
    /// On whose behalf something runs now.
    current: Option<usize>,
    /// Ids of tasks: the first, and the one after the last, with their server.
    tasks: BTreeMap<u64, (u64, usize)>,
}

thread_local! {
    static CLOCKS: RefCell<Clocks> = RefCell::default();
}

/// The clock of a server jumps, from where it is.
pub fn jump(server: usize, seconds: i64) {
    with_error(server, |error| error.offset += seconds * 1_000_000_000);
}

/// From now on the clock of a server gains so many microseconds a second, or loses them. What it has gained is forgotten.
pub fn set_drift(server: usize, microseconds: i64) {
    with_error(server, |error| error.drift = microseconds * 1000);
}

fn with_error(server: usize, change: impl FnOnce(&mut ClockError)) {
    CLOCKS.with_borrow_mut(|clocks| {
        if clocks.errors.len() <= server {
            clocks.errors.resize(server + 1, ClockError::default());
        }
        change(&mut clocks.errors[server]);
    });
}

/// How far the wall clock is off for whoever asks, in nanoseconds, when so much time has passed since the start.
pub fn error(elapsed: Duration) -> i64 {
    let asks = CLOCKS.try_with(|clocks| {
        let Ok(clocks) = clocks.try_borrow() else { return 0 };
        let server = clocks.current.or_else(|| clocks.server_of(task_id()?));
        let error = server.and_then(|server| clocks.errors.get(server)).copied().unwrap_or_default();
        error.offset + error.drift * elapsed.as_secs() as i64
    });
    asks.unwrap_or(0)
}

impl Clocks {
    fn server_of(&self, task: u64) -> Option<usize> {
        let (_, (end, server)) = self.tasks.range(..=task).next_back()?;
        (task < *end).then_some(*server)
    }
}

/// The id of the task that runs; they count up.
fn task_id() -> Option<u64> {
    read_id(tokio::task::try_id()?)
}

fn read_id(id: tokio::task::Id) -> Option<u64> {
    id.to_string().parse().ok()
}

/// The id of a task that is spawned now: all that were spawned before have lower ones.
fn next_id() -> Option<u64> {
    let handle = tokio::runtime::Handle::try_current().ok()?;
    read_id(handle.spawn(async {}).id())
}

/// A future of a server's process.
pub struct OnServer {
    server: usize,
    /// Whether tasks that it spawns are of the server too.
    has_tasks: bool,
    work: BoxFuture<'static, ()>,
}

impl OnServer {
    /// A request, or the like.
    pub fn new(server: usize, work: impl Future<Output = ()> + Send + 'static) -> Self {
        Self { server, has_tasks: false, work: Box::pin(work) }
    }

    /// One that spawns tasks.
    pub fn with_tasks(server: usize, work: impl Future<Output = ()> + Send + 'static) -> Self {
        Self { has_tasks: true, ..Self::new(server, work) }
    }
}

impl Future for OnServer {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let server = self.server;
        let first = if self.has_tasks { next_id() } else { None };
        let before = CLOCKS.with_borrow_mut(|clocks| clocks.current.replace(server));
        let polled = self.work.as_mut().poll(context);
        CLOCKS.with_borrow_mut(|clocks| clocks.current = before);
        if let Some((first, end)) = first.and_then(|first| Some((first, next_id()?)))
            && end > first + 1
        {
            CLOCKS.with_borrow_mut(|clocks| clocks.tasks.insert(first, (end, server)));
        }
        polled
    }
}
