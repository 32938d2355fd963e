//! Figures, one a line, each beside what it is compared with.

use crate::load::Done;

pub struct Report {
    only: String,
}

impl Report {
    pub fn new(only: &str) -> Self {
        println!("{:<46} {:>12}  {:<12} {:>22}", "what", "figure", "unit", "compared with");
        Self { only: only.to_lowercase() }
    }

    pub fn wants(&self, name: &str) -> bool {
        name.to_lowercase().contains(&self.only)
    }

    pub fn note(&self, text: &str) {
        println!("{text}");
    }

    pub fn figure(&self, name: &str, value: f64, unit: &str, other: Option<(&str, f64)>) {
        let compared =
            other.map_or_else(String::new, |(who, theirs)| format!("{who} {theirs:.0} ({:.2}x)", value / theirs));
        println!("{name:<46} {value:>12.1}  {unit:<12} {compared:>22}");
    }

    pub fn rate(&self, name: &str, done: &Done, other: Option<(&str, f64)>) {
        self.figure(name, done.per_second(), "/s", other);
        println!(
            "{:<46} p50 {:.2} ms, p99 {:.2} ms, worst {:.2} ms",
            "",
            done.percentile(50.0),
            done.percentile(99.0),
            done.percentile(100.0)
        );
    }
}
