//! What can be tuned, and what it is if nobody does.

use std::time::Duration;

use crate::{board, queue::Backoff};

/// Where a pod goes if it fits in several places.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// Where most is free.
    #[default]
    Spread,
    /// Where least is free, so that other machines stay empty.
    Binpack,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    pub placement: Placement,
    /// How long offers are good for that do not say.
    pub offer_ttl: Duration,
    /// How long expired offers are remembered.
    pub offer_linger: Duration,
    /// How long a machine that turned a pod away is not asked again for that pod.
    pub refuse_time: Duration,
    pub backoff: Backoff,
    /// How long news is collected before pods are placed; none: as soon as nothing more is there.
    pub collect: Duration,
    pub reconcile: Reconcile,
    /// How long `/debug` waits for an answer.
    pub debug_timeout: Duration,
    /// For what is left to chance.
    pub seed: u64,
}

/// When everything is listed again and compared with what is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reconcile {
    /// The first time after the start.
    pub first: Duration,
    pub every: Duration,
    /// Shortest time between two.
    pub cooldown: Duration,
    /// Longest pause before one that failed is tried again.
    pub longest_backoff: Duration,
    /// How long one may take.
    pub abort: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            placement: Placement::default(),
            offer_ttl: Duration::from_secs(5),
            offer_linger: Duration::from_secs(120),
            refuse_time: Duration::from_secs(5),
            backoff: Backoff { first: Duration::from_secs(1), longest: Duration::from_secs(60) },
            collect: Duration::ZERO,
            reconcile: Reconcile::default(),
            debug_timeout: Duration::from_secs(10),
            seed: 0,
        }
    }
}

impl Default for Reconcile {
    fn default() -> Self {
        Self {
            first: Duration::from_secs(15),
            every: Duration::from_secs(300),
            cooldown: Duration::from_secs(15),
            longest_backoff: Duration::from_secs(120),
            abort: Duration::from_secs(30),
        }
    }
}

impl Settings {
    pub fn board(&self) -> board::Times {
        board::Times { ttl: self.offer_ttl, linger: self.offer_linger, refuse: self.refuse_time }
    }
}

/// `5s`, `250ms`, `1m30s`, `2h`: numbers with units, as the flags and the file write times.
pub fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is not a time; write it like 5s, 250ms or 1m30s");
    let mut rest = text;
    let mut total = Duration::ZERO;
    if rest == "0" {
        return Ok(total);
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(wrong)?;
        let number: f64 = rest[..digits].parse().map_err(|_| wrong())?;
        let after = &rest[digits..];
        let unit = after.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(after.len());
        let seconds = match &after[..unit] {
            "us" | "µs" => 0.000_001,
            "ms" => 0.001,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return Err(wrong()),
        };
        let part = Duration::try_from_secs_f64(number * seconds).map_err(|_| wrong())?;
        total = total.checked_add(part).ok_or_else(wrong)?;
        rest = &after[unit..];
    }
    if text.is_empty() { Err(wrong()) } else { Ok(total) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_people_write_them() {
        for (text, millis) in
            [("5s", 5_000), ("250ms", 250), ("1m30s", 90_000), ("1.5s", 1_500), ("2h", 7_200_000), ("0", 0), ("0s", 0)]
        {
            assert_eq!(duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for wrong in ["", "5", "s", "-1s", "5 s", "5x", "1..5s", "99999999999999999999999h"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }
}
