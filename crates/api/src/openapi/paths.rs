//! The paths of a document: which verbs each resource takes, and with which parameters.
//!
//! kubectl reads more than types here: it offers `--dry-run=server` and server-side field
//! validation only for kinds whose PATCH lists the parameters `dryRun` and `fieldValidation`. Clients believe what
//! stands here, so a verb, parameter or content type that the server does not serve must not.

use std::borrow::Cow;

use serde_json::{Map, Value, json};

use super::{
    Dialect, base_path, custom,
    definitions::{DELETE_OPTIONS, PATCH, SCALE, STATUS},
};
use crate::{
    descriptor::{Descriptor, StatusRule},
    registry::Registry,
    schema::Schema,
};

/// Every path of the chosen groups and versions, with its operations.
pub fn visit(
    registry: &Registry,
    within: impl Fn((&str, &str)) -> bool,
    dialect: Dialect,
    mut visitor: impl FnMut(&str, Value),
) {
    for descriptor in registry.iter().filter(|d| within((&d.group, &d.version))) {
        let resource = Resource { descriptor, dialect };
        let base = base_path(&descriptor.group, &descriptor.version);
        let everywhere = format!("{base}/{}", descriptor.plural);
        let collection = if descriptor.namespaced() {
            if !descriptor.is_review {
                visitor(&everywhere, resource.item(false, false, &[("get", Verb::ListAll)]));
            }
            format!("{base}/namespaces/{{namespace}}/{}", descriptor.plural)
        } else {
            everywhere
        };
        let namespaced = descriptor.namespaced();
        if descriptor.is_review {
            visitor(&collection, resource.item(namespaced, false, &[("post", Verb::Create)]));
            continue;
        }
        let verbs = [("get", Verb::List), ("post", Verb::Create), ("delete", Verb::DeleteCollection)];
        let verbs = if descriptor.delete_collection { &verbs[..] } else { &verbs[..2] };
        visitor(&collection, resource.item(namespaced, false, verbs));
        let verbs = [("get", Verb::Get), ("put", Verb::Update), ("patch", Verb::Patch), ("delete", Verb::Delete)];
        let object = format!("{collection}/{{name}}");
        visitor(&object, resource.item(namespaced, true, &verbs));
        if descriptor.status != StatusRule::Absent {
            visitor(&format!("{object}/status"), resource.part(Part::Status));
        }
        if descriptor.scale.is_some() {
            visitor(&format!("{object}/scale"), resource.part(Part::Scale));
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Verb {
    ListAll,
    List,
    Create,
    DeleteCollection,
    Get,
    Update,
    Patch,
    Delete,
}

impl Verb {
    /// `x-kubernetes-action`.
    fn action(self) -> &'static str {
        match self {
            Self::ListAll | Self::List => "list",
            Self::Create => "post",
            Self::DeleteCollection => "deletecollection",
            Self::Get => "get",
            Self::Update => "put",
            Self::Patch => "patch",
            Self::Delete => "delete",
        }
    }

    fn parameters(self) -> &'static [&'static [Parameter]] {
        match self {
            Self::ListAll | Self::List => &[LIST],
            Self::Create | Self::Update => &[WRITE],
            Self::Patch => &[WRITE, FORCE],
            Self::DeleteCollection => &[LIST, DELETE],
            Self::Get => &[],
            Self::Delete => &[DELETE],
        }
    }
}

/// A part of an object with a path of its own.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Whole,
    Status,
    Scale,
}

/// Name, type, and what it is for.
type Parameter = (&'static str, &'static str, &'static str);

const LIST: &[Parameter] = &[
    ("allowWatchBookmarks", "boolean", "Ask for bookmark events in a watch."),
    ("continue", "string", "Where the previous page of the list ended."),
    ("fieldSelector", "string", "Restrict the list to objects whose fields match."),
    ("labelSelector", "string", "Restrict the list to objects whose labels match."),
    ("limit", "integer", "How many objects to return at most."),
    ("resourceVersion", "string", "The version that the answer must not be older than."),
    ("resourceVersionMatch", "string", "How resourceVersion is applied: Exact or NotOlderThan."),
    ("sendInitialEvents", "boolean", "Begin a watch with the objects that exist."),
    ("timeoutSeconds", "integer", "How long the call may take."),
    ("watch", "boolean", "Follow changes instead of listing."),
];

const WRITE: &[Parameter] = &[
    ("dryRun", "string", "All: go through every stage but do not persist the change."),
    ("fieldManager", "string", "The name of whoever makes the change."),
    ("fieldValidation", "string", "What to do about unknown and duplicate fields: Ignore, Warn or Strict."),
];

const FORCE: &[Parameter] = &[("force", "boolean", "Server-side apply alone: take fields that other managers own.")];

const DELETE: &[Parameter] = &[
    ("dryRun", "string", "All: go through every stage but do not persist the change."),
    ("gracePeriodSeconds", "integer", "How long the object has to stop before it is deleted."),
    ("orphanDependents", "boolean", "Deprecated: use propagationPolicy."),
    ("propagationPolicy", "string", "What happens to dependents: Orphan, Background or Foreground."),
];

const PATCH_TYPES: [&str; 4] = [
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
];

struct Resource<'a> {
    descriptor: &'a Descriptor,
    dialect: Dialect,
}

