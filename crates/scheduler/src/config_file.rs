//! Reads the file of `--scheduler-config`: settings under `[scheduler]`, by the names of the Mesos scheduler.
//!
//! ```ini
//! [scheduler]
//! offer-ttl = 5s
//! max-pod-backoff = 60s
//! ```
//!
//! Unknown sections and keys, values that cannot be read and values out of range are errors, with the line and what would
//! be right.

use std::time::Duration;

use mainstay_api::duration::{EXPECTED, parse_duration};

use crate::settings::Settings;

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}: {what}")]
pub struct ConfigFileError {
    pub file: String,
    pub line: usize,
    pub what: String,
}

#[derive(Debug, PartialEq)]
pub struct ConfigFile {
    pub settings: Settings,
    /// Keys that are accepted but have no effect here.
    pub ignored: Vec<String>,
}

type Setter = fn(&mut Settings, Duration);

enum KeyKind {
    /// A duration of at least so much.
    Duration(Duration, Setter),
    /// Accepted without effect.
    IgnoredDuration,
    IgnoredNumber,
}

const SECOND: Duration = Duration::from_secs(1);
const MILLISECOND: Duration = Duration::from_millis(1);

const KEYS: [(&str, KeyKind); 15] = [
    ("offer-ttl", KeyKind::Duration(SECOND, |settings, duration| settings.offer_ttl = duration)),
    ("offer-linger-ttl", KeyKind::Duration(Duration::ZERO, |settings, duration| settings.offer_linger = duration)),
    ("refuse-time", KeyKind::Duration(Duration::ZERO, |settings, duration| settings.refuse_time = duration)),
    ("listener-delay", KeyKind::Duration(Duration::ZERO, |settings, duration| settings.collect = duration)),
    ("updates-backlog", KeyKind::IgnoredNumber),
    ("framework-id-refresh-interval", KeyKind::IgnoredDuration),
    (
        "initial-implicit-reconciliation-delay",
        KeyKind::Duration(Duration::ZERO, |s, duration| s.reconcile.first = duration),
    ),
    ("reconcile-interval", KeyKind::Duration(SECOND, |settings, duration| settings.reconcile.every = duration)),
    (
        "explicit-reconciliation-max-backoff",
        KeyKind::Duration(SECOND, |s, duration| s.reconcile.longest_backoff = duration),
    ),
    ("explicit-reconciliation-abort-timeout", KeyKind::Duration(SECOND, |s, duration| s.reconcile.abort = duration)),
    ("initial-pod-backoff", KeyKind::Duration(MILLISECOND, |settings, duration| settings.backoff.first = duration)),
    ("max-pod-backoff", KeyKind::Duration(MILLISECOND, |settings, duration| settings.backoff.longest = duration)),
    ("http-handler-timeout", KeyKind::Duration(MILLISECOND, |settings, duration| settings.debug_timeout = duration)),
    ("http-bind-interval", KeyKind::IgnoredDuration),
    ("device-binding-timeout", KeyKind::Duration(SECOND, |settings, duration| settings.binding_timeout = duration)),
];

