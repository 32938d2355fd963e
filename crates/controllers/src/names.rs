//! Names for new objects of an owner that collide when they should, and are not given again when they should not.
//!
//! They look like upstream's: the owner's name and five letters. But the letters are derived, not random, so that two
//! who look at the same gap give its object the same name, and the second create is refused instead of making one too
//! many. That holds for a create that is repeated because its answer was lost, and for two servers that overlap.
//!
//! * [`numbered`]: the n-th name of an owner. The mapping is one to one within an owner, and different for two owners.
//! * [`unused`]: the lowest numbers that nobody has now. For objects whose names may be given again.
//! * [`fresh`]: the lowest numbers that were never seen. For pods of an owner that are all alike (ReplicaSet, Job).
//! * [`successor`]: the name after a certain pod. For pods that have a place of their own (a node, an index).
//!
//! What makes a name used is the memory in `workloads/pod_names.rs`, which says what survives a restart.

use std::collections::BTreeSet;

/// No vowels and nothing that looks like them: no words by accident.
const LETTERS: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
const SUFFIX: u32 = 5;
/// 14,348,907: after that many fresh names of one owner the first ones come again.
const NAMES: u64 = (LETTERS.len() as u64).pow(SUFFIX);
/// The longest name that is a host name too.
const LONGEST: usize = 63;

/// The name of an owner's object with this number.
pub fn numbered(owner: &str, uid: &str, number: u64) -> String {
    let (stride, shift) = sequence(uid);
    with_suffix(owner, (number % NAMES * stride + shift) % NAMES)
}

/// The number of a name, if it is such a name of this owner. Names that others gave may look like one.
pub fn number_of(owner: &str, uid: &str, name: &str) -> Option<u64> {
    let suffix = name.strip_prefix(&prefix(owner))?;
    let digits = suffix.bytes().rev().map(|byte| LETTERS.iter().position(|letter| *letter == byte));
    let value = digits.into_iter().try_fold(0, |value, digit| Some(value * LETTERS.len() as u64 + digit? as u64))?;
    let (stride, shift) = sequence(uid);
    (suffix.len() == SUFFIX as usize).then(|| (value + NAMES - shift) % NAMES * inverse(stride) % NAMES)
}

/// The first names, in the order of numbers, that are not taken.
pub fn unused(owner: &str, uid: &str, taken: impl Fn(&str) -> bool) -> impl Iterator<Item = String> {
    (0..NAMES).map(move |number| numbered(owner, uid, number)).filter(move |name| !taken(name))
}

/// The first names, in the order of numbers, that were never used and are not taken; when all were used, those that are
/// not taken.
pub fn fresh(owner: &str, uid: &str, used: &UsedNumbers, taken: impl Fn(&str) -> bool) -> impl Iterator<Item = String> {
    let never = (used.below..NAMES).filter(|number| !used.above.contains(number));
    let again = 0..used.below.min(NAMES);
    never.chain(again).map(move |number| numbered(owner, uid, number)).filter(move |name| !taken(name))
}

/// The name of the object that comes after `predecessor` in a place of its own, such as a node. Without one, the first.
pub fn successor(
    owner: &str,
    uid: &str,
    place: &str,
    predecessor: Option<&Predecessor>,
    taken: impl Fn(&str) -> bool,
) -> String {
    let (after, old_name) = predecessor.map_or(("", ""), |pod| (&pod.uid, &pod.name));
    let name = |attempt: u64| with_suffix(owner, hash(format!("{uid}/{place}/{after}/{attempt}").as_bytes()) % NAMES);
    (0..).map(name).find(|name| name != old_name && !taken(name)).unwrap_or_default()
}

/// An object that had a place before; ordered by age.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Predecessor {
    pub created: jiff::Timestamp,
    pub uid: String,
    pub name: String,
}

/// The numbers of an owner that were seen in use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UsedNumbers {
    /// All numbers before this one.
    below: u64,
    above: BTreeSet<u64>,
}

impl UsedNumbers {
    /// A number was seen in use.
    pub fn insert(&mut self, number: u64) {
        if number >= self.below {
            self.above.insert(number);
        }
        while self.above.remove(&self.below) {
            self.below += 1;
        }
    }

    /// A number was found in use by somebody who saw nothing before: what came before it may have been used as well.
    pub fn insert_with_all_before(&mut self, number: u64) {
        self.below = self.below.max(number + 1);
        self.above = self.above.split_off(&self.below);
        while self.above.remove(&self.below) {
            self.below += 1;
        }
    }
}

/// Where an owner's names begin, and how far it is from one to the next.
fn sequence(uid: &str) -> (u64, u64) {
    let seed = hash(uid.as_bytes());
    // Multiplying by what shares no factor with the number of names (a power of three) is one to one.
    (seed % NAMES * 3 % NAMES + 1, (seed >> 32) % NAMES)
}

/// The factor that undoes multiplying by a number that three does not divide, by Euler's theorem.
fn inverse(stride: u64) -> u64 {
    let (mut exponent, mut base, mut result) = (NAMES / 3 * 2 - 1, stride % NAMES, 1);
    while exponent > 0 {
        if exponent % 2 == 1 {
            result = result * base % NAMES;
        }
        base = base * base % NAMES;
        exponent /= 2;
    }
    result
}

fn prefix(owner: &str) -> String {
    let longest = LONGEST - SUFFIX as usize;
    let mut prefix = format!("{owner}-");
    if prefix.len() > longest {
        prefix.truncate(longest); // names are ASCII
    }
    prefix
}

