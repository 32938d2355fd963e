//! Names of units: what fleet accepts, templates and their instances, and the Kubernetes name that follows.

use std::fmt;

const LONGEST: usize = 256;
const SUFFIXES: [&str; 13] = [
    "automount",
    "busname",
    "device",
    "mount",
    "path",
    "scope",
    "service",
    "slice",
    "snapshot",
    "socket",
    "swap",
    "target",
    "timer",
];
/// Only these may be templates.
const TEMPLATE_SUFFIXES: [&str; 5] = ["path", "service", "socket", "target", "timer"];

/// A valid name with its suffix.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnitName(String);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    #[error("the name of a unit is empty")]
    Empty,
    #[error("{name:.40}… has {length} characters; a unit's name has at most {LONGEST}")]
    TooLong { name: String, length: usize },
    #[error("{name:?} contains {character:?}; a unit's name has letters, digits and : - _ . \\ @")]
    Character { name: String, character: char },
    #[error("{name:?} begins with @; the name of a template stands before it")]
    NoPrefix { name: String },
    #[error(
        "{name:?} is of the type {suffix:?}; types are automount, device, mount, path, scope, service, slice, socket, swap, target and timer"
    )]
    Suffix { name: String, suffix: String },
    #[error("{name:?} is a template, which only path, service, socket, target and timer can be")]
    Template { name: String },
}

impl UnitName {
    /// A name without a type is that of a service.
    pub fn parse(name: &str) -> Result<Self, NameError> {
        if name.is_empty() {
            return Err(NameError::Empty);
        }
        let allowed = |character: char| character.is_ascii_alphanumeric() || ":-_.\\@".contains(character);
        if let Some(character) = name.chars().find(|character| !allowed(*character)) {
            return Err(NameError::Character { name: name.to_owned(), character });
        }
        let whole = if name.contains('.') { name.to_owned() } else { format!("{name}.service") };
        if whole.len() > LONGEST {
            return Err(NameError::TooLong { name: whole.clone(), length: whole.len() });
        }
        if whole.starts_with('@') {
            return Err(NameError::NoPrefix { name: whole });
        }
        let (stem, suffix) = whole.rsplit_once('.').unwrap_or((&whole, ""));
        if stem.is_empty() || !SUFFIXES.contains(&suffix) {
            return Err(NameError::Suffix { suffix: suffix.to_owned(), name: whole });
        }
        if stem.contains('@') && !TEMPLATE_SUFFIXES.contains(&suffix) {
            return Err(NameError::Template { name: whole });
        }
        Ok(Self(whole))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Without its type.
    pub fn stem(&self) -> &str {
        self.0.rsplit_once('.').map_or(&self.0, |(stem, _)| stem)
    }

    pub fn suffix(&self) -> &str {
        self.0.rsplit_once('.').map_or("", |(_, suffix)| suffix)
    }

    /// What stands before the `@`, or the whole stem.
    pub fn prefix(&self) -> &str {
        self.stem().split_once('@').map_or(self.stem(), |(prefix, _)| prefix)
    }

    /// What stands behind the `@`; empty for a template itself.
    pub fn instance(&self) -> Option<&str> {
        self.stem().split_once('@').map(|(_, instance)| instance)
    }

    pub fn is_template(&self) -> bool {
        self.instance() == Some("")
    }

    /// The unit of this name and type with another instance.
    pub fn with_instance(&self, instance: &str) -> Result<Self, NameError> {
        Self::parse(&format!("{}@{instance}.{}", self.prefix(), self.suffix()))
    }

    /// The same with a text for an instance that may be no name.
    pub(crate) fn with_instance_text(&self, text: &str) -> Self {
        Self(format!("{}@{text}.{}", self.prefix(), self.suffix()))
    }

    pub fn matches(&self, glob: &str) -> bool {
        matches_glob(glob.as_bytes(), self.0.as_bytes()) || matches_glob(glob.as_bytes(), self.stem().as_bytes())
    }
}

impl fmt::Display for UnitName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A name for Kubernetes: lower case, and a dash for everything that it does not allow.
pub fn kubernetes_name(text: &str) -> String {
    let mut name = String::new();
    for character in text.chars().map(|character| character.to_ascii_lowercase()) {
        if character.is_ascii_alphanumeric() {
            name.push(character);
        } else if !name.is_empty() && !name.ends_with('-') {
            name.push('-');
        }
    }
    name.truncate(52);
    name.trim_end_matches('-').to_owned()
}

/// `*` for any characters, `?` for one; in time proportional to the product of both lengths.
fn matches_glob(glob: &[u8], text: &[u8]) -> bool {
    let (mut at_glob, mut at_text, mut star) = (0, 0, None);
    while at_text < text.len() {
        match glob.get(at_glob) {
            Some(b'*') => {
                star = Some((at_glob, at_text));
                at_glob += 1;
            }
            Some(&byte) if byte == b'?' || byte == text[at_text] => {
                at_glob += 1;
                at_text += 1;
            }
            _ => {
                let Some((star_glob, star_text)) = star else { return false };
                star = Some((star_glob, star_text + 1));
                at_glob = star_glob + 1;
                at_text = star_text + 1;
            }
        }
    }
    glob[at_glob..].iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_that_fleet_accepts() {
        for (name, whole, prefix, instance) in [
            ("web", "web.service", "web", None),
            ("web.service", "web.service", "web", None),
            ("web@1", "web@1.service", "web", Some("1")),
            ("web@.timer", "web@.timer", "web", Some("")),
            ("a:b-c_d.e\\x2d.mount", "a:b-c_d.e\\x2d.mount", "a:b-c_d.e\\x2d", None),
        ] {
            let parsed = UnitName::parse(name).unwrap();
            assert_eq!((parsed.as_str(), parsed.prefix(), parsed.instance()), (whole, prefix, instance));
        }
        for (name, error) in [
            ("", "the name of a unit is empty"),
            ("a b.service", "contains ' '"),
            ("ä.service", "contains 'ä'"),
            ("@1.service", "begins with @"),
            ("web.txt", "of the type \"txt\""),
            (".service", "of the type"),
            ("web@1.mount", "is a template"),
        ] {
            let message = UnitName::parse(name).unwrap_err().to_string();
            assert!(message.contains(error), "{name}: {message}");
        }
        assert!(UnitName::parse(&format!("{}.service", "a".repeat(248))).is_ok());
        assert!(UnitName::parse(&format!("{}.service", "a".repeat(249))).is_err());
    }

    #[test]
    fn globs_match_whole_names_with_or_without_the_type() {
        let matches = |glob, name| UnitName::parse(name).unwrap().matches(glob);
        assert!(matches("web@*.service", "web@1") && matches("web@*", "web@1") && matches("web", "web"));
        assert!(matches("w?b*", "web") && matches("*", "web") && matches("*e*.serv*", "web"));
        assert!(!matches("web@*", "web") && !matches("eb", "web") && !matches("", "web"));
        assert!(!matches(&format!("{}b", "*a".repeat(100)), &"a".repeat(200)));
    }

    #[test]
    fn kubernetes_names_are_made_of_what_is_allowed() {
        assert_eq!(kubernetes_name("My_App.v2@Blue"), "my-app-v2-blue");
        assert_eq!(kubernetes_name("--a--"), "a");
        assert_eq!(kubernetes_name(&"a".repeat(300)).len(), 52);
        assert_eq!(kubernetes_name("@"), "");
    }
}
