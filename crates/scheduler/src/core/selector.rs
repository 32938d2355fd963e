//! What labels must say: of pods, of namespaces, of machines.

use std::{cmp::Ordering, collections::BTreeMap};

pub type Labels = BTreeMap<String, String>;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Operator {
    In,
    NotIn,
    Exists,
    DoesNotExist,
    Gt,
    Lt,
    /// Something newer than we know: matches nothing.
    Unknown,
}

impl Operator {
    pub fn parse(text: &str) -> Self {
        match text {
            "In" => Self::In,
            "NotIn" => Self::NotIn,
            "Exists" => Self::Exists,
            "DoesNotExist" => Self::DoesNotExist,
            "Gt" => Self::Gt,
            "Lt" => Self::Lt,
            _ => Self::Unknown,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Requirement {
    pub key: String,
    pub operator: Operator,
    pub values: Vec<String>,
}

impl Requirement {
    pub fn equal(key: &str, value: &str) -> Self {
        Self { key: key.to_owned(), operator: Operator::In, values: vec![value.to_owned()] }
    }

    pub fn holds(&self, value: Option<&str>) -> bool {
        let among = || value.is_some_and(|value| self.values.iter().any(|wanted| wanted == value));
        let compared = || Some(value?.parse::<i64>().ok()?.cmp(&self.values.first()?.parse().ok()?));
        match self.operator {
            Operator::In => among(),
            Operator::NotIn => !among(),
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
            Operator::Gt => compared() == Some(Ordering::Greater),
            Operator::Lt => compared() == Some(Ordering::Less),
            Operator::Unknown => false,
        }
    }
}

/// All of it has to hold; without requirements it holds for everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Selector(pub Vec<Requirement>);

impl Selector {
    pub fn matches(&self, labels: &Labels) -> bool {
        self.0.iter().all(|requirement| requirement.holds(labels.get(&requirement.key).map(String::as_str)))
    }
}

/// Pods by their labels and their namespace.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PodSelector {
    /// Sorted.
    pub namespaces: Vec<String>,
    /// Namespaces by label, besides those named.
    pub namespaces_like: Option<Selector>,
    /// `None` matches no pod.
    pub labels: Option<Selector>,
}

impl PodSelector {
    /// `about` gives a namespace's labels.
    pub fn matches<'a>(
        &self,
        namespace: &str,
        labels: &Labels,
        about: impl FnOnce(&str) -> Option<&'a Labels>,
    ) -> bool {
        self.labels.as_ref().is_some_and(|selector| selector.matches(labels)) && self.covers(namespace, about)
    }

    fn covers<'a>(&self, namespace: &str, about: impl FnOnce(&str) -> Option<&'a Labels>) -> bool {
        let unlabelled = Labels::new();
        self.namespaces.iter().any(|named| named == namespace)
            || self.namespaces_like.as_ref().is_some_and(|like| like.matches(about(namespace).unwrap_or(&unlabelled)))
    }
}

/// One alternative of a node selector.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct NodeTerm {
    pub labels: Vec<Requirement>,
    /// On fields; there is only `metadata.name`.
    pub fields: Vec<Requirement>,
}

impl NodeTerm {
    /// A term without requirements matches nothing.
    pub fn matches(&self, name: &str, labels: &Labels) -> bool {
        let named = |requirement: &Requirement| requirement.key == "metadata.name" && requirement.holds(Some(name));
        !(self.labels.is_empty() && self.fields.is_empty())
            && self.labels.iter().all(|r| r.holds(labels.get(&r.key).map(String::as_str)))
            && self.fields.iter().all(named)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    fn requirement(key: &str, operator: &str, values: &[&str]) -> Requirement {
        let values = values.iter().map(|value| (*value).to_owned()).collect();
        Requirement { key: key.to_owned(), operator: Operator::parse(operator), values }
    }

    #[test]
    fn each_operator_says_what_it_means() {
        let node = labels(&[("disk", "ssd"), ("size", "5"), ("odd", "x")]);
        for (key, operator, values, holds) in [
            ("disk", "In", &["hdd", "ssd"][..], true),
            ("disk", "In", &["hdd"], false),
            ("gone", "In", &["x"], false),
            ("disk", "NotIn", &["ssd"], false),
            ("gone", "NotIn", &["ssd"], true),
            ("disk", "Exists", &[], true),
            ("gone", "Exists", &[], false),
            ("gone", "DoesNotExist", &[], true),
            ("disk", "DoesNotExist", &[], false),
            ("size", "Gt", &["4"], true),
            ("size", "Gt", &["5"], false),
            ("size", "Lt", &["6"], true),
            ("odd", "Lt", &["6"], false),
            ("gone", "Gt", &["0"], false),
            ("disk", "Near", &["ssd"], false),
        ] {
            let term = NodeTerm { labels: vec![requirement(key, operator, values)], fields: vec![] };
            assert_eq!(term.matches("n1", &node), holds, "{key} {operator} {values:?}");
        }
    }

    #[test]
    fn a_term_that_asks_for_nothing_matches_nothing_and_fields_mean_the_name() {
        assert!(!NodeTerm::default().matches("n1", &labels(&[])));
        let named = NodeTerm { labels: vec![], fields: vec![requirement("metadata.name", "In", &["n1"])] };
        assert!(named.matches("n1", &labels(&[])));
        assert!(!named.matches("n2", &labels(&[])));
        let other = NodeTerm { labels: vec![], fields: vec![requirement("metadata.uid", "Exists", &[])] };
        assert!(!other.matches("n1", &labels(&[])));
    }

    #[test]
    fn pods_are_chosen_by_labels_within_namespaces_named_or_described() {
        let web = labels(&[("app", "web")]);
        let team = labels(&[("team", "a")]);
        let about = |name: &str| (name == "described").then_some(&team);
        let select =
            |namespaces_like, labels| PodSelector { namespaces: vec!["named".to_owned()], namespaces_like, labels };
        let app = Some(Selector(vec![Requirement::equal("app", "web")]));
        let by_team = Some(Selector(vec![Requirement::equal("team", "a")]));
        let named = select(None, app.clone());
        assert!(named.matches("named", &web, about));
        assert!(!named.matches("described", &web, about));
        assert!(!named.matches("named", &team, about));
        let described = select(by_team, app.clone());
        assert!(described.matches("described", &web, about));
        assert!(described.matches("named", &web, about));
        assert!(!described.matches("other", &web, about));
        assert!(
            select(Some(Selector::default()), app).matches("other", &web, about),
            "an empty selector is everything"
        );
        assert!(!select(None, None).matches("named", &web, about), "no selector is nothing");
    }
}
