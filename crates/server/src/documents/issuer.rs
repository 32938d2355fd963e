//! OpenID Connect discovery for service account tokens, so that others can verify them.

use http::{StatusCode, header, request::Parts};
use serde_json::json;

use crate::{
    handler::Handler,
    http::{
        reply,
        response_body::{Body, Response},
        status::ApiResult,
    },
};

const MAX_AGE: &str = "public, max-age=3600";

pub async fn keys(handler: &Handler) -> ApiResult<Response> {
    let keys = json!({ "keys": [handler.api.token_key().await?.jwk()] });
    let body = Body::full(keys.to_string());
    Ok(with_cache_control(reply::with_media_type(StatusCode::OK, "application/jwk-set+json", body)))
}

pub fn configuration(handler: &Handler, parts: &Parts) -> Response {
    let issuer = &handler.api.settings.issuer;
    // Where the client reached us is where it reaches the keys.
    let host = parts.uri.authority().map(|authority| authority.as_str());
    let host = host.or_else(|| parts.headers.get(header::HOST).and_then(|host| host.to_str().ok()));
    let base = host.map_or_else(|| issuer.clone(), |host| format!("https://{host}"));
    with_cache_control(reply::json(
        StatusCode::OK,
        &json!({
            "issuer": issuer,
            "jwks_uri": format!("{base}/openid/v1/jwks"),
            "response_types_supported": ["id_token"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["ES256"],
        }),
    ))
}

fn with_cache_control(mut response: Response) -> Response {
    response.headers_mut().insert(header::CACHE_CONTROL, header::HeaderValue::from_static(MAX_AGE));
    response
}
