//! Label selectors for pods and nodes, decoded.

use mainstay_api::matching::{self, Requirement as _, UNLABELLED};
pub use mainstay_api::matching::{Labels, Operator};
use serde::Deserialize;

use super::decode::{deserialize_operator, or_default};

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize)]
#[serde(default)]
pub struct Requirement {
    pub key: String,
    #[serde(deserialize_with = "deserialize_operator")]
    pub operator: Operator,
    #[serde(deserialize_with = "or_default")]
    pub values: Vec<String>,
}

impl Requirement {
    pub fn equal(key: &str, value: &str) -> Self {
        Self { key: key.to_owned(), operator: Operator::In, values: vec![value.to_owned()] }
    }
}

impl matching::Requirement for Requirement {
    fn key(&self) -> &str {
        &self.key
    }

    fn operator(&self) -> Operator {
        self.operator
    }

    fn values(&self) -> &[String] {
        &self.values
    }
}

/// All of it has to hold; without requirements it holds for everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Selector(pub Vec<Requirement>);

impl Selector {
    pub fn matches(&self, labels: &Labels) -> bool {
        self.0.iter().all(|requirement| requirement.holds(labels))
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
        self.namespaces.iter().any(|named| named == namespace)
            || self.namespaces_like.as_ref().is_some_and(|like| like.matches(about(namespace).unwrap_or(&UNLABELLED)))
    }
}

/// One alternative of a node selector.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default)]
pub struct NodeTerm {
    #[serde(rename = "matchExpressions", deserialize_with = "or_default")]
    pub labels: Vec<Requirement>,
    #[serde(rename = "matchFields", deserialize_with = "or_default")]
    pub fields: Vec<Requirement>,
}

impl matching::NodeTerm for NodeTerm {
    type Requirement = Requirement;

    fn labels(&self) -> &[Requirement] {
        &self.labels
    }

    fn fields(&self) -> &[Requirement] {
        &self.fields
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
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
