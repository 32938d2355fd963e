//! CronJob.

use k8s_openapi::api::batch::v1::{CronJob, CronJobSpec, JobTemplateSpec};

use super::{cron, job_spec};
use crate::{
    field::{Errors, FieldError, Path},
    strategy::Rules,
    validation::check::{count, fill, required_one_of, shown, text},
};

pub struct CronJobRules;

/// A job's name is that of its CronJob, a dash and ten digits.
const MAX_NAME: usize = 63 - 11;

impl Rules for CronJobRules {
    type Object = CronJob;

    fn default(object: &mut CronJob) {
        let spec = &mut object.spec;
        fill(&mut spec.concurrency_policy, "Allow");
        spec.suspend.get_or_insert(false);
        spec.successful_jobs_history_limit.get_or_insert(3);
        spec.failed_jobs_history_limit.get_or_insert(1);
        job_spec::default(spec.job_template.spec.get_or_insert_default());
    }

    fn prepare_create(object: &mut CronJob) {
        object.status = Some(Default::default());
    }

    fn validate(object: &CronJob, errors: &mut Errors) {
        validate_spec(&object.spec, &Path::new("spec"), errors);
        let name = text(&object.metadata.name);
        if name.len() > MAX_NAME {
            errors.push(FieldError::invalid(
                &Path::new("metadata").child("name"),
                name,
                "must be no more than 52 characters",
            ));
        }
    }
}

fn validate_spec(spec: &CronJobSpec, path: &Path, errors: &mut Errors) {
    validate_schedule(spec, &path.child("schedule"), errors);
    count(spec.starting_deadline_seconds, &path.child("startingDeadlineSeconds"), errors);
    if let Some(zone) = &spec.time_zone {
        validate_time_zone(zone, &path.child("timeZone"), errors);
    }
    let policies = ["Allow", "Forbid", "Replace"];
    required_one_of(text(&spec.concurrency_policy), &policies, &path.child("concurrencyPolicy"), errors);
    validate_template(&spec.job_template, &path.child("jobTemplate").child("spec"), errors);
    count(spec.successful_jobs_history_limit, &path.child("successfulJobsHistoryLimit"), errors);
    count(spec.failed_jobs_history_limit, &path.child("failedJobsHistoryLimit"), errors);
}

fn validate_schedule(spec: &CronJobSpec, path: &Path, errors: &mut Errors) {
    let schedule = spec.schedule.as_str();
    if schedule.is_empty() {
        errors.push(FieldError::required(path, ""));
        return;
    }
    if let Err(error) = cron::Schedule::parse(schedule) {
        errors.push(FieldError::invalid(path, schedule, error));
    }
    if schedule.contains("TZ") {
        let detail = "cannot use TZ or CRON_TZ in schedule, use timeZone field instead";
        errors.push(FieldError::invalid(path, schedule, detail));
    }
}

fn validate_time_zone(zone: &str, path: &Path, errors: &mut Errors) {
    let mut refuse = |detail: String| errors.push(FieldError::invalid(path, zone, detail));
    let unknown = || format!("unknown time zone {zone}");
    if zone.is_empty() {
        refuse("timeZone must be nil or non-empty string".to_owned());
    } else if !zone.split('/').all(is_zone_part) {
        refuse(unknown());
    } else if zone.eq_ignore_ascii_case("local") {
        refuse("timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones".to_owned());
    } else if cron::zone(zone).is_none() {
        refuse(unknown());
    }
}

fn is_zone_part(part: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b".-_+".contains(&byte);
    (1..=14).contains(&part.len()) && part.bytes().all(allowed) && part != "." && part != ".." && !part.starts_with('-')
}

