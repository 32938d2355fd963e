//! Probes and lifecycle hooks.

use k8s_openapi::api::core::v1::{
    Container, ExecAction, GRPCAction, HTTPGetAction, Lifecycle, LifecycleHandler, Probe, TCPSocketAction,
};

use crate::{
    field::{Errors, FieldError, Path},
    validation::{
        check::{self, ExactlyOne, list, text},
        names,
    },
};

#[rustfmt::skip]
const SIGNALS: &[&str] = &[
    "SIGABRT", "SIGALRM", "SIGBUS", "SIGCHLD", "SIGCLD", "SIGCONT", "SIGFPE", "SIGHUP", "SIGILL", "SIGINT",
    "SIGIO", "SIGIOT", "SIGKILL", "SIGPIPE", "SIGPOLL", "SIGPROF", "SIGPWR", "SIGQUIT", "SIGSEGV", "SIGSTKFLT",
    "SIGSTOP", "SIGSYS", "SIGTERM", "SIGTRAP", "SIGTSTP", "SIGTTIN", "SIGTTOU", "SIGURG", "SIGUSR1", "SIGUSR2",
    "SIGVTALRM", "SIGWINCH", "SIGXCPU", "SIGXFSZ",
];

/// The probes and hooks of a container that serves.
pub(super) fn validate(container: &Container, grace: Option<i64>, path: &Path, errors: &mut Errors) {
    if let Some(lifecycle) = &container.lifecycle {
        validate_lifecycle(lifecycle, grace, &path.child("lifecycle"), errors);
    }
    if let Some(probe) = &container.liveness_probe {
        validate_probe(probe, &path.child("livenessProbe"), errors);
        validate_one_success(probe, &path.child("livenessProbe"), errors);
    }
    if let Some(probe) = &container.readiness_probe {
        let at = path.child("readinessProbe");
        validate_probe(probe, &at, errors);
        if let Some(seconds) = probe.termination_grace_period_seconds {
            let detail = "must not be set for readinessProbes";
            errors.push(FieldError::invalid(&at.child("terminationGracePeriodSeconds"), seconds, detail));
        }
    }
    if let Some(probe) = &container.startup_probe {
        validate_probe(probe, &path.child("startupProbe"), errors);
        validate_one_success(probe, &path.child("startupProbe"), errors);
    }
}

fn validate_one_success(probe: &Probe, path: &Path, errors: &mut Errors) {
    let threshold = probe.success_threshold.unwrap_or_default();
    if threshold != 1 {
        errors.push(FieldError::invalid(&path.child("successThreshold"), threshold, "must be 1"));
    }
}

fn validate_probe(probe: &Probe, path: &Path, errors: &mut Errors) {
    ExactlyOne::new("handler type", path, errors)
        .or("exec", &probe.exec, validate_exec)
        .or("httpGet", &probe.http_get, validate_http)
        .or("tcpSocket", &probe.tcp_socket, validate_tcp)
        .or("grpc", &probe.grpc, validate_grpc)
        .required();
    for (field, value) in [
        ("initialDelaySeconds", probe.initial_delay_seconds),
        ("timeoutSeconds", probe.timeout_seconds),
        ("periodSeconds", probe.period_seconds),
        ("successThreshold", probe.success_threshold),
        ("failureThreshold", probe.failure_threshold),
    ] {
        check::non_negative(value.unwrap_or_default().into(), &path.child(field), errors);
    }
    if let Some(seconds) = probe.termination_grace_period_seconds.filter(|seconds| *seconds <= 0) {
        let at = path.child("terminationGracePeriodSeconds");
        errors.push(FieldError::invalid(&at, seconds, "must be greater than 0"));
    }
}

fn validate_lifecycle(lifecycle: &Lifecycle, grace: Option<i64>, path: &Path, errors: &mut Errors) {
    for (field, handler) in [("postStart", &lifecycle.post_start), ("preStop", &lifecycle.pre_stop)] {
        if let Some(handler) = handler {
            validate_hook(handler, grace, &path.child(field), errors);
        }
    }
    check::optional_one_of(&lifecycle.stop_signal, SIGNALS, &path.child("stopSignal"), errors);
}

fn validate_hook(handler: &LifecycleHandler, grace: Option<i64>, path: &Path, errors: &mut Errors) {
    ExactlyOne::new("handler type", path, errors)
        .or("exec", &handler.exec, validate_exec)
        .or("httpGet", &handler.http_get, validate_http)
        .or("tcpSocket", &handler.tcp_socket, validate_tcp)
        .or("sleep", &handler.sleep, |sleep, path, errors| {
            // A grace period that is wrong itself is reported where it is.
            if let Some(grace) = grace.filter(|grace| !(0..=*grace).contains(&sleep.seconds)) {
                let detail = format!("must be non-negative and less than terminationGracePeriodSeconds ({grace})");
                errors.push(FieldError::invalid(path, sleep.seconds, detail));
            }
        })
        .required();
}

fn validate_exec(action: &ExecAction, path: &Path, errors: &mut Errors) {
    if list(&action.command).is_empty() {
        errors.push(FieldError::required(&path.child("command"), ""));
    }
}

fn validate_http(action: &HTTPGetAction, path: &Path, errors: &mut Errors) {
    check::present(text(&action.path), &path.child("path"), errors);
    check::port(&action.port, &path.child("port"), errors);
    check::one_of(text(&action.scheme), &["HTTP", "HTTPS"], &path.child("scheme"), errors);
    for header in list(&action.http_headers) {
        names::refuse(&header.name, &path.child("httpHeaders"), names::http_header_name, errors);
    }
}

fn validate_tcp(action: &TCPSocketAction, path: &Path, errors: &mut Errors) {
    check::port(&action.port, &path.child("port"), errors);
}

fn validate_grpc(action: &GRPCAction, path: &Path, errors: &mut Errors) {
    check::number(action.port.into(), names::is_valid_port_num(action.port), &path.child("port"), errors);
}
