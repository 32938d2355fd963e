//! ConfigTemplate.

use k8s_openapi::apimachinery::pkg::{apis::meta::v1::LabelSelector, util::intstr::IntOrString};
use mainstay_templates::{check_syntax, version};

use super::machine_file::validate_file;
use crate::{
    config_template::{
        ConfigTemplate, ConfigTemplateSpec, Consumer, ExecAction, HISTORY_LIMIT, HTTP_METHOD, HTTP_METHODS, HTTP_PATH,
        HttpAction, Input, LONGEST_COMMAND, LONGEST_QUIET, LONGEST_ROLLOUT, LONGEST_TIMEOUT, MAX_DELAY_SECONDS,
        MAX_UNAVAILABLE, MOST_CONSUMERS, MOST_HISTORY, MOST_INPUTS, MOST_WAVES, MachineConsumer, NodesInput,
        ObjectInput, OnChange, Output, OutputKey, PROGRESS_DEADLINE_SECONDS, QUIET_SECONDS, Rollout, SIGNALS,
        ServiceInput, SignalAction, TIMEOUT_SECONDS, WORKLOAD_KINDS, WorkloadReference,
    },
    field::{Errors, FieldError, Path},
    strategy::Rules,
    validation::{
        check::{ExactlyOne, immutable, number, one_of, required_one_of, shown, unique, unshown},
        int_or_percent, labels, names,
    },
};

/// Names that mean something else in a template.
const RESERVED: [&str; 5] = ["self", "loop", "template", "true", "false"];

pub struct ConfigTemplateRules;

impl Rules for ConfigTemplateRules {
    type Object = ConfigTemplate;

    fn default(object: &mut ConfigTemplate) {
        let spec = &mut object.spec;
        spec.quiet_seconds.get_or_insert(QUIET_SECONDS);
        spec.max_delay_seconds.get_or_insert(MAX_DELAY_SECONDS);
        spec.history_limit.get_or_insert(HISTORY_LIMIT);
        if let Some(validate) = &mut spec.validate {
            validate.timeout_seconds.get_or_insert(TIMEOUT_SECONDS);
        }
        for action in spec.consumers.iter_mut().filter_map(|consumer| consumer.on_change.as_mut()) {
            if let Some(exec) = &mut action.exec {
                exec.timeout_seconds.get_or_insert(TIMEOUT_SECONDS);
            }
            if let Some(http) = &mut action.http {
                http.timeout_seconds.get_or_insert(TIMEOUT_SECONDS);
                http.method.get_or_insert_with(|| HTTP_METHOD.to_owned());
                http.path.get_or_insert_with(|| HTTP_PATH.to_owned());
            }
        }
        if !spec.consumers.is_empty() {
            let rollout = spec.rollout.get_or_insert_default();
            rollout.max_unavailable.get_or_insert_with(|| IntOrString::String(MAX_UNAVAILABLE.to_owned()));
            rollout.soak_seconds.get_or_insert(0);
            rollout.progress_deadline_seconds.get_or_insert(PROGRESS_DEADLINE_SECONDS);
            rollout.max_failed.get_or_insert(IntOrString::Int(0));
        }
    }

    fn prepare_create(object: &mut ConfigTemplate) {
        object.status = None;
    }

    fn validate(object: &ConfigTemplate, errors: &mut Errors) {
        let (path, spec) = (Path::new("spec"), &object.spec);
        validate_inputs(spec, &path.child("inputs"), errors);
        validate_template(&spec.template, &path.child("template"), errors);
        validate_output(spec, &path.child("output"), errors);
        validate_consumers(spec, &path, errors);
        within(spec.quiet_seconds, 0, LONGEST_QUIET, &path.child("quietSeconds"), errors);
        within(spec.max_delay_seconds, 0, LONGEST_QUIET, &path.child("maxDelaySeconds"), errors);
        if spec.max_delay_seconds < spec.quiet_seconds {
            let at = path.child("maxDelaySeconds");
            errors.push(FieldError::invalid(&at, shown(&spec.max_delay_seconds), "must not be less than quietSeconds"));
        }
        within(spec.history_limit, 1, MOST_HISTORY, &path.child("historyLimit"), errors);
        if let Some(pinned) = spec.pinned_version.as_deref().filter(|pinned| !version::is_version(pinned)) {
            let words = "must be a version of status.history: ten hexadecimal digits";
            errors.push(FieldError::invalid(&path.child("pinnedVersion"), pinned, words));
        }
    }

