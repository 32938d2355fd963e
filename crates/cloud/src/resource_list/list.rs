//! The file of a resource list, and the file that maps its names to those of a cloud.

use std::collections::BTreeMap;

use serde::Deserialize;

/// More servers of one role are taken for a mistake.
const MOST_SERVERS: u32 = 1000;

/// `resources.yaml`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResourceList {
    pub resources: BTreeMap<String, Role>,
}

/// Servers that are alike.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Role {
    #[serde(default = "default_count")]
    pub number: u32,
    /// By name or id, after mapping.
    pub flavor: String,
    pub image: String,
    #[serde(default)]
    pub networks: Vec<String>,
    #[serde(default)]
    pub security_groups: Vec<String>,
    #[serde(default)]
    pub assign_floating_ip: bool,
}

fn default_count() -> u32 {
    1
}

/// Names of the list and what the cloud calls them; what is not mapped is called the same.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Mappings {
    #[serde(alias = "flavors")]
    pub flavor: BTreeMap<String, String>,
    #[serde(alias = "images")]
    pub image: BTreeMap<String, String>,
    #[serde(alias = "networks")]
    pub network: BTreeMap<String, String>,
}

#[derive(Debug, thiserror::Error)]
pub enum ListError {
    #[error("{file} is not a list of resources")]
    Syntax {
        file: String,
        #[source]
        source: Box<serde_saphyr::Error>,
    },
    #[error(
        "{file}: resources.{role}: a role's name has lower-case letters, digits and dashes, ends with a letter, and has at most 40 characters"
    )]
    RoleName { file: String, role: String },
    #[error("{file}: resources.{role}.number: at most {}", MOST_SERVERS)]
    TooMany { file: String, role: String },
    #[error("--override-instance-number {text:?}: write ROLE=NUMBER, several with colons between them: cp=5:ct=2")]
    Override { text: String },
    #[error("--override-instance-number {role}: the list has no such role")]
    NoSuchRole { role: String },
    #[error("--project-tag {tag:?}: a tag has letters, digits and dashes, and at most 40 characters")]
    Tag { tag: String },
}

impl ResourceList {
    /// `file` names it in errors.
    pub fn parse(file: &str, text: &str) -> Result<Self, ListError> {
        let list: Self = serde_saphyr::from_str(text)
            .map_err(|source| ListError::Syntax { file: file.to_owned(), source: Box::new(source) })?;
        for (name, role) in &list.resources {
            let (file, role_name) = (file.to_owned(), name.clone());
            if !is_role_name(name) {
                return Err(ListError::RoleName { file, role: role_name });
            }
            if role.number > MOST_SERVERS {
                return Err(ListError::TooMany { file, role: role_name });
            }
        }
        Ok(list)
    }

    /// Sets numbers of roles from `cp=5:ct=2`.
    pub fn override_numbers(&mut self, text: &str) -> Result<(), ListError> {
        let malformed = || ListError::Override { text: text.to_owned() };
        for part in text.split(':') {
            let (role, number) = part.split_once('=').ok_or_else(malformed)?;
            let number = number.parse().ok().filter(|number| *number <= MOST_SERVERS).ok_or_else(malformed)?;
            let found = self.resources.get_mut(role);
            found.ok_or_else(|| ListError::NoSuchRole { role: role.to_owned() })?.number = number;
        }
        Ok(())
    }
}

impl Mappings {
    pub fn parse(file: &str, text: &str) -> Result<Self, ListError> {
        serde_saphyr::from_str(text)
            .map_err(|source| ListError::Syntax { file: file.to_owned(), source: Box::new(source) })
    }
}

/// A number follows it, so it ends with a letter: `web1` of role `web` is never `web` of role `web1`.
fn is_role_name(name: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let begins = name.bytes().next().is_some_and(|first| first.is_ascii_lowercase());
    let ends = name.bytes().last().is_some_and(|last| last.is_ascii_lowercase());
    begins && ends && name.len() <= 40 && name.bytes().all(is_allowed)
}

/// A tag that can be the end of a server's name.
pub fn check_tag(tag: &str) -> Result<(), ListError> {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    let is_tag = !tag.is_empty() && tag.len() <= 40 && tag.bytes().all(is_allowed);
    if is_tag { Ok(()) } else { Err(ListError::Tag { tag: tag.to_owned() }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = "resources:\n  cp:\n    number: 3\n    flavor: small\n    image: trusty\n    networks: [net]\n    assign_floating_ip: true\n  ct:\n    flavor: small\n    image: trusty\n";

    #[test]
    fn a_list_is_read_and_its_numbers_overridden() {
        let mut list = ResourceList::parse("r.yaml", LIST).unwrap();
        assert_eq!((list.resources["cp"].number, list.resources["ct"].number), (3, 1));
        assert!(list.resources["cp"].assign_floating_ip && !list.resources["ct"].assign_floating_ip);
        list.override_numbers("cp=5:ct=2").unwrap();
        assert_eq!((list.resources["cp"].number, list.resources["ct"].number), (5, 2));
        for wrong in ["", "cp", "cp=", "cp=x", "cp=-1", "cp=1;ct=2", "cp=99999999", "x=1"] {
            assert!(list.override_numbers(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        let error = |text: &str| ResourceList::parse("r.yaml", text).unwrap_err().to_string();
        assert!(error("nonsense").contains("r.yaml"));
        assert!(error("resources: {web1: {flavor: a, image: b}}").contains("resources.web1"), "ends with a digit");
        assert!(error("resources: {'a b': {flavor: a, image: b}}").contains("resources.a b"));
        assert!(error("resources: {web: {flavor: a, image: b, number: 1001}}").contains("resources.web.number"));
        assert!(ResourceList::parse("r.yaml", "resources: {web: {flavour: a}}").is_err(), "an unknown field");
        assert!(check_tag("ci-42").is_ok() && check_tag("a_b").is_err() && check_tag("").is_err());
    }

    #[test]
    fn mappings_may_be_in_the_plural() {
        let mappings = Mappings::parse("m.yaml", "images: {trusty: tiny}\nflavor: {small: m1.tiny}\n").unwrap();
        assert_eq!((mappings.image["trusty"].as_str(), mappings.flavor["small"].as_str()), ("tiny", "m1.tiny"));
    }
}
