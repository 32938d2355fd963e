//! Shows progress on standard error: a bar on a terminal, a line now and then elsewhere.

use std::{
    io::{IsTerminal, Write},
    time::{Duration, Instant},
};

/// How often the bar is drawn, and how often a line is written where there is no terminal.
const BAR_INTERVAL: Duration = Duration::from_millis(100);
const LINE_INTERVAL: Duration = Duration::from_secs(5);
const WIDTH: usize = 30;

/// Standard error, so that standard output has the figures only.
#[derive(Clone, Copy, Debug)]
pub enum Progress {
    Bar,
    Lines,
    Hidden,
}

impl Progress {
    /// A bar if standard error is a terminal.
    pub fn for_stderr() -> Self {
        if std::io::stderr().is_terminal() { Self::Bar } else { Self::Lines }
    }

    /// Shows progress while `work` runs.
    pub async fn show_while<T>(
        self,
        what: &str,
        total: usize,
        at: impl Fn() -> usize,
        work: impl Future<Output = T>,
    ) -> T {
        let started = Instant::now();
        let mut work = std::pin::pin!(work);
        let period = if matches!(self, Self::Bar) { BAR_INTERVAL } else { LINE_INTERVAL };
        let mut tick = tokio::time::interval_at(tokio::time::Instant::now() + period, period);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let done = loop {
            tokio::select! {
                done = &mut work => break done,
                _ = tick.tick() => self.show(what, at(), total, started.elapsed()),
            }
        };
        self.clear();
        done
    }

    fn show(self, what: &str, at: usize, total: usize, taken: Duration) {
        let line = line(what, at, total, taken);
        let mut out = std::io::stderr().lock();
        // Nobody to show it to is no reason to stop.
        let _ = match self {
            Self::Bar => write!(out, "\r\x1b[K{} {line}", bar(at, total)),
            Self::Lines => writeln!(out, "{line}"),
            Self::Hidden => Ok(()),
        };
        let _ = out.flush();
    }

    fn clear(self) {
        if matches!(self, Self::Bar) {
            let mut out = std::io::stderr().lock();
            let _ = write!(out, "\r\x1b[K");
            let _ = out.flush();
        }
    }
}

fn bar(at: usize, total: usize) -> String {
    let full = (WIDTH * at.min(total)).checked_div(total).unwrap_or(0);
    format!("[{}{}]", "=".repeat(full), " ".repeat(WIDTH - full))
}

fn line(what: &str, at: usize, total: usize, taken: Duration) -> String {
    let rate = at as f64 / taken.as_secs_f64().max(0.001);
    format!("{what}: {} of {}, {}/s", grouped(at), grouped(total), grouped(rate as usize))
}

/// `12345` as `12,345`.
pub fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_say_how_far_and_how_fast() {
        let text = line("pods bound", 12_345, 30_000, Duration::from_secs(5));
        assert_eq!(text, "pods bound: 12,345 of 30,000, 2,469/s");
    }

    #[test]
    fn bars_are_empty_half_and_full() {
        assert_eq!(bar(0, 10).matches('=').count(), 0);
        assert_eq!(bar(5, 10).matches('=').count(), WIDTH / 2);
        assert_eq!(bar(99, 10), format!("[{}]", "=".repeat(WIDTH)));
        assert_eq!(bar(0, 0).len(), WIDTH + 2);
    }

    #[test]
    fn numbers_are_grouped() {
        for (number, text) in [(0, "0"), (999, "999"), (1000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(grouped(number), text);
        }
    }
}
