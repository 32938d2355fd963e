//! `serviceaccounts/<name>/token`: a token for a service account, for as long as what it is bound to exists.

use http::StatusCode;
use jiff::{SignedDuration, Timestamp};
use mainstay_api::field::{Errors, FieldError, Path};
use serde_json::{Value, json};

use super::Call;
use crate::{
    admission, api,
    auth::service_account::{BoundClaims, Claims, Reference},
    http::{
        reply,
        response_body::Response,
        status::{ApiError, ApiResult},
    },
    objects::{metadata, object, request_object},
};

const SCHEMA: &str = "io.k8s.api.authentication.v1.TokenRequest";
const GROUP: &str = "authentication.k8s.io";
const DEFAULT_SECONDS: i64 = 3600;
const MIN_SECONDS: i64 = 600;
const MAX_SECONDS: i64 = 1 << 32;
/// What asks for exactly this is upstream's own volume in every pod. Old clients read its token once, so it really
/// lasts a year while the pod does; its holder is told the short time, and renews by it.
const POD_SECONDS: i64 = 3607;
const EXTENDED_SECONDS: i64 = 365 * 24 * 3600;

pub async fn token(call: &Call<'_>) -> ApiResult<Response> {
    let Call { api, target, accepted, headers, body, query, .. } = call;
    let mut request = request_object::decode(headers, body)?.value;
    admission::create_subresource(&call.admission(), "token", &request).await?;
    check_kind(&mut request)?;
    api.schema
        .conform(SCHEMA, &mut request)
        .map_err(|error| ApiError::bad_request(format!("TokenRequest in version \"v1\" cannot be handled: {error}")))?;
    let entry = api.existing(target).await?;
    let account = object::parse(&target.d, &entry)?;
    let spec = &mut request["spec"];
    let seconds = spec["expirationSeconds"].as_i64().unwrap_or(DEFAULT_SECONDS);
    if let Some(error) = refusal(seconds) {
        return Err(ApiError::invalid_kind(GROUP, "TokenRequest", "", &Errors::from(error)));
    }
    let given = spec["audiences"].as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned);
    let mut audiences: Vec<String> = given.collect();
    if audiences.is_empty() {
        audiences.push(api.settings.issuer.clone());
    }
    let mut bound = bind(call, &account, &spec["boundObjectRef"]).await?;
    spec["expirationSeconds"] = json!(seconds);
    spec["audiences"] = json!(audiences);
    let now = api::now();
    let extended = seconds == POD_SECONDS && bound.pod.is_some() && audiences.contains(&api.settings.issuer);
    let real = if extended { EXTENDED_SECONDS } else { seconds };
    bound.warnafter = extended.then(|| now.as_second() + seconds);
    let claims = Claims::new(&api.settings.issuer, audiences, bound, now, real);
    if !query.dry_run {
        let signed = api.token_key().await?.sign(&claims);
        let token = signed.map_err(|error| ApiError::internal(format!("failed to generate token: {error}")))?;
        request["status"] = json!({ "token": token, "expirationTimestamp": after(now, seconds) });
    }
    request["metadata"] = json!({
        "name": target.name, "namespace": target.namespace, "creationTimestamp": now.to_string(),
    });
    Ok(reply::encoded(StatusCode::CREATED, accepted.encoding, &request))
}

fn after(now: Timestamp, seconds: i64) -> String {
    now.checked_add(SignedDuration::from_secs(seconds)).unwrap_or(Timestamp::MAX).to_string()
}

fn check_kind(request: &mut Value) -> ApiResult<()> {
    let Some(fields) = request.as_object_mut() else {
        return Err(ApiError::bad_request("couldn't get version/kind; the request body is not a JSON object"));
    };
    for (name, wanted) in [("apiVersion", "authentication.k8s.io/v1"), ("kind", "TokenRequest")] {
        let field = fields.entry(name).or_insert(Value::Null);
        if field.is_null() || field == "" {
            *field = json!(wanted);
        } else if field != wanted {
            return Err(ApiError::bad_request(format!("{name} is {field}, expected {wanted:?}")));
        }
    }
    fields.entry("spec").or_insert_with(|| json!({}));
    Ok(())
}

