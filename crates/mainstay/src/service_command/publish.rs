//! Definitions that `mainstay service publish` and `mainstay machine publish-service` write: a file of `services.d` each, named after the instance.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, anyhow};
use clap::Args;
use mainstay_agent::host_services::{
    definition::{ServiceDefinition, id_violation, parse_definitions},
    files::definitions_directory,
};
use mainstay_files::{Durability, PRIVATE_FILE, create_private_dir, write_atomic};
use serde_json::{Map, Value, json};

use crate::exit::Exit;

#[derive(Debug, Args)]
pub struct PublishOptions {
    /// Name of the service: <name>.service.consul
    #[arg(required_unless_present = "file", conflicts_with = "file")]
    name: Option<String>,

    /// Read the definition of one service from this file, in Consul's form
    #[arg(long, value_name = "FILE", conflicts_with_all = ["id", "port", "address", "interface", "tag", "meta", "ttl", "http", "tcp", "script"])]
    file: Option<PathBuf>,

    /// Tells instances on this machine apart [default: the name]
    #[arg(long)]
    id: Option<String>,

    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,

    /// Where it is reached [default: the address of the node]
    #[arg(long, conflicts_with = "interface")]
    address: Option<String>,

    /// At the address of this network interface
    #[arg(long)]
    interface: Option<String>,

    /// <tag>.<name>.service.consul; may be repeated
    #[arg(long)]
    tag: Vec<String>,

    /// May be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = key_value)]
    meta: Vec<(String, String)>,

    /// The program reports with `mainstay service check`, at least so often
    #[arg(long, value_name = "TIME", group = "how")]
    ttl: Option<String>,

    /// Checked by a request to this URL
    #[arg(long, value_name = "URL", group = "how")]
    http: Option<String>,

    /// Checked by a connection
    #[arg(long, value_name = "HOST:PORT", group = "how")]
    tcp: Option<String>,

    /// Checked by a script: exit code 0 passes, 1 warns, all else fails
    #[arg(long, value_name = "COMMAND", group = "how")]
    script: Option<String>,

    /// How often it is checked [default: 10s]
    #[arg(long, value_name = "TIME", requires = "how")]
    interval: Option<String>,

    /// How long a check may take
    #[arg(long, value_name = "TIME", requires = "how")]
    timeout: Option<String>,
}

fn key_value(text: &str) -> Result<(String, String), String> {
    let pair = text.split_once('=').ok_or_else(|| "must be KEY=VALUE".to_owned())?;
    Ok((pair.0.to_owned(), pair.1.to_owned()))
}

/// The name of an instance.
pub fn id(text: &str) -> Result<String, String> {
    id_violation(text).map_or_else(|| Ok(text.to_owned()), |why| Err(why.to_owned()))
}

impl PublishOptions {
    /// In Consul's form, with an id.
    pub fn definition(&self) -> Result<Value, Exit> {
        let Some(file) = &self.file else { return Ok(self.definition_by_flags()) };
        let read = || {
            let text = fs::read(file).with_context(|| format!("read {}", file.display()))?;
            let parsed = parse_definitions(&text).map_err(|why| anyhow!("{}: {why}", file.display()))?;
            let [only] = &parsed[..] else {
                return Err(anyhow!("{} defines {} services; it must be one", file.display(), parsed.len()));
            };
            let mut root: Value = serde_json::from_slice(&text)?;
            let mut own = match (root.get("service").is_some(), root.get("services").is_some()) {
                (true, _) => root["service"].take(),
                (_, true) => root["services"][0].take(),
                (false, false) => root,
            };
            own["id"] = json!(only.id);
            Ok(own)
        };
        read().map_err(Exit::Refused)
    }

