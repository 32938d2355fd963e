//! The targets. Each is a function of bytes that panics if something does not hold.
//!
//! * [`bodies`]: JSON and YAML documents, quantities; [`patches`]; [`selectors`]; [`apply`]: server-side apply
//! * [`schemas`]: definitions of custom kinds and their objects; [`expressions`]: CEL
//! * [`protobuf`]: bodies of Go clients and what upstream stored; [`credentials`]: tokens, requests for certificates
//! * [`streams`]: SPDY; [`dns`]: queries, and answers of upstream servers
//! * [`requests`]: whole requests to an API in this process

mod apply;
mod bodies;
mod credentials;
mod dns;
mod expressions;
mod patches;
mod protobuf;
mod requests;
mod schemas;
mod selectors;
mod streams;

use mainstay_api::{registry::Registry, schema::Schema};
use serde_json::Value;

pub struct Target {
    /// Also the name of its corpus.
    pub name: &'static str,
    pub run: fn(&[u8]),
    /// Words of its language, for mutations.
    pub words: &'static [&'static str],
}

const fn target(name: &'static str, run: fn(&[u8]), words: &'static [&'static str]) -> Target {
    Target { name, run, words }
}

pub const TARGETS: &[Target] = &[
    target("json_body", bodies::json, bodies::WORDS),
    target("yaml_body", bodies::yaml, &["&a ", "*a", "<<: ", "---\n", "? ", "!!binary ", "|\n", "- ", ": ", "~", "#"]),
    target("quantity", bodies::quantity, &["Ki", "Ei", "m", "n", "e3", "E", ".", "-", "+"]),
    target(
        "json_patch",
        patches::json,
        &["add", "copy", "move", "test", "replace", "/-", "/spec", "~0", "~1", "from", "path"],
    ),
    target("merge_patch", patches::merge, bodies::WORDS),
    target(
        "strategic_patch",
        patches::strategic,
        &[
            "$patch",
            "delete",
            "replace",
            "merge",
            "$retainKeys",
            "$setElementOrder/containers",
            "$deleteFromPrimitiveList/finalizers",
        ],
    ),
    target(
        "label_selector",
        selectors::labels,
        &[" in ", " notin (", "!", "=", "==", "!=", ",", "(", ")", ">", "<", "exists"],
    ),
    target("field_selector", selectors::fields, &["metadata.name", "=", "!=", ",", "\\,", "spec.nodeName"]),
    target(
        "apply",
        apply::sequence,
        &["f:spec", "k:{\"name\":\"c\"}", "v:\"x\"", "i:0", ".", "FieldsV1", "Apply", "Update"],
    ),
    target(
        "managed_fields",
        apply::managed_fields,
        &["f:spec", "k:{\"name\":\"c\"}", "v:1", "i:0", ".", "FieldsV1", "Apply"],
    ),
    target("crd_schema", schemas::definition, schemas::WORDS),
    target(
        "json_path",
        schemas::json_path,
        &[".spec", "[0]", "[?(@.type==\"Ready\")]", "[*]", "..", "{", "}", "['a']", "\\."],
    ),
    target(
        "pattern",
        schemas::pattern,
        &["(?i)", "\\p{L}", "{1000}", "(?:", "[[:alpha:]]", "\\C", "\\Q", "^", "$", "*", "+?"],
    ),
    target("cel", expressions::cel, expressions::WORDS),
    target("protobuf_body", protobuf::body, &["k8s\0", "v1", "Pod"]),
    target(
        "protobuf_stored",
        protobuf::stored,
        &["k8s\0", "k8s:enc:secretbox:v1:", "k8s:enc:aesgcm:v1:key1:", "v1", "Secret"],
    ),
    target("continue_token", requests::continue_token, &["meta.k8s.io/v1", "rv", "start", "..", "\\u0000", "/"]),
    target(
        "query_string",
        requests::query_string,
        &["&", "=", "%", "limit=", "watch=1", "fieldSelector=", "resourceVersion=", "timeoutSeconds="],
    ),
    target(
        "path",
        requests::path,
        &["/apis/", "/api/v1/", "..", "%2f", "%2e%2e", "//", "namespaces/", "/status", "/proxy/", "%00"],
    ),
    target("jwt", credentials::jwt, &["none", "ES256", "HS256", "RS256", "kid", "exp", "aud", "system:masters"]),
    target("client_certificate", credentials::client_certificate, &[]),
    target(
        "certificate_request",
        credentials::certificate_request,
        &["-----BEGIN CERTIFICATE REQUEST-----", "system:masters", "system:node:"],
    ),
    target("spdy_frames", streams::frames, &[]),
    target("spdy_connection", streams::connection, &[]),
    target("dns_query", dns::query, &[]),
    target("dns_upstream_answer", dns::upstream_answer, &[]),
    target("requests", requests::requests, requests::WORDS),
];

/// The documents of an input that is a JSON object with these members; what is not there is null.
fn documents<const N: usize>(input: &[u8], names: [&str; N]) -> Option<[Value; N]> {
    let Ok(Value::Object(mut fields)) = mainstay_api::decode::json(input).map(|decoded| decoded.value) else {
        return None;
    };
    Some(names.map(|name| fields.remove(name).unwrap_or_default()))
}

/// The object as the server would have it after decoding, if it is of a built-in kind.
fn conform(registry: &Registry, object: &mut Value) -> Option<std::sync::Arc<mainstay_api::descriptor::Descriptor>> {
    let version = object["apiVersion"].as_str()?;
    let (group, version) = version.split_once('/').unwrap_or(("", version));
    let d = registry.find_kind(group, version, object["kind"].as_str()?)?.clone();
    Schema::builtin().conform(&d.schema, object).ok()?;
    Some(d)
}
