//! Release.

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::machine::version;
use crate::{
    field::{Errors, FieldError, Path},
    groups::batch::rules::cron,
    needs::{NeedTarget, Needs, ServiceName},
    release::{
        DAYS, DEFAULT_PROGRESS_DEADLINE_SECONDS, HALT, MOST_GATES, MOST_NAMED_MACHINES, MOST_WAVES, MOST_WINDOWS,
        ROLLBACK, Release, ReleaseGate, ReleaseWave, ReleaseWindow,
    },
    strategy::Rules,
    validation::{
        check::{NOT_POSITIVE, non_negative, one_of},
        int_or_percent,
        labels::validate_selector,
        names,
    },
};

pub struct ReleaseRules;

impl Rules for ReleaseRules {
    type Object = Release;

    fn default(object: &mut Release) {
        let spec = &mut object.spec;
        spec.max_unavailable.get_or_insert(IntOrString::Int(1));
        spec.max_failed.get_or_insert(IntOrString::Int(0));
        spec.soak_seconds.get_or_insert(0);
        spec.progress_deadline_seconds.get_or_insert(DEFAULT_PROGRESS_DEADLINE_SECONDS);
        spec.on_stuck.get_or_insert_with(|| HALT.to_owned());
    }

    fn validate(object: &Release, errors: &mut Errors) {
        let (path, spec) = (Path::new("spec"), &object.spec);
        version(Some(&spec.version), &path.child("version"), errors);
        version(spec.aborted_version.as_deref(), &path.child("abortedVersion"), errors);
        validate_selector(&spec.selector, &path.child("selector"), errors);
        let shares = [
            ("maxUnavailable", &spec.max_unavailable),
            ("maxFailed", &spec.max_failed),
            ("rollbackMaxUnavailable", &spec.rollback_max_unavailable),
        ];
        for (name, share) in shares {
            let Some(share) = share else { continue };
            int_or_percent::validate(share, &path.child(name), errors);
            int_or_percent::at_most_all(share, &path.child(name), errors);
            if name != "maxFailed" && int_or_percent::is_zero(share) {
                let why = "must not be 0: no machine could ever be started";
                errors.push(FieldError::invalid(&path.child(name), serde_json::json!(share), why));
            }
        }
        non_negative(spec.soak_seconds.unwrap_or(0).into(), &path.child("soakSeconds"), errors);
        if let Some(seconds) = spec.progress_deadline_seconds.filter(|seconds| *seconds <= 0) {
            errors.push(FieldError::invalid(&path.child("progressDeadlineSeconds"), seconds, NOT_POSITIVE));
        }
        one_of(spec.on_stuck.as_deref().unwrap_or(HALT), &[HALT, ROLLBACK], &path.child("onStuck"), errors);
        let at_most = |count: usize, most: usize, path: &Path, errors: &mut Errors| {
            if count > most {
                errors.push(FieldError::too_many(path, count, most));
            }
            count <= most
        };
        let waves = path.child("waves");
        if at_most(spec.waves.len(), MOST_WAVES, &waves, errors) {
            spec.waves.iter().enumerate().for_each(|(i, own)| wave(own, &waves.index(i), errors));
        }
        let windows = path.child("windows");
        if at_most(spec.windows.len(), MOST_WINDOWS, &windows, errors) {
            spec.windows.iter().enumerate().for_each(|(i, own)| window(own, &windows.index(i), errors));
        }
        if let Some(hold) = spec.hold.as_ref().filter(|hold| hold.reason.trim().is_empty() || hold.reason.len() > 1024)
        {
            let why = "must say why, in at most 1024 bytes";
            errors.push(FieldError::invalid(&path.child("hold").child("reason"), hold.reason.as_str(), why));
        }
        if let Some(approval) = &spec.approval {
            let path = path.child("approval");
            version(Some(&approval.version), &path.child("version"), errors);
            non_negative(approval.wave.into(), &path.child("wave"), errors);
        }
    }
}

