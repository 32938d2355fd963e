//! One audit event, and its JSON.

use std::{borrow::Cow, collections::BTreeMap, net::IpAddr, sync::Arc};

use bytes::Bytes;
use jiff::Timestamp;
use mainstay_api::protobuf;
use serde::{
    Deserialize, Serialize, Serializer,
    ser::{SerializeMap, SerializeSeq},
};
use serde_json::Value;
use uuid::Uuid;

use super::policy::{Level, Stage};
use crate::{
    auth::User,
    http::route::{ResourceRoute, Route},
};

/// What a request is known by in the log.
#[derive(Clone, Debug)]
pub enum AuditId {
    Random(Uuid),
    /// Chosen by the client.
    Given(Arc<str>),
}

impl AuditId {
    /// Runs `look` on it as text.
    pub fn with_text<T>(&self, look: impl FnOnce(&str) -> T) -> T {
        match self {
            Self::Random(uuid) => look(uuid.hyphenated().encode_lower(&mut Uuid::encode_buffer())),
            Self::Given(text) => look(text),
        }
    }
}

impl Default for AuditId {
    fn default() -> Self {
        Self::Random(Uuid::nil())
    }
}

impl Serialize for AuditId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.with_text(|text| serializer.serialize_str(text))
    }
}

/// What is the same at all stages of a request. It is made for every request that is logged, so it has what the request has
/// as it came; the thread that writes the log takes it apart.
#[derive(Clone, Debug, Default)]
pub struct RequestRecord {
    pub audit_id: AuditId,
    pub level: Level,
    pub omit_managed_fields: bool,
    /// Path and query.
    pub uri: Box<str>,
    pub verb: Cow<'static, str>,
    pub user: Option<Arc<User>>,
    pub impersonated: Option<Arc<User>>,
    /// The addresses that proxies say the request came by, the client's own first.
    pub forwarded_for: Vec<IpAddr>,
    pub source: Option<IpAddr>,
    pub user_agent: Option<Box<str>>,
    /// Whether the path is that of a resource.
    pub is_resource: bool,
    /// What was sent; at level Metadata only for the name of a new object.
    pub body: Option<Bytes>,
    pub received: Timestamp,
    /// Whether it was allowed, and why.
    pub authorization: Option<(bool, String)>,
    /// What admission plugins say: key and value, each key once.
    pub annotations: Vec<(String, String)>,
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