fn validate_template(template: &JobTemplateSpec, path: &Path, errors: &mut Errors) {
    let Some(spec) = &template.spec else { return };
    job_spec::validate(spec, path, errors);
    if let Some(selector) = &spec.selector {
        let detail = "`selector` will be auto-generated";
        errors.push(FieldError::invalid(&path.child("selector"), shown(selector), detail));
    }
    if spec.manual_selector == Some(true) {
        errors.push(FieldError::not_supported(&path.child("manualSelector"), true, &["nil", "false"]));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::validation::testing::{assert_refused, assert_update, completed, with};

    fn nightly() -> Value {
        json!({
            "apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "nightly"},
            "spec": {
                "schedule": "0 3 * * *",
                "jobTemplate": {"spec": {"template": {"spec": {
                    "restartPolicy": "Never", "containers": [{"name": "backup", "image": "backup"}],
                }}}},
            },
        })
    }

    #[test]
    fn a_minimal_cron_job_is_completed() {
        let mut spec = completed::<CronJobRules>(nightly())["spec"].take();
        assert_eq!(spec["jobTemplate"]["spec"]["template"]["spec"]["dnsPolicy"], "ClusterFirst");
        spec.as_object_mut().expect("an object").remove("jobTemplate");
        assert_eq!(
            spec,
            json!({
                "schedule": "0 3 * * *", "concurrencyPolicy": "Allow", "suspend": false,
                "successfulJobsHistoryLimit": 3, "failedJobsHistoryLimit": 1,
            })
        );
        assert_update::<CronJobRules>(
            &nightly(),
            json!({"spec": {"schedule": "@hourly", "timeZone": "Europe/Zurich"}}),
            &[],
        );
    }

    #[test]
    fn bad_cron_jobs_are_refused_with_upstreams_messages() {
        let cases: &[(Value, &[&str])] = &[
            (json!({"schedule": null}), &["spec.schedule: Required value"]),
            (
                json!({"schedule": "0 3 * *"}),
                &[r#"spec.schedule: Invalid value: "0 3 * *": expected exactly 5 fields, found 4: [0 3 * *]"#],
            ),
            (
                json!({"schedule": "TZ=UTC 0 3 * * *"}),
                &[
                    r#"spec.schedule: Invalid value: "TZ=UTC 0 3 * * *": cannot use TZ or CRON_TZ in schedule, use timeZone field instead"#,
                ],
            ),
            (
                json!({"timeZone": ""}),
                &[r#"spec.timeZone: Invalid value: "": timeZone must be nil or non-empty string"#],
            ),
            (
                json!({"timeZone": "Local"}),
                &[
                    r#"spec.timeZone: Invalid value: "Local": timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones"#,
                ],
            ),
            (
                json!({"timeZone": "Mars/Base"}),
                &[r#"spec.timeZone: Invalid value: "Mars/Base": unknown time zone Mars/Base"#],
            ),
            (
                json!({"concurrencyPolicy": "Queue"}),
                &[
                    r#"spec.concurrencyPolicy: Unsupported value: "Queue": supported values: "Allow", "Forbid", "Replace""#,
                ],
            ),
            (
                json!({"startingDeadlineSeconds": -1}),
                &["spec.startingDeadlineSeconds: Invalid value: -1: must be greater than or equal to 0"],
            ),
            (
                json!({"jobTemplate": {"spec": {"manualSelector": true, "selector": {"matchLabels": {"a": "b"}}}}}),
                &[
                    r#"spec.jobTemplate.spec.selector: Invalid value: {"matchLabels":{"a":"b"}}: `selector` will be auto-generated"#,
                    r#"spec.jobTemplate.spec.manualSelector: Unsupported value: true: supported values: "nil", "false""#,
                ],
            ),
            (
                json!({"jobTemplate": {"spec": {"template": {"spec": {"restartPolicy": null}}}}}),
                &[
                    r#"spec.jobTemplate.spec.template.spec.restartPolicy: Required value: valid values: "OnFailure", "Never""#,
                ],
            ),
        ];
        for (change, expected) in cases {
            assert_refused::<CronJobRules>(with(&nightly(), json!({"spec": change})), expected);
        }
        let name = "n".repeat(53);
        let message = format!(r#"metadata.name: Invalid value: "{name}": must be no more than 52 characters"#);
        assert_refused::<CronJobRules>(with(&nightly(), json!({"metadata": {"name": name}})), &[&message]);
    }
}