fn wave(own: &ReleaseWave, path: &Path, errors: &mut Errors) {
    match (&own.up_to, own.machines.len()) {
        (None, 0) => errors.push(FieldError::required(path, "must have `machines` or `upTo`")),
        (Some(_), 1..) => {
            errors.push(FieldError::forbidden(&path.child("upTo"), "may not be specified with `machines`"));
        }
        (Some(share), 0) => {
            int_or_percent::validate(share, &path.child("upTo"), errors);
            int_or_percent::at_most_all(share, &path.child("upTo"), errors);
        }
        (None, count) if count > MOST_NAMED_MACHINES => {
            errors.push(FieldError::too_many(&path.child("machines"), count, MOST_NAMED_MACHINES));
        }
        (None, _) => {
            for (i, name) in own.machines.iter().enumerate() {
                names::refuse(name, &path.child("machines").index(i), names::dns1123_subdomain, errors);
            }
        }
    }
    let gates = path.child("gates");
    if own.gates.len() > MOST_GATES {
        return errors.push(FieldError::too_many(&gates, own.gates.len(), MOST_GATES));
    }
    own.gates.iter().enumerate().for_each(|(i, own)| gate(own, &gates.index(i), errors));
}

fn gate(own: &ReleaseGate, path: &Path, errors: &mut Errors) {
    let kinds = [own.needs.is_some(), own.http.is_some(), own.approval].into_iter().filter(|has| *has).count();
    if kinds != 1 {
        errors.push(FieldError::required(path, "must have exactly one of `needs`, `http` and `approval`"));
    }
    if let Some(text) = &own.needs {
        let path = path.child("needs");
        match text.parse::<Needs>() {
            Err(error) => errors.push(FieldError::invalid(&path, text.as_str(), error.to_string())),
            Ok(needs) if needs.within.is_some() => {
                errors.push(FieldError::invalid(&path, text.as_str(), "may not have `within`: a gate waits for ever"));
            }
            Ok(needs) if !needs.needs.iter().all(|need| is_of_a_namespace(&need.target)) => {
                let why = "must name Services with their namespace, such as `mysql.db >= 2 ready`, and nothing else";
                errors.push(FieldError::invalid(&path, text.as_str(), why));
            }
            Ok(_) => {}
        }
    }
    if let Some(http) = &own.http {
        let host = http.url.strip_prefix("http://").and_then(|rest| rest.split(['/', '?']).next()).unwrap_or_default();
        let is_text = http.url.bytes().all(|byte| byte.is_ascii_graphic());
        if host.is_empty() || host.contains('@') || !is_text || http.url.len() > 2048 {
            let why = "must be a URL with the scheme http and a host, such as http://10.96.0.20:8080/healthy";
            errors.push(FieldError::invalid(&path.child("http").child("url"), http.url.as_str(), why));
        }
    }
}

/// A Release is of no namespace itself.
fn is_of_a_namespace(target: &NeedTarget) -> bool {
    match target {
        NeedTarget::Service { service, .. } => !matches!(service, ServiceName::InOwnNamespace(_)),
        NeedTarget::Workload { .. } | NeedTarget::Object { .. } => false,
    }
}

fn window(own: &ReleaseWindow, path: &Path, errors: &mut Errors) {
    for (i, day) in own.days.iter().enumerate() {
        one_of(day, &DAYS, &path.child("days").index(i), errors);
    }
    for (name, time) in [("from", &own.from), ("to", &own.to)] {
        if clock_time(time).is_none() {
            errors.push(FieldError::invalid(&path.child(name), time.as_str(), "must be a time such as 22:30"));
        }
    }
    if own.time_zone.as_deref().is_some_and(|zone| cron::zone(zone).is_none()) {
        let why = "must be a name of the time zone database, such as Europe/Berlin";
        errors.push(FieldError::invalid(&path.child("timeZone"), own.time_zone.clone(), why));
    }
}

