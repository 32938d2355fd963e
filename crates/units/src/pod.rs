//! The pod of a unit: its `[Service]` section as containers, environment, grace and limits.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::{
    ConvertError, Note, Unit, UnitOption,
    command_line::{CommandLine, split, substitute},
    docker_run::{self, DockerRun},
    specifiers::{HOST_REFERENCE, HOST_VARIABLE, expand},
    unit_name::kubernetes_name,
};

const SERVICE: &str = "Service";

/// How long a unit is meant to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lifetime {
    /// Started again whenever it ends.
    Forever,
    UntilSuccess,
    Once,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct UnitPod {
    pub spec: Value,
    pub lifetime: Lifetime,
    /// Services by name, with the ports that registrator's variables named.
    pub services: BTreeMap<String, Vec<u16>>,
}

/// Options of `[Service]` that have no meaning for a pod: they tell systemd what a container runtime knows by itself.
const NEEDLESS: [&str; 12] = [
    "Type",
    "TimeoutStartSec",
    "RemainAfterExit",
    "NotifyAccess",
    "PIDFile",
    "StandardOutput",
    "StandardError",
    "StandardInput",
    "SyslogIdentifier",
    "KillMode",
    "StartLimitInterval",
    "StartLimitBurst",
];
/// Those that [`read_pod`] reads.
const TRANSLATED: [&str; 14] = [
    "ExecStart",
    "ExecStartPre",
    "ExecStop",
    "ExecStopPost",
    "Restart",
    "TimeoutStopSec",
    "TimeoutSec",
    "Environment",
    "User",
    "Group",
    "WorkingDirectory",
    "MemoryLimit",
    "MemoryMax",
    "CPUQuota",
];

pub(crate) fn read_pod(unit: &Unit, notes: &mut Vec<Note>) -> Result<UnitPod, ConvertError> {
    PodReader { unit, notes }.read()
}

struct PodReader<'a> {
    unit: &'a Unit,
    notes: &'a mut Vec<Note>,
}

