//! Which ranges writes of this server are about to take, and where to look for the next: in memory, without waiting for anybody.
//!
//! All of it is a hint. A range that is handed out here is looked up in the store before it is used, and what holds is the compare
//! in the transaction that takes it. A reservation ends with its write, committed or not; its range is then looked at once more, so nobody
//! has to say how the write ended.

use std::{
    collections::{BTreeSet, HashSet},
    sync::Arc,
};

use mainstay_store::Revision;
use parking_lot::Mutex;

use super::address_range::{AddressRange, OccupiedAddresses, RangeGrid};

#[derive(Clone, Default)]
pub struct RangeReservations(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    /// Of writes under way.
    reserved: HashSet<AddressRange>,
    /// What a list of the store said last.
    listed: Option<Listed>,
}

struct Listed {
    /// The version of the key that every claim of a range of another size changes.
    claims: Option<Revision>,
    /// Ranges in use that are not of the grid.
    others: OccupiedAddresses,
    /// Numbers below `next` that may be unused.
    candidates: BTreeSet<u32>,
    next: u32,
}

/// A range that no other write of this server takes while this exists.
pub struct RangeReservation {
    all: RangeReservations,
    pub range: AddressRange,
    /// Its number, if it may be unused when this ends.
    candidate: Option<u32>,
}

impl RangeReservations {
    /// Whether the store was listed since a range of another size was claimed.
    pub fn is_current(&self, claims: Option<Revision>) -> bool {
        self.0.lock().listed.as_ref().is_some_and(|listed| listed.claims == claims)
    }

    /// Takes in a list of all ranges that are or were in use; `claims` was read before it.
    pub fn take_in(
        &self,
        grid: RangeGrid,
        claims: Option<Revision>,
        ranges: impl Iterator<Item = (AddressRange, bool)>,
    ) {
        let (mut known, mut others) = (BTreeSet::new(), Vec::new());
        for (range, is_in_use) in ranges {
            match grid.number(range) {
                Some(number) => {
                    known.insert(number);
                }
                None if is_in_use => others.push(range),
                None => {}
            }
        }
        let next = known.last().map_or(0, |last| last + 1);
        let candidates = (0..next).filter(|number| !known.contains(number)).collect();
        let others = others.into_iter().collect();
        self.0.lock().listed = Some(Listed { claims, others, candidates, next });
    }

    /// The lowest that may never have been used; none if no list was taken in.
    pub fn reserve_next(&self, grid: RangeGrid) -> Option<RangeReservation> {
        let mut state = self.0.lock();
        let State { reserved, listed } = &mut *state;
        let listed = listed.as_mut()?;
        let mut passed_over = Vec::new();
        let found = loop {
            let number = match listed.candidates.pop_first() {
                Some(number) => number,
                None if listed.next < grid.count() => {
                    listed.next += 1;
                    listed.next - 1
                }
                None => break None,
            };
            let range = grid.range(number);
            if reserved.iter().any(|other| other.overlaps(range)) {
                passed_over.push(number);
            } else if !listed.others.overlap(range) {
                break Some((number, range));
            }
        };
        listed.candidates.extend(passed_over);
        let (number, range) = found?;
        reserved.insert(range);
        drop(state);
        Some(RangeReservation { all: self.clone(), range, candidate: Some(number) })
    }

    /// This very range, unless another write takes addresses of it.
    pub fn reserve(&self, range: AddressRange) -> Option<RangeReservation> {
        let mut state = self.0.lock();
        if state.reserved.iter().any(|other| other.overlaps(range)) {
            return None;
        }
        state.reserved.insert(range);
        drop(state);
        Some(RangeReservation { all: self.clone(), range, candidate: None })
    }

    /// Whether a write under way takes addresses of it.
    pub fn is_reserved(&self, range: AddressRange) -> bool {
        self.0.lock().reserved.iter().any(|other| other.overlaps(range))
    }
}

impl RangeReservation {
    /// Ends it; the range is not unused, or cannot be used now.
    pub fn discard(mut self) {
        self.candidate = None;
    }
}

impl Drop for RangeReservation {
    fn drop(&mut self) {
        let mut state = self.all.0.lock();
        state.reserved.remove(&self.range);
        if let (Some(listed), Some(number)) = (&mut state.listed, self.candidate) {
            listed.candidates.insert(number);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::settings::Settings;

    /// Room for four.
    fn grid() -> RangeGrid {
        RangeGrid::new(&Settings { pod_range: (Ipv4Addr::new(10, 1, 0, 0), 22), ..Settings::default() })
    }

    fn range(text: &str) -> AddressRange {
        AddressRange::parse(text).unwrap()
    }

    fn listed(ranges: &[(&str, bool)]) -> RangeReservations {
        let reservations = RangeReservations::default();
        reservations.take_in(grid(), None, ranges.iter().map(|(text, is_in_use)| (range(text), *is_in_use)));
        reservations
    }

    fn next(reservations: &RangeReservations) -> Option<RangeReservation> {
        reservations.reserve_next(grid())
    }

    #[test]
    fn writes_under_way_have_different_ranges_until_there_is_no_other() {
        let all = listed(&[]);
        let reserved: Vec<RangeReservation> = std::iter::from_fn(|| next(&all)).collect();
        let texts: Vec<String> = reserved.iter().map(|reservation| reservation.range.to_string()).collect();
        assert_eq!(texts, ["10.1.0.0/24", "10.1.1.0/24", "10.1.2.0/24", "10.1.3.0/24"]);
        drop(reserved);
        assert_eq!(next(&all).unwrap().range, range("10.1.0.0/24"), "nobody knows whether it was committed");
    }

    #[test]
    fn a_range_that_was_found_in_use_is_not_looked_at_again() {
        let all = listed(&[]);
        next(&all).unwrap().discard();
        assert_eq!(next(&all).unwrap().range, range("10.1.1.0/24"));
    }

    #[test]
    fn gaps_of_what_is_or_was_in_use_come_first() {
        let all = listed(&[("10.1.0.0/24", true), ("10.1.2.0/24", false)]);
        let (first, second) = (next(&all).unwrap(), next(&all).unwrap());
        assert_eq!((first.range, second.range), (range("10.1.1.0/24"), range("10.1.3.0/24")));
        assert!(next(&all).is_none());
    }

    #[test]
    fn ranges_of_other_sizes_are_kept_clear_of_while_they_are_in_use() {
        let all = listed(&[("10.1.0.0/23", true), ("10.1.2.0/25", false)]);
        assert_eq!(next(&all).unwrap().range, range("10.1.2.0/24"));
        let claimed = all.reserve(range("10.1.2.128/25")).unwrap();
        assert_eq!(next(&all).unwrap().range, range("10.1.3.0/24"), "one is being claimed");
        assert!(all.reserve(range("10.1.2.0/24")).is_none() && all.is_reserved(range("10.1.2.0/23")));
        drop(claimed);
        assert_eq!(next(&all).unwrap().range, range("10.1.2.0/24"));
    }

    #[test]
    fn nothing_is_handed_out_before_the_store_was_listed_and_claims_make_a_list_old() {
        let all = RangeReservations::default();
        assert!(next(&all).is_none() && !all.is_current(None));
        all.take_in(grid(), Some(Revision(7)), std::iter::empty());
        assert!(all.is_current(Some(Revision(7))) && !all.is_current(Some(Revision(8))) && !all.is_current(None));
    }
}