    /// Appends it as one line.
    pub fn write_line(&self, line: &mut Vec<u8>) {
        let request = &*self.request;
        let resource = request.resource();
        let logs_request = request.level >= Level::Request;
        let sent = request.body.as_deref().filter(|_| logs_request).and_then(object_in);
        let named = request.body.as_deref().and_then(metadata_in).unwrap_or_default();
        let answered = self.response.as_deref().and_then(object_in);
        let mut line = LineWriter(line);
        line.raw(r#"{"kind":"Event","apiVersion":"audit.k8s.io/v1","level":""#);
        line.raw(request.level.name());
        line.raw(r#"","auditID":"#);
        line.value(&request.audit_id);
        line.raw(r#","stage":""#);
        line.raw(self.stage.name());
        line.raw(r#"","requestURI":"#);
        line.value(&request.uri);
        line.raw(r#","verb":"#);
        line.value(&request.verb);
        line.raw(r#","user":"#);
        line.value(&request.user.as_deref().map_or_else(WireUser::default, WireUser::new));
        line.field(r#","impersonatedUser":"#, request.impersonated.as_deref().map(WireUser::new));
        line.field(r#","sourceIPs":"#, Some(Addresses(request)).filter(|sources| !sources.is_empty()));
        line.field(r#","userAgent":"#, request.user_agent.as_ref());
        line.field(r#","objectRef":"#, resource.as_ref().map(|object| WireReference::new(object, &named)));
        line.field(r#","responseStatus":"#, self.code.map(|code| WireStatus::new(code, answered.as_ref())));
        line.field(r#","requestObject":"#, sent.map(|object| request.without_managed_fields(object)));
        let logs_response = request.level >= Level::RequestResponse;
        let answered = answered.filter(|_| logs_response);
        line.field(r#","responseObject":"#, answered.map(|object| request.without_managed_fields(object)));
        line.raw(r#","requestReceivedTimestamp":"#);
        line.value(&Micros(request.received));
        line.raw(r#","stageTimestamp":"#);
        line.value(&Micros(self.at));
        line.field(r#","annotations":"#, Some(Annotations(request)).filter(|annotations| !annotations.is_empty()));
        line.raw("}\n");
    }
}

/// Appends JSON to a line. An event has two dozen fields, of which the names need neither be looked at nor escaped.
struct LineWriter<'a>(&'a mut Vec<u8>);

impl LineWriter<'_> {
    fn raw(&mut self, text: &str) {
        self.0.extend_from_slice(text.as_bytes());
    }

    fn value(&mut self, value: &impl Serialize) {
        serde_json::to_writer(&mut *self.0, value).expect("writing JSON to memory cannot fail");
    }

    /// With its name, if there is a value.
    fn field(&mut self, name: &str, value: Option<impl Serialize>) {
        if let Some(value) = value {
            self.raw(name);
            self.value(&value);
        }
    }
}

impl RequestRecord {
    /// What the path names, if it is that of a resource.
    pub fn resource(&self) -> Option<ResourceRoute<'_>> {
        let path = self.uri.split('?').next().filter(|_| self.is_resource)?;
        // What another server serves may have a path that goes on.
        [Route::parse, Route::parse_prefix].into_iter().find_map(|parse| match parse(path) {
            Some(Route::Resource(route)) => Some(route),
            _ => None,
        })
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

/// The addresses that a request came by.
struct Addresses<'a>(&'a RequestRecord);

impl Addresses<'_> {
    fn is_empty(&self) -> bool {
        self.0.forwarded_for.is_empty() && self.0.source.is_none()
    }
}

impl Serialize for Addresses<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let RequestRecord { forwarded_for, source, .. } = self.0;
        let mut list = serializer.serialize_seq(None)?;
        for address in forwarded_for.iter().chain(source.iter().filter(|own| forwarded_for.last() != Some(own))) {
            list.serialize_element(address)?;
        }
        list.end()
    }
}

/// What is said about a request beside who asked for what.
struct Annotations<'a>(&'a RequestRecord);

impl Annotations<'_> {
    fn is_empty(&self) -> bool {
        self.0.annotations.is_empty() && self.0.authorization.is_none()
    }
}

const DECISION: &str = "authorization.k8s.io/decision";
const REASON: &str = "authorization.k8s.io/reason";

impl Serialize for Annotations<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        if let Some((is_allowed, reason)) = &self.0.authorization {
            map.serialize_entry(DECISION, if *is_allowed { "allow" } else { "forbid" })?;
            map.serialize_entry(REASON, reason)?;
        }
        for (key, value) in &self.0.annotations {
            // No plugin speaks for the authorizer.
            if self.0.authorization.is_none() || ![DECISION, REASON].contains(&key.as_str()) {
                map.serialize_entry(key, value)?;
            }
        }
        map.end()
    }
}

/// A time in microseconds, as Go's `MicroTime`.
struct Micros(Timestamp);

impl Serialize for Micros {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{:.6}", self.0))
    }
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
    fn new(object: &'a ResourceRoute<'a>, sent: &'a NamedMetadata) -> Self {
        let text = |part: &'a Option<Cow<'a, str>>| part.as_deref().unwrap_or_default();
        let or = |own: &'a str, sent: &'a str| if own.is_empty() { sent } else { own };
        Self {
            resource: &object.plural,
            namespace: or(text(&object.namespace), &sent.namespace),
            name: or(text(&object.name), &sent.name),
            uid: &sent.uid,
            api_group: &object.group,
            api_version: &object.version,
            resource_version: &sent.resource_version,
            subresource: text(&object.subresource),
        }
    }
}

/// How a request was answered: of a refusal its `Status`, of all else the code.
#[derive(Serialize)]
struct WireStatus<'a> {
    metadata: NoFields,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<&'a Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<&'a Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    details: Option<&'a Value>,
    code: u16,
}

#[derive(Serialize)]
struct NoFields {}

impl<'a> WireStatus<'a> {
    fn new(code: u16, answered: Option<&'a Value>) -> Self {
        let refusal = answered.filter(|body| code >= 400 && body["kind"] == "Status");
        let field = |name| refusal.and_then(|refusal| refusal.get(name));
        Self {
            metadata: NoFields {},
            status: field("status"),
            message: field("message"),
            reason: field("reason"),
            details: field("details"),
            code,
        }
    }
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn line(request: RequestRecord) -> Value {
        let at = "2026-11-18T01:02:03.0045678Z".parse().unwrap();
        let event =
            Event { request: request.into(), stage: Stage::ResponseComplete, at, code: Some(200), response: None };
        let mut line = Vec::new();
        event.write_line(&mut line);
        assert_eq!(line.iter().filter(|byte| **byte == b'\n').count(), 1);
        serde_json::from_slice(&line).unwrap()
    }

    #[test]
    fn a_line_says_who_did_what_to_which_object() {
        let line = line(RequestRecord {
            uri: "/apis/apps/v1/namespaces/shop/deployments/a%20b/scale?dryRun=All".into(),
            verb: "update".into(),
            user: Some(Arc::new(User::authenticated("ann".to_owned(), vec!["devs".to_owned()]))),
            forwarded_for: vec![[192, 0, 2, 1].into()],
            source: Some([10, 0, 0, 1].into()),
            is_resource: true,
            authorization: Some((true, "because".to_owned())),
            annotations: vec![
                ("authorization.k8s.io/decision".to_owned(), "forbid".to_owned()),
                ("pod-security.kubernetes.io/x".to_owned(), "y".to_owned()),
            ],
            ..Default::default()
        });
        assert_eq!(
            line,
            json!({
                "kind": "Event", "apiVersion": "audit.k8s.io/v1", "level": "None", "stage": "ResponseComplete",
                "auditID": "00000000-0000-0000-0000-000000000000", "verb": "update",
                "requestURI": "/apis/apps/v1/namespaces/shop/deployments/a%20b/scale?dryRun=All",
                "user": { "username": "ann", "groups": ["devs", "system:authenticated"] },
                "sourceIPs": ["192.0.2.1", "10.0.0.1"],
                "objectRef": {
                    "resource": "deployments", "namespace": "shop", "name": "a b", "apiGroup": "apps",
                    "apiVersion": "v1", "subresource": "scale",
                },
                "responseStatus": { "metadata": {}, "code": 200 },
                "requestReceivedTimestamp": "1970-01-01T00:00:00.000000Z",
                "stageTimestamp": "2026-11-18T01:02:03.004567Z",
                "annotations": {
                    "authorization.k8s.io/decision": "allow", "authorization.k8s.io/reason": "because",
                    "pod-security.kubernetes.io/x": "y",
                },
            })
        );
    }

    #[test]
    fn a_path_that_is_no_resource_names_none_and_one_of_another_server_goes_on_behind_it() {
        let resource = |uri: &str, is_resource| {
            let request = RequestRecord { uri: uri.into(), is_resource, ..Default::default() };
            line(request).get("objectRef").map(|object| object["name"].clone())
        };
        assert_eq!(resource("/api/v1/nodes/a", false), None);
        assert_eq!(resource("/api/v1/nodes/a?x=/b", true), Some("a".into()));
        assert_eq!(resource("/apis/g/v1/namespaces/n/things/t/sub/and/more", true), Some("t".into()));
    }
}
