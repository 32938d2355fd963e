//! The optional `--config` file: keys are long flags, values become their defaults.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, anyhow};
use clap::Command;

use crate::exit::Exit;

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
    Ok(read_table(file)?.iter().map(|(key, value)| (key.clone(), texts(value).unwrap_or_default())).collect())
}

/// Makes the file's values the defaults of the flags they name.
pub fn apply(command: Command, file: &Path) -> Result<Command, Exit> {
    let table = read_table(file)?;
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
