//! The queue of requests to the writer, and who serves it.
//!
//! The store's thread serves it, or whoever commits while nobody does: a client that writes alone then waits for its own
//! fsync and for no other thread. Going through the thread costs two wake-ups per commit, which on an otherwise idle
//! machine take as long as the fsync itself.
//!
//! The promise that keeps requests from being forgotten: whoever holds the writer looks at the queue again after letting
//! go of it, and wakes the thread if something is there. So a caller that finds the writer taken need only wait. A
//! caller that queued a request and is dropped before it could serve it wakes the thread instead.
//!
//! Refused: callers that serve each other until the queue is empty. The answer of the one that serves would wait for the
//! commits of all others.

use std::{
    collections::VecDeque,
    sync::atomic::{AtomicBool, Ordering, fence},
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};

use super::writer::{Pending, Request};

#[derive(Default)]
pub(super) struct RequestQueue {
    state: Mutex<QueueState>,
    wake: Condvar,
    closed: AtomicBool,
}

#[derive(Default)]
struct QueueState {
    requests: VecDeque<Request>,
    /// Somebody asked the thread to look at what there is to do.
    called: bool,
    /// When the sleeping thread wakes up by itself. `None` while it is awake, or sleeps without a timer.
    wakes_at: Option<Instant>,
}

/// Why the thread woke up.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Wakeup {
    /// There are requests, or there is upkeep to look at anew.
    Called,
    TimedOut,
    /// No request will come any more, and none is left.
    Closed,
}

impl RequestQueue {
    /// Adds a request without waking anybody up. Refused, and handed back, once the queue is closed.
    pub(super) fn push(&self, request: Request) -> Result<(), Request> {
        let mut state = self.state.lock();
        if self.is_closed() {
            return Err(request);
        }
        state.requests.push_back(request);
        drop(state);
        // Whether the writer is held is read after this, and whoever holds it reads the queue after letting go.
        fence(Ordering::SeqCst);
        Ok(())
    }

    /// Adds the last request there will be.
    pub(super) fn push_last(&self, request: Request) -> Result<(), Request> {
        let mut state = self.state.lock();
        if self.closed.swap(true, Ordering::SeqCst) {
            return Err(request);
        }
        state.requests.push_back(request);
        self.notify(state);
        Ok(())
    }

    /// What is queued is still served.
    pub(super) fn close(&self) {
        let state = self.state.lock();
        self.closed.store(true, Ordering::SeqCst);
        self.notify(state);
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.state.lock().requests.is_empty()
    }

    /// The next transaction, if it is a transaction that comes next.
    pub(super) fn pop_commit(&self) -> Option<Pending> {
        match self.state.lock().requests.pop_front_if(|request| matches!(request, Request::Commit(_)))? {
            Request::Commit(pending) => Some(pending),
            _ => None,
        }
    }

    /// The next request, if it is anything but a transaction.
    pub(super) fn pop_other(&self) -> Option<Request> {
        self.state.lock().requests.pop_front_if(|request| !matches!(request, Request::Commit(_)))
    }

    /// Closes the queue and drops what is in it: there is no writer any more.
    pub(super) fn abandon(&self) {
        self.close();
        let abandoned = std::mem::take(&mut self.state.lock().requests);
        drop(abandoned);
    }

    /// Wakes the thread up.
    pub(super) fn call_thread(&self) {
        self.notify(self.state.lock());
    }

    /// To be called by whoever let go of the writer: wakes the thread if there are requests, or if it sleeps beyond `due`.
    pub(super) fn hand_over(&self, due: Option<Duration>) {
        fence(Ordering::SeqCst);
        let state = self.state.lock();
        let sleeps_too_long = due.is_some_and(|due| {
            let due = Instant::now() + due;
            state.wakes_at.is_none_or(|wakes_at| wakes_at > due)
        });
        if sleeps_too_long || !state.requests.is_empty() {
            self.notify(state);
        }
    }

    fn notify(&self, mut state: parking_lot::MutexGuard<'_, QueueState>) {
        state.called = true;
        drop(state);
        self.wake.notify_one();
    }

    /// Sleeps until there is something to do; for the thread alone.
    pub(super) fn wait(&self, timeout: Option<Duration>) -> Wakeup {
        // A time that cannot be represented is as good as none.
        let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        fence(Ordering::SeqCst);
        let mut state = self.state.lock();
        state.wakes_at = until;
        let wakeup = loop {
            if state.requests.is_empty() && self.is_closed() {
                break Wakeup::Closed;
            }
            if std::mem::take(&mut state.called) || !state.requests.is_empty() {
                break Wakeup::Called;
            }
            let timed_out = match until {
                None => {
                    self.wake.wait(&mut state);
                    false
                }
                Some(until) => self.wake.wait_until(&mut state, until).timed_out(),
            };
            if timed_out && !state.called && state.requests.is_empty() && !self.is_closed() {
                break Wakeup::TimedOut;
            }
        };
        state.wakes_at = None;
        wakeup
    }
}

/// Wakes the thread for a request whose caller is dropped before it could serve it.
pub(super) struct ServedByCaller<'a>(pub(super) Option<&'a RequestQueue>);

impl ServedByCaller<'_> {
    /// The request was served, or somebody holds the writer who will see to it.
    pub(super) fn done(mut self) {
        self.0 = None;
    }
}

impl Drop for ServedByCaller<'_> {
    fn drop(&mut self) {
        if let Some(queue) = self.0 {
            queue.call_thread();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, thread};

    use super::*;

    fn job() -> Request {
        Request::Run(Box::new(|| {}))
    }

    #[test]
    fn a_queued_request_wakes_nobody_until_the_writer_is_let_go_of() {
        let queue = RequestQueue::default();
        assert!(queue.push(job()).is_ok());
        assert!(!queue.state.lock().called);
        queue.hand_over(None);
        assert!(queue.state.lock().called);
        assert!(queue.pop_commit().is_none() && queue.pop_other().is_some() && queue.is_empty());
    }

    #[test]
    fn a_thread_that_sleeps_too_long_is_woken_and_one_that_wakes_earlier_is_not() {
        let queue = Arc::new(RequestQueue::default());
        let sleeper = queue.clone();
        let thread = thread::spawn(move || sleeper.wait(Some(Duration::from_secs(600))));
        while queue.state.lock().wakes_at.is_none() {
            thread::yield_now();
        }
        queue.hand_over(Some(Duration::from_secs(1200)));
        queue.hand_over(None);
        assert!(!queue.state.lock().called);
        queue.hand_over(Some(Duration::from_secs(5)));
        assert_eq!(thread.join().expect("the thread ends"), Wakeup::Called);
        assert_eq!(queue.wait(Some(Duration::ZERO)), Wakeup::TimedOut);
    }

    #[test]
    fn a_closed_queue_takes_nothing_and_gives_what_it_has() {
        let queue = RequestQueue::default();
        assert!(queue.push(job()).is_ok());
        queue.close();
        assert!(queue.push(job()).is_err() && queue.push_last(job()).is_err());
        assert_eq!(queue.wait(None), Wakeup::Called);
        assert!(queue.pop_other().is_some());
        assert_eq!(queue.wait(None), Wakeup::Closed);
    }

    #[test]
    fn a_caller_that_is_dropped_wakes_the_thread() {
        let queue = RequestQueue::default();
        ServedByCaller(Some(&queue)).done();
        assert!(!queue.state.lock().called);
        drop(ServedByCaller(Some(&queue)));
        assert!(queue.state.lock().called);
    }
}
