//! Columns of events, in both their versions.

use jiff::Timestamp;
use serde_json::Value;

use crate::{
    convert::NewEvent,
    descriptor::Conversion,
    table::{
        Columns,
        column::{NAME, text as column, wide},
        duration,
        read::{int, name, present, text, text_or},
    },
};

/// Of the core group.
pub static EVENTS: Columns = Columns { definitions: COLUMNS, cells };

/// Of `events.k8s.io`.
pub static NEW_EVENTS: Columns = Columns {
    definitions: COLUMNS,
    cells: |object, now| {
        let mut object = object.clone();
        NewEvent.to_stored(&mut object);
        cells(&object, now)
    },
};

const COLUMNS: &[crate::table::Column] = &[
    column("Last Seen", "How long ago it last happened."),
    column("Type", "Normal or Warning."),
    column("Reason", "Why, in one word."),
    column("Object", "What it is about."),
    wide(column("Subobject", "Which part of it.")),
    wide(column("Source", "Who reported it.")),
    column("Message", "What happened."),
    wide(column("First Seen", "How long ago it first happened.")),
    wide(column("Count", "How often it happened.")),
    wide(NAME),
];

fn cells(object: &Value, now: Timestamp) -> Vec<Value> {
    let time = |pointer| duration::time(object.pointer(pointer));
    let first = time("/firstTimestamp").or_else(|| time("/eventTime"));
    let series = present(object, "/series");
    let (last, count) = match series {
        Some(_) => (time("/series/lastObservedTime"), int(object, "/series/count")),
        None => (time("/lastTimestamp").or(first), int(object, "/count").max(1)),
    };
    let ago = |time: Option<Timestamp>| -> Value {
        time.map_or_else(|| duration::UNKNOWN.to_owned(), |time| duration::between(time, now)).into()
    };
    vec![
        ago(last),
        text(object, "/type").into(),
        text(object, "/reason").into(),
        about(object).into(),
        text(object, "/involvedObject/fieldPath").into(),
        source(object).into(),
        text(object, "/message").trim().into(),
        ago(first),
        count.into(),
        name(object),
    ]
}

/// `pod/web`.
fn about(object: &Value) -> String {
    let kind = text(object, "/involvedObject/kind").to_lowercase();
    match text(object, "/involvedObject/name") {
        "" => kind,
        name => format!("{kind}/{name}"),
    }
}

/// The component and, if known, where it runs.
fn source(object: &Value) -> String {
    let component = text_or(object, "/source/component", text(object, "/reportingComponent"));
    match text_or(object, "/source/host", text(object, "/reportingInstance")) {
        "" => component.to_owned(),
        instance => format!("{component}, {instance}"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::table::testing::{heads, row};

    #[test]
    fn both_versions_have_the_same_row() {
        let mut object = json!({
            "involvedObject": {"kind": "Pod", "name": "web", "fieldPath": "spec.containers{web}"},
            "type": "Warning",
            "reason": "BackOff",
            "message": " Back-off \n",
            "source": {"component": "agent", "host": "n1"},
            "firstTimestamp": "2025-01-01T23:00:00Z",
            "lastTimestamp": "2025-01-01T23:59:30Z",
            "count": 7,
        });
        let expected = json!([
            "30s",
            "Warning",
            "BackOff",
            "pod/web",
            "spec.containers{web}",
            "agent, n1",
            "Back-off",
            "60m",
            7,
            "x"
        ]);
        assert_eq!(row(&EVENTS, object.clone()), expected);
        NewEvent.to_served(&mut object);
        assert_eq!(row(&NEW_EVENTS, object), expected);
        assert_eq!(
            heads(&EVENTS),
            "Last Seen:string | Type:string | Reason:string | Object:string | +Subobject:string | +Source:string | \
             Message:string | +First Seen:string | +Count:string | +Name:string"
        );
    }

    #[test]
    fn an_event_of_the_newer_kind_is_dated_by_its_time_and_series() {
        let single = json!({
            "involvedObject": {"kind": "Node"},
            "eventTime": "2025-01-01T23:59:00.000000Z",
            "firstTimestamp": null,
            "reportingComponent": "scheduler",
        });
        assert_eq!(row(&EVENTS, single.clone()), json!(["60s", "", "", "node", "", "scheduler", "", "60s", 1, "x"]));
        let mut series = single;
        series["series"] = json!({"count": 4, "lastObservedTime": "2025-01-01T23:59:59.000000Z"});
        assert_eq!(row(&EVENTS, series), json!(["1s", "", "", "node", "", "scheduler", "", "60s", 4, "x"]));
        assert_eq!(row(&EVENTS, json!({}))[0], "<unknown>");
    }
}