    fn validate_update(object: &ConfigTemplate, old: &ConfigTemplate, errors: &mut Errors) {
        immutable(&object.spec.output, &old.spec.output, &Path::new("spec").child("output"), errors);
    }
}

fn within(value: Option<i32>, low: i32, high: i32, path: &Path, errors: &mut Errors) {
    if let Some(value) = value {
        number(value.into(), names::in_range(value.into(), low.into(), high.into()), path, errors);
    }
}

fn validate_inputs(spec: &ConfigTemplateSpec, path: &Path, errors: &mut Errors) {
    if spec.inputs.len() > MOST_INPUTS {
        errors.push(FieldError::too_many(path, spec.inputs.len(), MOST_INPUTS));
        return;
    }
    let input_names = spec.inputs.iter().enumerate();
    unique(input_names.map(|(i, input)| (path.index(i).child("name"), &*input.name)), errors);
    for (i, input) in spec.inputs.iter().enumerate() {
        validate_input(input, &path.index(i), errors);
    }
}

fn validate_input(input: &Input, path: &Path, errors: &mut Errors) {
    let at = path.child("name");
    names::require(&input.name, &at, names::c_identifier, errors);
    if RESERVED.contains(&&*input.name) {
        errors.push(FieldError::invalid(&at, &*input.name, "means something else in templates; choose another name"));
    }
    let object = |object: &ObjectInput, path: &Path, errors: &mut Errors| {
        names::require(&object.name, &path.child("name"), names::dns1123_subdomain, errors);
    };
    let nodes = |nodes: &NodesInput, path: &Path, errors: &mut Errors| {
        validate_selector(nodes.selector.as_ref(), path, errors);
    };
    ExactlyOne::new("source (service, configMap, secret or nodes)", path, errors)
        .or("service", &input.service, validate_service)
        .or("configMap", &input.config_map, object)
        .or("secret", &input.secret, object)
        .or("nodes", &input.nodes, nodes)
        .required();
}

fn validate_service(service: &ServiceInput, path: &Path, errors: &mut Errors) {
    match (&service.name, &service.selector) {
        (Some(name), None) => names::require(name, &path.child("name"), names::dns1035_label, errors),
        (None, Some(_)) => validate_selector(service.selector.as_ref(), path, errors),
        (Some(_), Some(_)) => {
            errors.push(FieldError::forbidden(&path.child("selector"), "may not be specified together with a name"));
        }
        (None, None) => errors.push(FieldError::required(path, "must specify a name or a selector")),
    }
    match service.namespace.as_deref() {
        Some("*") if service.selector.is_some() => {}
        Some(namespace) => names::refuse(namespace, &path.child("namespace"), names::dns1123_label, errors),
        None => {}
    }
}

fn validate_selector(selector: Option<&LabelSelector>, path: &Path, errors: &mut Errors) {
    if let Some(selector) = selector {
        labels::validate_selector(selector, &path.child("selector"), errors);
    }
}

/// The template itself is not repeated: it may be long, and the error names the line.
fn validate_template(template: &str, path: &Path, errors: &mut Errors) {
    if template.is_empty() {
        errors.push(FieldError::required(path, ""));
    } else if let Err(error) = check_syntax(template) {
        errors.push(unshown(path, &error.to_string()));
    }
}

