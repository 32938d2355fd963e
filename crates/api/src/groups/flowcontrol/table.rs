//! Columns of `flowcontrol.apiserver.k8s.io/v1`.

use serde_json::Value;

use crate::table::{
    Columns,
    column::{AGE, NAME, integer, text as column},
    read::{NONE, age, condition, int, name, scalar, text, text_or},
};

pub static FLOW_SCHEMAS: Columns = Columns {
    definitions: &[
        NAME,
        column("PriorityLevel", "The priority level that its requests get."),
        integer("MatchingPrecedence", "The lowest that matches a request takes it."),
        column("DistinguisherMethod", "What tells its flows apart."),
        AGE,
        column("MissingPL", "Whether its priority level does not exist."),
    ],
    cells: |object, now| {
        vec![
            name(object),
            text(object, "/spec/priorityLevelConfiguration/name").into(),
            int(object, "/spec/matchingPrecedence").into(),
            text_or(object, "/spec/distinguisherMethod/type", NONE).into(),
            age(object, now),
            condition(object, "Dangling").unwrap_or("?").into(),
        ]
    },
};

pub static PRIORITY_LEVEL_CONFIGURATIONS: Columns = Columns {
    definitions: &[
        NAME,
        column("Type", "Whether its requests are limited or exempt."),
        column("NominalConcurrencyShares", "Its share of the requests at work."),
        column("Queues", "How many queues it has."),
        column("HandSize", "How many queues one flow may use."),
        column("QueueLengthLimit", "How many requests may wait in one queue."),
        AGE,
    ],
    cells: |object, now| {
        let number = |pointer: &str| -> Value { scalar(object, pointer).unwrap_or_else(|| NONE.to_owned()).into() };
        let of_queues = |field: &str| number(&format!("/spec/limited/limitResponse/queuing/{field}"));
        let shares = if text(object, "/spec/type") == "Exempt" { "exempt" } else { "limited" };
        vec![
            name(object),
            text(object, "/spec/type").into(),
            number(&format!("/spec/{shares}/nominalConcurrencyShares")),
            of_queues("queues"),
            of_queues("handSize"),
            of_queues("queueLengthLimit"),
            age(object, now),
        ]
    },
};

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::table::testing::row;

    #[test]
    fn schemas_tell_their_level_and_whether_it_is_there() {
        let schema = json!({
            "spec": {"matchingPrecedence": 7, "priorityLevelConfiguration": {"name": "low"}},
            "status": {"conditions": [{"type": "Dangling", "status": "False"}]},
        });
        assert_eq!(row(&FLOW_SCHEMAS, schema), json!(["x", "low", 7, "<none>", "5m", "False"]));
        assert_eq!(row(&FLOW_SCHEMAS, json!({})), json!(["x", "", 0, "<none>", "5m", "?"]));
    }

    #[test]
    fn levels_tell_their_shares_and_queues() {
        let queuing = json!({"queues": 64, "handSize": 8, "queueLengthLimit": 50});
        let level = json!({"spec": {"type": "Limited", "limited": {
            "nominalConcurrencyShares": 30, "limitResponse": {"type": "Queue", "queuing": queuing},
        }}});
        assert_eq!(row(&PRIORITY_LEVEL_CONFIGURATIONS, level), json!(["x", "Limited", "30", "64", "8", "50", "5m"]));
        let exempt = json!({"spec": {"type": "Exempt", "exempt": {"nominalConcurrencyShares": 0}}});
        assert_eq!(
            row(&PRIORITY_LEVEL_CONFIGURATIONS, exempt),
            json!(["x", "Exempt", "0", "<none>", "<none>", "<none>", "5m"])
        );
    }
}
