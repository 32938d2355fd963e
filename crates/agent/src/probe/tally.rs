//! Success and failure thresholds: when results in a row become a verdict. Pure.

use std::time::Duration;

/// What one attempt found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeResult {
    Success,
    Failure,
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
    found: ProbeResult,
    length: u32,
    /// When it began, on the caller's clock.
    since: Duration,
}

impl Tally {
    /// Counts one more result; the answer is what the row by now amounts to. `now` only needs to grow.
    pub fn count(&mut self, found: ProbeResult, thresholds: Thresholds, now: Duration) -> Option<ProbeResult> {
        let row = match self.row {
            Some(row) if row.found == found => Row { length: row.length.saturating_add(1), ..row },
            _ => Row { found, length: 1, since: now },
        };
        self.row = Some(row);
        let enough = match found {
            ProbeResult::Success => row.length >= thresholds.success,
            ProbeResult::Failure => {
                row.length >= thresholds.failure && now.saturating_sub(row.since) >= thresholds.hold
            }
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

    fn count(thresholds: Thresholds, results: &[(u64, ProbeResult)]) -> Vec<Option<ProbeResult>> {
        let mut tally = Tally::default();
        results.iter().map(|(at, found)| tally.count(*found, thresholds, Duration::from_secs(*at))).collect()
    }

    #[test]
    fn the_third_failure_in_a_row_counts() {
        use ProbeResult::*;
        assert_eq!(count(STOCK, &[(0, Failure), (10, Failure), (20, Failure)]), [None, None, Some(Failure)]);
    }

    #[test]
    fn one_failure_between_successes_counts_for_nothing() {
        use ProbeResult::*;
        let observed =
            count(STOCK, &[(0, Success), (10, Failure), (20, Success), (30, Failure), (40, Failure), (50, Success)]);
        assert_eq!(observed, [Some(Success), None, Some(Success), None, None, Some(Success)]);
    }

    #[test]
    fn enough_failures_still_wait_for_the_time() {
        use ProbeResult::*;
        let hasty = Thresholds { failure: 2, hold: Duration::from_secs(15), ..STOCK };
        let observed = count(hasty, &[(0, Failure), (5, Failure), (10, Failure), (15, Failure)]);
        assert_eq!(observed, [None, None, None, Some(Failure)]);
        assert_eq!(
            count(hasty, &[(0, Failure), (14, Failure), (16, Success), (18, Failure), (30, Failure)]),
            [None, None, Some(Success), None, None]
        );
    }

    #[test]
    fn success_may_take_several_in_a_row_too() {
        use ProbeResult::*;
        let careful = Thresholds { success: 2, ..STOCK };
        assert_eq!(
            count(careful, &[(0, Success), (1, Success), (2, Failure), (3, Success)]),
            [None, Some(Success), None, None]
        );
    }
}
