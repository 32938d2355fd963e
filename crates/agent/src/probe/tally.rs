//! When results in a row become a verdict. Pure: time is an argument.

use std::time::Duration;

/// What one attempt found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    Good,
    Bad,
}

/// How many in a row it takes, and how long a bad row has to last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thresholds {
    pub success: u32,
    pub failure: u32,
    /// From the first failure in the row to the one that counts.
    pub hold: Duration,
}

/// The current row of equal results.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    row: Option<Row>,
}

#[derive(Clone, Copy, Debug)]
struct Row {
    found: Found,
    length: u32,
    /// When it began, on the caller's clock.
    since: Duration,
}

impl Tally {
    /// Counts one more result; the answer is what the row by now amounts to. `now` only needs to grow.
    pub fn count(&mut self, found: Found, thresholds: Thresholds, now: Duration) -> Option<Found> {
        let row = match self.row {
            Some(row) if row.found == found => Row { length: row.length.saturating_add(1), ..row },
            _ => Row { found, length: 1, since: now },
        };
        self.row = Some(row);
        let enough = match found {
            Found::Good => row.length >= thresholds.success,
            Found::Bad => row.length >= thresholds.failure && now.saturating_sub(row.since) >= thresholds.hold,
        };
        enough.then_some(found)
    }

    /// When the row began.
    pub fn since(&self) -> Option<Duration> {
        self.row.map(|row| row.since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STOCK: Thresholds = Thresholds { success: 1, failure: 3, hold: Duration::ZERO };

    fn count(thresholds: Thresholds, results: &[(u64, Found)]) -> Vec<Option<Found>> {
        let mut tally = Tally::default();
        results.iter().map(|(at, found)| tally.count(*found, thresholds, Duration::from_secs(*at))).collect()
    }

    #[test]
    fn the_third_failure_in_a_row_counts() {
        use Found::*;
        assert_eq!(count(STOCK, &[(0, Bad), (10, Bad), (20, Bad)]), [None, None, Some(Bad)]);
    }

    #[test]
    fn one_failure_between_successes_counts_for_nothing() {
        use Found::*;
        let seen = count(STOCK, &[(0, Good), (10, Bad), (20, Good), (30, Bad), (40, Bad), (50, Good)]);
        assert_eq!(seen, [Some(Good), None, Some(Good), None, None, Some(Good)]);
    }

    #[test]
    fn enough_failures_still_wait_for_the_time() {
        use Found::*;
        let hasty = Thresholds { failure: 2, hold: Duration::from_secs(15), ..STOCK };
        let seen = count(hasty, &[(0, Bad), (5, Bad), (10, Bad), (15, Bad)]);
        assert_eq!(seen, [None, None, None, Some(Bad)]);
        assert_eq!(
            count(hasty, &[(0, Bad), (14, Bad), (16, Good), (18, Bad), (30, Bad)]),
            [None, None, Some(Good), None, None]
        );
    }

    #[test]
    fn success_may_take_several_in_a_row_too() {
        use Found::*;
        let careful = Thresholds { success: 2, ..STOCK };
        assert_eq!(count(careful, &[(0, Good), (1, Good), (2, Bad), (3, Good)]), [None, Some(Good), None, None]);
    }
}
