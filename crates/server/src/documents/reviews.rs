//! TokenReview, SubjectAccessReview and their relatives: answered at once, never stored.

use http::StatusCode;
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::{
    auth::{User, bearer},
    authorize::{self, Attributes, RequestTarget, ResourceAttributes, rbac::PolicyRule},
    http::{
        reply,
        response_body::Response,
        status::{ApiError, ApiResult},
        warnings::Warnings,
    },
    objects::request_object,
    verbs::Call,
};

pub async fn respond(call: &Call<'_>) -> ApiResult<Response> {
    let Call { api, user, target, query, accepted, headers, body, .. } = call;
    let d = &target.d;
    let mut warnings = Warnings::default();
    let decoded = request_object::decode(headers, body)?;
    let mut review = request_object::shape(d, api.schema, decoded, query.field_validation, &mut warnings)?;
    let spec = &review["spec"];
    let status = match &*d.kind {
        "SelfSubjectReview" => json!({ "userInfo": user_info(user) }),
        "TokenReview" => token(call, spec).await?,
        "SelfSubjectAccessReview" => access(call, user, spec).await?,
        "SubjectAccessReview" => access(call, &subject(spec)?, spec).await?,
        "LocalSubjectAccessReview" => {
            if spec["resourceAttributes"]["namespace"].as_str() != target.namespace.as_deref() {
                let words = "spec.resourceAttributes.namespace must match namespace";
                return Err(ApiError::bad_request(words));
            }
            access(call, &subject(spec)?, spec).await?
        }
        "SelfSubjectRulesReview" => {
            let namespace = spec["namespace"].as_str().filter(|namespace| !namespace.is_empty());
            rules(call, namespace.ok_or_else(|| ApiError::bad_request("no namespace on request"))?)
        }
        _ => return Err(ApiError::method_not_allowed()),
    };
    review["status"] = status;
    let mut response = reply::encoded(StatusCode::CREATED, accepted.encoding, &review);
    warnings.write(response.headers_mut());
    Ok(response)
}

fn user_info(user: &User) -> Value {
    let mut info = json!({ "username": user.name, "groups": user.groups });
    if !user.uid.is_empty() {
        info["uid"] = json!(user.uid);
    }
    if !user.extra.is_empty() {
        info["extra"] = json!(user.extra);
    }
    info
}

fn texts(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

async fn token(call: &Call<'_>, spec: &Value) -> ApiResult<Value> {
    let token = spec["token"].as_str().filter(|token| !token.is_empty());
    let token = token.ok_or_else(|| ApiError::bad_request("token is required for TokenReview in authentication"))?;
    let mut audiences = texts(&spec["audiences"]);
    if audiences.is_empty() {
        audiences.push(call.api.settings.issuer.clone());
    }
    Ok(match bearer::authenticate(call.api, token, &audiences, Timestamp::now()).await? {
        Ok(found) => {
            json!({ "authenticated": true, "user": user_info(&found.user), "audiences": found.audiences })
        }
        Err(why) => json!({ "user": {}, "error": why }),
    })
}

/// The user that a question about somebody else is about.
fn subject(spec: &Value) -> ApiResult<User> {
    let (name, groups) = (spec["user"].as_str().unwrap_or_default().to_owned(), texts(&spec["groups"]));
    if name.is_empty() && groups.is_empty() {
        return Err(ApiError::bad_request(
            "spec.user: Invalid value: \"\": at least one of user or group must be specified",
        ));
    }
    Ok(User { name, groups, uid: spec["uid"].as_str().unwrap_or_default().to_owned(), ..User::default() })
}

async fn access(call: &Call<'_>, user: &User, spec: &Value) -> ApiResult<Value> {
    let asked = attributes(spec)?;
    Ok(match authorize::decide(call.api, user, &asked).await? {
        Ok(why) if why.is_empty() => json!({ "allowed": true }),
        Ok(why) => json!({ "allowed": true, "reason": why }),
        Err(why) if why.is_empty() => json!({ "allowed": false }),
        Err(why) => json!({ "allowed": false, "reason": why }),
    })
}

fn attributes(spec: &Value) -> ApiResult<Attributes<'_>> {
    let text = |value: &'_ Value| value.as_str().unwrap_or_default().to_owned();
    let given = |value: &Value| value.as_str().filter(|text| !text.is_empty()).map(|text| text.to_owned().into());
    match (&spec["resourceAttributes"], &spec["nonResourceAttributes"]) {
        (resource, Value::Null) if resource.is_object() => {
            let equal = |selector: &Value| -> Vec<(String, String)> {
                let requirements = selector["requirements"].as_array().into_iter().flatten();
                let equal = requirements.filter(|r| r["operator"] == "In").filter_map(|r| {
                    let [value] = r["values"].as_array()?.as_slice() else { return None };
                    Some((text(&r["key"]), text(value)))
                });
                equal.collect()
            };
            Ok(Attributes {
                verb: resource["verb"].as_str().unwrap_or_default(),
                target: RequestTarget::Resource(ResourceAttributes {
                    group: text(&resource["group"]).into(),
                    resource: text(&resource["resource"]).into(),
                    subresource: given(&resource["subresource"]),
                    namespace: given(&resource["namespace"]),
                    name: given(&resource["name"]),
                    fields: equal(&resource["fieldSelector"]),
                    labels: equal(&resource["labelSelector"]),
                }),
            })
        }
        (Value::Null, path) if path.is_object() => {
            let verb = path["verb"].as_str().unwrap_or_default();
            let path = path["path"].as_str().unwrap_or_default();
            Ok(Attributes { verb, target: RequestTarget::Path(path) })
        }
        _ => Err(ApiError::bad_request(
            "spec.resourceAttributes: Invalid value: null: exactly one of nonResourceAttributes or resourceAttributes must \
             be specified",
        )),
    }
}

/// What somebody may do, as far as rules can list it. What a node may do depends on its pods.
fn rules(call: &Call<'_>, namespace: &str) -> Value {
    let (rules, mut error) = authorize::rules_for(call.api, call.user, Some(namespace));
    let (paths, resources): (Vec<PolicyRule>, Vec<PolicyRule>) =
        rules.into_iter().partition(|rule| !rule.non_resource_urls.is_empty());
    if call.user.node_name().is_some() {
        error = "node authorizer does not support user rule resolution".to_owned();
    }
    let mut status = json!({ "resourceRules": resources, "nonResourceRules": paths, "incomplete": !error.is_empty() });
    if !error.is_empty() {
        status["evaluationError"] = json!(error);
    }
    status
}