impl PodReader<'_> {
    fn note(&mut self, option: &UnitOption, why: &str) {
        let text = format!("{}={}: {why}", option.name, option.value);
        self.notes.push(Note { unit: self.unit.name.clone(), line: Some(option.line), text });
    }

    fn expanded(&self, option: &UnitOption) -> Result<String, ConvertError> {
        expand(&option.value, &self.unit.name).map_err(|error| self.refused(option, error.to_string()))
    }

    fn refused(&self, option: &UnitOption, why: String) -> ConvertError {
        let (unit, name) = (self.unit.name.clone(), option.name.clone());
        ConvertError::Option { unit, line: option.line, name, why }
    }

    fn value(&self, name: &str) -> Option<UnitOption> {
        self.unit.file.value(SERVICE, name).cloned()
    }

    fn values(&self, name: &str) -> Vec<UnitOption> {
        self.unit.file.values(SERVICE, name).into_iter().cloned().collect()
    }

    fn command(&self, option: &UnitOption) -> Result<CommandLine, ConvertError> {
        CommandLine::parse(&self.expanded(option)?).map_err(|error| self.refused(option, error.to_string()))
    }

    fn read(mut self) -> Result<UnitPod, ConvertError> {
        self.note_untranslated();
        let environment = self.environment()?;
        let mut starts = self.values("ExecStart");
        let Some(last) = starts.pop() else { return Err(ConvertError::NoStart { unit: self.unit.name.clone() }) };
        let mut spec = Map::new();
        let (mut main, services) = self.main_container(&last, &environment, &mut spec)?;
        let is_docker = main["image"] != "host";
        let mut before = Vec::new();
        for option in self.values("ExecStartPre").into_iter().chain(starts) {
            before.extend(self.init_container(&option, &environment, before.len())?);
        }
        self.stop_hooks(&mut main, is_docker)?;
        self.limits(&mut main)?;
        if let Some(seconds) = self.grace()? {
            spec.insert("terminationGracePeriodSeconds".into(), json!(seconds));
        }
        if !before.is_empty() {
            spec.insert("initContainers".into(), json!(before));
        }
        spec.insert("containers".into(), json!([main]));
        self.add_host_variable(&mut spec)?;
        let lifetime = self.lifetime();
        Ok(UnitPod { spec: Value::Object(spec), lifetime, services })
    }

    /// Gives the name of the machine to containers whose commands or variables have it.
    fn add_host_variable(&self, spec: &mut Map<String, Value>) -> Result<(), ConvertError> {
        let mut elsewhere = spec.clone();
        for list in ["initContainers", "containers"] {
            let containers = spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten();
            for container in containers.filter(|container| container.to_string().contains(HOST_REFERENCE)) {
                let path = json!({ "fieldRef": { "fieldPath": "spec.nodeName" } });
                let variable = json!({ "name": HOST_VARIABLE, "valueFrom": path });
                match container["env"].as_array_mut() {
                    Some(variables) => variables.insert(0, variable),
                    None => container["env"] = json!([variable]),
                }
            }
            let others = elsewhere.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten();
            for container in others.filter_map(Value::as_object_mut) {
                for field in ["command", "args", "env"] {
                    container.remove(field);
                }
            }
        }
        let is_host = |option: &&UnitOption| option.section == SERVICE && option.value.contains("%H");
        match self.unit.file.options.iter().find(is_host) {
            Some(option) if Value::Object(elsewhere).to_string().contains(HOST_REFERENCE) => {
                let why = "%H is known to commands that start and to their variables alone; elsewhere use a shell and $UNIT_HOST";
                Err(self.refused(option, why.to_owned()))
            }
            _ => Ok(()),
        }
    }

    /// Names every option that nothing below reads.
    fn note_untranslated(&mut self) {
        let file = self.unit.file.clone();
        for option in &file.options {
            let name = option.name.as_str();
            match option.section.as_str() {
                SERVICE if NEEDLESS.contains(&name) || TRANSLATED.contains(&name) => {}
                SERVICE if name == "RestartSec" => {
                    self.note(option, "the wait before a restart doubles from the node's setting, not the unit's");
                }
                SERVICE if name == "EnvironmentFile" => {
                    self.note(option, "is not read; make a ConfigMap of the file and use envFrom");
                }
                "Unit" | "X-Fleet" => {}
                "Install" => self.note(option, "is not needed: what is in the API runs"),
                _ => self.note(option, "is not translated"),
            }
        }
    }

    fn environment(&self) -> Result<BTreeMap<String, String>, ConvertError> {
        let mut environment = BTreeMap::new();
        for option in self.values("Environment") {
            let words = split(&self.expanded(&option)?).map_err(|error| self.refused(&option, error.to_string()))?;
            for word in words {
                let Some((name, value)) = word.split_once('=') else {
                    return Err(self.refused(&option, format!("{word:?} is not NAME=VALUE")));
                };
                environment.insert(name.to_owned(), value.to_owned());
            }
        }
        Ok(environment)
    }

    /// Arguments with the unit's variables in place; others are named.
    fn substituted(
        &mut self,
        option: &UnitOption,
        words: Vec<String>,
        environment: &BTreeMap<String, String>,
    ) -> Vec<String> {
        let (words, missing) = substitute(words, environment);
        for name in missing {
            self.note(option, &format!("the unit does not set ${name}; give the container such a variable"));
        }
        words
    }

    fn main_container(
        &mut self,
        option: &UnitOption,
        environment: &BTreeMap<String, String>,
        spec: &mut Map<String, Value>,
    ) -> Result<(Value, BTreeMap<String, Vec<u16>>), ConvertError> {
        let command = self.command(option)?;
        let words = self.substituted(option, command.arguments.clone(), environment);
        let name = container_name(self.unit.name.prefix());
        if !matches!(command.program(), "docker" | "podman") {
            let mut container = json!({ "name": name, "image": "host", "command": words });
            if !environment.is_empty() {
                container["env"] = env_list(environment);
            }
            self.process_options(&mut container)?;
            return Ok((container, BTreeMap::new()));
        }
        if words.get(1).map(String::as_str) != Some("run") {
            let why = "only `docker run` names an image; use it in place of this command".to_owned();
            return Err(self.refused(option, why));
        }
        let run = docker_run::parse(&words[2..]).map_err(|error| self.refused(option, error.to_string()))?;
        for untranslated in &run.untranslated {
            self.note(option, &format!("{untranslated} is not translated"));
        }
        let services = registered_services(&run);
        if run.publishes_all && services.is_empty() && run.ports.is_empty() {
            self.note(
                option,
                "-P publishes what the image exposes, which is not known here; add ports to the container",
            );
        }
        Ok((self.docker_container(option, name, &run, spec), services))
    }

    fn docker_container(
        &mut self,
        option: &UnitOption,
        name: String,
        run: &DockerRun,
        spec: &mut Map<String, Value>,
    ) -> Value {
        let mut container = json!({ "name": name, "image": run.image });
        if let Some(entrypoint) = &run.entrypoint {
            container["command"] = json!([entrypoint]);
        }
        if !run.arguments.is_empty() {
            container["args"] = json!(run.arguments);
        }
        if !run.environment.is_empty() {
            container["env"] = env_list(&run.environment);
        }
        if let Some(directory) = &run.working_dir {
            container["workingDir"] = json!(directory);
        }
        let ports: Vec<_> = run
            .ports
            .iter()
            .map(|port| {
                let mut entry = json!({ "containerPort": port.container, "protocol": port.protocol });
                for (key, value) in
                    [("hostPort", port.host.map(Value::from)), ("hostIP", port.host_ip.clone().map(Value::from))]
                {
                    if let Some(value) = value {
                        entry[key] = value;
                    }
                }
                entry
            })
            .collect();
        if !ports.is_empty() {
            container["ports"] = json!(ports);
        }
        self.mounts(run, &mut container, spec);
        let mut security = Map::new();
        if run.privileged {
            security.insert("privileged".into(), json!(true));
        }
        if run.read_only {
            security.insert("readOnlyRootFilesystem".into(), json!(true));
        }
        let mut capabilities = Map::new();
        for (key, names) in [("add", &run.add_capabilities), ("drop", &run.drop_capabilities)] {
            if !names.is_empty() {
                capabilities.insert(key.into(), json!(names));
            }
        }
        if !capabilities.is_empty() {
            security.insert("capabilities".into(), Value::Object(capabilities));
        }
        if let Some(user) = &run.user {
            self.user(option, user, &mut security);
        }
        if !security.is_empty() {
            container["securityContext"] = Value::Object(security);
        }
        for (key, value, amount) in [
            ("memory", &run.memory, run.memory.as_deref().and_then(memory)),
            ("cpu", &run.cpus, run.cpus.as_deref().and_then(cpus)),
        ] {
            match (value, amount) {
                (Some(_), Some(amount)) => container["resources"]["limits"][key] = json!(amount),
                (Some(value), None) => self.note(option, &format!("{value:?} is no amount of {key}")),
                (None, _) => {}
            }
        }
        for (key, is_set) in [("hostNetwork", run.host_network), ("hostPID", run.host_pid), ("hostIPC", run.host_ipc)] {
            if is_set {
                spec.insert(key.into(), json!(true));
            }
        }
        if let Some(hostname) = &run.hostname {
            spec.insert("hostname".into(), json!(kubernetes_name(hostname)));
        }
        container
    }

    fn mounts(&mut self, run: &DockerRun, container: &mut Value, spec: &mut Map<String, Value>) {
        let (mut volumes, mut mounts) = (Vec::new(), Vec::new());
        for (number, mount) in run.mounts.iter().enumerate() {
            let name = format!("volume-{number}");
            let source = match &mount.host {
                Some(path) if path.starts_with('/') => json!({ "name": name, "hostPath": { "path": path } }),
                _ => json!({ "name": name, "emptyDir": {} }),
            };
            volumes.push(source);
            let mut entry = json!({ "name": name, "mountPath": mount.container });
            if mount.read_only {
                entry["readOnly"] = json!(true);
            }
            mounts.push(entry);
        }
        if !volumes.is_empty() {
            spec.insert("volumes".into(), json!(volumes));
            container["volumeMounts"] = json!(mounts);
        }
    }

    /// User, group and directory of a program of the machine.
    fn process_options(&mut self, container: &mut Value) -> Result<(), ConvertError> {
        let mut security = Map::new();
        if let Some(option) = self.value("User") {
            let user = self.expanded(&option)?;
            self.user(&option, &user, &mut security);
        }
        if let Some(option) = self.value("Group") {
            match option.value.parse::<u32>() {
                Ok(group) => drop(security.insert("runAsGroup".into(), json!(group))),
                Err(_) => self.note(&option, "only numbers of groups are translated; see `getent group`"),
            }
        }
        if !security.is_empty() {
            container["securityContext"] = Value::Object(security);
        }
        if let Some(option) = self.value("WorkingDirectory") {
            container["workingDir"] = json!(self.expanded(&option)?);
        }
        Ok(())
    }

    fn user(&mut self, option: &UnitOption, user: &str, security: &mut Map<String, Value>) {
        let (user, group) = user.split_once(':').map_or((user, None), |(user, group)| (user, Some(group)));
        let number = |text: &str| if text == "root" { Some(0) } else { text.parse::<u32>().ok() };
        for (key, name) in [("runAsUser", Some(user)), ("runAsGroup", group)] {
            let Some(name) = name else { continue };
            match number(name) {
                Some(id) => drop(security.insert(key.into(), json!(id))),
                None => self.note(option, &format!("only numbers of users are translated; see `id {name}`")),
            }
        }
    }

    /// What runs before the start. Cleaning up behind an earlier container, and fetching the image, happen by themselves.
    fn init_container(
        &mut self,
        option: &UnitOption,
        environment: &BTreeMap<String, String>,
        number: usize,
    ) -> Result<Option<Value>, ConvertError> {
        let command = self.command(option)?;
        let words = self.substituted(option, command.arguments.clone(), environment);
        if matches!(command.program(), "docker" | "podman") {
            if !matches!(words.get(1).map(String::as_str), Some("kill" | "rm" | "stop" | "pull")) {
                self.note(option, "is not translated");
            }
            return Ok(None);
        }
        let words = if command.may_fail {
            let mut wrapped = vec!["/bin/sh".to_owned(), "-c".to_owned(), "\"$@\" || true".to_owned(), "sh".to_owned()];
            wrapped.extend(words);
            wrapped
        } else {
            words
        };
        let mut container = json!({ "name": format!("before-{number}"), "image": "host", "command": words });
        if !environment.is_empty() {
            container["env"] = env_list(environment);
        }
        Ok(Some(container))
    }

    /// `docker stop` is what the stop of a pod does anyway; a command of the machine's becomes a hook.
    fn stop_hooks(&mut self, main: &mut Value, is_docker: bool) -> Result<(), ConvertError> {
        for name in ["ExecStop", "ExecStopPost"] {
            for option in self.values(name) {
                let command = self.command(&option)?;
                match command.program() {
                    "docker" | "podman" => {
                        if !matches!(command.arguments.get(1).map(String::as_str), Some("stop" | "kill" | "rm")) {
                            self.note(&option, "is not translated");
                        }
                    }
                    _ if is_docker || name == "ExecStopPost" || !main["lifecycle"].is_null() => {
                        self.note(&option, "is not translated: a hook runs within the container");
                    }
                    _ => main["lifecycle"] = json!({ "preStop": { "exec": { "command": command.arguments } } }),
                }
            }
        }
        Ok(())
    }

    fn limits(&mut self, main: &mut Value) -> Result<(), ConvertError> {
        for (name, key) in [("MemoryLimit", "memory"), ("MemoryMax", "memory"), ("CPUQuota", "cpu")] {
            let Some(option) = self.value(name) else { continue };
            let value = self.expanded(&option)?;
            let amount = if key == "memory" { memory(&value) } else { cpu_quota(&value) };
            match amount {
                Some(amount) => main["resources"]["limits"][key] = json!(amount),
                None => self.note(&option, &format!("is no amount of {key} that a pod can have")),
            }
        }
        Ok(())
    }

    /// The time between SIGTERM and SIGKILL: the unit's, or that of `docker stop -t`.
    fn grace(&mut self) -> Result<Option<u64>, ConvertError> {
        for name in ["TimeoutStopSec", "TimeoutSec"] {
            if let Some(option) = self.value(name) {
                let seconds = time_span(&option.value);
                if seconds.is_none() {
                    self.note(&option, "is no time that a pod can have for its end");
                }
                return Ok(seconds);
            }
        }
        for option in self.values("ExecStop") {
            let words = self.command(&option)?.arguments;
            let mut words = words.iter().skip_while(|word| !matches!(word.as_str(), "-t" | "--time"));
            if let Some(seconds) = words.nth(1).and_then(|value| value.parse().ok()) {
                return Ok(Some(seconds));
            }
        }
        Ok(None)
    }

    fn lifetime(&mut self) -> Lifetime {
        let restart = self.value("Restart");
        match (self.value("Type"), restart.as_ref().map(|option| option.value.as_str())) {
            (Some(option), None | Some("no")) if option.value == "oneshot" => Lifetime::Once,
            (_, None | Some("no")) => Lifetime::Once,
            (_, Some("always")) => Lifetime::Forever,
            (_, Some("on-failure" | "on-abnormal" | "on-abort" | "on-watchdog")) => Lifetime::UntilSuccess,
            (_, Some(_)) => {
                let option = restart.expect("it has a value");
                self.note(&option, "is taken for always");
                Lifetime::Forever
            }
        }
    }
}

