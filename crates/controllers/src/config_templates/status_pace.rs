//! How often the status of a template says how far a rollout has come: once a second, and with everything else that is news.
//!
//! A rollout to a thousand consumers would otherwise write the status a thousand times, and each write tells everybody who watches templates.

use std::{collections::HashMap, time::Duration};

use jiff::{SignedDuration, Timestamp};
use mainstay_api::config_template::{CURRENT, ConfigTemplateStatus, PROGRESSING};
use parking_lot::Mutex;

use crate::runtime::ObjectKey;

const PERIOD: SignedDuration = SignedDuration::from_secs(1);

/// When the status of each template was last written.
#[derive(Default)]
pub struct StatusPace(Mutex<HashMap<ObjectKey, Timestamp>>);

impl StatusPace {
    /// Whether a status may be written now; if not, how long to wait. Counts as written if it may.
    pub fn may_write(
        &self,
        template: &ObjectKey,
        before: Option<&ConfigTemplateStatus>,
        after: &ConfigTemplateStatus,
        now: Timestamp,
    ) -> Result<(), Duration> {
        let mut written = self.0.lock();
        let due = written.get(template).map(|last| last.saturating_add(PERIOD).unwrap_or(Timestamp::MAX));
        if let Some(due) = due.filter(|due| now < *due && before.is_some_and(|before| differs_in_counts(before, after)))
        {
            return Err(Duration::try_from(due.duration_since(now)).unwrap_or_default());
        }
        written.insert(template.clone(), now);
        Ok(())
    }

    /// The template is gone.
    pub fn forget(&self, template: &ObjectKey) {
        self.0.lock().remove(template);
    }
}

/// Whether nothing is news but how many consumers have come how far.
fn differs_in_counts(before: &ConfigTemplateStatus, after: &ConfigTemplateStatus) -> bool {
    let without_counts = |status: &ConfigTemplateStatus| {
        let mut status = ConfigTemplateStatus { consumers: None, ..status.clone() };
        let said = status.conditions.iter_mut().filter(|own| own.type_ == CURRENT || own.type_ == PROGRESSING);
        said.filter(|own| own.reason == "Progressing" || own.reason == "Placing").for_each(|own| own.message.clear());
        status
    };
    without_counts(before) == without_counts(after)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn status(reason: &str, message: &str, updated: i32) -> ConfigTemplateStatus {
        serde_json::from_value(json!({
            "consumers": { "total": 9, "updated": updated, "healthy": 9 },
            "conditions": [{
                "type": "Current", "status": "False", "reason": reason, "message": message,
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }],
        }))
        .unwrap()
    }

    #[test]
    fn counts_are_written_once_a_second_and_everything_else_at_once() {
        let (pace, key) = (StatusPace::default(), ObjectKey::new("shop", "zones"));
        let write = |before: Option<&ConfigTemplateStatus>, after: &ConfigTemplateStatus, millis: i64| {
            pace.may_write(&key, before, after, Timestamp::from_millisecond(millis).unwrap())
        };
        let (first, second) = (status("Progressing", "1 of 9", 1), status("Progressing", "2 of 9", 2));
        assert_eq!(write(None, &first, 1_000), Ok(()));
        assert_eq!(write(Some(&first), &second, 1_400), Err(Duration::from_millis(600)));
        assert_eq!(write(Some(&first), &second, 2_000), Ok(()));
        let failed = status("RolledBack", "web-1 failed", 2);
        assert_eq!(write(Some(&second), &failed, 2_001), Ok(()));
        assert_eq!(write(Some(&failed), &status("RolledBack", "web-2 failed", 2), 2_002), Ok(()), "that is news");
    }
}
