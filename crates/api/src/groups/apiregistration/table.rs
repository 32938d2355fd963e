//! Columns of `apiregistration.k8s.io/v1`.

use crate::table::{
    Columns,
    column::{AGE, NAME, text as column},
    read::{age, name, text},
};

pub static API_SERVICES: Columns = Columns {
    definitions: &[
        NAME,
        column("Service", "The reference to the service that hosts this API endpoint."),
        column("Available", "Whether this service is available."),
        AGE,
    ],
    cells: |object, now| {
        let service = match object["spec"].get("service").is_some_and(|service| service.is_object()) {
            true => format!("{}/{}", text(object, "/spec/service/namespace"), text(object, "/spec/service/name")),
            false => "Local".to_owned(),
        };
        let conditions = object["status"]["conditions"].as_array().into_iter().flatten();
        let available = conditions.into_iter().find(|condition| condition["type"] == "Available");
        let available = available.map_or_else(
            || "Unknown".to_owned(),
            |condition| match (text(condition, "/status"), text(condition, "/reason")) {
                (status, reason) if status == "True" || reason.is_empty() => status.to_string(),
                (status, reason) => format!("{status} ({reason})"),
            },
        );
        vec![name(object), service.into(), available.into(), age(object, now)]
    },
};

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::table::testing::row;

    #[test]
    fn an_api_service_shows_who_serves_and_why_not() {
        let object = json!({"spec": {"service": {"namespace": "n", "name": "s"}}, "status": {"conditions": [
            {"type": "Available", "status": "False", "reason": "ServiceNotFound"},
        ]}});
        assert_eq!(row(&API_SERVICES, object), json!(["x", "n/s", "False (ServiceNotFound)", "5m"]));
        let object =
            json!({"spec": {}, "status": {"conditions": [{"type": "Available", "status": "True", "reason": "Local"}]}});
        assert_eq!(row(&API_SERVICES, object), json!(["x", "Local", "True", "5m"]));
        assert_eq!(row(&API_SERVICES, json!({"spec": {}})), json!(["x", "Local", "Unknown", "5m"]));
    }
}
