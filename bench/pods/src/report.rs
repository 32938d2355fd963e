//! Figures side by side.

use std::fmt;

pub struct Figure {
    name: String,
    value: f64,
    unit: &'static str,
    /// What it should stay below; not a number if there is none.
    limit: f64,
}

impl Figure {
    pub fn new(name: &str, value: f64, unit: &'static str, limit: f64) -> Self {
        Self { name: name.to_owned(), value, unit, limit }
    }
}

#[derive(Default)]
pub struct Report {
    columns: Vec<(&'static str, Vec<Figure>)>,
}

impl Report {
    pub fn add(&mut self, name: &'static str, figures: Vec<Figure>) {
        self.columns.push((name, figures));
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some((_, rows)) = self.columns.first() else { return Ok(()) };
        write!(f, "| what | limit |")?;
        for (name, _) in &self.columns {
            write!(f, " {name} |")?;
        }
        let compared = self.columns.len() > 1;
        writeln!(f, "{}", if compared { " ratio |" } else { "" })?;
        writeln!(f, "{}|", "|---".repeat(2 + self.columns.len() + usize::from(compared)))?;
        for (number, row) in rows.iter().enumerate() {
            let limit = if row.limit.is_nan() { String::new() } else { format!("{} {}", row.limit, row.unit) };
            write!(f, "| {} | {limit} |", row.name)?;
            for (_, figures) in &self.columns {
                match figures.get(number) {
                    Some(figure) => write!(f, " {:.1} {} |", figure.value, figure.unit)?,
                    None => write!(f, " |")?,
                }
            }
            if let [(_, ours), (_, theirs)] = self.columns.as_slice()
                && let (Some(ours), Some(theirs)) = (ours.get(number), theirs.get(number))
            {
                write!(f, " {:.2} |", ours.value / theirs.value)?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}
