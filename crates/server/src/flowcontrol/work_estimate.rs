//! How many seats a request takes: one, or more for a LIST of many objects.

use std::collections::HashMap;

use parking_lot::Mutex;

/// Objects of a LIST that cost one seat.
const OBJECTS_PER_SEAT: usize = 100;
const MAX_SEATS: usize = 10;
/// Collections whose size is remembered.
const MAX_COLLECTIONS: usize = 10_000;

/// How long the collections were when they were last listed.
#[derive(Default)]
pub struct ListSizes(Mutex<HashMap<String, usize>>);

impl ListSizes {
    pub fn record(&self, prefix: &str, objects: usize) {
        let mut sizes = self.0.lock();
        match sizes.get_mut(prefix) {
            Some(known) => *known = objects,
            None if objects < OBJECTS_PER_SEAT => {} // as good as unknown
            None => {
                if sizes.len() >= MAX_COLLECTIONS {
                    sizes.clear();
                }
                sizes.insert(prefix.to_owned(), objects);
            }
        }
    }

    /// The seats of a LIST of this collection.
    pub fn seats(&self, prefix: &str, limit: Option<usize>) -> usize {
        let objects = self.0.lock().get(prefix).copied().unwrap_or(0);
        objects.min(limit.unwrap_or(usize::MAX)).div_ceil(OBJECTS_PER_SEAT).clamp(1, MAX_SEATS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_list_costs_more_and_a_page_of_it_less() {
        let sizes = ListSizes::default();
        assert_eq!(sizes.seats("/registry/pods/", None), 1);
        sizes.record("/registry/pods/", 550);
        assert_eq!((sizes.seats("/registry/pods/", None), sizes.seats("/registry/pods/", Some(100))), (6, 1));
        sizes.record("/registry/pods/", 1_000_000);
        assert_eq!(sizes.seats("/registry/pods/", None), MAX_SEATS);
        sizes.record("/registry/pods/", 3);
        assert_eq!(sizes.seats("/registry/pods/", None), 1);
    }
}
