//! Columns of `apps/v1`, and of replication controllers, which look like replica sets.

use jiff::Timestamp;
use serde_json::Value;

use crate::table::{
    Columns,
    column::{AGE, CONTAINERS, IMAGES, NAME, SELECTOR, integer, text as column, wide},
    labels::{containers, labels, requirements, selector},
    read::{NONE, age, int, list, name, text},
};

const TEMPLATE: &str = "/spec/template/spec";

pub static CONTROLLER_REVISIONS: Columns = Columns {
    definitions: &[
        NAME,
        column("Controller", "What the revision belongs to."),
        column("Revision", "Its number; higher is newer."),
        AGE,
    ],
    cells: |object, now| {
        let revision = int(object, "/revision");
        vec![name(object), controller(object).into(), revision.into(), age(object, now)]
    },
};

pub static DAEMON_SETS: Columns = Columns {
    definitions: &[
        NAME,
        integer("Desired", "Nodes that should run a pod."),
        integer("Current", "Nodes that should and do run a pod."),
        integer("Ready", "Nodes with a ready pod."),
        integer("Up-to-date", "Nodes with a pod of the current template."),
        integer("Available", "Nodes with a pod that has been ready long enough."),
        column("Node Selector", "The nodes that should run a pod, by their labels."),
        AGE,
        wide(CONTAINERS),
        wide(IMAGES),
        wide(SELECTOR),
    ],
    cells: daemon_set,
};

pub static DEPLOYMENTS: Columns = Columns {
    definitions: &[
        NAME,
        column("Ready", "Ready pods, of those wanted."),
        column("Up-to-date", "Pods of the current template."),
        column("Available", "Pods that have been ready long enough."),
        AGE,
        wide(CONTAINERS),
        wide(IMAGES),
        wide(SELECTOR),
    ],
    cells: deployment,
};

pub static REPLICA_SETS: Columns = Columns {
    definitions: REPLICATED,
    cells: |object, now| replicated(object, now, selector(object, "/spec/selector")),
};

pub static REPLICATION_CONTROLLERS: Columns =
    Columns { definitions: REPLICATED, cells: |object, now| replicated(object, now, labels(object, "/spec/selector")) };

pub static STATEFUL_SETS: Columns = Columns {
    definitions: &[NAME, column("Ready", "Ready pods, of those wanted."), AGE, wide(CONTAINERS), wide(IMAGES)],
    cells: |object, now| {
        let [names, images] = containers(object, TEMPLATE);
        vec![name(object), ready(object), age(object, now), names, images]
    },
};

const REPLICATED: &[crate::table::Column] = &[
    NAME,
    integer("Desired", "Pods wanted."),
    integer("Current", "Pods that exist."),
    integer("Ready", "Pods that are ready."),
    AGE,
    wide(CONTAINERS),
    wide(IMAGES),
    wide(SELECTOR),
];

fn replicated(object: &Value, now: Timestamp, selector: Value) -> Vec<Value> {
    let [names, images] = containers(object, TEMPLATE);
    vec![
        name(object),
        int(object, "/spec/replicas").into(),
        int(object, "/status/replicas").into(),
        int(object, "/status/readyReplicas").into(),
        age(object, now),
        names,
        images,
        selector,
    ]
}

fn daemon_set(object: &Value, now: Timestamp) -> Vec<Value> {
    let [names, images] = containers(object, TEMPLATE);
    vec![
        name(object),
        int(object, "/status/desiredNumberScheduled").into(),
        int(object, "/status/currentNumberScheduled").into(),
        int(object, "/status/numberReady").into(),
        int(object, "/status/updatedNumberScheduled").into(),
        int(object, "/status/numberAvailable").into(),
        labels(object, "/spec/template/spec/nodeSelector"),
        age(object, now),
        names,
        images,
        selector(object, "/spec/selector"),
    ]
}

fn deployment(object: &Value, now: Timestamp) -> Vec<Value> {
    let [names, images] = containers(object, TEMPLATE);
    vec![
        name(object),
        ready(object),
        int(object, "/status/updatedReplicas").into(),
        int(object, "/status/availableReplicas").into(),
        age(object, now),
        names,
        images,
        requirements(object.pointer("/spec/selector")).unwrap_or_else(|| "<invalid>".to_owned()).into(),
    ]
}

