//! One audit event, and its JSON.

use std::sync::Arc;

use bytes::Bytes;
use jiff::Timestamp;
use mainstay_api::protobuf;
use serde_json::{Map, Value, json};

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
        let mut event = Map::new();
        let mut set = |name: &str, value: Value| {
            event.insert(name.to_owned(), value);
        };
        set("kind", json!("Event"));
        set("apiVersion", json!("audit.k8s.io/v1"));
        set("level", json!(request.level.name()));
        set("auditID", json!(&*request.audit_id));
        set("stage", json!(self.stage.name()));
        set("requestURI", json!(request.uri));
        set("verb", json!(request.verb));
        set("user", request.user.as_deref().map_or_else(|| json!({}), user_json));
        if let Some(user) = &request.impersonated {
            set("impersonatedUser", user_json(user));
        }
        if !request.sources.is_empty() {
            set("sourceIPs", json!(request.sources));
        }
        if let Some(agent) = &request.user_agent {
            set("userAgent", json!(agent));
        }
        let sent = request.body.as_ref().and_then(|body| object_in(body));
        if let Some(object) = &request.object {
            set("objectRef", object.to_json(sent.as_ref()));
        }
        let answered = self.response.as_ref().and_then(|body| object_in(body));
        if let Some(code) = self.code {
            set("responseStatus", status_json(code, answered.as_ref()));
        }
        if request.level >= Level::Request
            && let Some(sent) = sent
        {
            set("requestObject", request.without_managed_fields(sent));
        }
        if request.level >= Level::RequestResponse
            && let Some(answered) = answered
        {
            set("responseObject", request.without_managed_fields(answered));
        }
        set("requestReceivedTimestamp", json!(micros(request.received)));
        set("stageTimestamp", json!(micros(self.at)));
        if let Some((allowed, reason)) = &request.authorization {
            let decision = if *allowed { "allow" } else { "forbid" };
            let annotations = json!({"authorization.k8s.io/decision": decision, "authorization.k8s.io/reason": reason});
            set("annotations", annotations);
        }
        let mut line = Value::Object(event).to_string().into_bytes();
        line.push(b'\n');
        line
    }
}

impl RequestRecord {
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

impl ObjectReference {
    /// What the path leaves open, the object says.
    fn to_json(&self, sent: Option<&Value>) -> Value {
        let in_object = |field: &str| sent.and_then(|o| o["metadata"][field].as_str()).unwrap_or_default().to_owned();
        let own = |text: &String, field: &str| if text.is_empty() { in_object(field) } else { text.clone() };
        let fields = [
            ("resource", self.resource.clone()),
            ("namespace", own(&self.namespace, "namespace")),
            ("name", own(&self.name, "name")),
            ("uid", in_object("uid")),
            ("apiGroup", self.group.clone()),
            ("apiVersion", self.version.clone()),
            ("resourceVersion", in_object("resourceVersion")),
            ("subresource", self.subresource.clone()),
        ];
        let fields = fields.into_iter().filter(|(_, text)| !text.is_empty());
        fields.map(|(name, text)| (name.to_owned(), Value::String(text))).collect::<Map<_, _>>().into()
    }
}

fn user_json(user: &User) -> Value {
    let mut fields = Map::new();
    fields.insert("username".to_owned(), json!(user.name));
    if !user.uid.is_empty() {
        fields.insert("uid".to_owned(), json!(user.uid));
    }
    fields.insert("groups".to_owned(), json!(user.groups));
    if !user.extra.is_empty() {
        fields.insert("extra".to_owned(), json!(user.extra));
    }
    Value::Object(fields)
}

fn status_json(code: u16, answered: Option<&Value>) -> Value {
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

/// The object that a body holds, if it can be told.
fn object_in(body: &Bytes) -> Option<Value> {
    if body.starts_with(protobuf::MAGIC) { protobuf::decode(body).ok() } else { serde_json::from_slice(body).ok() }
}

fn micros(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string()
}
