//! Options of a log request: `tailLines`, `sinceSeconds`, `follow` and the like, parsed from its query.

use jiff::{SignedDuration, Timestamp};

use super::line::Stream;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    pub follow: bool,
    pub previous: bool,
    pub timestamps: bool,
    /// Nothing older.
    pub since: Option<Timestamp>,
    pub tail_lines: Option<u64>,
    pub limit_bytes: Option<u64>,
    /// Both if `None`.
    pub stream: Option<Stream>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid value {value:?} of {name}")]
pub struct OptionError {
    name: String,
    value: String,
}

impl Options {
    /// From a query, as the API and agents pass it on.
    pub fn parse(query: &str, now: Timestamp) -> Result<Self, OptionError> {
        let mut options = Self::default();
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            let bad = || OptionError { name: name.clone().into_owned(), value: value.clone().into_owned() };
            let number = || value.parse::<u64>().map_err(|_| bad());
            match &*name {
                "follow" => options.follow = truth(&value).ok_or_else(bad)?,
                "previous" => options.previous = truth(&value).ok_or_else(bad)?,
                "timestamps" => options.timestamps = truth(&value).ok_or_else(bad)?,
                "tailLines" => options.tail_lines = Some(number()?),
                "limitBytes" => options.limit_bytes = Some(number()?),
                "sinceSeconds" => {
                    let seconds = i64::try_from(number()?).map_err(|_| bad())?;
                    let since = now.checked_sub(SignedDuration::from_secs(seconds));
                    options.since = Some(since.unwrap_or(Timestamp::MIN));
                }
                "sinceTime" => options.since = Some(value.parse().map_err(|_| bad())?),
                "stream" => {
                    options.stream = match &*value {
                        "" | "All" => None,
                        "Stdout" => Some(Stream::Stdout),
                        "Stderr" => Some(Stream::Stderr),
                        _ => return Err(bad()),
                    }
                }
                _ => {}
            }
        }
        Ok(options)
    }
}

fn truth(value: &str) -> Option<bool> {
    match value {
        "" | "1" | "true" | "True" | "t" => Some(true),
        "0" | "false" | "False" | "f" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_understood_or_refused_by_name() {
        let now: Timestamp = "2024-01-01T00:01:00Z".parse().unwrap();
        let options = Options::parse("follow=true&tailLines=5&sinceSeconds=30&stream=Stderr&x=y", now).unwrap();
        assert_eq!(options.since, Some("2024-01-01T00:00:30Z".parse().unwrap()));
        assert!(options.follow && !options.previous);
        assert_eq!((options.tail_lines, options.stream), (Some(5), Some(Stream::Stderr)));
        assert_eq!(Options::parse("tailLines=-1", now).unwrap_err().name, "tailLines");
        assert!(Options::parse("sinceTime=yesterday", now).is_err());
    }
}