fn ready(object: &Value) -> Value {
    format!("{}/{}", int(object, "/status/readyReplicas"), int(object, "/spec/replicas")).into()
}

/// The owner that is the controller: `statefulset.apps/web`.
fn controller(object: &Value) -> String {
    let owners = list(object, "/metadata/ownerReferences");
    let Some(owner) = owners.iter().find(|owner| owner["controller"] == true) else { return NONE.to_owned() };
    let group = text(owner, "/apiVersion").rsplit_once('/').map(|(group, _)| format!(".{group}"));
    let kind = format!("{}{}", text(owner, "/kind"), group.unwrap_or_default());
    format!("{}/{}", kind.to_lowercase(), text(owner, "/name"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::table::testing::{heads, row};

    fn template() -> Value {
        json!({"spec": {
            "nodeSelector": {"disk": "ssd"},
            "containers": [{"name": "app", "image": "app:1"}, {"name": "log", "image": "log:2"}],
        }})
    }

    #[test]
    fn deployments_show_ready_of_wanted() {
        let object = json!({
            "spec": {"replicas": 3, "selector": {"matchLabels": {"app": "web"}}, "template": template()},
            "status": {"readyReplicas": 2, "updatedReplicas": 3, "availableReplicas": 1},
        });
        assert_eq!(row(&DEPLOYMENTS, object), json!(["x", "2/3", 3, 1, "5m", "app,log", "app:1,log:2", "app=web"]));
        let odd = json!({"spec": {"selector": {"matchExpressions": [{"key": "a", "operator": "?"}]}}});
        assert_eq!(row(&DEPLOYMENTS, odd), json!(["x", "0/0", 0, 0, "5m", "", "", "<invalid>"]));
        assert_eq!(
            heads(&DEPLOYMENTS),
            "Name:string | Ready:string | Up-to-date:string | Available:string | Age:string | +Containers:string | \
             +Images:string | +Selector:string"
        );
    }

    #[test]
    fn replica_sets_and_replication_controllers_differ_in_their_selector() {
        let status = json!({"replicas": 2, "readyReplicas": 1});
        let spec = |selector: Value| json!({"replicas": 3, "selector": selector, "template": template()});
        let rs = json!({"spec": spec(json!({"matchLabels": {"a": "1"}})), "status": status});
        let rc = json!({"spec": spec(json!({"a": "1"})), "status": status});
        let expected = json!(["x", 3, 2, 1, "5m", "app,log", "app:1,log:2", "a=1"]);
        assert_eq!(row(&REPLICA_SETS, rs), expected);
        assert_eq!(row(&REPLICATION_CONTROLLERS, rc), expected);
    }

    #[test]
    fn daemon_sets_count_nodes() {
        let object = json!({
            "spec": {"selector": {"matchLabels": {"a": "1"}}, "template": template()},
            "status": {
                "desiredNumberScheduled": 5, "currentNumberScheduled": 4, "numberReady": 3,
                "updatedNumberScheduled": 2, "numberAvailable": 1,
            },
        });
        assert_eq!(
            row(&DAEMON_SETS, object),
            json!(["x", 5, 4, 3, 2, 1, "disk=ssd", "5m", "app,log", "app:1,log:2", "a=1"])
        );
    }

    #[test]
    fn stateful_sets_show_ready_of_wanted() {
        let object = json!({"spec": {"replicas": 3, "template": template()}, "status": {"readyReplicas": 3}});
        assert_eq!(row(&STATEFUL_SETS, object), json!(["x", "3/3", "5m", "app,log", "app:1,log:2"]));
    }

    #[test]
    fn controller_revisions_name_their_controller() {
        let owner = json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "web", "controller": true});
        let object = json!({"metadata": {"ownerReferences": [{"kind": "Other"}, owner]}, "revision": 4});
        assert_eq!(row(&CONTROLLER_REVISIONS, object), json!(["x", "statefulset.apps/web", 4, "5m"]));
        assert_eq!(row(&CONTROLLER_REVISIONS, json!({"revision": 1})), json!(["x", "<none>", 1, "5m"]));
    }
}
