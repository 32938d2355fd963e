//! The file of `--scheduler-config`: tunables under `[scheduler]`, by the names the Mesos scheduler gave them.
//!
//! ```ini
//! [scheduler]
//! offer-ttl = 5s
//! max-pod-backoff = 60s
//! ```
//!
//! A start with a file that cannot mean what its author thinks is refused, with the line and what would be right.

use std::time::Duration;

use crate::settings::{Settings, duration};

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}: {what}")]
pub struct IniError {
    pub file: String,
    pub line: usize,
    pub what: String,
}

/// A file that was understood.
#[derive(Debug, PartialEq, Eq)]
pub struct Ini {
    pub settings: Settings,
    /// Keys that have no meaning here.
    pub idle: Vec<String>,
}

type Set = fn(&mut Settings, Duration);

enum Key {
    /// A time of at least so much.
    Time(Duration, Set),
    /// There is nothing here that it could tune: a time, or a number.
    IdleTime,
    IdleNumber,
}

const SECOND: Duration = Duration::from_secs(1);
const MILLISECOND: Duration = Duration::from_millis(1);

const KEYS: [(&str, Key); 14] = [
    ("offer-ttl", Key::Time(SECOND, |settings, time| settings.offer_ttl = time)),
    ("offer-linger-ttl", Key::Time(Duration::ZERO, |settings, time| settings.offer_linger = time)),
    ("refuse-time", Key::Time(Duration::ZERO, |settings, time| settings.refuse_time = time)),
    ("listener-delay", Key::Time(Duration::ZERO, |settings, time| settings.collect = time)),
    ("updates-backlog", Key::IdleNumber),
    ("framework-id-refresh-interval", Key::IdleTime),
    ("initial-implicit-reconciliation-delay", Key::Time(Duration::ZERO, |s, time| s.reconcile.first = time)),
    ("reconcile-interval", Key::Time(SECOND, |settings, time| settings.reconcile.every = time)),
    ("explicit-reconciliation-max-backoff", Key::Time(SECOND, |s, time| s.reconcile.longest_backoff = time)),
    ("explicit-reconciliation-abort-timeout", Key::Time(SECOND, |s, time| s.reconcile.abort = time)),
    ("initial-pod-backoff", Key::Time(MILLISECOND, |settings, time| settings.backoff.first = time)),
    ("max-pod-backoff", Key::Time(MILLISECOND, |settings, time| settings.backoff.longest = time)),
    ("http-handler-timeout", Key::Time(MILLISECOND, |settings, time| settings.debug_timeout = time)),
    ("http-bind-interval", Key::IdleTime),
];

/// Reads `text`, which was found in `file`, over the stock settings.
pub fn parse(file: &str, text: &str) -> Result<Ini, IniError> {
    let mut read = Ini { settings: Settings::default(), idle: Vec::new() };
    let mut seen: Vec<(&str, usize)> = Vec::new();
    let mut inside = false;
    for (number, raw) in text.lines().enumerate() {
        let number = number + 1;
        let wrong = |what: String| IniError { file: file.to_owned(), line: number, what };
        let line = raw.trim();
        if line.is_empty() || line.starts_with(['#', ';']) {
            continue;
        }
        if let Some(section) = line.strip_prefix('[') {
            let section = section.strip_suffix(']').map(str::trim);
            match section {
                Some("scheduler") => inside = true,
                Some(other) => return Err(wrong(format!("unknown section [{other}]; there is [scheduler]"))),
                None => return Err(wrong(format!("{line:?} is no section; write [scheduler]"))),
            }
            continue;
        }
        if !inside {
            return Err(wrong("stands before the section it belongs to; write [scheduler] above it".to_owned()));
        }
        let Some((key, value)) = line.split_once(['=', ':']) else {
            return Err(wrong(format!("{line:?} is not of the form key = value")));
        };
        let (key, value) = (key.trim(), value.trim());
        let Some((name, meaning)) = KEYS.iter().find(|(name, _)| *name == key) else {
            let names: Vec<&str> = KEYS.iter().map(|(name, _)| *name).collect();
            return Err(wrong(format!("unknown key {key:?}; there are {}", names.join(", "))));
        };
        if let Some((_, before)) = seen.iter().find(|(seen, _)| seen == name) {
            return Err(wrong(format!("{name} is already set in line {before}")));
        }
        seen.push((name, number));
        let time = || duration(value).map_err(|why| wrong(format!("{name}: {why}")));
        match meaning {
            Key::Time(least, set) => {
                let time = time()?;
                if time < *least {
                    return Err(wrong(format!("{name}: {value} is too short; at least {least:?}")));
                }
                set(&mut read.settings, time);
            }
            Key::IdleTime => {
                time()?;
                read.idle.push((*name).to_owned());
            }
            Key::IdleNumber => {
                value.parse::<u32>().map_err(|_| wrong(format!("{name}: {value:?} is not a number like 2048")))?;
                read.idle.push((*name).to_owned());
            }
        }
    }
    let backoff = read.settings.backoff;
    if backoff.first > backoff.longest {
        let of = |key: &str| seen.iter().find(|(name, _)| *name == key).map(|(_, line)| *line);
        let line = of("initial-pod-backoff").into_iter().chain(of("max-pod-backoff")).max().unwrap_or(1);
        let what = format!(
            "initial-pod-backoff ({:?}) is longer than max-pod-backoff ({:?}); it may be at most as long",
            backoff.first, backoff.longest
        );
        return Err(IniError { file: file.to_owned(), line, what });
    }
    Ok(read)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_understood() {
        let text = "# ours\n[scheduler]\noffer-ttl = 7s\noffer-linger-ttl: 1m\n; more\ninitial-pod-backoff=500ms\n\
                    max-pod-backoff = 2m\nupdates-backlog = 2048\nhttp-bind-interval = 5s\nlistener-delay = 1ms\n";
        let read = parse("s.ini", text).unwrap();
        assert_eq!(read.settings.offer_ttl, Duration::from_secs(7));
        assert_eq!(read.settings.offer_linger, Duration::from_secs(60));
        assert_eq!(read.settings.backoff.first, Duration::from_millis(500));
        assert_eq!(read.settings.backoff.longest, Duration::from_secs(120));
        assert_eq!(read.settings.collect, Duration::from_millis(1));
        assert_eq!(read.settings.debug_timeout, Duration::from_secs(10), "as it was");
        assert_eq!(read.idle, ["updates-backlog", "http-bind-interval"]);
        assert_eq!(parse("s.ini", "").unwrap().settings, Settings::default());
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line_and_what_would_be_right() {
        let said = |text: &str| parse("s.ini", text).unwrap_err().to_string();
        for (text, expected) in [
            ("offer-ttl = 5s", "s.ini:1: stands before the section it belongs to"),
            ("[scheduler]\noffer-ttl = five", "s.ini:2: offer-ttl: \"five\" is not a time; write it like 5s"),
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
            assert!(said(text).starts_with(expected), "{}", said(text));
        }
    }
}
