//! SIGHUP: reads the `--config` file again, says what changed in it, applies what can be applied, and says what needs a restart.
//!
//! Only `log` takes effect at once. Everything else was handed out when the parts were built; the log names each such key and how to
//! restart without ending a container. A file that is not valid changes nothing. What the command line or the environment sets wins
//! over the file, before and after.

use std::{collections::BTreeMap, ffi::OsString, path::Path};

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::{cli, config_file, exit::Exit, log::LogFilter};

/// Keys whose values are nobody's business who reads the log.
const SECRET_KEYS: [&str; 1] = ["token"];

type Values = BTreeMap<String, Vec<String>>;

/// What a change of a key means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Effect {
    /// In force from now on.
    Applied,
    NeedsRestart,
    /// The command line or the environment has the same flag.
    Overridden,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Change {
    key: String,
    before: Option<Vec<String>>,
    now: Option<Vec<String>>,
    effect: Effect,
}

impl Change {
    /// The value before and now, as the log may show them.
    fn shown_values(&self) -> (String, String) {
        let show = |values: &Option<Vec<String>>| match values {
            None => String::new(),
            Some(_) if SECRET_KEYS.contains(&self.key.as_str()) => "(secret)".to_owned(),
            Some(values) => values.join(","),
        };
        (show(&self.before), show(&self.now))
    }
}

/// Waits for SIGHUP until `stop`.
pub async fn run(filter: LogFilter, stop: CancellationToken) {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let file = config_file::named_in(&arguments);
    let mut known = file.as_ref().and_then(|file| config_file::read(file).ok()).unwrap_or_default();
    let Ok(mut asked) = signal(SignalKind::hangup()) else { return };
    while let Some(Some(())) = stop.run_until_cancelled(asked.recv()).await {
        match &file {
            None => tracing::info!(signal = "SIGHUP", "there is no --config file to read again"),
            Some(file) => reload(&arguments, file, &filter, &mut known),
        }
    }
}

fn reload(arguments: &[OsString], file: &Path, filter: &LogFilter, known: &mut Values) {
    let file_name = file.display();
    let refused =
        |why: String| tracing::error!(file = %file_name, why, "the configuration is not valid; nothing changed");
    // As a start would read it: values are checked too.
    if let Err(exit) = cli::parse(arguments.iter().cloned()) {
        return refused(match exit {
            Exit::Refused(error) | Exit::Failed(error) => mainstay_errors::error_chain(error.as_ref()),
            Exit::Usage(error) => error.to_string().lines().next().unwrap_or_default().to_owned(),
            Exit::Code(code) => code.to_string(),
        });
    }
    let read = match config_file::read(file) {
        Ok(read) => read,
        Err(Exit::Refused(error) | Exit::Failed(error)) => {
            return refused(mainstay_errors::error_chain(error.as_ref()));
        }
        Err(Exit::Usage(error)) => return refused(error.to_string()),
        Err(Exit::Code(code)) => return refused(code.to_string()),
    };
    let changes = compare(known, &read, |key| is_overridden(key, arguments));
    for change in &changes {
        let (key, (before, now)) = (&change.key, change.shown_values());
        match change.effect {
            Effect::Applied => match filter.set(read.get(key).and_then(|values| values.first()).map(String::as_str)) {
                Ok(()) => tracing::info!(key, before, now, "a setting changed and is in force"),
                Err(error) => refused(format!("{key}: {error}")),
            },
            Effect::NeedsRestart => tracing::warn!(
                key,
                before,
                now,
                "a setting changed and needs a restart: kill -USR2 this process, or `mainstay stop` and start it; containers run on"
            ),
            Effect::Overridden => {
                tracing::info!(key, before, now, "a setting changed, but the command line or the environment sets it");
            }
        }
    }
    if changes.is_empty() {
        tracing::info!(file = %file_name, "the configuration has not changed");
    }
    *known = read;
}

fn compare(before: &Values, now: &Values, overridden: impl Fn(&str) -> bool) -> Vec<Change> {
    let keys: std::collections::BTreeSet<&String> = before.keys().chain(now.keys()).collect();
    let changed = keys.into_iter().filter(|key| before.get(*key) != now.get(*key));
    changed
        .map(|key| Change {
            key: key.clone(),
            before: before.get(key).cloned(),
            now: now.get(key).cloned(),
            effect: match key.as_str() {
                key if overridden(key) => Effect::Overridden,
                "log" => Effect::Applied,
                _ => Effect::NeedsRestart,
            },
        })
        .collect()
}

fn is_overridden(key: &str, arguments: &[OsString]) -> bool {
    let flag = format!("--{key}");
    let named = arguments.iter().filter_map(|argument| argument.to_str());
    let on_command_line = named.into_iter().any(|text| text == flag || text.starts_with(&format!("{flag}=")));
    on_command_line || std::env::var_os(format!("MAINSTAY_{}", key.replace('-', "_").to_uppercase())).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(pairs: &[(&str, &str)]) -> Values {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), vec![(*value).to_owned()])).collect()
    }

    #[test]
    fn each_key_that_differs_says_what_it_takes() {
        let before = values(&[("log", "info"), ("max-pods", "10"), ("listen", "a"), ("same", "x")]);
        let now = values(&[("log", "debug"), ("listen", "b"), ("drain-timeout", "5s"), ("same", "x")]);
        let arguments = ["mainstay", "up", "--listen=c"].map(OsString::from);
        let changes = compare(&before, &now, |key| is_overridden(key, &arguments));
        let effects: Vec<(&str, Effect)> = changes.iter().map(|change| (change.key.as_str(), change.effect)).collect();
        assert_eq!(
            effects,
            [
                ("drain-timeout", Effect::NeedsRestart),
                ("listen", Effect::Overridden),
                ("log", Effect::Applied),
                ("max-pods", Effect::NeedsRestart),
            ]
        );
        assert!(compare(&now, &now, |_| false).is_empty());
    }

    #[test]
    fn a_secret_is_not_shown() {
        let (before, now) = (values(&[("token", "abcdef.OLD"), ("log", "info")]), values(&[("token", "abcdef.NEW")]));
        let changes = compare(&before, &now, |_| false);
        let shown: Vec<_> = changes.iter().map(Change::shown_values).collect();
        let text = |text: &str| text.to_owned();
        assert_eq!(shown, [(text("info"), text("")), (text("(secret)"), text("(secret)"))]);
    }
}