/// Hour and minute of a text such as `22:30`.
pub fn clock_time(text: &str) -> Option<(i8, i8)> {
    let (hour, minute) = text.split_once(':').filter(|_| text.len() == 5)?;
    let digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit()).then(|| part.parse().ok())?;
    let (hour, minute) = (digits(hour)?, digits(minute)?);
    (hour < 24 && minute < 60).then_some((hour, minute))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::validation::testing::{assert_completes, assert_refused, with};

    fn release(spec: Value) -> Value {
        let base = json!({
            "apiVersion": "mainstay.dev/v1", "kind": "Release", "metadata": {"name": "all"},
            "spec": {"version": "v2", "selector": {}},
        });
        with(&base, json!({"spec": spec}))
    }

    #[test]
    fn a_release_moves_one_machine_at_a_time_and_halts_at_the_first_failure_unless_told_otherwise() {
        let complete = json!({
            "drain": false, "maxFailed": 0, "maxUnavailable": 1, "onStuck": "Halt", "paused": false,
            "progressDeadlineSeconds": 3600, "soakSeconds": 0,
        });
        assert_completes::<ReleaseRules>(release(json!({})), release(complete.clone()));
        let full = json!({
            "waves": [
                {"machines": ["a", "b"]},
                {"upTo": "25%", "gates": [
                    {"needs": "mysql.db >= 2 ready", "approval": false}, {"http": {"url": "http://10.0.0.1/ok"}, "approval": false},
                    {"approval": true},
                ]},
            ],
            "windows": [{"days": ["Mon", "Sun"], "from": "22:00", "to": "04:00", "timeZone": "Europe/Berlin"}],
            "approval": {"version": "v2", "wave": 1}, "hold": {"reason": "holidays"}, "abortedVersion": "v1",
        });
        let expected = with(&release(complete), json!({"spec": full.clone()}));
        assert_completes::<ReleaseRules>(release(full), expected);
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_its_field() {
        for (spec, error) in [
            (
                json!({"version": "a b"}),
                "spec.version: Invalid value: \"a b\": must be at most 128 letters, digits and any of `.-_+:~`, and begin \
                 with a letter or digit",
            ),
            (
                json!({"maxUnavailable": 0}),
                "spec.maxUnavailable: Invalid value: 0: must not be 0: no machine could ever be started",
            ),
            (json!({"maxFailed": "101%"}), "spec.maxFailed: Invalid value: \"101%\": must not be greater than 100%"),
            (
                json!({"onStuck": "halt"}),
                "spec.onStuck: Unsupported value: \"halt\": supported values: \"Halt\", \"Rollback\"",
            ),
            (
                json!({"progressDeadlineSeconds": 0}),
                "spec.progressDeadlineSeconds: Invalid value: 0: must be greater than zero",
            ),
            (json!({"waves": [{}]}), "spec.waves[0]: Required value: must have `machines` or `upTo`"),
            (
                json!({"waves": [{"upTo": 1, "machines": ["a"]}]}),
                "spec.waves[0].upTo: Forbidden: may not be specified with `machines`",
            ),
            (
                json!({"waves": [{"upTo": 1, "gates": [{}]}]}),
                "spec.waves[0].gates[0]: Required value: must have exactly one of `needs`, `http` and `approval`",
            ),
            (
                json!({"waves": [{"upTo": 1, "gates": [{"needs": "mysql"}]}]}),
                "spec.waves[0].gates[0].needs: Invalid value: \"mysql\": must name Services with their namespace, such as \
                 `mysql.db >= 2 ready`, and nothing else",
            ),
            (
                json!({"waves": [{"upTo": 1, "gates": [{"http": {"url": "file:///etc/passwd"}}]}]}),
                "spec.waves[0].gates[0].http.url: Invalid value: \"file:///etc/passwd\": must be a URL with the scheme http \
                 and a host, such as http://10.96.0.20:8080/healthy",
            ),
            (
                json!({"windows": [{"from": "9:00", "to": "10:00"}]}),
                "spec.windows[0].from: Invalid value: \"9:00\": must be a time such as 22:30",
            ),
            (
                json!({"windows": [{"from": "09:00", "to": "10:00", "timeZone": "Mars/Crater"}]}),
                "spec.windows[0].timeZone: Invalid value: \"Mars/Crater\": must be a name of the time zone database, such \
                 as Europe/Berlin",
            ),
            (
                json!({"hold": {"reason": " "}}),
                "spec.hold.reason: Invalid value: \" \": must say why, in at most 1024 bytes",
            ),
        ] {
            assert_refused::<ReleaseRules>(release(spec), &[error]);
        }
        let many: Vec<Value> = (0..101).map(|_| json!({"upTo": 1})).collect();
        assert_refused::<ReleaseRules>(
            release(json!({"waves": many})),
            &["spec.waves: Too many: 101: must have at most 100 items"],
        );
    }
}