fn validate_output(spec: &ConfigTemplateSpec, path: &Path, errors: &mut Errors) {
    let Output { config_map, secret } = &spec.output;
    let key = |output: &OutputKey, path: &Path, errors: &mut Errors| {
        names::require(&output.name, &path.child("name"), names::dns1123_subdomain, errors);
        names::require(&output.key, &path.child("key"), names::config_map_key, errors);
    };
    ExactlyOne::new("output (configMap or secret)", path, errors)
        .or("configMap", config_map, key)
        .or("secret", secret, key)
        .required();
    if config_map.is_some() && spec.reads_secrets() {
        let words = "the template reads a Secret: the output has to be a Secret as well";
        errors.push(FieldError::forbidden(&path.child("configMap"), words));
    }
    for (i, input) in spec.inputs.iter().enumerate() {
        let reads = |input: &Option<ObjectInput>, output: &Option<OutputKey>| {
            let output = output.as_ref().map(|output| &output.name);
            output.is_some() && input.as_ref().map(|input| &input.name) == output
        };
        if reads(&input.config_map, config_map) || reads(&input.secret, secret) {
            let words = format!("is also spec.inputs[{i}]: a template cannot read what it writes");
            errors.push(FieldError::forbidden(path, words));
        }
    }
}

fn validate_consumers(spec: &ConfigTemplateSpec, path: &Path, errors: &mut Errors) {
    let at = path.child("consumers");
    if spec.consumers.len() > MOST_CONSUMERS {
        errors.push(FieldError::too_many(&at, spec.consumers.len(), MOST_CONSUMERS));
        return;
    }
    for (i, consumer) in spec.consumers.iter().enumerate() {
        validate_consumer(consumer, &at.index(i), errors);
    }
    if let Some(validate) = &spec.validate {
        let at = path.child("validate");
        if spec.consumers.iter().all(|consumer| consumer.machines.is_some()) {
            errors.push(FieldError::forbidden(
                &at,
                "needs pods in spec.consumers: the command runs in a container of one of them",
            ));
        }
        let exec = ExecAction {
            command: validate.command.clone(),
            container: validate.container.clone(),
            timeout_seconds: validate.timeout_seconds,
        };
        validate_exec(&exec, &at, errors);
    }
    if let Some(rollout) = &spec.rollout {
        validate_rollout(rollout, &path.child("rollout"), errors);
    }
}

fn validate_consumer(consumer: &Consumer, path: &Path, errors: &mut Errors) {
    let selector = |selector: &LabelSelector, path: &Path, errors: &mut Errors| {
        labels::validate_selector(selector, path, errors);
        if labels::selects_all(selector) {
            errors.push(FieldError::invalid(path, shown(selector), "empty selector would select every pod"));
        }
    };
    let workload = |workload: &WorkloadReference, path: &Path, errors: &mut Errors| {
        required_one_of(&workload.kind, &WORKLOAD_KINDS, &path.child("kind"), errors);
        names::require(&workload.name, &path.child("name"), names::dns1123_subdomain, errors);
    };
    let machines = |machines: &MachineConsumer, path: &Path, errors: &mut Errors| {
        validate_selector(machines.selector.as_ref(), path, errors);
        validate_file(&machines.file, path, errors);
    };
    ExactlyOne::new("sort of consumer (selector, workload or machines)", path, errors)
        .or("selector", &consumer.selector, selector)
        .or("workload", &consumer.workload, workload)
        .or("machines", &consumer.machines, machines)
        .required();
    if consumer.machines.is_some() && consumer.on_change.is_some() {
        let words = "may not be specified for machines: their own configuration files say what is done on a change";
        errors.push(FieldError::forbidden(&path.child("onChange"), words));
    }
    let Some(OnChange { signal, exec, http, restart }) = &consumer.on_change else { return };
    ExactlyOne::new("action", &path.child("onChange"), errors)
        .or("signal", signal, validate_signal)
        .or("exec", exec, validate_exec)
        .or("http", http, validate_http)
        .or("restart", restart, |_, _, _| {});
}

fn validate_container(container: Option<&str>, path: &Path, errors: &mut Errors) {
    if let Some(container) = container {
        names::refuse(container, &path.child("container"), names::dns1123_label, errors);
    }
}

fn validate_signal(action: &SignalAction, path: &Path, errors: &mut Errors) {
    required_one_of(&action.signal, &SIGNALS, &path.child("signal"), errors);
    validate_container(action.container.as_deref(), path, errors);
}

