//! Service definitions in Consul's form: what a file of `services.d` says, checked field by field.
//!
//! Pure. A file holds one definition, plain or as `{"service": …}`, or several as `{"services": […]}`. What is not understood is refused
//! with the field's path, also fields that Consul knows and this does not: a check that is silently not run is worse than none.

use std::{collections::BTreeMap, net::Ipv4Addr, time::Duration};

use mainstay_api::{
    duration::{EXPECTED, parse_duration},
    validation::names::dns1035_label,
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{machine_steps::CommandLine, probe::http_get};

/// What checks say of themselves to those they ask.
pub const USER_AGENT: &str = "mainstay-check";

const MOST_CHECKS: usize = 16;
const MOST_TAGS: usize = 32;
const LONGEST_TEXT: usize = 512;
/// Of `meta`, which is published as a whole.
const LARGEST_META: usize = 4 << 10;
const DEFAULT_INTERVAL: Duration = Duration::from_secs(10);
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);
const DEFAULT_SCRIPT_TIMEOUT: Duration = Duration::from_secs(30);
const SHORTEST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// One instance of a service on this machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceDefinition {
    pub name: String,
    /// Tells instances of one service on one machine apart.
    pub id: String,
    pub port: Option<u16>,
    pub address: AddressSource,
    pub tags: Vec<String>,
    pub meta: BTreeMap<String, String>,
    pub checks: Vec<CheckDefinition>,
}

