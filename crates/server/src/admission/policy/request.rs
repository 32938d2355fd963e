//! The variable `request` of policies and match conditions, as an AdmissionRequest without its objects.

use serde_json::{Value, json};

use crate::{
    admission::{
        Request,
        matching::{self, Attributes, Operation},
    },
    auth::User,
};

/// `matched` is the version of the resource that a rule matched; the request may be for another one. `object` is what the request carries.
pub fn describe_request(request: &Request<'_>, matched: &Attributes<'_>, object: Option<&Value>) -> Value {
    let asked = &request.target.d;
    let (kind, request_kind) = matching::request_kinds(matched.d, asked, object);
    json!({
        "kind": kind,
        "resource": {"group": matched.d.group, "version": matched.d.version, "resource": matched.d.plural},
        "subResource": matched.subresource,
        "requestKind": request_kind,
        "requestResource": {"group": asked.group, "version": asked.version, "resource": asked.plural},
        "requestSubResource": matched.subresource,
        "name": matched.name,
        "namespace": matched.namespace.unwrap_or_default(),
        "operation": matched.operation.as_str(),
        "userInfo": user_info(request.user),
        "dryRun": request.dry_run,
        "options": options(request, matched.operation),
    })
}

fn options(request: &Request<'_>, operation: Operation) -> Value {
    let kind = match operation {
        Operation::Create => "CreateOptions",
        Operation::Update => "UpdateOptions",
        Operation::Delete => "DeleteOptions",
        Operation::Connect => return Value::Null, // its options are the object
    };
    let mut options = json!({"apiVersion": "meta.k8s.io/v1", "kind": kind});
    if operation != Operation::Delete && !request.query.field_manager.is_empty() {
        options["fieldManager"] = json!(request.query.field_manager);
    }
    if request.dry_run {
        options["dryRun"] = json!(["All"]);
    }
    options
}

fn user_info(user: &User) -> Value {
    json!({"username": user.name, "uid": user.uid, "groups": user.groups, "extra": user.extra})
}