    fn definition_by_flags(&self) -> Value {
        let mut fields = Map::new();
        let mut set = |key: &str, value: Option<Value>| {
            fields.extend(value.map(|value| (key.to_owned(), value)));
        };
        set("name", self.name.as_ref().map(|name| json!(name)));
        set("id", self.id.as_ref().or(self.name.as_ref()).map(|id| json!(id)));
        set("port", self.port.map(|port| json!(port)));
        set("address", self.address.as_ref().map(|address| json!(address)));
        set("interface", self.interface.as_ref().map(|interface| json!(interface)));
        set("tags", (!self.tag.is_empty()).then(|| json!(self.tag)));
        let meta: Map<String, Value> = self.meta.iter().map(|(key, value)| (key.clone(), json!(value))).collect();
        set("meta", (!meta.is_empty()).then(|| json!(meta)));
        let check = [
            ("ttl", &self.ttl),
            ("http", &self.http),
            ("tcp", &self.tcp),
            ("script", &self.script),
            ("interval", &self.interval),
            ("timeout", &self.timeout),
        ];
        let check = check.into_iter().filter_map(|(key, value)| Some((key.to_owned(), json!(value.as_ref()?))));
        let check: Map<String, Value> = check.collect();
        set("check", (!check.is_empty()).then(|| json!(check)));
        Value::Object(fields)
    }
}

/// Writes the file of one definition, which has to have an id. What an agent would not understand is refused.
pub fn write_definition(agent_directory: &Path, definition: &Value) -> Result<PathBuf, Exit> {
    let text = serde_json::to_vec_pretty(definition).context("write the definition as JSON")?;
    let parsed = parse_definitions(&text).map_err(|why| Exit::Refused(anyhow!(why)))?;
    let [only] = &parsed[..] else { return Err(Exit::Refused(anyhow!("one service has to be defined"))) };
    let directory = definitions_directory(agent_directory);
    let path = directory.join(format!("{}.json", only.id));
    let written =
        create_private_dir(&directory).and_then(|_| write_atomic(&path, &text, PRIVATE_FILE, Durability::Durable));
    written.with_context(|| format!("write {}; is this root?", path.display()))?;
    Ok(path)
}

/// What a file of this command defines; nothing if there is none.
pub fn read_definition(agent_directory: &Path, id: &str) -> Option<ServiceDefinition> {
    let text = fs::read(definitions_directory(agent_directory).join(format!("{id}.json"))).ok()?;
    parse_definitions(&text).ok()?.into_iter().find(|definition| definition.id == id)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct PublishCommand {
        #[command(flatten)]
        options: PublishOptions,
    }

    fn definition(words: &[&str]) -> Value {
        let words = ["publish"].iter().chain(words);
        PublishCommand::try_parse_from(words).unwrap().options.definition().ok().unwrap()
    }

    #[test]
    fn flags_become_a_definition_of_consul() {
        let flags = ["mysql", "--port", "3306", "--tag", "master", "--tag", "v2", "--ttl", "30s", "--meta", "rack=7"];
        let expected = json!({
            "name": "mysql", "id": "mysql", "port": 3306, "tags": ["master", "v2"], "meta": {"rack": "7"},
            "check": {"ttl": "30s"},
        });
        assert_eq!(definition(&flags), expected);
        assert!(PublishCommand::try_parse_from(["publish"]).is_err(), "it needs a name");
        assert!(PublishCommand::try_parse_from(["publish", "a", "--ttl", "3s", "--tcp", "x:1"]).is_err(), "one check");
        assert!(PublishCommand::try_parse_from(["publish", "a", "--interval", "3s"]).is_err(), "of no check");
    }

    #[test]
    fn a_definition_is_written_to_a_private_file_and_a_wrong_one_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let agent = directory.path().join("agent");
        let path = write_definition(&agent, &json!({"name": "web", "id": "web-1"})).ok().unwrap();
        assert_eq!(path, directory.path().join("services.d/web-1.json"));
        assert_eq!(read_definition(&agent, "web-1").unwrap().name, "web");
        let refused = write_definition(&agent, &json!({"name": "web", "id": "../x"}));
        assert!(matches!(refused, Err(Exit::Refused(error)) if error.to_string().starts_with("id: must be")));
    }
}
