//! Sets of completion indexes, as a Job's status writes them: `1,3-5,7`.
//!
//! CachedObject as intervals: a Job of a hundred thousand indexes that ends in order is one interval.

use std::fmt;

/// Ordered, disjoint and not adjacent; both ends included.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Indexes(Vec<(usize, usize)>);

impl Indexes {
    /// Reads what a status or a policy says, as far as there are as many completions. What cannot be read is
    /// passed over: it was not written by us.
    pub fn parse(text: &str, completions: usize) -> Self {
        let intervals = text.split(',').filter_map(|interval| {
            let (first, last) = interval.split_once('-').unwrap_or((interval, interval));
            let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
            let last = last.min(completions.checked_sub(1)?);
            (first <= last).then_some((first, last))
        });
        Self::of_intervals(intervals.collect())
    }

    fn of_intervals(mut intervals: Vec<(usize, usize)>) -> Self {
        intervals.sort_unstable();
        let mut merged: Vec<(usize, usize)> = Vec::with_capacity(intervals.len());
        for (first, last) in intervals {
            match merged.last_mut() {
                Some(before) if first <= before.1 + 1 => before.1 = before.1.max(last),
                _ => merged.push((first, last)),
            }
        }
        Self(merged)
    }

    pub fn with(&self, more: impl IntoIterator<Item = usize>) -> Self {
        let single = more.into_iter().map(|index| (index, index));
        Self::of_intervals(self.0.iter().copied().chain(single).collect())
    }

    pub fn union(&self, other: &Self) -> Self {
        Self::of_intervals(self.0.iter().chain(&other.0).copied().collect())
    }

    pub fn contains(&self, index: usize) -> bool {
        let after = self.0.partition_point(|(first, _)| *first <= index);
        after > 0 && self.0[after - 1].1 >= index
    }

    pub fn len(&self) -> usize {
        self.0.iter().map(|(first, last)| last - first + 1).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many indexes are in both.
    pub fn overlap(&self, other: &Self) -> usize {
        let shared = |one: &(usize, usize)| {
            let others = other.0.iter();
            others.map(|two| (one.1.min(two.1) + 1).saturating_sub(one.0.max(two.0))).sum::<usize>()
        };
        self.0.iter().map(shared).sum()
    }

    /// The indexes below `completions` that are not in here, in order.
    pub fn missing(&self, completions: usize) -> impl Iterator<Item = usize> {
        let starts = std::iter::once(0).chain(self.0.iter().map(|(_, last)| last + 1));
        let ends = self.0.iter().map(|(first, _)| *first).chain(std::iter::once(completions));
        starts.zip(ends).flat_map(move |(start, end)| start..end.min(completions))
    }
}

impl fmt::Display for Indexes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (first, last)) in self.0.iter().enumerate() {
            let comma = if i > 0 { "," } else { "" };
            match last - first {
                0 => write!(f, "{comma}{first}")?,
                1 => write!(f, "{comma}{first},{last}")?,
                _ => write!(f, "{comma}{first}-{last}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn texts_are_read_and_written_as_people_know_them() {
        for (text, canonical, len) in [
            ("", "", 0),
            ("0", "0", 1),
            ("0,1", "0,1", 2),
            ("0,1,2", "0-2", 3),
            ("1,3-5,7", "1,3-5,7", 5),
            ("3-5,5-6,1", "1,3-6", 5),
            ("7-20", "7-9", 3),
            ("x,2,9-,10,4-3", "2", 1),
        ] {
            let indexes = Indexes::parse(text, 10);
            assert_eq!((indexes.to_string().as_str(), indexes.len()), (canonical, len), "{text}");
        }
        assert!(Indexes::parse("0-5", 0).is_empty());
    }

    proptest! {
        #[test]
        fn they_are_sets(one in prop::collection::btree_set(0..40usize, 0..30), two in prop::collection::btree_set(0..40usize, 0..30)) {
            let (a, b) = (Indexes::default().with(one.clone()), Indexes::default().with(two.clone()));
            let members = |set: &Indexes| (0..50).filter(|i| set.contains(*i)).collect::<BTreeSet<_>>();
            prop_assert_eq!(members(&a), one.clone());
            prop_assert_eq!(a.len(), one.len());
            prop_assert_eq!(members(&a.union(&b)), &one | &two);
            prop_assert_eq!(a.overlap(&b), (&one & &two).len());
            prop_assert_eq!(a.missing(35).collect::<BTreeSet<_>>(), &(0..35).collect::<BTreeSet<_>>() - &one);
            prop_assert_eq!(Indexes::parse(&a.to_string(), 50), a);
        }
    }
}