fn validate_exec(action: &ExecAction, path: &Path, errors: &mut Errors) {
    let at = path.child("command");
    if action.command.first().is_none_or(String::is_empty) {
        errors.push(FieldError::required(&at, "must name a program"));
    }
    if action.command.iter().map(String::len).sum::<usize>() > LONGEST_COMMAND {
        errors.push(FieldError::too_long(&at, LONGEST_COMMAND));
    }
    validate_container(action.container.as_deref(), path, errors);
    within(action.timeout_seconds, 1, LONGEST_TIMEOUT, &path.child("timeoutSeconds"), errors);
}

fn validate_http(action: &HttpAction, path: &Path, errors: &mut Errors) {
    number(action.port.into(), names::is_valid_port_num(action.port), &path.child("port"), errors);
    if let Some(method) = &action.method {
        one_of(method, &HTTP_METHODS, &path.child("method"), errors);
    }
    let is_path = |text: &&String| text.starts_with('/') && text.bytes().all(|byte| byte.is_ascii_graphic());
    if let Some(other) = action.path.as_ref().filter(|path| !is_path(path)) {
        let words = "must begin with / and have no blanks";
        errors.push(FieldError::invalid(&path.child("path"), other.as_str(), words));
    }
    within(action.timeout_seconds, 1, LONGEST_TIMEOUT, &path.child("timeoutSeconds"), errors);
}

