//! Timestamps and durations: their texts and their getters.

use jiff::{
    SignedDuration,
    civil::{DateTime, Weekday},
    tz::{Offset, TimeZone},
};

use super::{Function, no_such_overload};
use crate::{error::EvalError, value::Value};

const GETTER: &[&str] = &["timestamp.() -> int", "timestamp.(string) -> int"];
const GETTER_OF_BOTH: &[&str] = &["timestamp.() -> int", "timestamp.(string) -> int", "duration.() -> int"];

pub(crate) const FUNCTIONS: &[Function] = &[
    Function { name: "getFullYear", signatures: GETTER, call: |_, args| get(args, |at| at.year().into()) },
    Function { name: "getMonth", signatures: GETTER, call: |_, args| get(args, |at| i64::from(at.month()) - 1) },
    Function { name: "getDate", signatures: GETTER, call: |_, args| get(args, |at| at.day().into()) },
    Function { name: "getDayOfMonth", signatures: GETTER, call: |_, args| get(args, |at| i64::from(at.day()) - 1) },
    Function {
        name: "getDayOfWeek",
        signatures: GETTER,
        call: |_, args| get(args, |at| at.weekday().since(Weekday::Sunday).into()),
    },
    Function {
        name: "getDayOfYear",
        signatures: GETTER,
        call: |_, args| get(args, |at| i64::from(at.day_of_year()) - 1),
    },
    Function {
        name: "getHours",
        signatures: GETTER_OF_BOTH,
        call: |_, args| get_either(args, |at| at.hour().into(), SignedDuration::as_hours),
    },
    Function {
        name: "getMinutes",
        signatures: GETTER_OF_BOTH,
        call: |_, args| get_either(args, |at| at.minute().into(), SignedDuration::as_mins),
    },
    Function {
        name: "getSeconds",
        signatures: GETTER_OF_BOTH,
        call: |_, args| get_either(args, |at| at.second().into(), SignedDuration::as_secs),
    },
    Function {
        name: "getMilliseconds",
        signatures: GETTER_OF_BOTH,
        call: |_, args| get_either(args, |at| at.millisecond().into(), |duration| i64::from(duration.subsec_millis())),
    },
];

fn get<'a>(args: &[Value<'a>], getter: fn(&DateTime) -> i64) -> Result<Value<'a>, EvalError> {
    match args {
        [Value::Timestamp(time)] => Ok(Value::Int(getter(time))),
        [Value::Timestamp(time), Value::String(zone)] => Ok(Value::Int(getter(&in_zone(*time, zone)?))),
        _ => no_such_overload(),
    }
}

fn get_either<'a>(
    args: &[Value<'a>],
    getter: fn(&DateTime) -> i64,
    of_duration: fn(&SignedDuration) -> i64,
) -> Result<Value<'a>, EvalError> {
    match args {
        [Value::Duration(duration)] => Ok(Value::Int(of_duration(duration))),
        _ => get(args, getter),
    }
}

/// The local time in `America/New_York`, `UTC`, `-08:00`.
fn in_zone(time: DateTime, zone: &str) -> Result<DateTime, EvalError> {
    let unknown = || EvalError::message(format_args!("unknown time zone {zone}"));
    if let Some((hours, minutes)) = zone.split_once(':') {
        let offset = parse_offset(hours, minutes).ok_or_else(unknown)?;
        return time.checked_add(offset).map_err(|_| EvalError::message("timestamp overflow"));
    }
    if zone.len() > 64 {
        return Err(unknown());
    }
    let zone = TimeZone::get(zone).map_err(|_| unknown())?;
    let instant = Offset::UTC.to_timestamp(time).map_err(|_| EvalError::message("timestamp overflow"))?;
    Ok(zone.to_datetime(instant))
}

/// `+02`, `30`: how far local time is ahead of UTC.
fn parse_offset(hours: &str, minutes: &str) -> Option<SignedDuration> {
    let two_digits = |text: &str| {
        (text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_digit())).then(|| text.parse::<i64>().ok()).flatten()
    };
    let (sign, hours) = match hours.strip_prefix('-') {
        Some(hours) => (-1, hours),
        None => (1, hours.strip_prefix('+').unwrap_or(hours)),
    };
    let (hours, minutes) = (two_digits(hours)?, two_digits(minutes)?);
    (hours < 24 && minutes < 60).then(|| SignedDuration::from_secs(sign * (hours * 3600 + minutes * 60)))
}

/// RFC 3339, as the time in UTC.
pub(crate) fn parse_timestamp(text: &str) -> Result<DateTime, EvalError> {
    parse_rfc3339(text).ok_or_else(|| EvalError::message("type conversion error from 'string' to 'timestamp'"))
}

