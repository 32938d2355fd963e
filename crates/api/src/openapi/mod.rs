//! The OpenAPI documents: what `kubectl explain`, client-side validation and code generators read.
//!
//! Structure comes from the schema table, paths and verbs from the registry, and the descriptions
//! from k8s-openapi, whose types carry them as code. Nothing is kept: a document is some megabytes
//! of text that a client wants once in its life, so each is written out piece by piece when asked
//! for, and holding on to the result is for the caller to decide.

mod custom;
mod definitions;
mod describe;
mod paths;
mod protobuf;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
};

use serde_json::{Map, Value, json};

use self::definitions::Definitions;
use crate::{
    registry::Registry,
    schema::{self, Schema},
};

const TITLE: &str = "Kubernetes";
const VERSION: &str = "v1.37.0";

/// How clients ask for `/openapi/v2` as protobuf.
pub const V2_PROTOBUF_ACCEPT: &str = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";

/// How the answer is labelled: the name asked for is not a valid media type, and clients refuse it.
pub const V2_PROTOBUF_CONTENT_TYPE: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";

/// The two generations of the format differ in small ways all over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dialect {
    V2,
    V3,
}

impl Dialect {
    fn reference(self, definition: &str) -> Value {
        match self {
            Self::V2 => json!({"$ref": format!("#/definitions/{definition}")}),
            Self::V3 => json!({"$ref": format!("#/components/schemas/{definition}")}),
        }
    }

    /// A reference with a description beside it: in v3 a reference stands alone, since its neighbours would be ignored.
    fn described_reference(self, definition: &str, description: &str) -> Value {
        match self {
            Self::V2 => {
                let mut reference = self.reference(definition);
                reference["description"] = json!(description);
                reference
            }
            Self::V3 => json!({"allOf": [self.reference(definition)], "description": description}),
        }
    }
}

/// What another API server adds to `/openapi/v2`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ExtraDefinitions {
    pub paths: BTreeMap<String, Value>,
    pub definitions: BTreeMap<String, Value>,
}

/// Visits what others add, each name once; what we have ourselves goes first.
fn visit_extra<'e>(
    extra: &'e [Arc<ExtraDefinitions>],
    members: impl Fn(&'e ExtraDefinitions) -> &'e BTreeMap<String, Value>,
    mut written: HashSet<String>,
    mut visit: impl FnMut(&str, &Value),
) {
    for (name, value) in extra.iter().flat_map(|extra| members(extra)) {
        if written.insert(name.clone()) {
            visit(name, value);
        }
    }
}

/// `/openapi/v2` as JSON.
pub fn v2_json(registry: &Registry, extra: &[Arc<ExtraDefinitions>]) -> Vec<u8> {
    let mut out = Json::open();
    out.member("swagger", &json!("2.0"));
    out.member("info", &json!({"title": TITLE, "version": VERSION}));
    out.object("paths");
    visit_v2_paths(registry, extra, |path, item| out.member(path, item));
    out.close();
    out.object("definitions");
    visit_v2_definitions(registry, extra, |name, definition| out.member(name, definition));
    out.close();
    out.finish()
}

/// `/openapi/v2` as the protobuf message that kubectl asks for.
pub fn v2_protobuf(registry: &Registry, extra: &[Arc<ExtraDefinitions>]) -> Vec<u8> {
    let mut out = protobuf::Document::new(TITLE, VERSION);
    visit_v2_paths(registry, extra, |path, item| out.path(path, item));
    visit_v2_definitions(registry, extra, |name, definition| out.definition(name, definition));
    out.finish()
}

fn visit_v2_paths(registry: &Registry, extra: &[Arc<ExtraDefinitions>], mut write: impl FnMut(&str, &Value)) {
    let mut written = HashSet::new();
    paths::visit(
        registry,
        |_| true,
        Dialect::V2,
        |path, item| {
            write(path, &item);
            written.insert(path.to_owned());
        },
    );
    visit_extra(extra, |extra| &extra.paths, written, write);
}

