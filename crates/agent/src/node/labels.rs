//! Which labels of the Node the agent sets. Pure.
//!
//! Labels that describe the machine (`kubernetes.io/os`, `kubernetes.io/arch`) are always restored. `kubernetes.io/hostname` is
//! the node's name unless somebody gave it another value, which then stays: storage that was bound to a node by a former
//! label must be able to follow it. Labels given by `--node-label` are set when the flag is new or has changed, and removed
//! with it; in between they belong to whoever edits the Node, so a label that a user removed or changed stays so. What the
//! flags were is remembered in an annotation of the Node: it outlives the agent and its data directory.

use std::collections::BTreeMap;

pub type Labels = BTreeMap<String, String>;

/// On a Node: the labels that were last set from flags, as JSON.
pub const APPLIED: &str = "mainstay.dev/node-labels";

/// The labels that an agent wants its Node to have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WantedLabels {
    /// Restored whenever they differ.
    pub machine: Labels,
    /// Set where the Node has none of that name.
    pub defaults: Labels,
    /// From `--node-label`; they override the others.
    pub from_flags: Labels,
}

impl WantedLabels {
    /// The labels of a new Node.
    pub fn initial(&self) -> Labels {
        let mut labels = self.machine.clone();
        labels.extend(self.defaults.clone());
        labels.extend(self.from_flags.clone());
        labels
    }
}

/// What has to be written, as a merge patch: `None` removes.
#[derive(Debug, PartialEq, Eq)]
pub struct LabelChange {
    pub labels: BTreeMap<String, Option<String>>,
    /// The new value of [`APPLIED`].
    pub applied: Option<String>,
}

/// What to change on a Node that has these labels and this annotation.
pub fn change(current: &Labels, applied: Option<&str>, wanted: &WantedLabels) -> Option<LabelChange> {
    let from_flags = &wanted.from_flags;
    let before: Labels = applied.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    let mut labels: BTreeMap<String, Option<String>> = BTreeMap::new();
    for (key, value) in &before {
        if !from_flags.contains_key(key) && current.get(key) == Some(value) {
            labels.insert(key.clone(), None);
        }
    }
    let changed_flags = from_flags.iter().filter(|(key, value)| before.get(*key) != Some(value));
    let machine = wanted.machine.iter().filter(|(key, _)| !from_flags.contains_key(*key));
    for (key, value) in changed_flags.chain(machine) {
        if current.get(key) != Some(value) {
            labels.insert(key.clone(), Some(value.clone()));
        } else {
            labels.remove(key);
        }
    }
    for (key, value) in wanted.defaults.iter().filter(|(key, _)| !from_flags.contains_key(*key)) {
        if !current.contains_key(key) || labels.get(key) == Some(&None) {
            labels.insert(key.clone(), Some(value.clone()));
        }
    }
    let wanted = encode(from_flags);
    (!labels.is_empty() || wanted.as_deref() != applied).then_some(LabelChange { labels, applied: wanted })
}

/// The value of [`APPLIED`] for these flags.
pub fn encode(from_flags: &Labels) -> Option<String> {
    (!from_flags.is_empty()).then(|| serde_json::to_string(from_flags).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use mainstay_api::wellknown::kubernetes::{HOSTNAME, OS};

    use super::*;

    fn labels(all: &[(&str, &str)]) -> Labels {
        all.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    fn changed(current: &[(&str, &str)], before: &[(&str, &str)], flags: &[(&str, &str)]) -> Vec<String> {
        let wanted = WantedLabels { from_flags: labels(flags), ..WantedLabels::default() };
        let change = change(&labels(current), encode(&labels(before)).as_deref(), &wanted);
        let labels = change.map(|change| change.labels).unwrap_or_default();
        labels.into_iter().map(|(key, value)| format!("{key}={}", value.as_deref().unwrap_or("null"))).collect()
    }

    #[test]
    fn a_flag_sets_its_label_when_it_is_new_or_has_changed() {
        assert_eq!(changed(&[], &[], &[("rack", "1")]), ["rack=1"]);
        assert_eq!(changed(&[("rack", "1")], &[("rack", "1")], &[("rack", "2")]), ["rack=2"]);
        assert_eq!(changed(&[("rack", "mine")], &[("rack", "1")], &[("rack", "2")]), ["rack=2"]);
    }

    #[test]
    fn a_label_that_a_user_changed_or_removed_stays_so() {
        let flags = [("rack", "1")];
        assert_eq!(changed(&[], &flags, &flags), Vec::<String>::new());
        assert_eq!(changed(&[("rack", "mine"), ("user", "x")], &flags, &flags), Vec::<String>::new());
    }

    #[test]
    fn a_dropped_flag_takes_its_label_along_unless_a_user_changed_it() {
        assert_eq!(changed(&[("rack", "1"), ("user", "x")], &[("rack", "1")], &[]), ["rack=null"]);
        assert_eq!(changed(&[("rack", "mine")], &[("rack", "1")], &[]), Vec::<String>::new());
        let dropped = change(&Labels::new(), Some(r#"{"rack":"1"}"#), &WantedLabels::default()).unwrap();
        assert_eq!(dropped, LabelChange { labels: BTreeMap::new(), applied: None });
    }

    fn wanted(flags: &[(&str, &str)]) -> WantedLabels {
        WantedLabels {
            machine: labels(&[(OS, "linux")]),
            defaults: labels(&[(HOSTNAME, "m1")]),
            from_flags: labels(flags),
        }
    }

    #[test]
    fn labels_of_the_machine_are_restored_and_a_flag_overrides_them() {
        let restored = change(&labels(&[(OS, "x")]), None, &wanted(&[])).unwrap();
        assert_eq!(
            restored.labels,
            [(OS, "linux"), (HOSTNAME, "m1")].map(|(k, v)| (k.to_owned(), Some(v.to_owned()))).into()
        );
        let flags = [(OS, "other"), (HOSTNAME, "other")];
        let (current, applied) = (labels(&flags), encode(&labels(&flags)));
        assert_eq!(change(&current, applied.as_deref(), &wanted(&flags)), None);
        let dropped = change(&current, applied.as_deref(), &wanted(&[])).unwrap();
        assert_eq!(dropped.labels, restored.labels);
    }

    #[test]
    fn a_host_name_that_an_administrator_corrected_stays() {
        let current = labels(&[(OS, "linux"), (HOSTNAME, "former-name")]);
        assert_eq!(change(&current, None, &wanted(&[])), None);
    }
}
