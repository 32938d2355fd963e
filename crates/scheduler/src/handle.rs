//! How others in the process reach the scheduler that runs, if one does.
//!
//! There is a handle for as long as there is a process; behind it a scheduler comes and goes, as leaders do.
//!
//! What `/debug/…` answers:
//!
//! * `scheduler/podqueue`: who waits: pod, deadline, back-off
//! * `scheduler/podstore`: every pod known, with its machine and what becomes of it
//! * `registry/tasks`: every pod that has a machine: uid, pod, state, the machine whose offer it used
//! * `actions/requestExplicit`, `actions/requestImplicit`: everything is listed again and compared with what is known
//! * `actions/kamikaze`: every machine's offer is torn up. A scheduler on Mesos killed the executor on each machine,
//!   and with it everything it ran, so that machines began anew. Here what runs, runs on; what begins anew
//!   is only what we believe of a machine: it gets nothing until it has offered again what it has, which it does within
//!   a few seconds if its agent is alive

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};

/// Something asked of the running scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    PodQueue,
    PodStore,
    Tasks,
    RequestExplicit,
    RequestImplicit,
    Kamikaze,
}

impl Ask {
    /// By the path below `/debug/`.
    pub fn parse(path: &str) -> Option<Self> {
        Some(match path {
            "scheduler/podqueue" => Self::PodQueue,
            "scheduler/podstore" => Self::PodStore,
            "registry/tasks" => Self::Tasks,
            "actions/requestExplicit" => Self::RequestExplicit,
            "actions/requestImplicit" => Self::RequestImplicit,
            "actions/kamikaze" => Self::Kamikaze,
            _ => return None,
        })
    }
}

/// How it was answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    Text(String),
    Done,
    /// There is no such question.
    Unknown,
    /// No scheduler runs here, or it is too busy.
    Unavailable(&'static str),
}

pub(crate) struct Asked {
    pub ask: Ask,
    pub answer: oneshot::Sender<Reply>,
}

#[derive(Clone)]
pub struct Handle {
    running: Arc<Mutex<Option<mpsc::UnboundedSender<Asked>>>>,
    timeout: Duration,
}

impl Handle {
    pub fn new(timeout: Duration) -> Self {
        Self { running: Arc::default(), timeout }
    }

    /// Answers what is asked below `/debug/`.
    pub async fn debug(&self, path: &str) -> Reply {
        let Some(ask) = Ask::parse(path) else { return Reply::Unknown };
        let Some(running) = self.running.lock().clone() else { return Reply::Unavailable("no scheduler runs here") };
        let (answer, answered) = oneshot::channel();
        if running.send(Asked { ask, answer }).is_err() {
            return Reply::Unavailable("the scheduler is stopping");
        }
        match tokio::time::timeout(self.timeout, answered).await {
            Ok(Ok(reply)) => reply,
            Ok(Err(_)) => Reply::Unavailable("the scheduler is stopping"),
            Err(_) => Reply::Unavailable("the scheduler did not answer in time"),
        }
    }

    /// A scheduler begins; it is reached until the seat is dropped.
    pub(crate) fn sit(&self) -> (Seat, mpsc::UnboundedReceiver<Asked>) {
        let (sender, receiver) = mpsc::unbounded_channel();
        *self.running.lock() = Some(sender);
        (Seat(self.clone()), receiver)
    }
}

impl Default for Handle {
    fn default() -> Self {
        Self::new(Duration::from_secs(10))
    }
}

pub(crate) struct Seat(Handle);

impl Drop for Seat {
    fn drop(&mut self) {
        *self.0.running.lock() = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn nobody_answers_where_none_runs_or_none_listens() {
        let handle = Handle::default();
        assert_eq!(handle.debug("scheduler/nothing").await, Reply::Unknown);
        assert_eq!(handle.debug("scheduler/podqueue").await, Reply::Unavailable("no scheduler runs here"));
        let (seat, mut asked) = handle.sit();
        assert_eq!(handle.debug("registry/tasks").await, Reply::Unavailable("the scheduler did not answer in time"));
        let answering = async {
            asked.recv().await; // the one before, which nobody waits for any more
            let Asked { ask, answer } = asked.recv().await.unwrap();
            assert_eq!(ask, Ask::Kamikaze);
            answer.send(Reply::Text("m1\nOK\n".to_owned())).unwrap();
        };
        let (told, ()) = tokio::join!(handle.debug("actions/kamikaze"), answering);
        assert_eq!(told, Reply::Text("m1\nOK\n".to_owned()));
        drop(seat);
        assert_eq!(handle.debug("registry/tasks").await, Reply::Unavailable("no scheduler runs here"));
    }
}
