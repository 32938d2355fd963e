//! Columns of `batch/v1`.

use jiff::Timestamp;
use serde_json::Value;

use crate::table::{
    Columns,
    column::{AGE, CONTAINERS, IMAGES, NAME, SELECTOR, boolean, integer, text as column, wide},
    duration,
    labels::{containers, selector},
    read::{NONE, UNSET, age, condition, deleting, int, list, name, present, text, text_or},
};

pub static CRON_JOBS: Columns = Columns {
    definitions: &[
        NAME,
        column("Schedule", "When to start a job, in cron format."),
        column("Timezone", "The time zone of the schedule."),
        boolean("Suspend", "Whether no further jobs are started."),
        integer("Active", "Jobs that are running."),
        column("Last Schedule", "How long ago a job was last due."),
        AGE,
        wide(CONTAINERS),
        wide(IMAGES),
        wide(SELECTOR),
    ],
    cells: cron_job,
};

pub static JOBS: Columns = Columns {
    definitions: &[
        NAME,
        column("Status", "Where the job stands."),
        column("Completions", "Pods that succeeded, of those wanted."),
        column("Duration", "Time from start to completion, or to now."),
        AGE,
        wide(CONTAINERS),
        wide(IMAGES),
        wide(SELECTOR),
    ],
    cells: job,
};

fn cron_job(object: &Value, now: Timestamp) -> Vec<Value> {
    let suspend = match object.pointer("/spec/suspend").and_then(Value::as_bool) {
        Some(true) => "True",
        Some(false) => "False",
        None => UNSET,
    };
    let last = present(object, "/status/lastScheduleTime");
    let [names, images] = containers(object, "/spec/jobTemplate/spec/template/spec");
    vec![
        name(object),
        text(object, "/spec/schedule").into(),
        text_or(object, "/spec/timeZone", NONE).into(),
        suspend.into(),
        list(object, "/status/active").len().into(),
        last.map_or_else(|| NONE.to_owned(), |last| duration::since(Some(last), now)).into(),
        age(object, now),
        names,
        images,
        selector(object, "/spec/jobTemplate/spec/selector"),
    ]
}

fn job(object: &Value, now: Timestamp) -> Vec<Value> {
    let [names, images] = containers(object, "/spec/template/spec");
    vec![
        name(object),
        job_status(object).into(),
        completions(object).into(),
        job_duration(object, now).into(),
        age(object, now),
        names,
        images,
        selector(object, "/spec/selector"),
    ]
}

fn job_status(object: &Value) -> &'static str {
    let has = |kind| condition(object, kind) == Some("True");
    if has("Complete") {
        "Complete"
    } else if has("Failed") {
        "Failed"
    } else if deleting(object) {
        "Terminating"
    } else if has("Suspended") {
        "Suspended"
    } else if has("FailureTarget") {
        "FailureTarget"
    } else {
        "Running"
    }
}

fn completions(object: &Value) -> String {
    let succeeded = int(object, "/status/succeeded");
    if present(object, "/spec/completions").is_some() {
        return format!("{succeeded}/{}", int(object, "/spec/completions"));
    }
    match int(object, "/spec/parallelism") {
        ..=1 => format!("{succeeded}/1"),
        parallelism => format!("{succeeded}/1 of {parallelism}"),
    }
}

fn job_duration(object: &Value, now: Timestamp) -> String {
    let Some(start) = duration::time(object.pointer("/status/startTime")) else { return String::new() };
    duration::between(start, duration::time(object.pointer("/status/completionTime")).unwrap_or(now))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::table::testing::{heads, row};

    #[test]
    fn a_job_shows_how_far_and_how_long() {
        let object = json!({
            "spec": {
                "completions": 3,
                "selector": {"matchLabels": {"job": "x"}},
                "template": {"spec": {"containers": [{"name": "a", "image": "i"}]}},
            },
            "status": {
                "succeeded": 3,
                "startTime": "2025-01-01T23:55:00Z",
                "completionTime": "2025-01-01T23:57:30Z",
                "conditions": [{"type": "Complete", "status": "True"}],
            },
        });
        assert_eq!(row(&JOBS, object), json!(["x", "Complete", "3/3", "2m30s", "5m", "a", "i", "job=x"]));
        assert_eq!(
            heads(&JOBS),
            "Name:string | Status:string | Completions:string | Duration:string | Age:string | +Containers:string | \
             +Images:string | +Selector:string"
        );
    }

    #[test]
    fn completions_without_a_number_mean_one() {
        let cases = [
            (json!({}), "0/1"),
            (json!({"spec": {"parallelism": 1}, "status": {"succeeded": 1}}), "1/1"),
            (json!({"spec": {"parallelism": 4}}), "0/1 of 4"),
            (json!({"spec": {"completions": 2, "parallelism": 4}}), "0/2"),
        ];
        for (object, expected) in cases {
            assert_eq!(completions(&object), expected, "{object}");
        }
    }

    #[test]
    fn a_job_has_one_status() {
        let with = |kind: &str| json!({"status": {"conditions": [{"type": kind, "status": "True"}]}});
        let cases = [
            (json!({}), "Running"),
            (with("Failed"), "Failed"),
            (with("Suspended"), "Suspended"),
            (with("FailureTarget"), "FailureTarget"),
            (json!({"metadata": {"deletionTimestamp": "2025-01-01T00:00:00Z"}}), "Terminating"),
            (json!({"status": {"conditions": [{"type": "Complete", "status": "False"}]}}), "Running"),
        ];
        for (object, expected) in cases {
            assert_eq!(job_status(&object), expected, "{object}");
        }
    }

    #[test]
    fn a_job_that_runs_lasts_until_now_and_one_not_started_shows_nothing() {
        let now = crate::table::testing::NOW.parse().unwrap();
        assert_eq!(job_duration(&json!({"status": {"startTime": "2025-01-01T23:59:00Z"}}), now), "60s");
        assert_eq!(job_duration(&json!({}), now), "");
    }

    #[test]
    fn cron_jobs_show_when_they_last_ran() {
        let object = json!({
            "spec": {
                "schedule": "*/5 * * * *", "timeZone": "Europe/Berlin", "suspend": false,
                "jobTemplate": {"spec": {"template": {"spec": {"containers": [{"name": "a", "image": "i"}]}}}},
            },
            "status": {"active": [{}], "lastScheduleTime": "2025-01-01T23:58:00Z"},
        });
        assert_eq!(
            row(&CRON_JOBS, object),
            json!(["x", "*/5 * * * *", "Europe/Berlin", "False", 1, "2m", "5m", "a", "i", "<none>"])
        );
        assert_eq!(
            row(&CRON_JOBS, json!({"spec": {"schedule": "@daily"}})),
            json!(["x", "@daily", "<none>", "<unset>", 0, "<none>", "5m", "", "", "<none>"])
        );
    }
}
