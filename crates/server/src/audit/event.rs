//! One audit event, and its JSON.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use jiff::Timestamp;
use mainstay_api::protobuf;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::policy::{Level, Stage};
use crate::auth::User;

/// What is the same at all stages of a request.
#[derive(Clone, Debug, Default)]
pub struct RequestRecord {
    pub audit_id: Arc<str>,
    pub level: Level,
    pub omit_managed_fields: bool,
    pub uri: String,
    pub verb: String,
    pub user: Option<Arc<User>>,
    pub impersonated: Option<Arc<User>>,
    pub sources: Vec<String>,
    pub user_agent: Option<String>,
    pub object: Option<ObjectReference>,
    /// What was sent; at level Metadata only for the name of a new object.
    pub body: Option<Bytes>,
    pub received: Timestamp,
    /// Whether it was allowed, and why.
    pub authorization: Option<(bool, String)>,
    /// What admission plugins say: key and value, each key once.
    pub annotations: Vec<(String, String)>,
}

#[derive(Clone, Debug, Default)]
pub struct ObjectReference {
    pub group: String,
    pub version: String,
    pub resource: String,
    pub subresource: String,
    pub namespace: String,
    pub name: String,
}

/// One stage of a request.
#[derive(Debug)]
pub struct Event {
    pub request: Arc<RequestRecord>,
    pub stage: Stage,
    pub at: Timestamp,
    pub code: Option<u16>,
    /// The body of the answer: a `Status` if it was refused, else for level RequestResponse.
    pub response: Option<Bytes>,
}

impl Event {
    /// Memory that it takes while it waits.
    pub fn weight(&self) -> usize {
        let body = |bytes: &Option<Bytes>| bytes.as_ref().map_or(0, Bytes::len);
        1024 + body(&self.request.body) + body(&self.response)
    }

    /// As one line.
    pub fn to_line(&self) -> Vec<u8> {
        let request = &*self.request;
        let logs_request = request.level >= Level::Request;
        let sent = request.body.as_deref().filter(|_| logs_request).and_then(object_in);
        let named = request.body.as_deref().and_then(metadata_in).unwrap_or_default();
        let answered = self.response.as_deref().and_then(object_in);
        let event = WireEvent {
            kind: "Event",
            api_version: "audit.k8s.io/v1",
            level: request.level.name(),
            audit_id: &request.audit_id,
            stage: self.stage.name(),
            request_uri: &request.uri,
            verb: &request.verb,
            user: request.user.as_deref().map_or_else(WireUser::default, WireUser::new),
            impersonated_user: request.impersonated.as_deref().map(WireUser::new),
            source_ips: &request.sources,
            user_agent: request.user_agent.as_deref(),
            object_ref: request.object.as_ref().map(|object| WireReference::new(object, &named)),
            response_status: self.code.map(|code| status(code, answered.as_ref())),
            request_object: sent.map(|object| request.without_managed_fields(object)),
            response_object: answered
                .filter(|_| request.level >= Level::RequestResponse)
                .map(|object| request.without_managed_fields(object)),
            request_received_timestamp: micros(request.received),
            stage_timestamp: micros(self.at),
            annotations: request.wire_annotations(),
        };
        let mut line = serde_json::to_vec(&event).unwrap_or_default();
        line.push(b'\n');
        line
    }
}

impl RequestRecord {
    fn wire_annotations(&self) -> BTreeMap<&str, &str> {
        let mut annotations: BTreeMap<&str, &str> =
            self.annotations.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        if let Some((is_allowed, reason)) = &self.authorization {
            annotations.insert("authorization.k8s.io/decision", if *is_allowed { "allow" } else { "forbid" });
            annotations.insert("authorization.k8s.io/reason", reason);
        }
        annotations
    }

    fn without_managed_fields(&self, mut object: Value) -> Value {
        if self.omit_managed_fields {
            let strip = |object: &mut Value| {
                object.get_mut("metadata").and_then(Value::as_object_mut).map(|meta| meta.remove("managedFields"))
            };
            strip(&mut object);
            object.get_mut("items").and_then(Value::as_array_mut).into_iter().flatten().for_each(|item| {
                strip(item);
            });
        }
        object
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct WireEvent<'a> {
    kind: &'a str,
    api_version: &'a str,
    level: &'a str,
    #[serde(rename = "auditID")]
    audit_id: &'a str,
    stage: &'a str,
    #[serde(rename = "requestURI")]
    request_uri: &'a str,
    verb: &'a str,
    user: WireUser<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    impersonated_user: Option<WireUser<'a>>,
    #[serde(rename = "sourceIPs", skip_serializing_if = "<[_]>::is_empty")]
    source_ips: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    user_agent: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    object_ref: Option<WireReference<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    response_status: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    request_object: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    response_object: Option<Value>,
    request_received_timestamp: String,
    stage_timestamp: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    annotations: BTreeMap<&'a str, &'a str>,
}

/// Without fields for those who have not logged in.
#[derive(Default, Serialize)]
struct WireUser<'a> {
    #[serde(skip_serializing_if = "str::is_empty")]
    username: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    uid: &'a str,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    groups: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    extra: Option<&'a BTreeMap<String, Vec<String>>>,
}

impl<'a> WireUser<'a> {
    fn new(user: &'a User) -> Self {
        let extra = Some(&user.extra).filter(|extra| !extra.is_empty());
        Self { username: &user.name, uid: &user.uid, groups: &user.groups, extra }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct WireReference<'a> {
    resource: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    namespace: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    name: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    uid: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    api_group: &'a str,
    api_version: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    resource_version: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    subresource: &'a str,
}

impl<'a> WireReference<'a> {
    /// What the path leaves open, the object says that was sent.
    fn new(object: &'a ObjectReference, sent: &'a NamedMetadata) -> Self {
        let or = |own: &'a str, sent: &'a str| if own.is_empty() { sent } else { own };
        Self {
            resource: &object.resource,
            namespace: or(&object.namespace, &sent.namespace),
            name: or(&object.name, &sent.name),
            uid: &sent.uid,
            api_group: &object.group,
            api_version: &object.version,
            resource_version: &sent.resource_version,
            subresource: &object.subresource,
        }
    }
}

fn status(code: u16, answered: Option<&Value>) -> Value {
    let mut status = json!({ "metadata": {}, "code": code });
    if let Some(refusal) = answered.filter(|body| code >= 400 && body["kind"] == "Status") {
        for field in ["status", "message", "reason", "details"] {
            if let Some(value) = refusal.get(field) {
                status[field] = value.clone();
            }
        }
    }
    status
}

/// What a new object is called.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct NamedMetadata {
    name: String,
    namespace: String,
    uid: String,
    resource_version: String,
}

#[derive(Deserialize)]
struct NamedObject {
    metadata: NamedMetadata,
}

fn metadata_in(body: &[u8]) -> Option<NamedMetadata> {
    let named = if body.starts_with(protobuf::MAGIC) {
        NamedObject::deserialize(protobuf::decode(body).ok()?).ok()
    } else {
        serde_json::from_slice::<NamedObject>(body).ok()
    };
    named.map(|named| named.metadata)
}

/// The object that a body holds, if it can be told.
fn object_in(body: &[u8]) -> Option<Value> {
    if body.starts_with(protobuf::MAGIC) { protobuf::decode(body).ok() } else { serde_json::from_slice(body).ok() }
}

fn micros(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string()
}