fn visit_v2_definitions(registry: &Registry, extra: &[Arc<ExtraDefinitions>], mut write: impl FnMut(&str, &Value)) {
    let mut written = HashSet::new();
    Definitions::of_all_groups(registry, Schema::builtin()).visit(Dialect::V2, |name, definition| {
        write(name, &definition);
        written.insert(name.to_owned());
    });
    visit_extra(extra, |extra| &extra.definitions, written, write);
}

/// `/openapi/v3`: where the document of each group and version is. The hash in each address
/// changes with the document, so that clients may keep it for good.
pub fn v3_index(registry: &Registry) -> Value {
    let mut base = Fnv::new();
    base.add(VERSION);
    base.add(schema::TABLE);
    let mut seen = HashSet::new();
    let mut paths = Map::new();
    let served = registry.iter().map(|d| (&*d.group, &*d.version));
    for (group, version) in served {
        if seen.insert((group, version)) {
            let path = base_path(group, version);
            let url = format!("/openapi/v3{path}?hash={:016X}", v3_hash(base, registry, group, version));
            paths.insert(path[1..].to_owned(), json!({"serverRelativeURL": url}));
        }
    }
    json!({"paths": paths})
}

/// `/openapi/v3/apis/<group>/<version>` as JSON; `None` if nothing of the kind is served.
pub fn v3(registry: &Registry, group: &str, version: &str) -> Option<Vec<u8>> {
    if !registry.has_group_version(group, version) {
        return None;
    }
    let mut out = Json::open();
    out.member("openapi", &json!("3.0.0"));
    out.member("info", &json!({"title": TITLE, "version": VERSION}));
    out.object("paths");
    let within = |gv: (&str, &str)| gv == (group, version);
    paths::visit(registry, within, Dialect::V3, |path, item| out.member(path, &item));
    out.close();
    out.object("components");
    out.object("schemas");
    let definitions = Definitions::of_group_version(registry, Schema::builtin(), group, version);
    definitions.visit(Dialect::V3, |name, definition| out.member(name, &definition));
    out.close();
    out.close();
    Some(out.finish())
}

/// `/api/v1`, `/apis/apps/v1`.
fn base_path(group: &str, version: &str) -> String {
    if group.is_empty() { format!("/api/{version}") } else { format!("/apis/{group}/{version}") }
}

/// A hash of everything that a document is made from, on top of what all share.
fn v3_hash(mut hash: Fnv, registry: &Registry, group: &str, version: &str) -> u64 {
    hash.add(group);
    hash.add(version);
    for d in registry.iter().filter(|d| d.group == group && d.version == version) {
        for text in [&d.kind, &d.list_kind, &d.plural, &d.schema] {
            hash.add(text);
        }
        hash.add(&format!("{:?}{:?}{}", d.scope, d.status, d.scale.is_some()));
        hash.add(d.custom.as_ref().map_or("", |custom| &custom.revision));
    }
    hash.0
}

/// FNV-1a.
#[derive(Clone, Copy)]
struct Fnv(u64);

impl Fnv {
    fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    fn add(&mut self, text: &str) {
        for byte in text.bytes().chain([0]) {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
}

/// A JSON object written member by member, so that the whole never exists as a tree.
struct Json {
    text: Vec<u8>,
}

impl Json {
    fn open() -> Self {
        Self { text: vec![b'{'] }
    }

    fn name(&mut self, name: &str) {
        if self.text.last() != Some(&b'{') {
            self.text.push(b',');
        }
        self.value(&Value::from(name));
        self.text.push(b':');
    }

    fn value(&mut self, value: &Value) {
        // Neither writing to memory nor a value with string keys can fail.
        serde_json::to_writer(&mut self.text, value).unwrap_or_default();
    }

    fn member(&mut self, name: &str, value: &Value) {
        self.name(name);
        self.value(value);
    }

    fn object(&mut self, name: &str) {
        self.name(name);
        self.text.push(b'{');
    }

    fn close(&mut self) {
        self.text.push(b'}');
    }

    fn finish(mut self) -> Vec<u8> {
        self.close();
        self.text
    }
}
