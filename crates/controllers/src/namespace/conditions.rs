//! The conditions of a terminating namespace: what keeps it from ending, in upstream's words.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::{api::core::v1::NamespaceCondition, apimachinery::pkg::apis::meta::v1::Time};

#[derive(Default)]
pub struct Obstacles<'a> {
    /// Groups that failed discovery, and why.
    pub failed_groups: Vec<(&'a str, &'a str)>,
    /// What could not be listed or deleted.
    pub failures: Vec<&'a str>,
    /// How many objects are left, by plural and group.
    pub remaining: BTreeMap<(&'a str, &'a str), usize>,
    /// How many objects a finalizer holds.
    pub finalizers: BTreeMap<&'a str, usize>,
}

pub struct Condition {
    kind: &'static str,
    holds: bool,
    reason: &'static str,
    message: String,
}

impl Obstacles<'_> {
    pub fn conditions(&self) -> [Condition; 5] {
        let condition = |kind, problem: Option<(&'static str, String)>, reason, fine: &str| match problem {
            Some((reason, message)) => Condition { kind, holds: true, reason, message },
            None => Condition { kind, holds: false, reason, message: fine.to_owned() },
        };
        let discovery = self.failed_groups.iter().map(|(group, why)| format!("{group}: {why}")).collect::<Vec<_>>();
        let discovery = (!discovery.is_empty()).then(|| {
            let message = format!(
                "Discovery failed for some groups, {} failing: unable to retrieve the complete list of server APIs: {}",
                discovery.len(),
                discovery.join(", ")
            );
            ("DiscoveryFailed", message)
        });
        let mut failures = self.failures.clone();
        failures.sort_unstable();
        let failures = (!failures.is_empty()).then(|| {
            let (count, failures) = (failures.len(), failures.join(", "));
            ("ContentDeletionFailed", format!("Failed to delete all resource types, {count} remaining: {failures}"))
        });
        let remaining =
            self.remaining.iter().map(|((plural, group), n)| format!("{plural}.{group} has {n} resource instances"));
        let remaining = listed("SomeResourcesRemain", "Some resources are remaining: ", remaining);
        let held = self.finalizers.iter().map(|(finalizer, n)| format!("{finalizer} in {n} resource instances"));
        let held = listed("SomeFinalizersRemain", "Some content in the namespace has finalizers remaining: ", held);
        [
            condition(
                "NamespaceDeletionDiscoveryFailure",
                discovery,
                "ResourcesDiscovered",
                "All resources successfully discovered",
            ),
            condition(
                "NamespaceDeletionGroupVersionParsingFailure",
                None,
                "ParsedGroupVersions",
                "All legacy kube types successfully parsed",
            ),
            condition(
                "NamespaceDeletionContentFailure",
                failures,
                "ContentDeleted",
                "All content successfully deleted, may be waiting on finalization",
            ),
            condition("NamespaceContentRemaining", remaining, "ContentRemoved", "All content successfully removed"),
            condition(
                "NamespaceFinalizersRemaining",
                held,
                "ContentHasNoFinalizers",
                "All content-preserving finalizers finished",
            ),
        ]
    }
}

fn listed(reason: &'static str, intro: &str, lines: impl Iterator<Item = String>) -> Option<(&'static str, String)> {
    let mut lines: Vec<_> = lines.collect();
    lines.sort();
    (!lines.is_empty()).then(|| (reason, format!("{intro}{}", lines.join(", "))))
}

/// Brings conditions up to date and says whether that changed them. The time is that of the last
/// change of truth, not of wording.
pub fn set(conditions: &mut Vec<NamespaceCondition>, wanted: &[Condition], now: Timestamp) -> bool {
    let before = conditions.clone();
    for wanted in wanted {
        let status = if wanted.holds { "True" } else { "False" };
        let known = conditions.iter_mut().find(|known| known.type_ == wanted.kind);
        let since = known.as_ref().filter(|known| known.status == status).and_then(|k| k.last_transition_time.clone());
        let condition = NamespaceCondition {
            type_: wanted.kind.to_owned(),
            status: status.to_owned(),
            reason: Some(wanted.reason.to_owned()),
            message: Some(wanted.message.clone()),
            last_transition_time: Some(since.unwrap_or(Time(now))),
        };
        match known {
            Some(known) => *known = condition,
            None => conditions.push(condition),
        }
    }
    *conditions != before
}