/// Where the program is reached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AddressSource {
    /// The address of the Node.
    Node,
    Fixed(Ipv4Addr),
    /// The first address of this interface.
    Interface(String),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckDefinition {
    /// Unique within its service.
    pub id: String,
    pub name: String,
    pub kind: CheckKind,
    pub interval: Duration,
    pub timeout: Duration,
    /// Until there is a result.
    pub initial: CheckStatus,
    /// So many good results in a row make it pass, so many bad ones fail.
    pub successes_before_passing: u32,
    pub failures_before_critical: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CheckKind {
    /// Exit code 0 passes, 1 is a warning, all else critical.
    Script { program: String, arguments: Vec<String> },
    /// 200 to 299 passes, 429 is a warning, all else critical.
    Http { url: String, headers: Vec<(String, String)> },
    /// A connection can be made.
    Tcp { host: String, port: u16 },
    /// The program tells, at least so often.
    Ttl { ttl: Duration },
}

impl CheckKind {
    pub fn command(&self) -> Option<CommandLine> {
        match self {
            Self::Script { program, arguments } => {
                Some(CommandLine { program: program.into(), arguments: arguments.clone() })
            }
            Self::Http { .. } | Self::Tcp { .. } | Self::Ttl { .. } => None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CheckStatus {
    Passing,
    /// Somebody ought to look; the instance stays in its service.
    Warning,
    Critical,
}

impl CheckStatus {
    pub fn text(self) -> &'static str {
        match self {
            Self::Passing => "passing",
            Self::Warning => "warning",
            Self::Critical => "critical",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        [Self::Passing, Self::Warning, Self::Critical].into_iter().find(|status| status.text() == text)
    }
}

/// What is wrong, and with which field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct DefinitionError {
    pub field: String,
    pub problem: String,
}

type Parsed<T> = Result<T, DefinitionError>;

fn error<T>(field: impl Into<String>, problem: impl Into<String>) -> Parsed<T> {
    Err(DefinitionError { field: field.into(), problem: problem.into() })
}

/// All definitions of a file.
pub fn parse_definitions(text: &[u8]) -> Parsed<Vec<ServiceDefinition>> {
    let root: Value = match serde_json::from_slice(text) {
        Ok(root) => root,
        Err(why) => return error("file", format!("is not JSON: {why}")),
    };
    let Value::Object(fields) = &root else { return error("file", "must be a JSON object") };
    let definitions = match (fields.get("service"), fields.get("services")) {
        (Some(_), Some(_)) => return error("services", "must not be given together with service"),
        (Some(service), None) => {
            Fields::new("", &root)?.only(&["service"])?;
            vec![parse_service("service", service)?]
        }
        (None, Some(Value::Array(services))) => {
            Fields::new("", &root)?.only(&["services"])?;
            let each = services.iter().enumerate();
            each.map(|(index, service)| parse_service(&format!("services[{index}]"), service)).collect::<Parsed<_>>()?
        }
        (None, Some(_)) => return error("services", "must be a list"),
        (None, None) => vec![parse_service("", &root)?],
    };
    Ok(definitions)
}

fn parse_service(path: &str, value: &Value) -> Parsed<ServiceDefinition> {
    let fields = Fields::new(path, value)?;
    fields.only(&["name", "id", "port", "address", "interface", "tags", "meta", "check", "checks"])?;
    let name = fields.text("name")?.map_or_else(|| error(fields.path("name"), "must be given"), Ok)?;
    if let Some(why) = dns1035_label(&name).into_iter().next() {
        return error(fields.path("name"), why);
    }
    let id = fields.text("id")?.unwrap_or_else(|| name.clone());
    if let Some(why) = id_violation(&id) {
        return error(fields.path("id"), why);
    }
    let tags = fields.texts("tags")?;
    if tags.len() > MOST_TAGS {
        return error(fields.path("tags"), format!("must have at most {MOST_TAGS} items"));
    }
    let meta = fields.text_map("meta")?;
    if meta.iter().map(|(key, value)| key.len() + value.len()).sum::<usize>() > LARGEST_META {
        return error(fields.path("meta"), format!("must have at most {LARGEST_META} bytes"));
    }
    let checks = parse_checks(&fields, &id)?;
    Ok(ServiceDefinition { port: fields.port("port")?, address: parse_address(&fields)?, name, id, tags, meta, checks })
}

/// What is wrong with the name of an instance, which is also the name of a file.
pub fn id_violation(id: &str) -> Option<&'static str> {
    let inside = |c: char| c.is_ascii_alphanumeric() || "._:-".contains(c);
    let is_valid = (1..=128).contains(&id.len()) && id.chars().all(inside) && !id.starts_with('.');
    (!is_valid).then_some("must be at most 128 letters, digits and any of `._:-`, and not begin with a dot")
}

fn parse_address(fields: &Fields<'_>) -> Parsed<AddressSource> {
    match (fields.text("address")?, fields.text("interface")?) {
        (Some(_), Some(_)) => error(fields.path("interface"), "must not be given together with address"),
        (None, Some(interface)) => {
            // As the kernel has them; what separates the published list may not be in a name.
            let is_valid = interface.len() <= 15 && !interface.contains([',', '=', '/', ' ']);
            let problem = "must be the name of a network interface";
            if is_valid { Ok(AddressSource::Interface(interface)) } else { error(fields.path("interface"), problem) }
        }
        (Some(address), None) => match address.parse::<Ipv4Addr>() {
            Ok(address) if is_usable(address) => Ok(AddressSource::Fixed(address)),
            _ => error(fields.path("address"), "must be an IPv4 address that other machines reach"),
        },
        (None, None) => Ok(AddressSource::Node),
    }
}

/// Whether the API takes it as the address of an endpoint.
pub fn is_usable(address: Ipv4Addr) -> bool {
    !(address.is_unspecified() || address.is_loopback() || address.is_link_local() || address.is_multicast())
}

fn parse_checks(fields: &Fields<'_>, service: &str) -> Parsed<Vec<CheckDefinition>> {
    let mut checks = Vec::new();
    if let Some(check) = fields.value("check") {
        checks.push(parse_check(&fields.path("check"), check, service, 0)?);
    }
    match fields.value("checks") {
        None => {}
        Some(Value::Array(several)) => {
            for (index, check) in several.iter().enumerate() {
                checks.push(parse_check(&fields.path(&format!("checks[{index}]")), check, service, checks.len())?);
            }
        }
        Some(_) => return error(fields.path("checks"), "must be a list"),
    }
    if checks.len() > MOST_CHECKS {
        return error(fields.path("checks"), format!("must have at most {MOST_CHECKS} items"));
    }
    for (index, check) in checks.iter().enumerate() {
        if checks[..index].iter().any(|other| other.id == check.id) {
            return error(fields.path("checks"), format!("has two checks with the id {:?}", check.id));
        }
    }
    Ok(checks)
}

const CHECK_FIELDS: [&str; 16] = [
    "id",
    "name",
    "notes",
    "script",
    "args",
    "shell",
    "http",
    "method",
    "header",
    "tcp",
    "ttl",
    "interval",
    "timeout",
    "status",
    "success_before_passing",
    "failures_before_critical",
];

fn parse_check(path: &str, value: &Value, service: &str, index: usize) -> Parsed<CheckDefinition> {
    let fields = Fields::new(path, value)?;
    fields.only(&CHECK_FIELDS)?;
    let kind = parse_check_kind(&fields)?;
    let default_id = if index == 0 { format!("service:{service}") } else { format!("service:{service}:{}", index + 1) };
    let id = fields.text("id")?.unwrap_or(default_id);
    if let Some(why) = id_violation(&id) {
        return error(fields.path("id"), why);
    }
    fields.text("notes")?;
    let interval = fields.time("interval")?.unwrap_or(DEFAULT_INTERVAL);
    // Whoever does not answer before the next check is due has not answered.
    let timeout = match kind {
        CheckKind::Script { .. } => DEFAULT_SCRIPT_TIMEOUT,
        CheckKind::Http { .. } | CheckKind::Tcp { .. } | CheckKind::Ttl { .. } => DEFAULT_TIMEOUT.min(interval),
    };
    let initial = match fields.text("status")? {
        None => CheckStatus::Critical,
        Some(text) => match CheckStatus::parse(&text) {
            Some(status) => status,
            None => return error(fields.path("status"), "must be passing, warning or critical"),
        },
    };
    Ok(CheckDefinition {
        name: fields.text("name")?.unwrap_or_else(|| id.clone()),
        id,
        kind,
        interval,
        timeout: fields.time("timeout")?.unwrap_or(timeout),
        initial,
        successes_before_passing: fields.count("success_before_passing")?,
        failures_before_critical: fields.count("failures_before_critical")?,
    })
}

fn parse_check_kind(fields: &Fields<'_>) -> Parsed<CheckKind> {
    let kinds = ["script", "args", "http", "tcp", "ttl"];
    let given: Vec<&str> = kinds.into_iter().filter(|kind| fields.value(kind).is_some()).collect();
    let [kind] = given[..] else {
        let problem = "must have exactly one of script, args, http, tcp and ttl";
        return error(fields.path.clone(), problem);
    };
    for (field, of) in [("shell", "args"), ("method", "http"), ("header", "http")] {
        if fields.value(field).is_some() && kind != of {
            return error(fields.path(field), format!("is only for checks with {of}"));
        }
    }
    let path = fields.path(kind);
    Ok(match kind {
        "script" => {
            let script = fields.text(kind)?.unwrap_or_default();
            CheckKind::Script { program: "/bin/sh".to_owned(), arguments: vec!["-c".to_owned(), script] }
        }
        "args" => {
            let words = fields.texts(kind)?;
            let mut words =
                fields.text("shell")?.map(|shell| vec![shell, "-c".to_owned()]).into_iter().flatten().chain(words);
            match words.next() {
                Some(program) => CheckKind::Script { program, arguments: words.collect() },
                None => return error(path, "must be a program and its arguments"),
            }
        }
        "http" => {
            let url = fields.text(kind)?.unwrap_or_default();
            let headers = fields.headers("header")?;
            if fields.text("method")?.is_some_and(|method| method != "GET") {
                return error(fields.path("method"), "must be GET");
            }
            match http_get::Request::from_url(&url, &headers, USER_AGENT) {
                Ok(_) => CheckKind::Http { url, headers },
                Err(problem) => return error(path, problem),
            }
        }
        "tcp" => {
            let text = fields.text(kind)?.unwrap_or_default();
            let parts = text.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse::<u16>().ok()?)));
            match parts.filter(|(host, port)| !host.is_empty() && *port != 0) {
                Some((host, port)) => CheckKind::Tcp { host: host.to_owned(), port },
                None => return error(path, "must be host and port, such as localhost:3306"),
            }
        }
        _ => match fields.time(kind)? {
            Some(ttl) => CheckKind::Ttl { ttl },
            None => return error(path, EXPECTED),
        },
    })
}

