//! How a ConfigTemplate's status and history read.

use std::fmt::Write as _;

use mainstay_api::config_template::{CURRENT, ConfigTemplate, HistoryEntry};

use crate::terminal::printable;

pub fn status(template: &ConfigTemplate) -> String {
    let status = template.status.clone().unwrap_or_default();
    let mut out = String::new();
    let mut line = |label: &str, text: &str| {
        writeln!(out, "{:<11} {}", format!("{label}:"), printable(text)).unwrap_or_default();
    };
    line("version", status.version.as_deref().unwrap_or("none yet"));
    if let Some(target) = &status.target {
        line("on its way", &format!("{} since {}", target.version, target.began.0));
    }
    if let Some(current) = status.conditions.iter().find(|condition| condition.type_ == CURRENT) {
        let separator = if current.message.is_empty() { "" } else { ": " };
        line("status", &format!("{}{separator}{}", current.reason, current.message));
    }
    if let Some(consumers) = &status.consumers {
        let (updated, total, healthy) = (consumers.updated, consumers.total, consumers.healthy);
        line("consumers", &format!("{updated} of {total} have the wanted version, {healthy} ready"));
    }
    if let Some(rejected) = &status.rejected {
        line(
            "rejected",
            &format!("{} at {} ({}): {}", rejected.version, rejected.time.0, rejected.reason, rejected.message),
        );
    }
    out
}

pub fn history(entries: &[HistoryEntry]) -> String {
    let header = ["VERSION", "TIME", "RESULT", "CHANGED", "BY", "MESSAGE"].map(str::to_owned);
    let or_dash = |text: String| if text.is_empty() { "-".to_owned() } else { text };
    let rows = entries.iter().map(|entry| {
        [
            entry.version.clone(),
            entry.time.0.to_string(),
            entry.result.clone(),
            or_dash(entry.changed.join(",")),
            or_dash(entry.manager.clone().unwrap_or_default()),
            printable(&entry.message),
        ]
    });
    let rows: Vec<[String; 6]> = std::iter::once(header).chain(rows).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default();
    let widths: [usize; 5] = std::array::from_fn(width);
    let mut out = String::new();
    for row in &rows {
        let cells = row
            .iter()
            .enumerate()
            .map(|(column, text)| widths.get(column).map_or_else(|| text.clone(), |width| format!("{text:<width$}")));
        let _ = writeln!(out, "{}", cells.collect::<Vec<_>>().join("  ").trim_end());
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_status_names_versions_consumers_and_what_was_rejected() {
        let template: ConfigTemplate = serde_json::from_value(json!({ "status": {
            "version": "aaaaaaaaaa",
            "target": { "version": "bbbbbbbbbb", "began": "2026-01-01T00:00:00Z" },
            "conditions": [{
                "type": "Current", "status": "False", "reason": "Progressing", "message": "wave 1: web-1 moving",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }],
            "consumers": { "total": 3, "updated": 1, "healthy": 3 },
        }}))
        .unwrap();
        let expected = "\
version:    aaaaaaaaaa
on its way: bbbbbbbbbb since 2026-01-01T00:00:00Z
status:     Progressing: wave 1: web-1 moving
consumers:  1 of 3 have the wanted version, 3 ready
";
        assert_eq!(status(&template), expected);
        assert_eq!(status(&ConfigTemplate::default()), "version:    none yet\n");
    }

    #[test]
    fn a_history_is_a_table() {
        let entry: HistoryEntry = serde_json::from_value(json!({
            "version": "aaaaaaaaaa", "time": "2026-01-01T00:00:00Z", "result": "Succeeded", "changed": ["db", "zones"],
        }))
        .unwrap();
        let expected = "\
VERSION     TIME                  RESULT     CHANGED   BY  MESSAGE
aaaaaaaaaa  2026-01-01T00:00:00Z  Succeeded  db,zones  -
";
        assert_eq!(history(&[entry]), expected);
    }
}