fn with_suffix(owner: &str, number: u64) -> String {
    prefix(owner) + &letters(number)
}

/// A number as letters, the same for ever.
pub fn letters(mut number: u64) -> String {
    let next = || {
        let letter = LETTERS[(number % LETTERS.len() as u64) as usize];
        number /= LETTERS.len() as u64;
        char::from(letter)
    };
    std::iter::repeat_with(next).take(SUFFIX as usize).collect()
}

/// FNV-1a, which stays the same for ever, mixed so that all of its bits are good.
pub fn hash(bytes: &[u8]) -> u64 {
    let hash = bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
    let hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash ^ (hash >> 33)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_stay_short_enough() {
        let long = numbered(&"a".repeat(253), "u", 0);
        assert_eq!((long.len(), &long[..58]), (63, "a".repeat(58).as_str()));
        let short = numbered("web", "u", 0);
        assert_eq!((short.len(), &short[..4]), (9, "web-"));
    }

    #[test]
    fn taken_names_are_passed_over() {
        let all: Vec<String> = unused("web", "u", |_| false).take(3).collect();
        let some: Vec<String> = unused("web", "u", |name| name == all[1]).take(2).collect();
        assert_eq!(some, [all[0].clone(), all[2].clone()]);
    }

    #[test]
    fn a_successor_has_another_name_than_all_before_it_and_two_who_know_the_same_agree() {
        let mut names = HashSet::new();
        let mut last: Option<Predecessor> = None;
        for generation in 0..100 {
            let name = successor("log", "u", "node-1", last.as_ref(), |_| false);
            assert_eq!(name, successor("log", "u", "node-1", last.as_ref(), |_| false));
            assert!(names.insert(name.clone()), "{name} again");
            let created = jiff::Timestamp::from_second(generation).unwrap();
            last = Some(Predecessor { created, uid: format!("pod-{generation}"), name });
        }
        let other = successor("log", "u", "node-2", None, |_| false);
        assert!(!names.contains(&other));
        assert_ne!(successor("log", "u", "node-2", None, |name| name == other), other);
    }

    proptest! {
        #[test]
        fn every_number_has_a_name_of_its_own_and_every_name_its_number(uid in "[0-9a-f]{8}", from in 0..NAMES - 2000) {
            let names: HashSet<String> = (from..from + 2000).map(|number| numbered("web", &uid, number)).collect();
            prop_assert_eq!(names.len(), 2000);
            let name = numbered("web", &uid, from);
            prop_assert_eq!(number_of("web", &uid, &name), Some(from));
            prop_assert_eq!(number_of("api", &uid, &name), None);
            let long = "a".repeat(200);
            prop_assert_eq!(number_of(&long, &uid, &numbered(&long, &uid, from)), Some(from));
        }

        /// Pods come and go in any order; two servers that have seen the same give the same names, and never one that
        /// was seen before.
        #[test]
        fn a_fresh_name_was_never_seen_and_is_the_same_for_all_who_saw_the_same(
            steps in proptest::collection::vec((1..4usize, 0..8usize), 1..60),
        ) {
            let (mut used, mut ever, mut present) = (UsedNumbers::default(), HashSet::new(), Vec::new());
            for (create, delete) in steps {
                let taken = |name: &str| present.iter().any(|other| other == name);
                let names: Vec<String> = fresh("web", "u", &used, taken).take(create).collect();
                prop_assert_eq!(&names, &fresh("web", "u", &used.clone(), taken).take(create).collect::<Vec<_>>());
                for name in names {
                    prop_assert!(ever.insert(name.clone()), "{} again", name);
                    used.insert(number_of("web", "u", &name).unwrap());
                    present.push(name);
                }
                present.drain(..delete.min(present.len()));
            }
            prop_assert!(used.above.is_empty(), "what is used without a gap is one number");
        }

        /// A server that starts sees only the pods that are there. It does not give a name up to the newest of them.
        #[test]
        fn after_a_restart_no_name_up_to_the_newest_pod_is_given_again(
            used in 1..500u64, survivors in proptest::collection::btree_set(0..500u64, 1..10),
        ) {
            let mut fresh_start = UsedNumbers::default();
            let survivors: Vec<u64> = survivors.into_iter().filter(|number| *number < used).collect();
            survivors.iter().for_each(|number| fresh_start.insert_with_all_before(*number));
            let next = fresh("web", "u", &fresh_start, |_| false).next().unwrap();
            let next = number_of("web", "u", &next).unwrap();
            prop_assert!(survivors.iter().all(|number| next > *number));
        }

        /// Creates of one plan land in any order. Whoever sees some of them gives the others the same names.
        #[test]
        fn two_who_fill_the_same_gap_collide_whatever_landed_first(
            gap in 1..20usize, landed in proptest::collection::vec(any::<bool>(), 20),
        ) {
            let used = UsedNumbers::default();
            let first: Vec<String> = fresh("web", "u", &used, |_| false).take(gap).collect();
            let (mut observed, mut there) = (used.clone(), Vec::new());
            for (name, _) in first.iter().zip(&landed).filter(|(_, landed)| **landed) {
                observed.insert(number_of("web", "u", name).unwrap());
                there.push(name.clone());
            }
            let rest = fresh("web", "u", &observed, |name| there.iter().any(|other| other == name));
            let rest: Vec<String> = rest.take(gap - there.len()).collect();
            prop_assert!(rest.iter().all(|name| first.contains(name)));
        }
    }
}
