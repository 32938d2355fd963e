//! The optional `--config` file: keys are long flags, values become their defaults. The section `[machine]` has the machine's own
//! steps and `[[machine-files]]` the directories that templates may write to, which no flag has.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fs,
    path::{Component, Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, anyhow};
use clap::Command;
use mainstay_agent::{
    machine_files::{AllowedDirectory, DEFAULT_ON_CHANGE_TIMEOUT},
    machine_steps::{CommandLine, MachineCommands},
};
use serde::Deserialize;

use crate::exit::Exit;

/// No step, and no time between two, is longer.
const LONGEST_STEP: Duration = Duration::from_secs(24 * 3600);

/// The file that the arguments or the environment name. Looked for by hand, because it decides how
/// the rest is parsed.
pub fn named_in(args: &[OsString]) -> Option<PathBuf> {
    let mut texts = args.iter().filter_map(|arg| arg.to_str());
    while let Some(text) = texts.next() {
        if text == "--config" {
            return texts.next().map(PathBuf::from);
        }
        if let Some(file) = text.strip_prefix("--config=") {
            return Some(file.into());
        }
    }
    std::env::var_os("MAINSTAY_CONFIG").map(PathBuf::from)
}

fn read_table(file: &Path) -> Result<toml::Table, Exit> {
    let text = fs::read_to_string(file).with_context(|| format!("read --config {}", file.display()))?;
    toml::from_str(&text).map_err(|error| Exit::Refused(anyhow!(error).context(format!("--config {}", file.display()))))
}

/// The file's values as texts, by key. Which keys there are is checked by [`apply`].
pub fn read(file: &Path) -> Result<BTreeMap<String, Vec<String>>, Exit> {
    let shown = |value: &toml::Value| texts(value).unwrap_or_else(|| vec![value.to_string()]);
    Ok(read_table(file)?.iter().map(|(key, value)| (key.clone(), shown(value))).collect())
}

/// Makes the file's values the defaults of the flags they name.
pub fn apply(command: Command, file: &Path) -> Result<Command, Exit> {
    let mut table = read_table(file)?;
    machine_section(table.remove(MACHINE), file)?;
    machine_files_section(table.remove(MACHINE_FILES), file)?;
    let known: Vec<String> = command
        .get_subcommands()
        .flat_map(|sub| sub.get_arguments().filter_map(|arg| arg.get_long()).map(str::to_owned))
        .collect();
    let mut values = Vec::new();
    for (key, value) in &table {
        let refuse = |why: String| Err(Exit::Refused(anyhow!("--config {}: {why}", file.display())));
        if !known.contains(key) || key == "config" {
            return refuse(format!(
                "unknown key {key:?}; keys are the long flags of `mainstay up`, without dashes in front"
            ));
        }
        match texts(value) {
            Some(texts) => values.push((key.clone(), texts)),
            None => {
                return refuse(format!(
                    "the value of {key:?} must be a string, a number, true or false, or a list of these"
                ));
            }
        }
    }
    let subcommands: Vec<String> = command.get_subcommands().map(|sub| sub.get_name().to_owned()).collect();
    Ok(subcommands.into_iter().fold(command, |command, name| {
        command.mut_subcommand(name, |sub| {
            sub.mut_args(|arg| {
                let long = arg.get_long().map(str::to_owned);
                match values.iter().find(|(key, _)| Some(key) == long.as_ref()) {
                    Some((_, texts)) => arg.default_values(texts.iter().map(|t| clap::builder::OsStr::from(t.clone()))),
                    None => arg,
                }
            })
        })
    }))
}

const MACHINE: &str = "machine";
const MACHINE_FILES: &str = "machine-files";

