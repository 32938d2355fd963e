//! Events that the server writes itself, in the transaction of the change that they report.

use std::sync::Arc;

use bytes::Bytes;
use jiff::Timestamp;
use mainstay_api::descriptor::Descriptor;
use mainstay_store::Op;
use serde::Serialize;
use uuid::Uuid;

use crate::objects::keys;

/// Who scheduling's events are said to come from, as upstream's are.
pub const SCHEDULER: &str = "default-scheduler";

/// An Event about a pod.
#[derive(Clone, Copy, Debug)]
pub struct PodEvent<'a> {
    pub namespace: &'a str,
    pub pod: &'a str,
    pub uid: &'a str,
    pub kind: &'static str,
    pub reason: &'a str,
    pub message: &'a str,
    pub component: &'a str,
}

/// In the order in which objects are stored: kind, apiVersion and metadata first.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Event<'a> {
    kind: &'static str,
    api_version: &'static str,
    metadata: Metadata<'a>,
    count: u32,
    #[serde(rename = "eventTime")]
    event_time: (),
    first_timestamp: &'a str,
    involved_object: Involved<'a>,
    last_timestamp: &'a str,
    message: &'a str,
    reason: &'a str,
    reporting_component: &'a str,
    reporting_instance: &'a str,
    source: Source<'a>,
    #[serde(rename = "type")]
    kind_of: &'a str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Metadata<'a> {
    creation_timestamp: &'a str,
    name: &'a str,
    namespace: &'a str,
    uid: Uuid,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Involved<'a> {
    api_version: &'static str,
    kind: &'static str,
    name: &'a str,
    namespace: &'a str,
    uid: &'a str,
}

#[derive(Serialize)]
struct Source<'a> {
    component: &'a str,
}

/// The write of an event. `now` and its text are one and the same moment.
pub fn put_event(events: &Descriptor, about: &PodEvent<'_>, now: Timestamp, text: &str) -> Op {
    let name = format!("{}.{:x}", about.pod, now.as_nanosecond());
    let event = Event {
        kind: "Event",
        api_version: "v1",
        metadata: Metadata { creation_timestamp: text, name: &name, namespace: about.namespace, uid: Uuid::new_v4() },
        count: 1,
        event_time: (),
        first_timestamp: text,
        involved_object: Involved {
            api_version: "v1",
            kind: "Pod",
            name: about.pod,
            namespace: about.namespace,
            uid: about.uid,
        },
        last_timestamp: text,
        message: about.message,
        reason: about.reason,
        reporting_component: about.component,
        reporting_instance: about.component,
        source: Source { component: about.component },
        kind_of: about.kind,
    };
    let key: Arc<str> = keys::key(events, Some(about.namespace), &name);
    Op::Put { key, value: Bytes::from(serde_json::to_vec(&event).unwrap_or_default()) }
}