impl Resource<'_> {
    fn part(&self, part: Part) -> Value {
        let mut item = self.shared_parameters(self.descriptor.namespaced(), true);
        for (method, verb) in [("get", Verb::Get), ("put", Verb::Update), ("patch", Verb::Patch)] {
            item.insert(method.to_owned(), self.operation(verb, part));
        }
        Value::Object(item)
    }

    fn item(&self, namespace: bool, name: bool, verbs: &[(&str, Verb)]) -> Value {
        let mut item = self.shared_parameters(namespace, name);
        for (method, verb) in verbs {
            item.insert((*method).to_owned(), self.operation(*verb, Part::Whole));
        }
        Value::Object(item)
    }

    fn shared_parameters(&self, namespace: bool, name: bool) -> Map<String, Value> {
        let mut parameters = Vec::new();
        let mut in_path = |name: &str, description: String| {
            let mut parameter = json!({"name": name, "in": "path", "required": true, "description": description});
            self.typed(&mut parameter, "string");
            parameters.push(parameter);
        };
        if name {
            in_path("name", format!("name of the {}", self.descriptor.kind));
        }
        if namespace {
            in_path("namespace", "object name and auth scope, such as for teams and projects".to_owned());
        }
        match parameters.is_empty() {
            true => Map::new(),
            false => Map::from_iter([("parameters".to_owned(), Value::Array(parameters))]),
        }
    }

    fn in_query(&self, (name, kind, description): &Parameter) -> Value {
        let mut parameter = json!({"name": name, "in": "query", "description": description});
        self.typed(&mut parameter, kind);
        parameter
    }

    fn typed(&self, parameter: &mut Value, kind: &str) {
        match self.dialect {
            Dialect::V2 => {
                parameter["type"] = json!(kind);
                parameter["uniqueItems"] = json!(true);
            }
            Dialect::V3 => parameter["schema"] = json!({"type": kind, "uniqueItems": true}),
        }
    }

    fn operation(&self, verb: Verb, part: Part) -> Value {
        let d = self.descriptor;
        let kind = match part {
            Part::Scale => json!({"group": "autoscaling", "version": "v1", "kind": "Scale"}),
            Part::Whole | Part::Status => json!({"group": d.group, "version": d.version, "kind": d.kind}),
        };
        let mut parameters: Vec<Value> =
            verb.parameters().iter().flat_map(|group| group.iter()).map(|p| self.in_query(p)).collect();
        let mut operation = Map::from_iter([
            ("description".to_owned(), json!(self.description(verb, part))),
            ("operationId".to_owned(), json!(self.operation_id(verb, part))),
            ("tags".to_owned(), json!([format!("{}_{}", self.group_words(false), d.version)])),
            ("x-kubernetes-action".to_owned(), json!(verb.action())),
            ("x-kubernetes-group-version-kind".to_owned(), kind),
        ]);
        let body = self.body(verb, part);
        let consumes: &[&str] = match verb {
            // Strategic merge needs what only the types of built-in kinds say.
            Verb::Patch if d.custom.is_some() => &PATCH_TYPES[..2],
            Verb::Patch => &PATCH_TYPES,
            _ => &["*/*"],
        };
        match self.dialect {
            Dialect::V2 => {
                if let Some(schema) = body {
                    let required = !matches!(verb, Verb::Delete | Verb::DeleteCollection);
                    let mut body = json!({"name": "body", "in": "body", "schema": schema});
                    if required {
                        body["required"] = json!(true);
                    }
                    parameters.insert(0, body);
                }
                operation.insert("consumes".to_owned(), json!(consumes));
                operation.insert("produces".to_owned(), json!(self.produces(verb)));
                operation.insert("schemes".to_owned(), json!(["https"]));
            }
            Dialect::V3 => {
                if let Some(schema) = body {
                    let content = consumes.iter().map(|kind| ((*kind).to_owned(), json!({"schema": schema})));
                    let content: Map<_, _> = content.collect();
                    operation.insert("requestBody".to_owned(), json!({"content": content}));
                }
            }
        }
        if !parameters.is_empty() {
            operation.insert("parameters".to_owned(), Value::Array(parameters));
        }
        operation.insert("responses".to_owned(), self.responses(verb, part));
        Value::Object(operation)
    }

    fn produces(&self, verb: Verb) -> &'static [&'static str] {
        match verb {
            Verb::List | Verb::ListAll => &["application/json", "application/yaml", "application/json;stream=watch"],
            _ => &["application/json", "application/yaml"],
        }
    }

    fn body(&self, verb: Verb, part: Part) -> Option<Value> {
        match verb {
            Verb::ListAll | Verb::List | Verb::Get => None,
            Verb::Create | Verb::Update => Some(self.own_schema(part)),
            Verb::Patch => Some(self.dialect.reference(PATCH)),
            Verb::Delete | Verb::DeleteCollection => Some(self.dialect.reference(DELETE_OPTIONS)),
        }
    }

    fn own_schema(&self, part: Part) -> Value {
        self.dialect.reference(if part == Part::Scale { SCALE } else { &self.descriptor.schema })
    }

    fn responses(&self, verb: Verb, part: Part) -> Value {
        let d = self.descriptor;
        let list = match &d.custom {
            Some(_) => Some(custom::list_name(d).into()),
            None => Schema::builtin().of_kind(&d.group, &d.version, &d.list_kind).map(|list| Cow::Borrowed(list.name)),
        };
        let schema = match verb {
            Verb::List | Verb::ListAll => list.map(|list| self.dialect.reference(&list)),
            Verb::Delete | Verb::DeleteCollection => Some(self.dialect.reference(STATUS)),
            Verb::Create | Verb::Get | Verb::Update | Verb::Patch => Some(self.own_schema(part)),
        };
        let ok = |description: &str| {
            let mut response = json!({"description": description});
            match (&schema, self.dialect) {
                (Some(schema), Dialect::V2) => response["schema"] = schema.clone(),
                (Some(schema), Dialect::V3) => {
                    let content =
                        self.produces(verb).iter().map(|kind| ((*kind).to_owned(), json!({"schema": schema})));
                    response["content"] = Value::Object(content.collect());
                }
                (None, _) => {}
            }
            response
        };
        let mut responses = Map::from_iter([("200".to_owned(), ok("OK"))]);
        match verb {
            Verb::Create => {
                responses.insert("201".to_owned(), ok("Created"));
                responses.insert("202".to_owned(), ok("Accepted"));
            }
            Verb::Update | Verb::Patch => {
                responses.insert("201".to_owned(), ok("Created"));
            }
            Verb::Delete => {
                responses.insert("202".to_owned(), ok("Accepted"));
            }
            Verb::ListAll | Verb::List | Verb::DeleteCollection | Verb::Get => {}
        }
        responses.insert("401".to_owned(), json!({"description": "Unauthorized"}));
        Value::Object(responses)
    }

    fn description(&self, verb: Verb, part: Part) -> String {
        let kind = &self.descriptor.kind;
        let part = match part {
            Part::Whole => "",
            Part::Status => "status of the ",
            Part::Scale => "scale of the ",
        };
        match verb {
            Verb::ListAll | Verb::List => format!("list or watch objects of kind {kind}"),
            Verb::Create => format!("create a {kind}"),
            Verb::DeleteCollection => format!("delete collection of {kind}"),
            Verb::Get => format!("read {part}specified {kind}"),
            Verb::Update => format!("replace {part}specified {kind}"),
            Verb::Patch => format!("partially update {part}specified {kind}"),
            Verb::Delete => format!("delete a {kind}"),
        }
    }

    /// `createAppsV1NamespacedDeployment`: the names that generated clients give their methods.
    fn operation_id(&self, verb: Verb, part: Part) -> String {
        let d = self.descriptor;
        let verb_word = match verb {
            Verb::ListAll | Verb::List => "list",
            Verb::Create => "create",
            Verb::DeleteCollection | Verb::Delete => "delete",
            Verb::Get => "read",
            Verb::Update => "replace",
            Verb::Patch => "patch",
        };
        let collection = if verb == Verb::DeleteCollection { "Collection" } else { "" };
        let namespaced = if d.namespaced() && verb != Verb::ListAll { "Namespaced" } else { "" };
        let suffix = match part {
            Part::Status => "Status",
            Part::Scale => "Scale",
            Part::Whole if verb == Verb::ListAll => "ForAllNamespaces",
            Part::Whole => "",
        };
        let (group, version) = (self.group_words(true), capitalised(&d.version));
        format!("{verb_word}{group}{version}{collection}{namespaced}{}{suffix}", d.kind)
    }

    /// `rbac.authorization.k8s.io` is `RbacAuthorization`, or `rbacAuthorization` in tags.
    fn group_words(&self, capital: bool) -> String {
        let group = if self.descriptor.group.is_empty() { "core" } else { &self.descriptor.group };
        let group = group.strip_suffix(".k8s.io").unwrap_or(group);
        let words = group.split(['.', '-']).enumerate();
        words.map(|(i, word)| if i > 0 || capital { capitalised(word) } else { word.to_owned() }).collect()
    }
}

fn capitalised(word: &str) -> String {
    let mut chars = word.chars();
    chars.next().map(|first| first.to_ascii_uppercase().to_string() + chars.as_str()).unwrap_or_default()
}
