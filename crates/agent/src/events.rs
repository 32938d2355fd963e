//! Events: what happened to a pod or to the machine, and why, for `kubectl describe`.

mod tally;
mod writer;

pub use writer::Writer;

use k8s_openapi::api::core::v1::{Node, ObjectReference, Pod};
use kube::Resource;
use tokio::sync::mpsc;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Normal,
    Warning,
}

#[derive(Clone, Debug)]
pub struct QueuedEvent {
    pub about: ObjectReference,
    pub kind: Kind,
    pub reason: &'static str,
    pub message: String,
}

/// Takes events without ever making the one who speaks wait.
#[derive(Clone)]
pub struct Events {
    queue: mpsc::Sender<QueuedEvent>,
}

impl Events {
    /// Whoever holds the receiver writes them to the API.
    pub fn channel() -> (Self, mpsc::Receiver<QueuedEvent>) {
        let (queue, said) = mpsc::channel(1024);
        (Self { queue }, said)
    }

    pub fn pod(&self, pod: &Pod, kind: Kind, reason: &'static str, message: impl Into<String>) {
        self.say(pod.object_ref(&()), kind, reason, message.into());
    }

    /// About one container: `spec.containers{web}` tells which.
    pub fn container(&self, pod: &Pod, name: &str, kind: Kind, reason: &'static str, message: impl Into<String>) {
        let list = |wanted: &str| {
            let spec = pod.spec.as_ref();
            match wanted {
                "initContainers" => spec.is_some_and(|s| s.init_containers.iter().flatten().any(|c| c.name == name)),
                _ => spec.is_some_and(|s| s.ephemeral_containers.iter().flatten().any(|c| c.name == name)),
            }
        };
        let list = ["initContainers", "ephemeralContainers"].into_iter().find(|l| list(l)).unwrap_or("containers");
        let about = ObjectReference { field_path: Some(format!("spec.{list}{{{name}}}")), ..pod.object_ref(&()) };
        self.say(about, kind, reason, message.into());
    }

    pub fn node(&self, node: &Node, kind: Kind, reason: &'static str, message: impl Into<String>) {
        self.say(node.object_ref(&()), kind, reason, message.into());
    }

    fn say(&self, about: ObjectReference, kind: Kind, reason: &'static str, message: String) {
        let (pod, uid) = (about.name.as_deref().unwrap_or_default(), about.uid.as_deref().unwrap_or_default());
        tracing::info!(pod, uid, reason, "{message}");
        if self.queue.try_send(QueuedEvent { about, kind, reason, message }).is_err() {
            tracing::debug!("an event was dropped: too many at once");
        }
    }
}
