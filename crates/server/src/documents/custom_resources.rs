//! The list of CustomResourceDefinitions, which is always empty.
//!
//! kubectl asks for it before it creates an object that no PATCH exists for: reviews, and lists such as RoleBindingList.
//! It is not part of discovery, because none can be created.

use http::{Method, StatusCode, request::Parts};
use serde_json::json;

use crate::{
    api::Api,
    http::{
        negotiate::{self, Shape},
        query::Query,
        reply::{self, RowObject},
        response_body::Response,
        route::ResourceRoute,
        status::{ApiError, ApiResult},
    },
};

const GROUP: &str = "apiextensions.k8s.io";
const PLURAL: &str = "customresourcedefinitions";

pub fn serves(route: &ResourceRoute<'_>) -> bool {
    route.group == GROUP && route.version == "v1" && route.plural == PLURAL && route.namespace.is_none()
}

pub async fn respond(api: &Api, parts: &Parts, route: &ResourceRoute<'_>, query: &Query) -> ApiResult<Response> {
    if parts.method != Method::GET || query.watch || route.watch {
        return Err(ApiError::method_not_allowed());
    }
    if let Some(name) = route.name.as_deref() {
        return Err(ApiError::not_found_kind(GROUP, PLURAL, name));
    }
    let accepted = negotiate::accepted(&parts.headers, true)?;
    let metadata = json!({ "resourceVersion": api.store.revision().await?.to_string() });
    let list = match accepted.shape {
        Shape::Table(version) => {
            reply::table(version, &mainstay_api::table::generic::NAME_CREATED, RowObject::None, metadata, true, &[])
        }
        Shape::Partial(version) => json!({
            "kind": "PartialObjectMetadataList", "apiVersion": version, "metadata": metadata, "items": [],
        }),
        Shape::Object => json!({
            "kind": "CustomResourceDefinitionList", "apiVersion": format!("{GROUP}/v1"), "metadata": metadata, "items": [],
        }),
    };
    Ok(reply::encoded(StatusCode::OK, accepted.encoding, &list))
}