fn refusal(seconds: i64) -> Option<FieldError> {
    let path = Path::new("spec").child("expirationSeconds");
    if seconds < MIN_SECONDS {
        Some(FieldError::invalid(&path, seconds, "may not specify a duration less than 10 minutes"))
    } else if seconds > MAX_SECONDS {
        Some(FieldError::invalid(&path, seconds, "may not specify a duration larger than 2^32 seconds"))
    } else {
        None
    }
}

/// What the token is to end with.
async fn bind(call: &Call<'_>, account: &Value, wanted: &Value) -> ApiResult<BoundClaims> {
    let namespace = call.target.namespace.clone().unwrap_or_default();
    let serviceaccount = Reference::from_object(account);
    let mut bound = BoundClaims { namespace, node: None, pod: None, secret: None, serviceaccount, warnafter: None };
    if !wanted.is_object() {
        return Ok(bound);
    }
    let text = |field: &str| wanted[field].as_str().unwrap_or_default();
    let (kind, name, version) = (text("kind"), text("name"), text("apiVersion"));
    let (plural, scope) = match (version, kind) {
        ("v1", "Pod") => ("pods", Some(bound.namespace.as_str())),
        ("v1", "Secret") => ("secrets", Some(bound.namespace.as_str())),
        ("v1", "Node") => ("nodes", None),
        _ => {
            let words = format!("cannot bind token to object of type {version}, Kind={kind}");
            return Err(ApiError::bad_request(words));
        }
    };
    let d = call.api.registry.find("", "v1", plural).ok_or_else(ApiError::no_such_path)?;
    let object = call.api.core_object(plural, scope, name).await?.ok_or_else(|| ApiError::not_found(d, name))?;
    let uid = metadata::string_field(&object, "uid").unwrap_or_default();
    if !text("uid").is_empty() && text("uid") != uid {
        let why = format!(
            "the UID in the bound object reference ({}) does not match the UID in record. The object might have been \
             deleted and then recreated",
            text("uid")
        );
        return Err(ApiError::conflict(d, name, &why));
    }
    let reference = Some(Reference::from_object(&object));
    match kind {
        "Pod" => {
            let own = object["spec"]["serviceAccountName"].as_str().unwrap_or_default();
            if own != call.target.name {
                return Err(ApiError::bad_request(format!(
                    "cannot bind token for serviceaccount {:?} to pod running with different serviceaccount name.",
                    call.target.name
                )));
            }
            bound.pod = reference;
            bound.node = node_of(call, &object).await?;
        }
        "Secret" => bound.secret = reference,
        _ => bound.node = reference,
    }
    Ok(bound)
}

async fn node_of(call: &Call<'_>, pod: &Value) -> ApiResult<Option<Reference>> {
    let Some(name) = pod["spec"]["nodeName"].as_str().filter(|name| !name.is_empty()) else { return Ok(None) };
    let node = call.api.core_object("nodes", None, name).await?;
    let unknown = || Reference { name: name.to_owned(), uid: String::new() };
    Ok(Some(node.map_or_else(unknown, |node| Reference::from_object(&node))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_lasts_at_least_ten_minutes() {
        assert_eq!(refusal(600), None);
        assert_eq!(
            refusal(599).unwrap().to_string(),
            "spec.expirationSeconds: Invalid value: 599: may not specify a duration less than 10 minutes"
        );
        assert!(refusal(MAX_SECONDS + 1).is_some());
    }

    #[test]
    fn a_request_that_does_not_say_its_kind_is_a_token_request() {
        let mut request = json!({});
        check_kind(&mut request).unwrap();
        assert_eq!(request, json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}));
        assert!(check_kind(&mut json!({"kind": "Pod"})).is_err());
    }
}
