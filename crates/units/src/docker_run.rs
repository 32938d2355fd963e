//! `docker run` and its options, as far as a pod has them.

use std::collections::BTreeMap;

/// What a `docker run` asks for. Options that a pod has no use for are dropped; others are in `untranslated`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DockerRun {
    pub name: Option<String>,
    pub image: String,
    pub arguments: Vec<String>,
    pub entrypoint: Option<String>,
    pub environment: BTreeMap<String, String>,
    pub ports: Vec<PublishedPort>,
    /// `-P`: every port of the image, which only the image knows.
    pub publishes_all: bool,
    pub mounts: Vec<Mount>,
    pub hostname: Option<String>,
    pub working_dir: Option<String>,
    pub user: Option<String>,
    pub memory: Option<String>,
    pub cpus: Option<String>,
    pub privileged: bool,
    pub read_only: bool,
    pub host_network: bool,
    pub host_pid: bool,
    pub host_ipc: bool,
    pub add_capabilities: Vec<String>,
    pub drop_capabilities: Vec<String>,
    pub untranslated: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublishedPort {
    pub host_ip: Option<String>,
    pub host: Option<u16>,
    pub container: u16,
    pub protocol: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Nothing for a volume of the container's own.
    pub host: Option<String>,
    pub container: String,
    pub read_only: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DockerError {
    #[error("docker run names no image")]
    NoImage,
    #[error("docker run ends after {option}, which wants a value")]
    NoValue { option: String },
    #[error("docker run: whether {option} has a value is not known here; write {option}=VALUE if it has")]
    UnknownOption { option: String },
    #[error("docker run: {value:?} is no port to publish; they are written [[IP:]HOST:]CONTAINER[/tcp|/udp]")]
    Port { value: String },
}

/// Options without a value that mean nothing for a pod: it is always in the background and cleaned up.
const NEEDLESS: [&str; 9] = ["d", "detach", "rm", "i", "interactive", "t", "tty", "init", "sig-proxy"];
/// Options with a value that mean nothing for a pod.
const NEEDLESS_VALUES: [&str; 5] = ["restart", "log-driver", "log-opt", "cidfile", "stop-timeout"];
/// Options with a value that a pod cannot have, or has elsewhere.
const UNTRANSLATED: [&str; 16] = [
    "link",
    "env-file",
    "label",
    "l",
    "add-host",
    "dns",
    "dns-search",
    "device",
    "ulimit",
    "volumes-from",
    "cgroup-parent",
    "security-opt",
    "shm-size",
    "sysctl",
    "ip",
    "mac-address",
];

/// Reads the words behind `docker run`.
pub fn parse(words: &[String]) -> Result<DockerRun, DockerError> {
    let mut run = DockerRun::default();
    let mut words = words.iter();
    let image = loop {
        let Some(word) = words.next() else { return Err(DockerError::NoImage) };
        let Some(option) = word.strip_prefix('-') else { break word };
        let (name, mut value) = match option.strip_prefix('-') {
            Some(long) => long.split_once('=').map_or((long, None), |(name, value)| (name, Some(value.to_owned()))),
            // -it, -p80:80, -p 80:80
            None if option.chars().all(|flag| "ditP".contains(flag)) => {
                run.publishes_all |= option.contains('P');
                continue;
            }
            None => {
                let mut rest = option.chars();
                let first = rest.next().map_or(0, char::len_utf8);
                let (name, value) = option.split_at(first);
                (name, Some(value.trim_start_matches('=').to_owned()).filter(|value| !value.is_empty()))
            }
        };
        let flag = |value: &Option<String>| value.as_deref() != Some("false");
        match name {
            "publish-all" => run.publishes_all = flag(&value),
            "privileged" => run.privileged = flag(&value),
            "read-only" => run.read_only = flag(&value),
            _ if NEEDLESS.contains(&name) => {}
            _ => {
                let known = takes_value(name);
                if value.is_none() {
                    if !known {
                        return Err(DockerError::UnknownOption { option: word.clone() });
                    }
                    value = words.next().cloned();
                }
                let Some(value) = value else { return Err(DockerError::NoValue { option: word.clone() }) };
                run.set(name, value)?;
            }
        }
    };
    run.image = image.clone();
    run.arguments = words.cloned().collect();
    Ok(run)
}

fn takes_value(name: &str) -> bool {
    let translated = [
        "name",
        "e",
        "env",
        "p",
        "publish",
        "expose",
        "v",
        "volume",
        "h",
        "hostname",
        "w",
        "workdir",
        "u",
        "user",
        "m",
        "memory",
        "cpus",
        "entrypoint",
        "net",
        "network",
        "pid",
        "ipc",
        "cap-add",
        "cap-drop",
    ];
    translated.contains(&name) || NEEDLESS_VALUES.contains(&name) || UNTRANSLATED.contains(&name)
}

impl DockerRun {
    fn set(&mut self, name: &str, value: String) -> Result<(), DockerError> {
        match name {
            "name" => self.name = Some(value),
            "e" | "env" => match value.split_once('=') {
                Some((name, value)) => drop(self.environment.insert(name.to_owned(), value.to_owned())),
                None => self.untranslated.push(format!("--env {value}")),
            },
            "p" | "publish" => self.ports.push(PublishedPort::parse(&value)?),
            "expose" => {
                let port = PublishedPort::parse(&value)?;
                self.ports.push(PublishedPort { host: None, ..port });
            }
            "v" | "volume" => self.mounts.push(Mount::parse(&value)),
            "h" | "hostname" => self.hostname = Some(value),
            "w" | "workdir" => self.working_dir = Some(value),
            "u" | "user" => self.user = Some(value),
            "m" | "memory" => self.memory = Some(value),
            "cpus" => self.cpus = Some(value),
            "entrypoint" => self.entrypoint = Some(value),
            "net" | "network" if value == "host" => self.host_network = true,
            "net" | "network" if value == "bridge" || value == "default" => {}
            "pid" if value == "host" => self.host_pid = true,
            "ipc" if value == "host" => self.host_ipc = true,
            "cap-add" => self.add_capabilities.push(value),
            "cap-drop" => self.drop_capabilities.push(value),
            _ if NEEDLESS_VALUES.contains(&name) => {}
            _ => self.untranslated.push(format!("--{name} {value}")),
        }
        Ok(())
    }
}

impl PublishedPort {
    fn parse(value: &str) -> Result<Self, DockerError> {
        let refused = || DockerError::Port { value: value.to_owned() };
        let (ports, protocol) = match value.split_once('/') {
            None | Some((_, "tcp")) => (value.trim_end_matches("/tcp"), "TCP"),
            Some((ports, "udp")) => (ports, "UDP"),
            Some(_) => return Err(refused()),
        };
        let port = |text: &str| text.parse::<u16>().ok().filter(|port| *port > 0).ok_or_else(refused);
        let parts: Vec<_> = ports.rsplitn(3, ':').collect();
        let host = parts.get(1).filter(|host| !host.is_empty()).map(|host| port(host)).transpose()?;
        let host_ip = parts.get(2).map(|ip| (*ip).to_owned());
        Ok(Self { host_ip, host, container: port(parts[0])?, protocol })
    }
}

impl Mount {
    fn parse(value: &str) -> Self {
        let mut parts = value.split(':');
        match (parts.next(), parts.next(), parts.next()) {
            (Some(host), Some(container), mode) => Self {
                host: Some(host.to_owned()),
                container: container.to_owned(),
                read_only: mode.is_some_and(|mode| mode.split(',').any(|option| option == "ro")),
            },
            _ => Self { host: None, container: value.to_owned(), read_only: false },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<DockerRun, DockerError> {
        parse(&crate::command_line::split(line).unwrap())
    }

    #[test]
    fn options_before_the_image_are_read_and_the_rest_is_the_command() {
        let run = parsed(
            "--rm -it --name web-1 -P -p 127.0.0.1:8080:80 -p53:53/udp --publish=443 -e A=b=c --env HOME \
             -v /srv:/data:ro,z -v /cache --net=host --link db:db -m 512m --cpus 0.5 nginx:1.9 -g 'daemon off;'",
        )
        .unwrap();
        assert_eq!((run.name.as_deref(), run.image.as_str()), (Some("web-1"), "nginx:1.9"));
        assert_eq!(run.arguments, ["-g", "daemon off;"]);
        assert!(run.publishes_all && run.host_network && !run.privileged);
        let ports: Vec<_> = run.ports.iter().map(|port| (port.host, port.container, port.protocol)).collect();
        assert_eq!(ports, [(Some(8080), 80, "TCP"), (Some(53), 53, "UDP"), (None, 443, "TCP")]);
        assert_eq!(run.environment, BTreeMap::from([("A".to_owned(), "b=c".to_owned())]));
        assert_eq!(run.mounts[0], Mount { host: Some("/srv".into()), container: "/data".into(), read_only: true });
        assert_eq!(run.mounts[1], Mount { host: None, container: "/cache".into(), read_only: false });
        assert_eq!(run.untranslated, ["--env HOME", "--link db:db"]);
        assert_eq!((run.memory.as_deref(), run.cpus.as_deref()), (Some("512m"), Some("0.5")));
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        let error = |line: &str| parsed(line).unwrap_err().to_string();
        assert_eq!(error("--rm -d"), "docker run names no image");
        assert_eq!(error("--name"), "docker run ends after --name, which wants a value");
        assert!(error("--gpus all nginx").contains("whether --gpus has a value is not known"));
        assert_eq!(parsed("--gpus=all nginx").unwrap().untranslated, ["--gpus all"]);
        for port in ["x", "0", "70000", "80/sctp", "1:2:3:4:x"] {
            assert!(error(&format!("-p {port} nginx")).contains("is no port to publish"), "{port}");
        }
    }
}
