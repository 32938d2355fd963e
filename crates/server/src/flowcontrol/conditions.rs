//! The condition `Dangling` of FlowSchemas: whether the priority level that they name is there.
//!
//! Every server writes it when a FlowSchema or a PriorityLevelConfiguration changed; who comes second finds nothing to write.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use futures::{StreamExt, stream};
use http::{Method, StatusCode};
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::controller::{FLOW_SCHEMAS, PRIORITY_LEVELS};
use crate::{background::bootstrap::BootstrapClient, handler::Handler};

const DANGLING: &str = "Dangling";
/// How many statuses are written at a time.
const AT_ONCE: usize = 16;
/// After a write that failed.
const RETRY: Duration = Duration::from_secs(10);

/// Writes the conditions whenever they change.
pub async fn follow(handler: Arc<Handler>, stop: CancellationToken) {
    let mut changes = handler.api.flow_control.objects.subscribe();
    loop {
        changes.mark_unchanged();
        let is_written = write_missing(&handler, Timestamp::now()).await;
        let retry = async {
            match is_written {
                true => std::future::pending().await,
                false => tokio::time::sleep(RETRY).await,
            }
        };
        tokio::select! {
            () = stop.cancelled() => return,
            changed = changes.changed() => if changed.is_err() { return },
            () = retry => {}
        }
    }
}

/// Writes the conditions that are not as they should be. Says whether nothing is left to do.
pub async fn write_missing(handler: &Arc<Handler>, now: Timestamp) -> bool {
    let objects = &handler.api.flow_control.objects;
    let levels = objects.list(PRIORITY_LEVELS, None);
    let levels: BTreeSet<&str> = levels.iter().filter_map(|level| level.value["metadata"]["name"].as_str()).collect();
    let wanted: Vec<Value> = objects
        .list(FLOW_SCHEMAS, None)
        .iter()
        .filter_map(|schema| with_condition(&schema.value, &levels, now))
        .collect();
    let client = BootstrapClient::new(handler);
    let write = async |schema: Value| {
        let name = schema["metadata"]["name"].as_str().unwrap_or_default();
        let path = format!("/apis/{}/v1/{FLOW_SCHEMAS}/{name}/status", super::GROUP);
        match client.call(Method::PUT, &path, Some(&schema)).await {
            // Who changed or deleted it meanwhile wakes us again.
            (StatusCode::OK | StatusCode::CONFLICT | StatusCode::NOT_FOUND, _) => true,
            (_, status) => {
                let error = status["message"].as_str().unwrap_or_default();
                tracing::warn!(name, error, "the condition of a FlowSchema cannot be written; will try again");
                false
            }
        }
    };
    let results: Vec<bool> = stream::iter(wanted).map(write).buffer_unordered(AT_ONCE).collect().await;
    results.into_iter().all(|is_written| is_written)
}

/// The FlowSchema with the condition that it should have; nothing if it has it.
fn with_condition(schema: &Value, levels: &BTreeSet<&str>, now: Timestamp) -> Option<Value> {
    let level = schema["spec"]["priorityLevelConfiguration"]["name"].as_str().unwrap_or_default();
    let start = format!("This FlowSchema references the PriorityLevelConfiguration object named {level:?}");
    let (status, reason, message) = match levels.contains(level) {
        true => ("False", "Found", format!("{start} and it exists")),
        false => ("True", "NotFound", format!("{start} but there is no such object")),
    };
    let conditions = schema["status"]["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
    let known = conditions.iter().find(|condition| condition["type"] == DANGLING);
    if known.is_some_and(|known| known["status"] == status && known["reason"] == reason && known["message"] == message)
    {
        return None;
    }
    let since = match known {
        Some(known) if known["status"] == status => known["lastTransitionTime"].clone(),
        _ => json!(Timestamp::from_second(now.as_second()).unwrap_or(now).to_string()),
    };
    let condition = json!({
        "type": DANGLING, "status": status, "reason": reason, "message": message, "lastTransitionTime": since,
    });
    let others = conditions.iter().filter(|condition| condition["type"] != DANGLING).cloned();
    let mut changed = schema.clone();
    changed["status"]["conditions"] = others.chain([condition]).collect();
    Some(changed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schema_says_whether_its_level_is_there_and_since_when() {
        let now = |second| Timestamp::from_second(second).unwrap();
        let schema = json!({ "metadata": { "name": "s" }, "spec": { "priorityLevelConfiguration": { "name": "l" } } });
        let dangling = with_condition(&schema, &BTreeSet::new(), now(0)).unwrap();
        let expected = json!({
            "type": "Dangling", "status": "True", "reason": "NotFound", "lastTransitionTime": "1970-01-01T00:00:00Z",
            "message": "This FlowSchema references the PriorityLevelConfiguration object named \"l\" but there is no such object",
        });
        assert_eq!(dangling["status"]["conditions"], json!([expected]));
        assert_eq!(with_condition(&dangling, &BTreeSet::new(), now(1)), None, "rests");
        let found = with_condition(&dangling, &BTreeSet::from(["l"]), now(60)).unwrap();
        let condition = &found["status"]["conditions"][0];
        assert_eq!((&condition["status"], &condition["reason"]), (&json!("False"), &json!("Found")));
        assert_eq!(condition["lastTransitionTime"], "1970-01-01T00:01:00Z");
        assert_eq!(with_condition(&found, &BTreeSet::from(["l"]), now(120)), None);
    }
}