/// The fields of an object, and where it is.
struct Fields<'a> {
    path: String,
    object: &'a Map<String, Value>,
}

impl<'a> Fields<'a> {
    fn new(path: &str, value: &'a Value) -> Parsed<Self> {
        match value {
            Value::Object(object) => Ok(Self { path: path.to_owned(), object }),
            _ => error(path, "must be an object"),
        }
    }

    fn path(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    fn only(&self, known: &[&str]) -> Parsed<()> {
        match self.object.keys().find(|key| !known.contains(&key.as_str())) {
            Some(key) => error(self.path(key), format!("is not understood; known are {}", known.join(", "))),
            None => Ok(()),
        }
    }

    /// Null is as if it were not there.
    fn value(&self, key: &str) -> Option<&'a Value> {
        self.object.get(key).filter(|value| !value.is_null())
    }

    /// Not empty.
    fn text(&self, key: &str) -> Parsed<Option<String>> {
        self.value(key).map(|value| plain_text(self.path(key), value)).transpose()
    }

    fn texts(&self, key: &str) -> Parsed<Vec<String>> {
        match self.value(key) {
            None => Ok(Vec::new()),
            Some(Value::Array(items)) => {
                let each = items.iter().enumerate();
                each.map(|(index, item)| plain_text(self.path(&format!("{key}[{index}]")), item)).collect()
            }
            Some(_) => error(self.path(key), "must be a list of texts"),
        }
    }

