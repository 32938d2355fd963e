//! The figures of a measurement, as text and as JSON.

use serde::Serialize;

use crate::progress::grouped;

#[derive(Clone, Debug, Serialize)]
pub struct Figure {
    pub name: String,
    pub value: f64,
    pub unit: &'static str,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct Figures(pub Vec<Figure>);

impl Figures {
    pub fn add(&mut self, name: impl Into<String>, value: f64, unit: &'static str) -> &Figure {
        let at = self.0.len();
        self.0.push(Figure { name: name.into(), value, unit });
        &self.0[at]
    }

    pub fn get(&self, name: &str) -> Option<f64> {
        self.0.iter().find(|figure| figure.name == name).map(|figure| figure.value)
    }
}

impl std::fmt::Display for Figure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let amount = match self.value {
            value if value >= 100.0 => grouped(value.round() as usize),
            value if value >= 10.0 => format!("{value:.1}"),
            value => format!("{value:.2}"),
        };
        write!(f, "  {:<46} {amount:>12} {}", self.name, self.unit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_as_precise_as_they_are_small() {
        let shown = |value| Figure { name: "x".to_owned(), value, unit: "s" }.to_string();
        assert!(shown(12_345.6).ends_with("12,346 s"));
        assert!(shown(12.34).ends_with("12.3 s"));
        assert!(shown(0.126).ends_with("0.13 s"));
    }
}