fn container_name(prefix: &str) -> String {
    Some(kubernetes_name(prefix)).filter(|name| !name.is_empty()).unwrap_or_else(|| "main".to_owned())
}

fn env_list(environment: &BTreeMap<String, String>) -> Value {
    environment.iter().map(|(name, value)| json!({ "name": name, "value": value })).collect()
}

/// What registrator would have published: `SERVICE_80_NAME=web` or, for all published ports, `SERVICE_NAME=web`.
fn registered_services(run: &DockerRun) -> BTreeMap<String, Vec<u16>> {
    let mut services = BTreeMap::<String, Vec<u16>>::new();
    for (variable, value) in &run.environment {
        let name = kubernetes_name(value);
        let port = variable.strip_prefix("SERVICE_").and_then(|rest| rest.strip_suffix("_NAME"));
        if name.is_empty() {
            continue;
        }
        if let Some(port) = port.and_then(|port| port.parse().ok()) {
            services.entry(name).or_default().push(port);
        } else if variable == "SERVICE_NAME" {
            services.entry(name).or_default().extend(run.ports.iter().map(|port| port.container));
        }
    }
    services.retain(|_, ports| !ports.is_empty());
    services
}

/// `512m`, `1G` or a number of bytes, as both docker and systemd mean it: by 1024.
fn memory(text: &str) -> Option<String> {
    let text = text.trim().trim_end_matches(['b', 'B']);
    let (number, suffix) = match text.chars().last()?.to_ascii_lowercase() {
        'k' => (&text[..text.len() - 1], "Ki"),
        'm' => (&text[..text.len() - 1], "Mi"),
        'g' => (&text[..text.len() - 1], "Gi"),
        't' => (&text[..text.len() - 1], "Ti"),
        _ => (text, ""),
    };
    number.parse::<u64>().ok().filter(|number| *number > 0).map(|number| format!("{number}{suffix}"))
}

