//! Cron schedules: the times at which one is due.
//!
//! A schedule of fields is due at every instant at which a clock on the wall, in the schedule's
//! zone, shows a time that fits. So what lies in the hour that is left out in spring does not
//! happen that day, and what lies in the hour that comes twice in autumn happens twice. This is
//! what the cron library of upstream does.

use jiff::{SignedDuration, Timestamp, tz::TimeZone};
use mainstay_api::groups::batch::rules::cron::{Calendar, Schedule};

/// A schedule that is not due within so many years never is: the thirtieth of February.
const YEARS: i16 = 5;
const MINUTE: SignedDuration = SignedDuration::from_mins(1);

/// The first time after another that it is due.
pub fn next(schedule: &Schedule, zone: &TimeZone, after: Timestamp) -> Option<Timestamp> {
    match schedule {
        Schedule::Every(period) => {
            let whole = Timestamp::from_second(after.as_second()).ok()?;
            whole.checked_add(SignedDuration::try_from(*period).ok()?).ok()
        }
        Schedule::Calendar(calendar) => next_in(calendar, zone, after),
    }
}

fn next_in(calendar: &Calendar, zone: &TimeZone, after: Timestamp) -> Option<Timestamp> {
    let minute = after.as_second().div_euclid(60) + 1;
    let mut at = Timestamp::from_second(minute.checked_mul(60)?).ok()?.to_zoned(zone.clone());
    let last_year = at.year().saturating_add(YEARS);
    while at.year() <= last_year {
        let has = |set: u64, value: i8| set & (1 << value) != 0;
        if !has(calendar.months, at.month()) || !day_fits(calendar, &at) {
            at = at.tomorrow().ok()?.start_of_day().ok()?;
        } else if !has(calendar.hours, at.hour()) {
            let left = SignedDuration::from_mins(i64::from(60 - at.minute()));
            at = at.timestamp().checked_add(left).ok()?.to_zoned(zone.clone());
        } else if !has(calendar.minutes, at.minute()) {
            at = at.timestamp().checked_add(MINUTE).ok()?.to_zoned(zone.clone());
        } else {
            return Some(at.timestamp());
        }
    }
    None
}

/// If both kinds of days are restricted, either may fit.
fn day_fits(calendar: &Calendar, at: &jiff::Zoned) -> bool {
    let month = calendar.days_of_month & (1 << at.day()) != 0;
    let week = calendar.days_of_week & (1 << at.weekday().to_sunday_zero_offset()) != 0;
    if calendar.any_day_of_month || calendar.any_day_of_week { month && week } else { month || week }
}

/// The last time that it was due, after one time and not after another.
pub fn latest(schedule: &Schedule, zone: &TimeZone, after: Timestamp, until: Timestamp) -> Option<Timestamp> {
    let first = next(schedule, zone, after).filter(|first| *first <= until)?;
    if let Schedule::Every(period) = schedule {
        let period = i64::try_from(period.as_secs()).ok()?.max(1);
        let periods = (until.as_second() - first.as_second()) / period;
        return Timestamp::from_second(first.as_second() + periods * period).ok();
    }
    // Between two times of which the earlier is followed by one that is due, and the later is not.
    let (mut followed, mut not) = (after.as_second(), until.as_second() + 1);
    let mut found = first;
    while not - followed > 1 {
        let middle = followed + (not - followed) / 2;
        let due = Timestamp::from_second(middle).ok().and_then(|middle| next(schedule, zone, middle));
        match due.filter(|due| *due <= until) {
            Some(due) => (followed, found) = (middle, due),
            None => not = middle,
        }
    }
    Some(found)
}

/// Whether it was due more often than so between two times.
pub fn more_than(most: usize, schedule: &Schedule, zone: &TimeZone, after: Timestamp, until: Timestamp) -> bool {
    let due = std::iter::successors(next(schedule, zone, after), |due| next(schedule, zone, *due));
    due.take_while(|due| *due <= until).take(most + 1).count() > most
}

#[cfg(test)]
mod tests {
    use mainstay_api::groups::batch::rules::cron;
    use proptest::prelude::*;

    use super::*;

