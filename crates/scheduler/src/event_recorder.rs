//! Events about pods, as `default-scheduler`; see [`mainstay_events`] for how they are correlated and written.

use k8s_openapi::api::core::v1::ObjectReference;
use mainstay_events::{EventNote, EventWriter, Recorder};

use crate::core::view::PodKey;

/// The scheduler of pods that do not name one.
pub const SCHEDULER: &str = "default-scheduler";

/// An Event about a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodEvent {
    pub pod: PodKey,
    pub uid: String,
    pub note: EventNote,
}

#[derive(Clone)]
pub struct EventRecorder(Recorder);

impl EventRecorder {
    /// A recorder, and the writer that must run for its Events to appear.
    pub fn new() -> (Self, EventWriter) {
        let (recorder, writer) = Recorder::new(SCHEDULER, "");
        (Self(recorder), writer)
    }

    pub fn record(&self, PodEvent { pod, uid, note }: PodEvent) {
        let involved = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            namespace: Some(pod.namespace),
            name: Some(pod.name),
            uid: Some(uid),
            ..ObjectReference::default()
        };
        self.0.record(involved, note);
    }
}
