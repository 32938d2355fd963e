//! Columns of the core group: the small kinds here, the larger ones in files of their own.

mod nodes;
mod pods;
mod services;
mod volumes;

pub use nodes::NODES;
pub use pods::PODS;
pub use services::{ENDPOINTS, SERVICES};
pub use volumes::{PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES};

use std::collections::BTreeSet;

use serde_json::Value;

use crate::table::{
    Columns,
    column::{AGE, CONTAINERS, IMAGES, NAME, text as column},
    labels::{containers, labels},
    read::{age, list, map, name, scalar, size, text},
};

pub static CONFIG_MAPS: Columns = Columns {
    definitions: &[NAME, column("Data", "How many entries it has."), AGE],
    cells: |object, now| {
        let entries = size(object, "/data") + size(object, "/binaryData");
        vec![name(object), entries.into(), age(object, now)]
    },
};

pub static NAMESPACES: Columns = Columns {
    definitions: &[NAME, column("Status", "Active, or Terminating while its contents are removed."), AGE],
    cells: |object, now| vec![name(object), text(object, "/status/phase").into(), age(object, now)],
};

pub static POD_TEMPLATES: Columns = Columns {
    definitions: &[NAME, CONTAINERS, IMAGES, column("Pod Labels", "Labels of pods made from it.")],
    cells: |object, _| {
        let [names, images] = containers(object, "/template/spec");
        vec![name(object), names, images, labels(object, "/template/metadata/labels")]
    },
};

pub static RESOURCE_QUOTAS: Columns = Columns {
    definitions: &[
        NAME,
        column("Request", "Used, of what may be requested or made."),
        column("Limit", "Used, of what limits may add up to."),
        AGE,
    ],
    cells: |object, now| {
        let names: BTreeSet<_> = map(object, "/status/hard").into_iter().flatten().map(|(name, _)| name).collect();
        let (limits, requests): (Vec<_>, Vec<_>) = names.into_iter().partition(|name| name.starts_with("limits."));
        vec![name(object), used(object, &requests), used(object, &limits), age(object, now)]
    },
};

pub static SECRETS: Columns = Columns {
    definitions: &[NAME, column("Type", "What the secret is for."), column("Data", "How many entries it has."), AGE],
    cells: |object, now| {
        vec![name(object), text(object, "/type").into(), size(object, "/data").into(), age(object, now)]
    },
};

pub static SERVICE_ACCOUNTS: Columns = Columns {
    definitions: &[NAME, column("Secrets", "How many secrets it lists."), AGE],
    cells: |object, now| vec![name(object), list(object, "/secrets").len().into(), age(object, now)],
};

/// `cpu: 1/4, pods: 3/10`.
fn used(quota: &Value, resources: &[&String]) -> Value {
    let amount = |which: &str, resource: &str| {
        let resource = resource.replace('~', "~0").replace('/', "~1");
        scalar(quota, &format!("/status/{which}/{resource}")).unwrap_or_else(|| "0".to_owned())
    };
    let lines = resources.iter().map(|name| format!("{name}: {}/{}", amount("used", name), amount("hard", name)));
    lines.collect::<Vec<_>>().join(", ").into()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::table::testing::row;

    #[test]
    fn entries_are_counted() {
        assert_eq!(
            row(&CONFIG_MAPS, json!({"data": {"a": "", "b": ""}, "binaryData": {"c": ""}})),
            json!(["x", 3, "5m"])
        );
        assert_eq!(row(&SECRETS, json!({"type": "Opaque", "data": {"a": ""}})), json!(["x", "Opaque", 1, "5m"]));
        assert_eq!(row(&SERVICE_ACCOUNTS, json!({"secrets": [{}]})), json!(["x", 1, "5m"]));
    }

    #[test]
    fn namespaces_show_their_phase() {
        assert_eq!(row(&NAMESPACES, json!({"status": {"phase": "Active"}})), json!(["x", "Active", "5m"]));
    }

    #[test]
    fn pod_templates_show_what_they_make() {
        let object = json!({"template": {
            "metadata": {"labels": {"a": "1"}},
            "spec": {"containers": [{"name": "c", "image": "i"}]},
        }});
        assert_eq!(row(&POD_TEMPLATES, object), json!(["x", "c", "i", "a=1"]));
    }

    #[test]
    fn quotas_tell_requests_from_limits() {
        let object = json!({"status": {
            "hard": {"pods": "10", "limits.cpu": "4", "requests.example.com/gpu": "2"},
            "used": {"pods": "3", "limits.cpu": "500m"},
        }});
        assert_eq!(
            row(&RESOURCE_QUOTAS, object),
            json!(["x", "pods: 3/10, requests.example.com/gpu: 0/2", "limits.cpu: 500m/4", "5m"])
        );
    }
}