fn parse_rfc3339(text: &str) -> Option<DateTime> {
    if text.len() < 20 || text.len() > 40 || !text.is_ascii() || !matches!(text.as_bytes()[10], b'T' | b't') {
        return None;
    }
    let (local, offset) = match text.strip_suffix(['Z', 'z']) {
        Some(local) => (local, SignedDuration::ZERO),
        None => {
            let (local, offset) = text.split_at(text.len() - 6);
            let (hours, minutes) = offset.split_once(':')?;
            offset.starts_with(['+', '-']).then_some(())?;
            (local, parse_offset(hours, minutes)?)
        }
    };
    let digits = |c: char| c.is_ascii_digit() || matches!(c, '-' | ':' | '.' | 'T' | 't');
    let time = local.chars().all(digits).then(|| local.parse::<DateTime>().ok()).flatten()?;
    in_range(time.checked_sub(offset).ok()?)
}

/// A value of a property of format `date` or `date-time`.
pub(crate) fn parse_date_or_timestamp(text: &str) -> Result<DateTime, EvalError> {
    if text.len() == 10 {
        let date = text.parse::<jiff::civil::Date>().map(DateTime::from);
        return date.map_err(|_| EvalError::message("invalid date"));
    }
    parse_timestamp(text)
}

/// CEL's timestamps are those of the years 1 to 9999.
fn in_range(time: DateTime) -> Option<DateTime> {
    (time.year() >= 1).then_some(time)
}

pub(crate) fn checked_timestamp<'a>(time: Option<DateTime>) -> Result<Value<'a>, EvalError> {
    let time = time.and_then(in_range).map(Value::Timestamp);
    time.ok_or_else(|| EvalError::message("timestamp overflow"))
}

const EPOCH: DateTime = DateTime::constant(1970, 1, 1, 0, 0, 0, 0);

pub(crate) fn from_seconds<'a>(seconds: i64) -> Result<Value<'a>, EvalError> {
    checked_timestamp(EPOCH.checked_add(SignedDuration::from_secs(seconds)).ok())
}

pub(crate) fn to_seconds(time: DateTime) -> i64 {
    let since = time.duration_since(EPOCH);
    // Rounded down, also before 1970.
    since.as_secs() - i64::from(since.subsec_nanos() < 0)
}

/// A duration fits into 64 bits of nanoseconds.
pub(crate) fn within_duration_range(duration: Option<SignedDuration>) -> Result<SignedDuration, EvalError> {
    duration
        .filter(|duration| i64::try_from(duration.as_nanos()).is_ok())
        .ok_or_else(|| EvalError::message("duration overflow"))
}

/// Go's form: `1h30m`, `-1.5s`, `100ms`.
pub(crate) fn parse_duration(text: &str) -> Result<SignedDuration, EvalError> {
    parse_go_duration(text).ok_or_else(|| EvalError::message("type conversion error from 'string' to 'duration'"))
}

fn parse_go_duration(text: &str) -> Option<SignedDuration> {
    let (negative, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Some(SignedDuration::ZERO);
    }
    if rest.is_empty() || rest.len() > 128 {
        return None;
    }
    let mut nanos: i128 = 0;
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (whole, after) = rest.split_at(digits);
        let (fraction, after) = match after.strip_prefix('.') {
            Some(after) => after.split_at(after.bytes().take_while(u8::is_ascii_digit).count()),
            None => ("", after),
        };
        if whole.is_empty() && fraction.is_empty() {
            return None;
        }
        let unit_len = after.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(after.len());
        let (unit, after) = after.split_at(unit_len);
        let unit: i128 = match unit {
            "ns" => 1,
            "us" | "µs" | "μs" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            _ => return None,
        };
        let whole: i128 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
        nanos = nanos.checked_add(whole.checked_mul(unit)?)?;
        let fraction = &fraction[..fraction.len().min(18)];
        if !fraction.is_empty() {
            nanos = nanos.checked_add(fraction.parse::<i128>().ok()? * unit / 10i128.pow(fraction.len() as u32))?;
        }
        rest = after;
    }
    let nanos = i64::try_from(if negative { -nanos } else { nanos }).ok()?;
    Some(SignedDuration::from_nanos(nanos))
}

/// Seconds, as CEL writes a duration: `5400s`, `1.5s`.
pub(crate) fn duration_text(duration: SignedDuration) -> String {
    let nanos = duration.as_nanos();
    let (sign, nanos) = (if nanos < 0 { "-" } else { "" }, nanos.unsigned_abs());
    let (seconds, fraction) = (nanos / 1_000_000_000, nanos % 1_000_000_000);
    if fraction == 0 {
        return format!("{sign}{seconds}s");
    }
    let fraction = format!("{fraction:09}");
    format!("{sign}{seconds}.{}s", fraction.trim_end_matches('0'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_in_gos_form_and_written_in_seconds() {
        for (text, written) in [
            ("1h30m", Some("5400s")),
            ("-1.5s", Some("-1.5s")),
            ("100ms", Some("0.1s")),
            ("0", Some("0s")),
            ("1h-3m", None),
            ("1", None),
            ("", None),
            (".s", None),
            ("9999999999h", None),
        ] {
            assert_eq!(parse_go_duration(text).map(duration_text).as_deref(), written, "{text:?}");
        }
    }
}
