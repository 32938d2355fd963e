//! `[X-Fleet]`: where a unit may run. Reads it, and refuses what contradicts itself as fleet did.

use std::collections::BTreeMap;

use crate::{
    UnitFile, UnitName, UnitOption,
    command_line::split,
    specifiers::{HOST_REFERENCE, expand},
};

pub const SECTION: &str = "X-Fleet";

/// Where a unit may run, with names and globs expanded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    pub machine_id: Option<String>,
    pub machine_of: Vec<String>,
    /// Any of the values of a key, and that for every key.
    pub metadata: BTreeMap<String, Vec<String>>,
    pub conflicts: Vec<String>,
    pub replaces: Vec<String>,
    pub global: bool,
    /// Pairs of `MachineMetadata` that are none, which fleet ignores, with their line.
    pub ignored: Vec<(usize, String)>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlacementError {
    #[error(
        "line {line}: [X-Fleet] has no option {name:?}; it has MachineID, MachineOf, MachineMetadata, Conflicts, Replaces and Global"
    )]
    UnknownOption { line: usize, name: String },
    #[error("line {line}: {name}={value:?} cannot be read: {why}")]
    Value { line: usize, name: String, value: String, why: String },
    #[error("{first} and {second} contradict each other; leave one of them out")]
    Contradiction { first: &'static str, second: &'static str },
    #[error("MachineOf={target} is to be on the same machine, and {option}={glob} keeps it off")]
    KeptOff { target: String, option: &'static str, glob: String },
}

impl Placement {
    pub fn read(file: &UnitFile, name: &UnitName) -> Result<Self, PlacementError> {
        let mut placement = Self::default();
        for option in file.options.iter().filter(|option| option.section == SECTION) {
            let failed = |why: String| PlacementError::Value {
                line: option.line,
                name: option.name.clone(),
                value: option.value.clone(),
                why,
            };
            let value = expand(&option.value, name).map_err(|error| failed(error.to_string()))?;
            if value.contains(HOST_REFERENCE) {
                return Err(failed("%H is not known before a machine is chosen".to_owned()));
            }
            let words = || split(&value).map_err(|error| failed(error.to_string()));
            match option.name.as_str() {
                "MachineID" | "X-ConditionMachineID" | "ConditionMachineID" => {
                    placement.machine_id = Some(value).filter(|id| !id.is_empty());
                }
                "MachineOf" | "X-ConditionMachineOf" => placement.machine_of.extend(words()?),
                "MachineMetadata" | "X-ConditionMachineMetadata" => placement.add_metadata(option, words()?),
                "Conflicts" | "X-Conflicts" => placement.conflicts.extend(words()?),
                "Replaces" => placement.replaces.extend(words()?),
                // The last one counts.
                "Global" => {
                    placement.global = matches!(value.to_ascii_lowercase().as_str(), "true" | "yes" | "1" | "on" | "t")
                }
                _ => return Err(PlacementError::UnknownOption { line: option.line, name: option.name.clone() }),
            }
        }
        placement.check()?;
        Ok(placement)
    }

    fn add_metadata(&mut self, option: &UnitOption, pairs: Vec<String>) {
        for pair in pairs {
            match pair.split_once('=').filter(|(key, value)| !key.is_empty() && !value.is_empty()) {
                Some((key, value)) => {
                    let values = self.metadata.entry(key.to_owned()).or_default();
                    if !values.iter().any(|known| known == value) {
                        values.push(value.to_owned());
                    }
                }
                None => self.ignored.push((option.line, pair)),
            }
        }
    }

    fn check(&self) -> Result<(), PlacementError> {
        let has_id = self.machine_id.is_some();
        let pairs = [
            ("MachineID", has_id, "MachineOf", !self.machine_of.is_empty()),
            ("MachineID", has_id, "Conflicts", !self.conflicts.is_empty()),
            ("MachineID", has_id, "Global", self.global),
            ("MachineID", has_id, "Replaces", !self.replaces.is_empty()),
            ("Global", self.global, "MachineOf", !self.machine_of.is_empty()),
            ("Global", self.global, "Replaces", !self.replaces.is_empty()),
            ("Replaces", !self.replaces.is_empty(), "Conflicts", !self.conflicts.is_empty()),
        ];
        for (first, has_first, second, has_second) in pairs {
            if has_first && has_second {
                return Err(PlacementError::Contradiction { first, second });
            }
        }
        for target in &self.machine_of {
            let Ok(unit) = UnitName::parse(target) else { continue };
            for (option, globs) in [("Conflicts", &self.conflicts), ("Replaces", &self.replaces)] {
                if let Some(glob) = globs.iter().find(|glob| unit.matches(glob)) {
                    return Err(PlacementError::KeptOff { target: target.clone(), option, glob: glob.clone() });
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(options: &str) -> Result<Placement, String> {
        let file = UnitFile::parse(&format!("[X-Fleet]\n{options}")).unwrap();
        Placement::read(&file, &UnitName::parse("web@2").unwrap()).map_err(|error| error.to_string())
    }

    #[test]
    fn keys_of_metadata_add_up_and_values_of_one_key_are_alternatives() {
        let placement =
            read("MachineMetadata=\"region=eu\" \"disk=ssd\"\nMachineMetadata=region=us bad =x y=\nX-ConditionMachineMetadata=rack=%i")
                .unwrap();
        let list = |values: &[&str]| values.iter().map(|value| (*value).to_owned()).collect::<Vec<_>>();
        assert_eq!(
            placement.metadata,
            BTreeMap::from([
                ("disk".to_owned(), list(&["ssd"])),
                ("rack".to_owned(), list(&["2"])),
                ("region".to_owned(), list(&["eu", "us"])),
            ])
        );
        assert_eq!(placement.ignored, [(3, "bad".to_owned()), (3, "=x".to_owned()), (3, "y=".to_owned())]);
    }

    #[test]
    fn the_last_word_on_global_counts() {
        assert!(read("Global=no\nGlobal=T").unwrap().global);
        assert!(!read("Global=true\nGlobal=false").unwrap().global);
    }

    #[test]
    fn contradictions_are_refused() {
        for (options, first, second) in [
            ("MachineID=a\nMachineOf=b.service", "MachineID", "MachineOf"),
            ("MachineID=a\nConflicts=b*", "MachineID", "Conflicts"),
            ("MachineID=a\nGlobal=true", "MachineID", "Global"),
            ("MachineID=a\nReplaces=b", "MachineID", "Replaces"),
            ("Global=true\nMachineOf=b", "Global", "MachineOf"),
            ("Global=true\nReplaces=b", "Global", "Replaces"),
            ("Replaces=a\nConflicts=b", "Replaces", "Conflicts"),
        ] {
            let message = format!("{first} and {second} contradict each other; leave one of them out");
            assert_eq!(read(options).unwrap_err(), message);
        }
        assert_eq!(
            read("MachineOf=db.service\nConflicts=d*").unwrap_err(),
            "MachineOf=db.service is to be on the same machine, and Conflicts=d* keeps it off"
        );
        assert!(read("Nonsense=1").unwrap_err().starts_with("line 2: [X-Fleet] has no option \"Nonsense\""));
        assert!(read("MachineOf=%x").unwrap_err().contains("%x is not known here"));
        assert!(read("MachineMetadata=host=%H").unwrap_err().contains("before a machine is chosen"));
        assert!(read("Conflicts='a").unwrap_err().contains("a quote is not closed"));
    }
}