    fn instant(text: &str) -> Timestamp {
        text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    fn due(schedule: &str, zone: &str, after: &str) -> String {
        let zone = cron::zone(zone).expect("a zone");
        let found = next(&Schedule::parse(schedule).unwrap(), &zone, instant(after));
        found.map(|at| at.to_string()).unwrap_or_default()
    }

    #[test]
    fn fields_are_matched_as_cron_does() {
        for (schedule, after, expected) in [
            ("* * * * *", "2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z"),
            ("* * * * *", "2026-01-01T00:00:59.5Z", "2026-01-01T00:01:00Z"),
            ("*/15 * * * *", "2026-01-01T00:45:00Z", "2026-01-01T01:00:00Z"),
            ("30 6-16/4 * * 1-5", "2026-01-02T14:30:00Z", "2026-01-05T06:30:00Z"),
            ("0 0 29 2 *", "2026-01-01T00:00:00Z", "2028-02-29T00:00:00Z"),
            ("0 0 13 * fri", "2026-02-01T00:00:00Z", "2026-02-06T00:00:00Z"),
            ("0 0 1 * *", "2026-12-01T00:00:00Z", "2027-01-01T00:00:00Z"),
            ("@weekly", "2026-01-01T00:00:00Z", "2026-01-04T00:00:00Z"),
            ("@every 90s", "2026-01-01T00:00:00.7Z", "2026-01-01T00:01:30Z"),
            ("0 0 31 2 *", "2026-01-01T00:00:00Z", ""),
        ] {
            assert_eq!(due(schedule, "UTC", after), expected, "{schedule} after {after}");
        }
    }

    #[test]
    fn clocks_that_are_put_forward_and_back_are_followed() {
        for (schedule, zone, after, expected) in [
            ("0 9 * * *", "Europe/Zurich", "2026-01-01T00:00:00Z", "2026-01-01T08:00:00Z"),
            ("0 9 * * *", "Europe/Zurich", "2026-07-01T00:00:00Z", "2026-07-01T07:00:00Z"),
            ("30 9 * * *", "Asia/Kolkata", "2026-07-01T00:00:00Z", "2026-07-01T04:00:00Z"),
            // In spring, what falls into the hour that is left out waits for the next day.
            ("0 2 * * *", "America/New_York", "2012-03-11T05:00:00Z", "2012-03-12T06:00:00Z"),
            ("0 * * * *", "America/New_York", "2012-03-11T06:00:00Z", "2012-03-11T07:00:00Z"),
            ("0 3 * * *", "America/New_York", "2012-03-11T05:00:00Z", "2012-03-11T07:00:00Z"),
            // In autumn, what falls into the hour that comes twice happens twice.
            ("0 1 * * *", "America/New_York", "2012-11-04T04:00:00Z", "2012-11-04T05:00:00Z"),
            ("0 1 * * *", "America/New_York", "2012-11-04T05:00:00Z", "2012-11-04T06:00:00Z"),
            ("0 1 * * *", "America/New_York", "2012-11-04T06:00:00Z", "2012-11-05T06:00:00Z"),
            ("0 * * * *", "America/New_York", "2012-11-04T05:00:00Z", "2012-11-04T06:00:00Z"),
            // Where midnight is left out, the day begins at one.
            ("0 1 * * *", "America/Sao_Paulo", "2012-10-20T12:00:00Z", "2012-10-21T03:00:00Z"),
            ("30 2 * * *", "Australia/Lord_Howe", "2026-10-03T12:00:00Z", "2026-10-03T15:30:00Z"),
        ] {
            assert_eq!(due(schedule, zone, after), expected, "{schedule} in {zone} after {after}");
        }
    }

    #[test]
    fn the_latest_is_found_however_many_were_missed() {
        let latest = |schedule: &str, after: &str, until: &str| {
            let schedule = Schedule::parse(schedule).unwrap();
            let found = latest(&schedule, &TimeZone::UTC, instant(after), instant(until));
            found.map(|at| at.to_string()).unwrap_or_default()
        };
        let (start, now) = ("2020-01-01T00:00:00Z", "2026-03-04T05:06:07Z");
        assert_eq!(latest("* * * * *", start, now), "2026-03-04T05:06:00Z");
        assert_eq!(latest("30 6-16/4 * * 1-5", start, now), "2026-03-03T14:30:00Z");
        assert_eq!(latest("0 0 1 1 *", start, now), "2026-01-01T00:00:00Z");
        assert_eq!(latest("@every 7h", start, "2020-01-02T00:00:00Z"), "2020-01-01T21:00:00Z");
        assert_eq!(latest("0 0 1 1 *", "2026-01-01T00:00:00Z", now), "");
        assert_eq!(latest("* * * * *", now, now), "");
        let minutely = Schedule::parse("* * * * *").unwrap();
        let more = |minutes: i64| {
            more_than(
                100,
                &minutely,
                &TimeZone::UTC,
                instant(start),
                instant(start) + SignedDuration::from_mins(minutes),
            )
        };
        assert!(!more(100) && more(101));
    }

    proptest! {
        #[test]
        fn the_latest_is_what_counting_finds(
            schedule in prop_oneof![Just("*/7 * * * *"), Just("0 */5 * * *"), Just("10 1-3 * * *"), Just("@every 11m")],
            zone in prop_oneof![Just("UTC"), Just("America/New_York"), Just("Australia/Lord_Howe")],
            start in 0..1_900_000_000i64,
            length in 0..200_000i64,
        ) {
            let (schedule, zone) = (Schedule::parse(schedule).unwrap(), cron::zone(zone).unwrap());
            let (after, until) = (Timestamp::from_second(start).unwrap(), Timestamp::from_second(start + length).unwrap());
            let all = std::iter::successors(next(&schedule, &zone, after), |due| next(&schedule, &zone, *due));
            let counted = all.take_while(|due| *due <= until).last();
            prop_assert_eq!(latest(&schedule, &zone, after, until), counted);
        }
    }
}
