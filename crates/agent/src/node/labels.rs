//! Which labels of the Node the agent sets. Pure.
//!
//! Labels that describe the machine (`kubernetes.io/os`, …) are always its own. Labels given by `--node-label` are set when the
//! flag is new or has changed, and removed with it; in between they belong to whoever edits the Node, so a label that a user
//! removed or changed stays so. What the flags were is remembered in an annotation of the Node: it outlives the agent and its
//! data directory.

use std::collections::BTreeMap;

pub type Labels = BTreeMap<String, String>;

/// On a Node: the labels that were last set from flags, as JSON.
pub const APPLIED: &str = "mainstay.dev/node-labels";

/// What has to be written, as a merge patch: `None` removes.
#[derive(Debug, PartialEq, Eq)]
pub struct LabelChange {
    pub labels: BTreeMap<String, Option<String>>,
    /// The new value of [`APPLIED`].
    pub applied: Option<String>,
}

/// What to change on a Node that has these labels and this annotation.
pub fn change(current: &Labels, applied: Option<&str>, own: &Labels, from_flags: &Labels) -> Option<LabelChange> {
    let before: Labels = applied.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    let mut labels: BTreeMap<String, Option<String>> = BTreeMap::new();
    for (key, value) in &before {
        if !from_flags.contains_key(key) && current.get(key) == Some(value) {
            labels.insert(key.clone(), None);
        }
    }
    let changed_flags = from_flags.iter().filter(|(key, value)| before.get(*key) != Some(value));
    // A flag may override what the machine says of itself.
    let own = own.iter().filter(|(key, _)| !from_flags.contains_key(*key));
    for (key, value) in changed_flags.chain(own) {
        if current.get(key) != Some(value) {
            labels.insert(key.clone(), Some(value.clone()));
        } else {
            labels.remove(key);
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
    use super::*;

    fn labels(all: &[(&str, &str)]) -> Labels {
        all.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    fn changed(current: &[(&str, &str)], before: &[(&str, &str)], flags: &[(&str, &str)]) -> Vec<String> {
        let change = change(&labels(current), encode(&labels(before)).as_deref(), &Labels::new(), &labels(flags));
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
        let dropped = change(&Labels::new(), Some(r#"{"rack":"1"}"#), &Labels::new(), &Labels::new()).unwrap();
        assert_eq!(dropped, LabelChange { labels: BTreeMap::new(), applied: None });
    }

    #[test]
    fn what_the_machine_says_of_itself_is_restored_and_a_flag_overrides_it() {
        let own = labels(&[("kubernetes.io/os", "linux"), ("kubernetes.io/hostname", "m1")]);
        let restored = change(&labels(&[("kubernetes.io/os", "x")]), None, &own, &Labels::new()).unwrap();
        assert_eq!(restored.labels.len(), 2);
        let flags = labels(&[("kubernetes.io/hostname", "other")]);
        let current = labels(&[("kubernetes.io/os", "linux"), ("kubernetes.io/hostname", "other")]);
        assert_eq!(change(&current, encode(&flags).as_deref(), &own, &flags), None);
        let dropped = change(&current, encode(&flags).as_deref(), &own, &Labels::new()).unwrap();
        assert_eq!(dropped.labels, [("kubernetes.io/hostname".to_owned(), Some("m1".to_owned()))].into());
    }
}