fn validate_rollout(rollout: &Rollout, path: &Path, errors: &mut Errors) {
    let share = |value: &Option<IntOrString>, name: &str, errors: &mut Errors| {
        if let Some(value) = value {
            int_or_percent::validate(value, &path.child(name), errors);
            int_or_percent::at_most_all(value, &path.child(name), errors);
        }
    };
    share(&rollout.max_unavailable, "maxUnavailable", errors);
    share(&rollout.max_failed, "maxFailed", errors);
    if let Some(none) = rollout.max_unavailable.as_ref().filter(|value| int_or_percent::is_zero(value)) {
        let words = "must be greater than zero: no consumer could ever get a new version";
        errors.push(FieldError::invalid(&path.child("maxUnavailable"), shown(none), words));
    }
    let at = path.child("waves");
    if rollout.waves.len() > MOST_WAVES {
        errors.push(FieldError::too_many(&at, rollout.waves.len(), MOST_WAVES));
        return;
    }
    for (i, wave) in rollout.waves.iter().enumerate() {
        let at = at.index(i);
        int_or_percent::validate(wave, &at, errors);
        int_or_percent::at_most_all(wave, &at, errors);
        if int_or_percent::is_zero(wave) {
            errors.push(FieldError::invalid(&at, shown(wave), "must be greater than zero"));
        }
    }
    within(rollout.soak_seconds, 0, LONGEST_ROLLOUT, &path.child("soakSeconds"), errors);
    within(rollout.progress_deadline_seconds, 1, LONGEST_ROLLOUT, &path.child("progressDeadlineSeconds"), errors);
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::validation::testing::{assert_completes, assert_refused, assert_update, with};

    fn template() -> Value {
        json!({
            "apiVersion": "mainstay.dev/v1", "kind": "ConfigTemplate", "metadata": {"name": "zones"},
            "spec": {
                "inputs": [{"name": "db", "service": {"name": "mysql", "namespace": "data"}}],
                "template": "{{ db.ready }}",
                "output": {"configMap": {"name": "zones", "key": "zones.conf"}},
            },
        })
    }

    #[test]
    fn what_is_left_out_is_completed() {
        let defaults = json!({"spec": {"quietSeconds": 1, "maxDelaySeconds": 10, "historyLimit": 10}});
        assert_completes::<ConfigTemplateRules>(template(), with(&template(), defaults.clone()));
        let consumers = json!({"spec": {
            "consumers": [{"selector": {"matchLabels": {"app": "web"}}, "onChange": {"http": {"port": 80}}}],
            "validate": {"command": ["true"]},
        }});
        let completed = json!({"spec": {
            "consumers": [{
                "selector": {"matchLabels": {"app": "web"}},
                "onChange": {"http": {"port": 80, "path": "/", "method": "POST", "timeoutSeconds": 10}},
            }],
            "validate": {"command": ["true"], "timeoutSeconds": 10},
            "rollout": {"maxUnavailable": "25%", "soakSeconds": 0, "progressDeadlineSeconds": 600, "maxFailed": 0},
        }});
        let expected = with(&with(&template(), defaults), completed);
        assert_completes::<ConfigTemplateRules>(with(&template(), consumers), expected);
    }

    #[test]
    fn templates_are_refused_with_their_line() {
        let template = with(&template(), json!({"spec": {"template": "a\n{% for x %}"}}));
        let mut refused = template.clone();
        let errors =
            crate::strategy::Strategy::create(&crate::strategy::Typed::<ConfigTemplateRules>::new(), &mut refused);
        let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
        assert!(
            texts.len() == 1 && texts[0].starts_with("spec.template: Invalid value: line 2: syntax error"),
            "{texts:?}"
        );
        let long = with(&template, json!({"spec": {"template": "x".repeat(10 << 20)}}));
        assert_refused::<ConfigTemplateRules>(long, &["spec.template: Invalid value: is longer than 262144 bytes"]);
    }

    #[test]
    fn secrets_are_not_rendered_into_config_maps() {
        let secret = json!({"spec": {"inputs": [{"name": "password", "secret": {"name": "db"}}]}});
        assert_refused::<ConfigTemplateRules>(
            with(&template(), secret.clone()),
            &["spec.output.configMap: Forbidden: the template reads a Secret: the output has to be a Secret as well"],
        );
        let into_secret = json!({"spec": {"output": {"configMap": null, "secret": {"name": "db", "key": "a"}}}});
        assert_refused::<ConfigTemplateRules>(
            with(&with(&template(), secret), into_secret),
            &["spec.output: Forbidden: is also spec.inputs[0]: a template cannot read what it writes"],
        );
    }

    #[test]
    fn absurd_values_are_refused_by_their_field() {
        let absurd = json!({"spec": {
            "inputs": [
                {"name": "db", "service": {"namespace": "*", "name": "mysql"}},
                {"name": "db", "nodes": {}, "configMap": {"name": "x"}},
                {"name": "loop"},
                {"name": "1st", "service": {}},
            ],
            "consumers": [
                {"selector": {}, "onChange": {"signal": {"signal": "SIGKILL"}, "restart": {}}},
                {"workload": {"kind": "Job", "name": "x"}, "onChange": {"http": {"port": 0, "path": "a b"}}},
                {"onChange": {"exec": {"command": []}}},
            ],
            "quietSeconds": -1, "maxDelaySeconds": 100000, "historyLimit": 0, "pinnedVersion": "latest",
            "rollout": {"maxUnavailable": 0, "waves": [0, "200%"], "progressDeadlineSeconds": 0, "soakSeconds": -1},
            "validate": {"command": [""], "timeoutSeconds": 100000},
        }});
        assert_refused::<ConfigTemplateRules>(
            with(&template(), absurd),
            &[
                "spec.inputs[1].name: Duplicate value: \"db\"",
                "spec.inputs[0].service.namespace: Invalid value: \"*\": a lowercase RFC 1123 label must consist of \
                 lower case alphanumeric characters or '-', and must start and end with an alphanumeric character \
                 (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')",
                "spec.inputs[1].nodes: Forbidden: may not specify more than 1 source (service, configMap, secret or nodes)",
                "spec.inputs[2].name: Invalid value: \"loop\": means something else in templates; choose another name",
                "spec.inputs[2]: Required value: must specify a source (service, configMap, secret or nodes)",
                "spec.inputs[3].name: Invalid value: \"1st\": a valid C identifier must start with alphabetic character \
                 or '_', followed by a string of alphanumeric characters or '_' (e.g. 'my_name',  or 'MY_NAME',  or \
                 'MyName', regex used for validation is '[A-Za-z_][A-Za-z0-9_]*')",
                "spec.inputs[3].service: Required value: must specify a name or a selector",
                "spec.consumers[0].selector: Invalid value: {}: empty selector would select every pod",
                "spec.consumers[0].onChange.signal.signal: Unsupported value: \"SIGKILL\": supported values: \"SIGHUP\", \
                 \"SIGINT\", \"SIGQUIT\", \"SIGTERM\", \"SIGUSR1\", \"SIGUSR2\", \"SIGWINCH\", \"SIGCONT\"",
                "spec.consumers[0].onChange.restart: Forbidden: may not specify more than 1 action",
                "spec.consumers[1].workload.kind: Unsupported value: \"Job\": supported values: \"DaemonSet\", \
                 \"Deployment\", \"ReplicaSet\", \"StatefulSet\"",
                "spec.consumers[1].onChange.http.port: Invalid value: 0: must be between 1 and 65535, inclusive",
                "spec.consumers[1].onChange.http.path: Invalid value: \"a b\": must begin with / and have no blanks",
                "spec.consumers[2]: Required value: must specify a sort of consumer (selector, workload or machines)",
                "spec.consumers[2].onChange.exec.command: Required value: must name a program",
                "spec.validate.command: Required value: must name a program",
                "spec.validate.timeoutSeconds: Invalid value: 100000: must be between 1 and 300, inclusive",
                "spec.rollout.maxUnavailable: Invalid value: 0: must be greater than zero: no consumer could ever get \
                 a new version",
                "spec.rollout.waves[0]: Invalid value: 0: must be greater than zero",
                "spec.rollout.waves[1]: Invalid value: \"200%\": must not be greater than 100%",
                "spec.rollout.soakSeconds: Invalid value: -1: must be between 0 and 604800, inclusive",
                "spec.rollout.progressDeadlineSeconds: Invalid value: 0: must be between 1 and 604800, inclusive",
                "spec.quietSeconds: Invalid value: -1: must be between 0 and 600, inclusive",
                "spec.maxDelaySeconds: Invalid value: 100000: must be between 0 and 600, inclusive",
                "spec.historyLimit: Invalid value: 0: must be between 1 and 50, inclusive",
                "spec.pinnedVersion: Invalid value: \"latest\": must be a version of status.history: ten hexadecimal digits",
            ],
        );
    }

    #[test]
    fn machines_have_a_file_and_no_action_of_ours() {
        let machines = |machines: Value, more: Value| {
            let consumers = json!({"spec": {"consumers": [with(&json!({"machines": machines}), more)]}});
            with(&template(), consumers)
        };
        assert_refused::<ConfigTemplateRules>(machines(json!({"path": "/etc/zones.conf"}), json!({})), &[]);
        assert_refused::<ConfigTemplateRules>(
            machines(json!({"path": "etc", "mode": "7777"}), json!({"onChange": {"restart": {}}})),
            &[
                "spec.consumers[0].machines.path: Invalid value: \"etc\": must be an absolute path",
                "spec.consumers[0].machines.mode: Invalid value: \"7777\": must be permissions as three octal digits, such \
                 as 0640, without setuid, setgid and sticky",
                "spec.consumers[0].onChange: Forbidden: may not be specified for machines: their own configuration files \
                 say what is done on a change",
            ],
        );
        let validate = json!({"spec": {"validate": {"command": ["true"]}}});
        assert_refused::<ConfigTemplateRules>(
            with(&machines(json!({"path": "/etc/zones.conf"}), json!({})), validate),
            &["spec.validate: Forbidden: needs pods in spec.consumers: the command runs in a container of one of them"],
        );
    }

    #[test]
    fn the_output_stays_the_same() {
        let other = json!({"spec": {"output": {"configMap": {"key": "other"}}}});
        assert_update::<ConfigTemplateRules>(
            &template(),
            other,
            &["spec.output: Invalid value: {\"configMap\":{\"key\":\"other\",\"name\":\"zones\"}}: field is immutable"],
        );
    }
}
