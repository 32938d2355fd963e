//! `componentstatuses`: whether scheduler, controllers and store work, for `kubectl get cs`.
//!
//! Deprecated since v1.19 and computed when asked, as upstream's. Scheduler and controllers are parts of the process that
//! answers, and so are healthy; of the store it is asked.

use std::time::Duration;

use http::{Method, StatusCode, request::Parts};
use jiff::Timestamp;
use mainstay_api::table::{Column, Columns, PrinterColumns};
use serde_json::{Value, json};

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

pub const PLURAL: &str = "componentstatuses";
pub const SINGULAR: &str = "componentstatus";
pub const KIND: &str = "ComponentStatus";
pub const SHORT_NAME: &str = "cs";
pub const VERBS: [&str; 2] = ["get", "list"];

/// How long the store may take to say that it is well.
const STORE_TIMEOUT: Duration = Duration::from_secs(5);

pub fn serves(route: &ResourceRoute<'_>) -> bool {
    route.group.is_empty() && route.version == "v1" && route.plural == PLURAL
}

pub async fn respond(api: &Api, parts: &Parts, route: &ResourceRoute<'_>, query: &Query) -> ApiResult<Response> {
    if route.namespace.is_some() || route.subresource.is_some() {
        return Err(ApiError::no_such_path());
    }
    if parts.method != Method::GET || query.watch || route.watch {
        return Err(ApiError::method_not_allowed());
    }
    let accepted = negotiate::accepted(&parts.headers, true)?;
    let mut items = vec![
        component("scheduler", Ok(())),
        component("controller-manager", Ok(())),
        component("etcd-0", store_health(api).await),
    ];
    if let Some(name) = route.name.as_deref() {
        items.retain(|item| item["metadata"]["name"] == name);
        if items.is_empty() {
            return Err(ApiError::not_found_kind("", PLURAL, name));
        }
    }
    let shown = match (accepted.shape, &route.name) {
        (Shape::Table(version), _) => {
            let row = RowObject::parse(query.include_object.as_deref())?;
            reply::table(version, &PrinterColumns::Builtin(&COLUMNS), row, json!({}), true, &items)
        }
        (Shape::Object | Shape::Partial(_), Some(_)) => items.remove(0),
        (Shape::Object | Shape::Partial(_), None) => {
            json!({ "kind": "ComponentStatusList", "apiVersion": "v1", "metadata": {}, "items": items })
        }
    };
    Ok(reply::encoded(StatusCode::OK, accepted.encoding, &shown))
}

async fn store_health(api: &Api) -> Result<(), String> {
    match tokio::time::timeout(STORE_TIMEOUT, api.store.health()).await {
        Ok(health) => health.map_err(|error| error.to_string()),
        Err(_) => Err(format!("no answer within {}s", STORE_TIMEOUT.as_secs())),
    }
}

fn component(name: &str, health: Result<(), String>) -> Value {
    let condition = match health {
        Ok(()) => json!({ "type": "Healthy", "status": "True", "message": "ok" }),
        Err(error) => json!({ "type": "Healthy", "status": "False", "error": error }),
    };
    json!({ "kind": KIND, "apiVersion": "v1", "metadata": { "name": name }, "conditions": [condition] })
}

const fn column(name: &'static str, format: &'static str, description: &'static str) -> Column {
    Column { name, kind: "string", format, description, priority: 0 }
}

static COLUMNS: Columns = Columns {
    definitions: &[
        column("Name", "name", "Name of the component"),
        column("Status", "", "Status of the component conditions"),
        column("Message", "", "Message of the component conditions"),
        column("Error", "", "Error of the component conditions"),
    ],
    cells,
};

fn cells(object: &Value, _: Timestamp) -> Vec<Value> {
    let condition = &object["conditions"][0];
    let status = if condition["status"] == "True" { "Healthy" } else { "Unhealthy" };
    let text = |field: &str| json!(condition[field].as_str().unwrap_or_default());
    vec![object["metadata"]["name"].clone(), json!(status), text("message"), text("error")]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_component_that_fails_shows_why() {
        let row = |health| cells(&component("etcd-0", health), Timestamp::UNIX_EPOCH);
        assert_eq!(row(Ok(())), [json!("etcd-0"), json!("Healthy"), json!("ok"), json!("")]);
        let failed = row(Err("store unreachable".to_owned()));
        assert_eq!(failed, [json!("etcd-0"), json!("Unhealthy"), json!(""), json!("store unreachable")]);
    }
}
