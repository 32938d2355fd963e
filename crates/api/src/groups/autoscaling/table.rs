//! Columns of autoscalers.

use jiff::Timestamp;
use serde_json::Value;

use crate::{
    convert::Autoscaler,
    descriptor::Conversion,
    table::{
        Columns,
        column::{AGE, NAME, text as column},
        duration::UNKNOWN,
        read::{NONE, UNSET, age, int, list, name, present, scalar, text},
    },
};

pub static HORIZONTAL_POD_AUTOSCALERS: Columns = Columns { definitions: COLUMNS, cells };

/// The same for version 1, which carries most metrics in annotations.
pub static HORIZONTAL_POD_AUTOSCALERS_V1: Columns = Columns {
    definitions: COLUMNS,
    cells: |object, now| {
        let mut object = object.clone();
        Autoscaler.to_stored(&mut object);
        cells(&object, now)
    },
};

const COLUMNS: &[crate::table::Column] = &[
    NAME,
    column("Reference", "What is scaled."),
    column("Targets", "Each metric: what it is, of what it should be."),
    column("MinPods", "The fewest pods."),
    column("MaxPods", "The most pods."),
    column("Replicas", "How many there are."),
    AGE,
];

fn cells(object: &Value, now: Timestamp) -> Vec<Value> {
    vec![
        name(object),
        format!("{}/{}", text(object, "/spec/scaleTargetRef/kind"), text(object, "/spec/scaleTargetRef/name")).into(),
        targets(list(object, "/spec/metrics"), list(object, "/status/currentMetrics")).into(),
        scalar(object, "/spec/minReplicas").unwrap_or_else(|| UNSET.to_owned()).into(),
        int(object, "/spec/maxReplicas").into(),
        int(object, "/status/currentReplicas").into(),
        age(object, now),
    ]
}

/// The first two metrics, and how many more there are.
fn targets(wanted: &[Value], seen: &[Value]) -> String {
    if wanted.is_empty() {
        return NONE.to_owned();
    }
    let shown: Vec<_> = wanted.iter().enumerate().take(2).map(|(i, metric)| target(metric, seen.get(i))).collect();
    let shown = shown.join(", ");
    if wanted.len() > 2 { format!("{shown} + {} more...", wanted.len() - 2) } else { shown }
}

fn target(metric: &Value, seen: Option<&Value>) -> String {
    let source = match text(metric, "/type") {
        "External" => "external",
        "Object" => "object",
        "Pods" => "pods",
        "Resource" => "resource",
        "ContainerResource" => "containerResource",
        _ => return "<unknown type>".to_owned(),
    };
    let target = format!("/{source}/target");
    let current = |number: &str| seen.and_then(|seen| scalar(seen, &format!("/{source}/current/{number}")));
    let unknown = || UNKNOWN.to_owned();
    let average = present(metric, &format!("{target}/averageValue")).is_some();
    let value = |number: &str| {
        let want = scalar(metric, &format!("{target}/{number}")).unwrap_or_else(unknown);
        format!("{}/{want}", current(number).unwrap_or_else(unknown))
    };
    match source {
        "pods" => value("averageValue"),
        "external" | "object" if average => format!("{} (avg)", value("averageValue")),
        "external" | "object" => value("value"),
        _ => {
            let resource = text(metric, &format!("/{source}/name"));
            if average {
                return format!("{resource}: {}", value("averageValue"));
            }
            let percent = |number: Option<String>, or: &str| number.map_or_else(|| or.to_owned(), |n| format!("{n}%"));
            let want = percent(scalar(metric, &format!("{target}/averageUtilization")), "<auto>");
            format!("{resource}: {}/{want}", percent(current("averageUtilization"), UNKNOWN))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::table::testing::row;

    #[test]
    fn each_metric_shows_what_it_is_of_what_it_should_be() {
        let cases = [
            (
                json!({"type": "Resource", "resource": {"name": "cpu", "target": {"averageUtilization": 80}}}),
                json!({"type": "Resource", "resource": {"current": {"averageUtilization": 41}}}),
                "cpu: 41%/80%",
            ),
            (
                json!({"type": "Resource", "resource": {"name": "cpu", "target": {}}}),
                json!(null),
                "cpu: <unknown>/<auto>",
            ),
            (
                json!({"type": "Resource", "resource": {"name": "memory", "target": {"averageValue": "200Mi"}}}),
                json!({"type": "Resource", "resource": {"current": {"averageValue": "100Mi"}}}),
                "memory: 100Mi/200Mi",
            ),
            (
                json!({"type": "ContainerResource", "containerResource": {"name": "cpu", "target": {"averageUtilization": 5}}}),
                json!({"type": "ContainerResource", "containerResource": {"current": {"averageUtilization": 4}}}),
                "cpu: 4%/5%",
            ),
            (
                json!({"type": "Pods", "pods": {"target": {"averageValue": "10"}}}),
                json!({"type": "Pods", "pods": {"current": {"averageValue": "7"}}}),
                "7/10",
            ),
            (
                json!({"type": "Object", "object": {"target": {"value": "10"}}}),
                json!({"type": "Object", "object": {"current": {"value": "7"}}}),
                "7/10",
            ),
            (
                json!({"type": "External", "external": {"target": {"averageValue": "3"}}}),
                json!({}),
                "<unknown>/3 (avg)",
            ),
            (json!({"type": "Moon"}), json!({}), "<unknown type>"),
        ];
        for (wanted, seen, expected) in cases {
            assert_eq!(targets(&[wanted], &[seen]), expected);
        }
    }

    #[test]
    fn both_versions_have_the_same_row() {
        let mut object = json!({
            "metadata": {"name": "x"},
            "spec": {
                "scaleTargetRef": {"kind": "Deployment", "name": "web"},
                "minReplicas": 2,
                "maxReplicas": 9,
                "metrics": [
                    {"type": "Resource", "resource": {"name": "cpu", "target": {"averageUtilization": 80}}},
                    {"type": "Pods", "pods": {"metric": {"name": "rps"}, "target": {"averageValue": "10"}}},
                    {"type": "Pods", "pods": {"metric": {"name": "lag"}, "target": {"averageValue": "11"}}},
                ],
            },
            "status": {"currentReplicas": 3},
        });
        let expected = json!(["x", "Deployment/web", "cpu: <unknown>/80%, <unknown>/10 + 1 more...", "2", 9, 3, "5m"]);
        assert_eq!(row(&HORIZONTAL_POD_AUTOSCALERS, object.clone()), expected);
        Autoscaler.to_served(&mut object);
        assert_eq!(row(&HORIZONTAL_POD_AUTOSCALERS_V1, object), expected);
        assert_eq!(
            row(&HORIZONTAL_POD_AUTOSCALERS, json!({"spec": {"maxReplicas": 1}})),
            json!(["x", "/", "<none>", "<unset>", 1, 0, "5m"])
        );
    }
}