/// Reads the text of `file` over the default settings.
pub fn parse(file: &str, text: &str) -> Result<ConfigFile, ConfigFileError> {
    let mut read = ConfigFile { settings: Settings::default(), ignored: Vec::new() };
    let mut observed: Vec<(&str, usize)> = Vec::new();
    let mut in_section = false;
    for (number, raw) in text.lines().enumerate() {
        let number = number + 1;
        let error_at = |what: String| ConfigFileError { file: file.to_owned(), line: number, what };
        let line = raw.trim();
        if line.is_empty() || line.starts_with(['#', ';']) {
            continue;
        }
        if let Some(section) = line.strip_prefix('[') {
            let section = section.strip_suffix(']').map(str::trim);
            match section {
                Some("scheduler") => in_section = true,
                Some(other) => return Err(error_at(format!("unknown section [{other}]; there is [scheduler]"))),
                None => return Err(error_at(format!("{line:?} is no section; write [scheduler]"))),
            }
            continue;
        }
        if !in_section {
            return Err(error_at("stands before the section it belongs to; write [scheduler] above it".to_owned()));
        }
        let Some((key, value)) = line.split_once(['=', ':']) else {
            return Err(error_at(format!("{line:?} is not of the form key = value")));
        };
        let (key, value) = (key.trim(), value.trim());
        let Some((name, kind)) = KEYS.iter().find(|(name, _)| *name == key) else {
            let names: Vec<&str> = KEYS.iter().map(|(name, _)| *name).collect();
            return Err(error_at(format!("unknown key {key:?}; there are {}", names.join(", "))));
        };
        if let Some((_, before)) = observed.iter().find(|(observed, _)| observed == name) {
            return Err(error_at(format!("{name} is already set in line {before}")));
        }
        observed.push((name, number));
        let duration = || parse_duration(value).ok_or_else(|| error_at(format!("{name}: {value:?} {EXPECTED}")));
        match kind {
            KeyKind::Duration(least, set) => {
                let duration = duration()?;
                if duration < *least {
                    return Err(error_at(format!("{name}: {value} is too short; at least {least:?}")));
                }
                set(&mut read.settings, duration);
            }
            KeyKind::IgnoredDuration => {
                duration()?;
                read.ignored.push((*name).to_owned());
            }
            KeyKind::IgnoredNumber => {
                value.parse::<u32>().map_err(|_| error_at(format!("{name}: {value:?} is not a number like 2048")))?;
                read.ignored.push((*name).to_owned());
            }
        }
    }
    let backoff = read.settings.backoff;
    if backoff.first > backoff.longest {
        let line_of = |key: &str| observed.iter().find(|(name, _)| *name == key).map(|(_, line)| *line);
        let line = line_of("initial-pod-backoff").into_iter().chain(line_of("max-pod-backoff")).max().unwrap_or(1);
        let what = format!(
            "initial-pod-backoff ({:?}) is longer than max-pod-backoff ({:?}); it may be at most as long",
            backoff.first, backoff.longest
        );
        return Err(ConfigFileError { file: file.to_owned(), line, what });
    }
    Ok(read)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_read() {
        let text = "# ours\n[scheduler]\noffer-ttl = 7s\noffer-linger-ttl: 1m\n; more\ninitial-pod-backoff=500ms\n\
                    max-pod-backoff = 2m\nupdates-backlog = 2048\nhttp-bind-interval = 5s\nlistener-delay = 1ms\n";
        let read = parse("s.ini", text).unwrap();
        assert_eq!(read.settings.offer_ttl, Duration::from_secs(7));
        assert_eq!(read.settings.offer_linger, Duration::from_secs(60));
        assert_eq!(read.settings.backoff.first, Duration::from_millis(500));
        assert_eq!(read.settings.backoff.longest, Duration::from_secs(120));
        assert_eq!(read.settings.collect, Duration::from_millis(1));
        assert_eq!(read.settings.debug_timeout, Duration::from_secs(10), "as it was");
        let read = parse("s.ini", "[scheduler]\ndevice-binding-timeout = 90s\n").unwrap();
        assert_eq!(read.settings.binding_timeout, Duration::from_secs(90));
        let read = parse("s.ini", text).unwrap();
        assert_eq!(read.ignored, ["updates-backlog", "http-bind-interval"]);
        assert_eq!(parse("s.ini", "").unwrap().settings, Settings::default());
    }

    #[test]
    fn errors_name_the_line_and_what_would_be_right() {
        let error = |text: &str| parse("s.ini", text).unwrap_err().to_string();
        for (text, expected) in [
            ("offer-ttl = 5s", "s.ini:1: stands before the section it belongs to"),
            ("[scheduler]\noffer-ttl = five", "s.ini:2: offer-ttl: \"five\" must be a duration such as 5s"),
            ("[scheduler]\noffer-ttl = 10ms", "s.ini:2: offer-ttl: 10ms is too short; at least 1s"),
            ("[scheduler]\n\noffr-ttl = 5s", "s.ini:3: unknown key \"offr-ttl\"; there are offer-ttl, "),
            ("[scheduler]\noffer-ttl", "s.ini:2: \"offer-ttl\" is not of the form key = value"),
            ("[schedular]", "s.ini:1: unknown section [schedular]; there is [scheduler]"),
            ("[scheduler", "s.ini:1: \"[scheduler\" is no section"),
            ("[scheduler]\nupdates-backlog = 5s", "s.ini:2: updates-backlog: \"5s\" is not a number"),
            ("[scheduler]\noffer-ttl = 5s\noffer-ttl = 6s", "s.ini:3: offer-ttl is already set in line 2"),
            (
                "[scheduler]\nmax-pod-backoff = 500ms",
                "s.ini:2: initial-pod-backoff (1s) is longer than max-pod-backoff",
            ),
        ] {
            assert!(error(text).starts_with(expected), "{}", error(text));
        }
    }
}
