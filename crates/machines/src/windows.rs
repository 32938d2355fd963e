//! When machines of a Release may be started: windows of days and hours in a time zone.

use jiff::{
    SignedDuration, Timestamp, ToSpan,
    civil::{Date, Weekday},
    tz::TimeZone,
};
use mainstay_api::{
    groups::{batch::rules::cron, mainstay::rules::release::clock_time},
    release::{DAYS, ReleaseWindow},
};

/// Whether machines may be started now, and until or from when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WindowState {
    /// There are no windows.
    Always,
    OpenUntil(Timestamp),
    /// Nothing if no window ever opens.
    ClosedUntil(Option<Timestamp>),
}

/// Every window begins again within a week; a day more for what daylight saving time leaves out.
const DAYS_AHEAD: i64 = 8;

pub fn window_state(windows: &[ReleaseWindow], now: Timestamp) -> WindowState {
    if windows.is_empty() {
        return WindowState::Always;
    }
    let spans: Vec<(Timestamp, Timestamp)> = windows.iter().flat_map(|window| spans(window, now)).collect();
    let open = spans.iter().filter(|(from, to)| (*from..*to).contains(&now)).map(|(_, to)| *to).max();
    match open {
        Some(until) => WindowState::OpenUntil(until),
        None => WindowState::ClosedUntil(spans.iter().map(|(from, _)| *from).filter(|from| *from > now).min()),
    }
}

/// The times at which a window is open, from yesterday on.
fn spans(window: &ReleaseWindow, now: Timestamp) -> Vec<(Timestamp, Timestamp)> {
    let zone = window.time_zone.as_deref().map_or(Some(TimeZone::UTC), cron::zone);
    let (Some(zone), Some(from), Some(to)) = (zone, clock_time(&window.from), clock_time(&window.to)) else {
        return Vec::new(); // the rules let none of these through
    };
    let today = zone.to_datetime(now).date();
    let days = (-1..=DAYS_AHEAD).filter_map(|ahead| today.checked_add(ahead.days()).ok());
    let opens = days.filter(|day| window.days.is_empty() || window.days.iter().any(|name| name == day_name(*day)));
    let moment = |day: Date, (hour, minute): (i8, i8)| {
        zone.to_ambiguous_zoned(day.at(hour, minute, 0, 0)).compatible().ok().map(|time| time.timestamp())
    };
    let span = |day: Date| {
        let last = if to > from { day } else { day.tomorrow().ok()? };
        Some((moment(day, from)?, moment(last, to)?))
    };
    opens.filter_map(span).filter(|(from, to)| to.duration_since(*from) > SignedDuration::ZERO).collect()
}

fn day_name(day: Date) -> &'static str {
    let index = match day.weekday() {
        Weekday::Monday => 0,
        Weekday::Tuesday => 1,
        Weekday::Wednesday => 2,
        Weekday::Thursday => 3,
        Weekday::Friday => 4,
        Weekday::Saturday => 5,
        Weekday::Sunday => 6,
    };
    DAYS[index]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(days: &[&str], from: &str, to: &str, zone: Option<&str>) -> ReleaseWindow {
        let days = days.iter().map(|day| (*day).to_owned()).collect();
        ReleaseWindow { days, from: from.to_owned(), to: to.to_owned(), time_zone: zone.map(str::to_owned) }
    }

    fn time(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn machines_are_started_within_windows() {
        assert_eq!(window_state(&[], time("2026-11-17T12:00:00Z")), WindowState::Always);
        // 2026-11-17 is a Tuesday.
        let nights = [window(&["Mon", "Tue"], "22:00", "04:00", None)];
        for (now, state) in [
            ("2026-11-17T03:59:59Z", WindowState::OpenUntil(time("2026-11-17T04:00:00Z"))),
            ("2026-11-17T04:00:00Z", WindowState::ClosedUntil(Some(time("2026-11-17T22:00:00Z")))),
            ("2026-11-18T01:00:00Z", WindowState::OpenUntil(time("2026-11-18T04:00:00Z"))),
            ("2026-11-18T04:00:00Z", WindowState::ClosedUntil(Some(time("2026-11-23T22:00:00Z")))),
        ] {
            assert_eq!(window_state(&nights, time(now)), state, "{now}");
        }
    }

    #[test]
    fn hours_are_those_of_the_time_zone_in_summer_and_in_winter() {
        let mornings = [window(&[], "08:00", "09:00", Some("Europe/Berlin"))];
        for (now, until) in
            [("2026-07-01T06:30:00Z", "2026-07-01T07:00:00Z"), ("2026-12-01T07:30:00Z", "2026-12-01T08:00:00Z")]
        {
            assert_eq!(window_state(&mornings, time(now)), WindowState::OpenUntil(time(until)));
        }
        // At 02:00 on 2026-03-29 clocks there go to 03:00: the window is short, and opens again the next day.
        let skipped = [window(&[], "02:30", "03:30", Some("Europe/Berlin"))];
        assert!(matches!(
            window_state(&skipped, time("2026-03-29T00:30:00Z")),
            WindowState::ClosedUntil(Some(from)) if from <= time("2026-03-30T00:30:00Z")
        ));
    }
}
