//! Release.

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::machine::version;
use crate::{
    field::{Errors, FieldError, Path},
    groups::batch::rules::cron,
    needs::{NeedTarget, Needs, ServiceName},
    release::{
        DAYS, DEFAULT_PROGRESS_DEADLINE_SECONDS, ExecGate, HALT, HttpGate, LONGEST_PATCH, MOST_GATES,
        MOST_NAMED_MACHINES, MOST_ORDER_LABELS, MOST_WAVES, MOST_WINDOWS, MOST_WORKLOAD_CHANGES, ROLLBACK, Release,
        ReleaseGate, ReleaseWave, ReleaseWindow, UNRELEASED, WORKLOAD_KINDS, WorkloadChange,
    },
    release_gate::{LONGEST_COMMAND, LONGEST_TIMEOUT_SECONDS, MOST_STATUSES, compile_expectation},
    strategy::Rules,
    validation::{
        check::{NOT_POSITIVE, non_negative, one_of},
        int_or_percent,
        labels::{selects_all, validate_selector},
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
        version(spec.rollback_version.as_deref(), &path.child("rollbackVersion"), errors);
        if spec.version == UNRELEASED {
            let why = "means what workloads ran before any release; name another version";
            errors.push(FieldError::invalid(&path.child("version"), spec.version.as_str(), why));
        }
        match &spec.selector {
            Some(selector) => validate_selector(selector, &path.child("selector"), errors),
            None if spec.workloads.is_empty() => {
                let why = "must say which machines, or `workloads` which workloads; {} selects all machines";
                errors.push(FieldError::required(&path.child("selector"), why));
            }
            None => {}
        }
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
        for (name, seconds) in [("soakSeconds", spec.soak_seconds), ("rollbackSoakSeconds", spec.rollback_soak_seconds)]
        {
            non_negative(seconds.unwrap_or(0).into(), &path.child(name), errors);
        }
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
        for (name, own) in [("waves", &spec.waves), ("rollbackWaves", &spec.rollback_waves)] {
            let waves = path.child(name);
            if at_most(own.len(), MOST_WAVES, &waves, errors) {
                own.iter().enumerate().for_each(|(i, own)| wave(own, &waves.index(i), errors));
            }
        }
        for (i, _) in spec.rollback_waves.iter().enumerate().filter(|(_, own)| !own.gates.is_empty()) {
            let gates = path.child("rollbackWaves").index(i).child("gates");
            errors.push(FieldError::forbidden(&gates, "a rollback waits for no gates"));
        }
        let order = path.child("orderBy");
        if at_most(spec.order_by.len(), MOST_ORDER_LABELS, &order, errors) {
            let labels = spec.order_by.iter().enumerate();
            labels.for_each(|(i, label)| names::refuse(label, &order.index(i), names::qualified_name, errors));
        }
        let workloads = path.child("workloads");
        if at_most(spec.workloads.len(), MOST_WORKLOAD_CHANGES, &workloads, errors) {
            spec.workloads.iter().enumerate().for_each(|(i, own)| workload_change(own, &workloads.index(i), errors));
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

fn workload_change(own: &WorkloadChange, path: &Path, errors: &mut Errors) {
    for (i, kind) in own.kinds.iter().enumerate() {
        one_of(kind, &WORKLOAD_KINDS, &path.child("kinds").index(i), errors);
    }
    for (i, namespace) in own.namespaces.iter().enumerate() {
        names::refuse(namespace, &path.child("namespaces").index(i), names::dns1123_label, errors);
    }
    validate_selector(&own.selector, &path.child("selector"), errors);
    if selects_all(&own.selector) && own.namespaces.is_empty() {
        let why = "would select every workload of every namespace: name labels, or `namespaces`";
        errors.push(FieldError::invalid(&path.child("selector"), serde_json::json!(own.selector), why));
    }
    for (container, image) in &own.images {
        let path = path.child("images").key(container);
        names::refuse(container, &path, names::dns1123_label, errors);
        if image.is_empty() || image.trim() != image {
            let why = "must be an image, such as registry.example.com/web:$(VERSION)";
            errors.push(FieldError::invalid(&path, image.as_str(), why));
        }
    }
    match (&own.patch, own.images.is_empty()) {
        (None, true) => errors.push(FieldError::required(path, "must have `images` or `patch`")),
        (Some(_), false) => {
            errors.push(FieldError::forbidden(&path.child("patch"), "may not be specified with `images`"));
        }
        (Some(patch), true) => {
            let is_change = patch.as_object().is_some_and(|fields| !fields.is_empty());
            let size = patch.to_string().len();
            if !is_change || size > LONGEST_PATCH {
                let why = format!(
                    "must be a part of a pod's template, with metadata or spec, of at most {LONGEST_PATCH} bytes"
                );
                errors.push(FieldError::invalid(
                    &path.child("patch"),
                    if is_change { "…".into() } else { patch.clone() },
                    why,
                ));
            }
        }
        (None, false) => {}
    }
}

fn wave(own: &ReleaseWave, path: &Path, errors: &mut Errors) {
    for (i, name) in own.workloads.iter().enumerate() {
        if !is_workload_name(name) {
            let why = "must be kind, namespace and name, such as deployment/shop/web";
            errors.push(FieldError::invalid(&path.child("workloads").index(i), name.as_str(), why));
        }
    }
    match (&own.up_to, own.machines.len() + own.workloads.len()) {
        (None, 0) => errors.push(FieldError::required(path, "must have `machines`, `workloads` or `upTo`")),
        (Some(_), 1..) => {
            let why = "may not be specified with `machines` or `workloads`";
            errors.push(FieldError::forbidden(&path.child("upTo"), why));
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
    if let Some(share) = &own.max_failed {
        int_or_percent::validate(share, &path.child("maxFailed"), errors);
        int_or_percent::at_most_all(share, &path.child("maxFailed"), errors);
    }
    let gates = path.child("gates");
    if own.gates.len() > MOST_GATES {
        return errors.push(FieldError::too_many(&gates, own.gates.len(), MOST_GATES));
    }
    own.gates.iter().enumerate().for_each(|(i, own)| gate(own, &gates.index(i), errors));
}

fn is_workload_name(text: &str) -> bool {
    let parts: Vec<&str> = text.split('/').collect();
    let [kind, namespace, name] = parts[..] else { return false };
    WORKLOAD_KINDS.iter().any(|own| own.to_lowercase() == kind)
        && names::dns1123_label(namespace).is_empty()
        && names::dns1123_subdomain(name).is_empty()
}

fn gate(own: &ReleaseGate, path: &Path, errors: &mut Errors) {
    let kinds = [own.needs.is_some(), own.http.is_some(), own.https.is_some(), own.exec.is_some(), own.approval];
    if kinds.into_iter().filter(|has| *has).count() != 1 {
        let why = "must have exactly one of `needs`, `http`, `https`, `exec` and `approval`";
        errors.push(FieldError::required(path, why));
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
    for (scheme, http) in [("http", &own.http), ("https", &own.https)] {
        if let Some(http) = http {
            http_gate(http, scheme, &path.child(scheme), errors);
        }
    }
    if let Some(exec) = &own.exec {
        exec_gate(exec, &path.child("exec"), errors);
    }
}

fn http_gate(own: &HttpGate, scheme: &str, path: &Path, errors: &mut Errors) {
    let rest = own.url.strip_prefix(scheme).and_then(|rest| rest.strip_prefix("://"));
    let host = rest.and_then(|rest| rest.split(['/', '?']).next()).unwrap_or_default();
    let is_text = own.url.bytes().all(|byte| byte.is_ascii_graphic());
    if host.is_empty() || host.contains('@') || !is_text || own.url.len() > 2048 {
        let why =
            format!("must be a URL with the scheme {scheme} and a host, such as {scheme}://10.96.0.20:8080/healthy");
        errors.push(FieldError::invalid(&path.child("url"), own.url.as_str(), why));
    }
    timeout(own.timeout_seconds, path, errors);
    if own.statuses.len() > MOST_STATUSES {
        errors.push(FieldError::too_many(&path.child("statuses"), own.statuses.len(), MOST_STATUSES));
    }
    for (i, status) in own.statuses.iter().enumerate().filter(|(_, status)| !(100..600).contains(*status)) {
        errors.push(FieldError::invalid(&path.child("statuses").index(i), *status, "must be from 100 to 599"));
    }
    if let Some(source) = &own.expect
        && let Err(why) = compile_expectation(source)
    {
        errors.push(FieldError::invalid(&path.child("expect"), source.as_str(), why));
    }
    let of_tls = [("certificateAuthority", &own.certificate_authority), ("serverName", &own.server_name)];
    for (name, _) in of_tls.iter().filter(|(_, value)| scheme == "http" && value.is_some()) {
        errors.push(FieldError::forbidden(&path.child(name), "is about TLS; use `https`"));
    }
    if own.certificate_authority.as_ref().is_some_and(|pem| !pem.contains("-----BEGIN CERTIFICATE-----")) {
        let why = "must have certificates in PEM form";
        errors.push(FieldError::invalid(&path.child("certificateAuthority"), "…", why));
    }
    if let Some(name) = &own.server_name {
        names::refuse(name, &path.child("serverName"), names::dns1123_subdomain, errors);
    }
}

fn exec_gate(own: &ExecGate, path: &Path, errors: &mut Errors) {
    names::require(&own.namespace, &path.child("namespace"), names::dns1123_label, errors);
    names::require(&own.pod, &path.child("pod"), names::dns1123_subdomain, errors);
    if let Some(container) = &own.container {
        names::refuse(container, &path.child("container"), names::dns1123_label, errors);
    }
    if own.command.first().is_none_or(String::is_empty) {
        errors.push(FieldError::required(&path.child("command"), "must name a program"));
    }
    if own.command.iter().map(String::len).sum::<usize>() > LONGEST_COMMAND {
        errors.push(FieldError::too_long(&path.child("command"), LONGEST_COMMAND));
    }
    timeout(own.timeout_seconds, path, errors);
}

fn timeout(seconds: Option<i32>, path: &Path, errors: &mut Errors) {
    if let Some(seconds) = seconds.filter(|seconds| !(1..=LONGEST_TIMEOUT_SECONDS).contains(seconds)) {
        let why = format!("must be from 1 to {LONGEST_TIMEOUT_SECONDS}");
        errors.push(FieldError::invalid(&path.child("timeoutSeconds"), seconds, why));
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
                {"machines": ["a", "b"], "maxFailed": 0},
                {"upTo": "25%", "maxFailed": "10%", "gates": [
                    {"needs": "mysql.db >= 2 ready", "approval": false}, {"http": {"url": "http://10.0.0.1/ok"}, "approval": false},
                    {"approval": true},
                ]},
            ],
            "windows": [{"days": ["Mon", "Sun"], "from": "22:00", "to": "04:00", "timeZone": "Europe/Berlin"}],
            "approval": {"version": "v2", "wave": 1}, "hold": {"reason": "holidays"}, "abortedVersion": "v1",
            "orderBy": ["topology.kubernetes.io/zone", "rack"],
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
            (
                json!({"rollbackVersion": "a b"}),
                "spec.rollbackVersion: Invalid value: \"a b\": must be at most 128 letters, digits and any of `.-_+:~`, and begin \
                 with a letter or digit",
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
            (json!({"waves": [{}]}), "spec.waves[0]: Required value: must have `machines`, `workloads` or `upTo`"),
            (
                json!({"waves": [{"upTo": 1, "machines": ["a"]}]}),
                "spec.waves[0].upTo: Forbidden: may not be specified with `machines` or `workloads`",
            ),
            (
                json!({"waves": [{"upTo": 1, "maxFailed": "101%"}]}),
                "spec.waves[0].maxFailed: Invalid value: \"101%\": must not be greater than 100%",
            ),
            (
                json!({"waves": [{"upTo": 1, "gates": [{}]}]}),
                "spec.waves[0].gates[0]: Required value: must have exactly one of `needs`, `http`, `https`, `exec` and `approval`",
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
                json!({"orderBy": ["a", "b", "c", "d", "e", "f", "g", "h", "i"]}),
                "spec.orderBy: Too many: 9: must have at most 8 items",
            ),
            (
                json!({"hold": {"reason": " "}}),
                "spec.hold.reason: Invalid value: \" \": must say why, in at most 1024 bytes",
            ),
        ] {
            assert_refused::<ReleaseRules>(release(spec), &[error]);
        }
        let gate = |gate: Value| json!({"waves": [{"upTo": 1, "gates": [gate]}]});
        let change =
            |change: Value| json!({"workloads": [with(&json!({"selector": {"matchLabels": {"app": "web"}}}), change)]});
        for (spec, error) in [
            (
                gate(json!({"https": {"url": "http://x/"}})),
                "spec.waves[0].gates[0].https.url: Invalid value: \"http://x/\": must be a URL with the scheme https and a host, such \
                 as https://10.96.0.20:8080/healthy",
            ),
            (
                gate(json!({"http": {"url": "http://x/", "serverName": "y"}})),
                "spec.waves[0].gates[0].http.serverName: Forbidden: is about TLS; use `https`",
            ),
            (
                gate(json!({"https": {"url": "https://x/", "certificateAuthority": "x"}})),
                "spec.waves[0].gates[0].https.certificateAuthority: Invalid value: \"…\": must have certificates in PEM form",
            ),
            (
                gate(json!({"http": {"url": "http://x/", "expect": "status"}})),
                "spec.waves[0].gates[0].http.expect: Invalid value: \"status\": must evaluate to true or false",
            ),
            (
                gate(json!({"http": {"url": "http://x/", "timeoutSeconds": 3600}})),
                "spec.waves[0].gates[0].http.timeoutSeconds: Invalid value: 3600: must be from 1 to 60",
            ),
            (
                gate(json!({"http": {"url": "http://x/", "statuses": [99]}})),
                "spec.waves[0].gates[0].http.statuses[0]: Invalid value: 99: must be from 100 to 599",
            ),
            (
                gate(json!({"exec": {"namespace": "db", "pod": "p", "command": []}})),
                "spec.waves[0].gates[0].exec.command: Required value: must name a program",
            ),
            (
                json!({"rollbackWaves": [{"upTo": 1, "gates": [{"approval": true}]}]}),
                "spec.rollbackWaves[0].gates: Forbidden: a rollback waits for no gates",
            ),
            (
                json!({"version": "unreleased"}),
                "spec.version: Invalid value: \"unreleased\": means what workloads ran before any release; name another version",
            ),
            (
                json!({"waves": [{"workloads": ["web"]}]}),
                "spec.waves[0].workloads[0]: Invalid value: \"web\": must be kind, namespace and name, such as deployment/shop/web",
            ),
            (change(json!({})), "spec.workloads[0]: Required value: must have `images` or `patch`"),
            (
                change(json!({"images": {"web": "web:2"}, "patch": {"spec": {}}})),
                "spec.workloads[0].patch: Forbidden: may not be specified with `images`",
            ),
            (
                change(json!({"images": {"web": " web"}})),
                "spec.workloads[0].images[web]: Invalid value: \" web\": must be an image, such as \
                 registry.example.com/web:$(VERSION)",
            ),
            (
                change(json!({"kinds": ["Job"], "images": {"web": "web:2"}})),
                "spec.workloads[0].kinds[0]: Unsupported value: \"Job\": supported values: \"DaemonSet\", \"Deployment\", \
                 \"StatefulSet\"",
            ),
            (
                json!({"workloads": [{"selector": {}, "images": {"web": "web:2"}}]}),
                "spec.workloads[0].selector: Invalid value: {}: would select every workload of every namespace: name labels, or \
                 `namespaces`",
            ),
            (
                json!({"selector": null}),
                "spec.selector: Required value: must say which machines, or `workloads` which workloads; {} selects all machines",
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
