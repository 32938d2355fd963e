//! Which number means which field, read once from `numbers.txt`.

use std::{collections::HashMap, sync::LazyLock};

const TABLE: &str = include_str!("numbers.txt");

pub struct Numbers(HashMap<&'static str, Message>);

/// What the numbers of one message mean, sorted by number.
pub struct Message(Box<[(u64, Slot)]>);

#[derive(Debug, PartialEq, Eq)]
pub enum Slot {
    /// Sent only if set, if it is a pointer.
    Field { name: &'static str, pointer: bool },
    /// A message whose fields are the outer object's own in JSON.
    Inlined(&'static str),
}

impl Numbers {
    pub fn builtin() -> &'static Self {
        static BUILTIN: LazyLock<Numbers> =
            LazyLock::new(|| Numbers::parse(TABLE).expect("the generated table is well formed: a test reads it"));
        &BUILTIN
    }

    fn parse(table: &'static str) -> Option<Self> {
        let lines = table.lines().filter(|line| !line.starts_with('#'));
        let messages = lines.map(|line| {
            let mut words = line.split(' ');
            let name = words.next()?;
            let mut slots = words.map(slot).collect::<Option<Vec<_>>>()?;
            slots.sort_by_key(|(number, _)| *number);
            Some((name, Message(slots.into())))
        });
        messages.collect::<Option<_>>().map(Self)
    }

    pub fn message(&self, definition: &str) -> Option<&Message> {
        self.0.get(definition)
    }
}

/// `name=1`, `name=1*` or `+1=definition`.
fn slot(word: &'static str) -> Option<(u64, Slot)> {
    let (left, right) = word.split_once('=')?;
    match left.strip_prefix('+') {
        Some(number) => Some((number.parse().ok()?, Slot::Inlined(right))),
        None => {
            let number = right.trim_end_matches('*');
            Some((number.parse().ok()?, Slot::Field { name: left, pointer: number != right }))
        }
    }
}

impl Message {
    pub fn slot(&self, number: u64) -> Option<&Slot> {
        self.0.binary_search_by_key(&number, |(number, _)| *number).ok().map(|at| &self.0[at].1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_well_formed() {
        let numbers = Numbers::builtin();
        let volume = numbers.message("io.k8s.api.core.v1.Volume").unwrap();
        assert_eq!(volume.slot(1), Some(&Slot::Field { name: "name", pointer: false }));
        assert_eq!(volume.slot(2), Some(&Slot::Inlined("io.k8s.api.core.v1.VolumeSource")));
        let spec = numbers.message("io.k8s.api.apps.v1.DeploymentSpec").unwrap();
        assert_eq!(spec.slot(1), Some(&Slot::Field { name: "replicas", pointer: true }));
        assert_eq!(spec.slot(99), None);
    }

    #[test]
    fn no_number_is_given_twice() {
        for (name, message) in &Numbers::builtin().0 {
            assert!(message.0.windows(2).all(|two| two[0].0 < two[1].0), "{name}");
        }
    }
}
