//! Where components record events.

use std::{borrow::Cow, sync::Arc};

use k8s_openapi::api::core::v1::ObjectReference;
use tokio::sync::mpsc::{self, UnboundedSender};

use crate::writer::EventWriter;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventType {
    Normal,
    Warning,
}

impl EventType {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

/// Who reports: the component as upstream names it (`deployment-controller`, `kubelet`), and the instance of it, which
/// is the node for what runs on nodes and empty for what runs once.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct EventSource {
    pub component: Cow<'static, str>,
    pub instance: Arc<str>,
}

/// What an event says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventNote {
    pub event_type: EventType,
    /// A CamelCase word for machines.
    pub reason: Cow<'static, str>,
    /// A sentence for people.
    pub message: String,
}

impl EventNote {
    pub fn normal(reason: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        Self { event_type: EventType::Normal, reason: reason.into(), message: message.into() }
    }

    pub fn warning(reason: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        Self { event_type: EventType::Warning, ..Self::normal(reason, message) }
    }
}

/// One recorded event, before it is correlated with others.
#[derive(Clone, Debug)]
pub struct Occurrence {
    pub source: EventSource,
    /// The object it is about; `field_path` names a part of it, such as a container.
    pub involved: ObjectReference,
    pub note: EventNote,
}

/// Records events of one component. Cheap to clone; all clones share a writer.
#[derive(Clone)]
pub struct Recorder {
    source: EventSource,
    occurrences: UnboundedSender<Occurrence>,
}

impl Recorder {
    /// A recorder for a component, and the writer that must run for its events to appear.
    pub fn new(component: impl Into<Cow<'static, str>>, instance: impl Into<Arc<str>>) -> (Self, EventWriter) {
        let (occurrences, recorded) = mpsc::unbounded_channel();
        let source = EventSource { component: component.into(), instance: instance.into() };
        (Self { source, occurrences }, EventWriter::new(recorded))
    }

    /// Another component of the same process, with the same writer.
    pub fn for_component(&self, component: impl Into<Cow<'static, str>>) -> Self {
        let source = EventSource { component: component.into(), instance: self.source.instance.clone() };
        Self { source, occurrences: self.occurrences.clone() }
    }

    /// Records an event about an object. After the writer ended it is dropped.
    pub fn record(&self, involved: ObjectReference, note: EventNote) {
        let _ = self.occurrences.send(Occurrence { source: self.source.clone(), involved, note });
    }
}
