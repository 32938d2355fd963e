//! Events about the objects that controllers reconcile; see [`mainstay_events`] for how they are correlated and written.

use k8s_openapi::api::core::v1::ObjectReference;
use mainstay_events::{EventNote, EventWriter, Recorder};

/// Something events can be about, and the component that records them.
pub trait EventSubject {
    fn involved_object(&self) -> ObjectReference;
    fn component(&self) -> &'static str;
}

#[derive(Clone)]
pub struct EventRecorder(Recorder);

impl EventRecorder {
    pub fn new() -> (Self, EventWriter) {
        let (recorder, writer) = Recorder::new("controllermanager", "");
        (Self(recorder), writer)
    }

    pub fn normal(&self, subject: &impl EventSubject, reason: &'static str, message: impl Into<String>) {
        self.record(subject, EventNote::normal(reason, message));
    }

    pub fn warning(&self, subject: &impl EventSubject, reason: &'static str, message: impl Into<String>) {
        self.record(subject, EventNote::warning(reason, message));
    }

    pub fn record(&self, subject: &impl EventSubject, note: EventNote) {
        self.record_as(subject.component(), subject.involved_object(), note);
    }

    pub fn record_as(&self, component: &'static str, involved: ObjectReference, note: EventNote) {
        self.0.for_component(component).record(involved, note);
    }
}
