//! How the `/debug` endpoints reach the scheduler, if this process leads.
//!
//! The handle lives as long as the process; the scheduler behind it comes and goes with leadership.
//!
//! Paths below `/debug/`, named as in Kubernetes on Mesos:
//!
//! * `scheduler/podqueue`: the scheduling queue: pod, deadline, backoff
//! * `scheduler/podstore`: every pod, with its node and state
//! * `registry/tasks`: every pod that has a node: uid, pod, state, the node whose offer it used
//! * `actions/requestExplicit`, `actions/requestImplicit`: all objects are listed again and compared with the cache
//! * `actions/kamikaze`: every node's offer is torn up. A scheduler on Mesos killed the executor on each node,
//!   and with it everything it ran, so that nodes began anew. Here what runs, runs on; what begins anew
//!   is only what we believe of a node: it gets nothing until it has offered again what it has, which it does within
//!   a few seconds if its agent is alive

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};

/// Something asked of the running scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DebugRequest {
    PodQueue,
    PodStore,
    Tasks,
    RequestExplicit,
    RequestImplicit,
    Kamikaze,
}

impl DebugRequest {
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
pub enum DebugReply {
    Text(String),
    Done,
    /// There is no such question.
    Unknown,
    /// No scheduler runs here, or it is too busy.
    Unavailable(&'static str),
}

pub(crate) struct PendingRequest {
    pub request: DebugRequest,
    pub reply: oneshot::Sender<DebugReply>,
}

#[derive(Clone)]
pub struct Handle {
    running: Arc<Mutex<Option<mpsc::UnboundedSender<PendingRequest>>>>,
    timeout: Duration,
}

impl Handle {
    pub fn new(timeout: Duration) -> Self {
        Self { running: Arc::default(), timeout }
    }

    /// Answers what is asked below `/debug/`.
    pub async fn debug(&self, path: &str) -> DebugReply {
        let Some(request) = DebugRequest::parse(path) else { return DebugReply::Unknown };
        let Some(running) = self.running.lock().clone() else {
            return DebugReply::Unavailable("no scheduler runs here");
        };
        let (reply, received) = oneshot::channel();
        if running.send(PendingRequest { request, reply }).is_err() {
            return DebugReply::Unavailable("the scheduler is stopping");
        }
        match tokio::time::timeout(self.timeout, received).await {
            Ok(Ok(reply)) => reply,
            Ok(Err(_)) => DebugReply::Unavailable("the scheduler is stopping"),
            Err(_) => DebugReply::Unavailable("the scheduler did not answer in time"),
        }
    }

    /// A scheduler begins; it is reached until the seat is dropped.
    pub(crate) fn register(&self) -> (HandleRegistration, mpsc::UnboundedReceiver<PendingRequest>) {
        let (sender, receiver) = mpsc::unbounded_channel();
        *self.running.lock() = Some(sender);
        (HandleRegistration(self.clone()), receiver)
    }
}

impl Default for Handle {
    fn default() -> Self {
        Self::new(Duration::from_secs(10))
    }
}

pub(crate) struct HandleRegistration(Handle);

impl Drop for HandleRegistration {
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
        assert_eq!(handle.debug("scheduler/nothing").await, DebugReply::Unknown);
        assert_eq!(handle.debug("scheduler/podqueue").await, DebugReply::Unavailable("no scheduler runs here"));
        let (registration, mut requests) = handle.register();
        assert_eq!(
            handle.debug("registry/tasks").await,
            DebugReply::Unavailable("the scheduler did not answer in time")
        );
        let replying = async {
            requests.recv().await; // the one before, which nobody waits for any more
            let PendingRequest { request, reply } = requests.recv().await.unwrap();
            assert_eq!(request, DebugRequest::Kamikaze);
            reply.send(DebugReply::Text("m1\nOK\n".to_owned())).unwrap();
        };
        let (reply, ()) = tokio::join!(handle.debug("actions/kamikaze"), replying);
        assert_eq!(reply, DebugReply::Text("m1\nOK\n".to_owned()));
        drop(registration);
        assert_eq!(handle.debug("registry/tasks").await, DebugReply::Unavailable("no scheduler runs here"));
    }
}
