//! The roles that a pod may use, as its annotation says.

use std::collections::BTreeMap;

use super::ANY_ROLE;
use crate::wellknown::mainstay::{MESOS_ROLES, ROLES};

/// In the order of preference, each once. May be empty: such a pod fits nowhere.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PodRoles(Vec<String>);

impl PodRoles {
    /// Roles are separated by commas; spaces around them, empty ones and repetitions do not count.
    pub fn parse(text: &str) -> Self {
        let mut roles: Vec<String> = Vec::new();
        for role in text.split(',').map(str::trim).filter(|role| !role.is_empty()) {
            if !roles.iter().any(|known| known == role) {
                roles.push(role.to_owned());
            }
        }
        Self(roles)
    }

    /// Those that a pod with these annotations may use; [`ANY_ROLE`] alone if none says so. Ours wins over that of Kubernetes on
    /// Mesos.
    pub fn from_annotations(annotations: Option<&BTreeMap<String, String>>) -> Self {
        let named = [ROLES, MESOS_ROLES].into_iter().find_map(|key| annotations?.get(key));
        named.map_or_else(Self::default, |text| Self::parse(text))
    }

    pub fn names(&self) -> &[String] {
        &self.0
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn contains(&self, role: &str) -> bool {
        self.0.iter().any(|own| own == role)
    }

    /// As an annotation says it.
    pub fn text(&self) -> String {
        self.0.join(",")
    }
}

impl Default for PodRoles {
    fn default() -> Self {
        Self(vec![ANY_ROLE.to_owned()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_are_trimmed_and_each_counts_once() {
        for (text, roles) in [
            ("*", &["*"][..]),
            (" batch , * ,batch", &["batch", "*"]),
            ("public,,*,", &["public", "*"]),
            ("", &[]),
            (" , ", &[]),
        ] {
            assert_eq!(PodRoles::parse(text).names(), roles, "{text:?}");
        }
    }

    #[test]
    fn our_annotation_wins_and_without_any_it_is_the_rest_of_the_machine() {
        let annotations = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
        };
        let roles = |pairs: &[(&str, &str)]| PodRoles::from_annotations(Some(&annotations(pairs))).text();
        assert_eq!(PodRoles::from_annotations(None).text(), "*");
        assert_eq!(roles(&[("other", "x")]), "*");
        assert_eq!(roles(&[("k8s.mesosphere.io/roles", "*,public")]), "*,public");
        assert_eq!(roles(&[("k8s.mesosphere.io/roles", "*"), ("mainstay.dev/roles", "batch")]), "batch");
        assert_eq!(roles(&[("k8s.mesosphere.io/roles", "")]), "", "said, and empty");
    }
}