/// The steps of this machine, from the section `[machine]`; nothing if the file has none.
pub fn machine_commands(file: &Path) -> Result<Option<MachineCommands>, Exit> {
    machine_section(read_table(file)?.remove(MACHINE), file)
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
struct MachineSection {
    update: Option<Vec<String>>,
    #[serde(rename = "static")]
    static_: Option<Vec<String>>,
    dynamic: Option<Vec<String>>,
    validate: Option<PathBuf>,
    update_timeout: Option<String>,
    static_timeout: Option<String>,
    dynamic_timeout: Option<String>,
    validate_timeout: Option<String>,
    drain_timeout: Option<String>,
    validate_interval: Option<String>,
    report_output: Option<bool>,
    watch: Vec<PathBuf>,
    version_file: Option<PathBuf>,
}

fn machine_section(section: Option<toml::Value>, file: &Path) -> Result<Option<MachineCommands>, Exit> {
    let refuse = |why: String| Exit::Refused(anyhow!("--config {}: [machine]: {why}", file.display()));
    let Some(section) = section else { return Ok(None) };
    let section = MachineSection::deserialize(section).map_err(|error| refuse(error.message().to_owned()))?;
    let absolute = |key: &str, path: PathBuf| absolute(key, path).map_err(&refuse);
    let command = |key: &str, words: Option<Vec<String>>| command(key, words).map_err(&refuse);
    let time = |key: &str, text: Option<String>, stock: Duration| time(key, text, stock).map_err(&refuse);
    let stock = MachineCommands::default();
    Ok(Some(MachineCommands {
        update: command("update", section.update)?,
        static_: command("static", section.static_)?,
        dynamic: command("dynamic", section.dynamic)?,
        validate: section.validate.map(|path| absolute("validate", path)).transpose()?,
        update_timeout: time("update-timeout", section.update_timeout, stock.update_timeout)?,
        static_timeout: time("static-timeout", section.static_timeout, stock.static_timeout)?,
        dynamic_timeout: time("dynamic-timeout", section.dynamic_timeout, stock.dynamic_timeout)?,
        validate_timeout: time("validate-timeout", section.validate_timeout, stock.validate_timeout)?,
        drain_timeout: time("drain-timeout", section.drain_timeout, stock.drain_timeout)?,
        validate_interval: time("validate-interval", section.validate_interval, stock.validate_interval)?,
        report_output: section.report_output.unwrap_or(stock.report_output),
        watch: section.watch.into_iter().map(|path| absolute("watch", path)).collect::<Result<_, _>>()?,
        version_file: section.version_file.map_or(Ok(stock.version_file), |path| absolute("version-file", path))?,
    }))
}

fn absolute(key: &str, path: PathBuf) -> Result<PathBuf, String> {
    if path.is_absolute() { Ok(path) } else { Err(format!("{key}: {path:?} must be an absolute path")) }
}

fn command(key: &str, words: Option<Vec<String>>) -> Result<Option<CommandLine>, String> {
    let Some(mut words) = words else { return Ok(None) };
    if words.is_empty() {
        return Err(format!("{key} must be a program and its arguments, such as [\"/usr/bin/true\"]"));
    }
    let program = absolute(key, words.remove(0).into())?;
    Ok(Some(CommandLine { program, arguments: words }))
}

fn time(key: &str, text: Option<String>, stock: Duration) -> Result<Duration, String> {
    let Some(text) = text else { return Ok(stock) };
    let time = crate::cli::duration(&text).map_err(|why| format!("{key}: {why}"))?;
    let allowed = Duration::from_secs(1)..=LONGEST_STEP;
    if allowed.contains(&time) { Ok(time) } else { Err(format!("{key}: must be from 1s to 24h")) }
}

/// Where ConfigTemplates may write files of this machine: all `[[machine-files]]`.
pub fn machine_files(file: &Path) -> Result<Vec<AllowedDirectory>, Exit> {
    machine_files_section(read_table(file)?.remove(MACHINE_FILES), file)
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct MachineFilesSection {
    directory: PathBuf,
    #[serde(default)]
    namespaces: Vec<String>,
    on_change: Option<Vec<String>>,
    on_change_timeout: Option<String>,
}

fn machine_files_section(section: Option<toml::Value>, file: &Path) -> Result<Vec<AllowedDirectory>, Exit> {
    let refuse = |why: String| Exit::Refused(anyhow!("--config {}: [[machine-files]]: {why}", file.display()));
    let Some(section) = section else { return Ok(Vec::new()) };
    let sections =
        Vec::<MachineFilesSection>::deserialize(section).map_err(|error| refuse(error.message().to_owned()))?;
    let directory = |path: PathBuf| {
        let path = absolute("directory", path)?;
        let is_plain = path.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
        match (is_plain, path.parent()) {
            (true, Some(_)) => Ok(path),
            (false, _) => Err(format!("directory: {path:?} must not contain `..`")),
            (_, None) => Err("directory: / would allow every file of this machine; name a directory".to_owned()),
        }
    };
    let allowed = |section: MachineFilesSection| {
        Ok(AllowedDirectory {
            directory: directory(section.directory)?,
            namespaces: section.namespaces,
            on_change: command("on-change", section.on_change)?,
            on_change_timeout: time("on-change-timeout", section.on_change_timeout, DEFAULT_ON_CHANGE_TIMEOUT)?,
        })
    };
    sections.into_iter().map(allowed).collect::<Result<_, String>>().map_err(refuse)
}

fn texts(value: &toml::Value) -> Option<Vec<String>> {
    match value {
        toml::Value::String(text) => Some(vec![text.clone()]),
        toml::Value::Integer(number) => Some(vec![number.to_string()]),
        toml::Value::Boolean(truth) => Some(vec![truth.to_string()]),
        toml::Value::Array(items) => {
            items.iter().map(|item| texts(item).filter(|t| t.len() == 1).and_then(|mut t| t.pop())).collect()
        }
        toml::Value::Float(_) | toml::Value::Datetime(_) | toml::Value::Table(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn section(text: &str) -> Result<Option<MachineCommands>, String> {
        let mut table: toml::Table = toml::from_str(text).unwrap();
        machine_section(table.remove(MACHINE), Path::new("/etc/m.toml")).map_err(|exit| match exit {
            Exit::Refused(error) | Exit::Failed(error) => format!("{error:#}"),
            Exit::Usage(error) => error.to_string(),
            Exit::Code(code) => code.to_string(),
        })
    }

    #[test]
    fn a_machine_has_steps_of_its_own_with_limits() {
        assert_eq!(section(""), Ok(None));
        assert_eq!(section("[machine]"), Ok(Some(MachineCommands::default())));
        let text = r#"
            [machine]
            update = ["/usr/local/bin/update", "--now"]
            validate = "/etc/mainstay/checks"
            update-timeout = "10m"
            version-file = "/run/version"
        "#;
        let command = CommandLine { program: "/usr/local/bin/update".into(), arguments: vec!["--now".to_owned()] };
        let expected = MachineCommands {
            update: Some(command),
            validate: Some("/etc/mainstay/checks".into()),
            update_timeout: Duration::from_secs(600),
            version_file: "/run/version".into(),
            ..MachineCommands::default()
        };
        assert_eq!(section(text), Ok(Some(expected)));
    }

    #[test]
    fn directories_for_files_are_named_one_by_one() {
        let section = |text: &str| {
            let mut table: toml::Table = toml::from_str(text).unwrap();
            let read = machine_files_section(table.remove(MACHINE_FILES), Path::new("/etc/m.toml"));
            read.map_err(|exit| match exit {
                Exit::Refused(error) => error.to_string(),
                _ => panic!("not refused"),
            })
        };
        assert_eq!(section(""), Ok(Vec::new()));
        let text = r#"
            [[machine-files]]
            directory = "/etc/haproxy"
            namespaces = ["infra"]
            on-change = ["/usr/bin/systemctl", "reload", "haproxy"]
            on-change-timeout = "1m"
            [[machine-files]]
            directory = "/etc/puppet/hiera/data"
        "#;
        let command = CommandLine {
            program: "/usr/bin/systemctl".into(),
            arguments: vec!["reload".to_owned(), "haproxy".to_owned()],
        };
        let expected = vec![
            AllowedDirectory {
                directory: "/etc/haproxy".into(),
                namespaces: vec!["infra".to_owned()],
                on_change: Some(command),
                on_change_timeout: Duration::from_secs(60),
            },
            AllowedDirectory {
                directory: "/etc/puppet/hiera/data".into(),
                namespaces: Vec::new(),
                on_change: None,
                on_change_timeout: DEFAULT_ON_CHANGE_TIMEOUT,
            },
        ];
        assert_eq!(section(text), Ok(expected));
        for (text, words) in [
            ("directory = \"etc\"", "directory: \"etc\" must be an absolute path"),
            ("directory = \"/\"", "directory: / would allow every file"),
            ("directory = \"/etc/../root\"", "must not contain `..`"),
            ("namespaces = []", "missing field `directory`"),
            ("directory = \"/etc/a\"\non-change = [\"reload\"]", "on-change: \"reload\" must be an absolute path"),
            ("directory = \"/etc/a\"\nmode = \"0644\"", "unknown field `mode`"),
        ] {
            let error = section(&format!("[[machine-files]]\n{text}")).unwrap_err();
            assert!(error.starts_with("--config /etc/m.toml: [[machine-files]]: ") && error.contains(words), "{error}");
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_its_key() {
        for (text, words) in [
            ("updat = []", "unknown field `updat`"),
            ("update = []", "update must be a program and its arguments"),
            ("update = [\"update\"]", "update: \"update\" must be an absolute path"),
            ("validate = \"checks\"", "validate: \"checks\" must be an absolute path"),
            ("static-timeout = \"soon\"", "static-timeout: \"soon\""),
            ("static-timeout = \"0s\"", "static-timeout: must be from 1s to 24h"),
            ("validate-interval = \"48h\"", "validate-interval: must be from 1s to 24h"),
        ] {
            let error = section(&format!("[machine]\n{text}")).unwrap_err();
            assert!(error.starts_with("--config /etc/m.toml: [machine]: "), "{error}");
            assert!(error.contains(words), "{error}");
        }
    }
}