    fn text_map(&self, key: &str) -> Parsed<BTreeMap<String, String>> {
        match self.value(key) {
            None => Ok(BTreeMap::new()),
            Some(Value::Object(entries)) => entries
                .iter()
                .map(|(name, value)| match value {
                    Value::String(text) => Ok((name.clone(), text.clone())),
                    _ => error(self.path(&format!("{key}.{name}")), "must be a text"),
                })
                .collect(),
            Some(_) => error(self.path(key), "must be an object of texts"),
        }
    }

    /// Consul's: a list of values for each name.
    fn headers(&self, key: &str) -> Parsed<Vec<(String, String)>> {
        let Some(value) = self.value(key) else { return Ok(Vec::new()) };
        let fields = Self::new(&self.path(key), value)?;
        let mut headers = Vec::new();
        for name in fields.object.keys() {
            headers.extend(fields.texts(name)?.into_iter().map(|value| (name.clone(), value)));
        }
        Ok(headers)
    }

    fn port(&self, key: &str) -> Parsed<Option<u16>> {
        let Some(value) = self.value(key) else { return Ok(None) };
        let port = value.as_u64().and_then(|number| u16::try_from(number).ok()).filter(|port| *port != 0);
        port.map_or_else(|| error(self.path(key), "must be a number from 1 to 65535"), |port| Ok(Some(port)))
    }

    fn count(&self, key: &str) -> Parsed<u32> {
        let Some(value) = self.value(key) else { return Ok(1) };
        let count = value.as_u64().and_then(|number| u32::try_from(number).ok()).filter(|count| *count <= 1000);
        count.map_or_else(|| error(self.path(key), "must be a number from 0 to 1000"), |count| Ok(count.max(1)))
    }

    fn time(&self, key: &str) -> Parsed<Option<Duration>> {
        let Some(text) = self.text(key)? else { return Ok(None) };
        match parse_duration(&text) {
            None => error(self.path(key), EXPECTED),
            Some(time) if (SHORTEST..=LONGEST).contains(&time) => Ok(Some(time)),
            Some(_) => error(self.path(key), "must be from 1s to 24h"),
        }
    }
}

fn plain_text(path: String, value: &Value) -> Parsed<String> {
    match value {
        Value::String(text) if (1..=LONGEST_TEXT).contains(&text.len()) && !text.contains('\0') => Ok(text.clone()),
        Value::String(_) => error(path, format!("must be a text of 1 to {LONGEST_TEXT} bytes")),
        _ => error(path, "must be a text"),
    }
}

#[cfg(test)]
mod tests;