fn cpus(text: &str) -> Option<String> {
    let cores: f64 = text.parse().ok().filter(|cores: &f64| *cores > 0.0 && *cores < 1e6)?;
    Some(format!("{}m", (cores * 1000.0).ceil()))
}

fn cpu_quota(text: &str) -> Option<String> {
    let percent: u64 = text.strip_suffix('%')?.trim().parse().ok()?;
    percent.checked_mul(10).filter(|millis| *millis > 0).map(|millis| format!("{millis}m"))
}

/// A time as systemd writes it, `90`, `5min 20s` or `1h`, in whole seconds.
fn time_span(text: &str) -> Option<u64> {
    let (mut total, mut rest) = (0f64, text.trim());
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let digits = rest.find(|character: char| !character.is_ascii_digit() && character != '.').unwrap_or(rest.len());
        let (number, behind) = rest.split_at(digits);
        let unit_end = behind.find(|character: char| !character.is_alphabetic()).unwrap_or(behind.len());
        let (unit, behind) = behind.split_at(unit_end);
        let scale = match unit {
            "" | "s" | "sec" | "second" | "seconds" => 1.0,
            "ms" | "msec" => 0.001,
            "m" | "min" | "minute" | "minutes" => 60.0,
            "h" | "hr" | "hour" | "hours" => 3600.0,
            "d" | "day" | "days" => 86_400.0,
            _ => return None,
        };
        total += number.parse::<f64>().ok()? * scale;
        rest = behind.trim_start();
    }
    (total < 1e9).then_some(total.ceil() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_and_times_are_read_as_docker_and_systemd_write_them() {
        assert_eq!(
            ["512m", "1G", "2gb", "1048576", "0", "50%", "x"].map(memory).map(Option::unwrap_or_default),
            ["512Mi", "1Gi", "2Gi", "1048576", "", "", ""]
        );
        assert_eq!(["0.5", "2", "-1", "nan"].map(cpus).map(Option::unwrap_or_default), ["500m", "2000m", "", ""]);
        assert_eq!(
            ["50%", "200%", "50", "0%"].map(cpu_quota).map(Option::unwrap_or_default),
            ["500m", "2000m", "", ""]
        );
        assert_eq!(
            ["90", "5min 20s", "1h30min", "500ms", "infinity", "", "5 parsecs"].map(time_span),
            [Some(90), Some(320), Some(5400), Some(1), None, None, None]
        );
    }
}
