//! How many seats a request takes: one, or more for a LIST of many objects or of large ones.

use std::{collections::HashMap, sync::Arc};

use mainstay_store::Entry;
use parking_lot::Mutex;

/// Objects of a LIST that cost one seat.
const OBJECTS_PER_SEAT: usize = 100;
/// Bytes of a LIST that cost one seat, however few objects they are.
const BYTES_PER_SEAT: usize = 200 << 10;
const MAX_SEATS: usize = 10;
/// Collections whose size is remembered.
const MAX_COLLECTIONS: usize = 10_000;

/// What a LIST of a collection has to read and send.
#[derive(Clone, Copy, Debug, Default)]
pub struct ListSize {
    pub objects: usize,
    pub bytes: usize,
}

impl ListSize {
    /// From its first entries and how many follow: those are taken to be of the same size.
    pub fn estimate(entries: &[Arc<Entry>], remaining: u64) -> Self {
        let read: usize = entries.iter().map(|entry| entry.value.len()).sum();
        let objects = entries.len().saturating_add(usize::try_from(remaining).unwrap_or(usize::MAX));
        Self { objects, bytes: (read / entries.len().max(1)).saturating_mul(objects) }
    }

    /// Of a page of that many objects.
    fn limited_to(self, objects: usize) -> Self {
        if objects >= self.objects {
            return self;
        }
        let average = self.bytes / self.objects.max(1);
        Self { objects, bytes: average.saturating_mul(objects) }
    }

    fn seats(self) -> usize {
        let seats = self.objects.div_ceil(OBJECTS_PER_SEAT).max(self.bytes.div_ceil(BYTES_PER_SEAT));
        seats.clamp(1, MAX_SEATS)
    }
}

/// How long the collections were when they were last listed, or counted because somebody was about to list them.
#[derive(Default)]
pub struct ListSizes(Mutex<HashMap<String, ListSize>>);

impl ListSizes {
    pub fn record(&self, prefix: &str, size: ListSize) {
        let mut sizes = self.0.lock();
        match sizes.get_mut(prefix) {
            Some(known) => *known = size,
            None => {
                if sizes.len() >= MAX_COLLECTIONS {
                    sizes.clear();
                }
                sizes.insert(prefix.to_owned(), size);
            }
        }
    }

    /// The seats of a LIST of this collection; `None` if nobody knows how long it is.
    pub fn seats(&self, prefix: &str, limit: Option<usize>) -> Option<usize> {
        let size = self.0.lock().get(prefix).copied()?;
        Some(size.limited_to(limit.unwrap_or(usize::MAX)).seats())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PODS: &str = "/registry/pods/";

    fn sizes_after(objects: usize, bytes: usize) -> ListSizes {
        let sizes = ListSizes::default();
        sizes.record(PODS, ListSize { objects, bytes });
        sizes
    }

    #[test]
    fn a_long_list_costs_more_and_a_page_of_it_less() {
        assert_eq!(ListSizes::default().seats(PODS, None), None);
        let sizes = sizes_after(550, 550_000);
        assert_eq!((sizes.seats(PODS, None), sizes.seats(PODS, Some(100))), (Some(6), Some(1)));
        sizes.record(PODS, ListSize { objects: 1_000_000, bytes: 1_000_000_000 });
        assert_eq!(sizes.seats(PODS, None), Some(MAX_SEATS));
        sizes.record(PODS, ListSize { objects: 3, bytes: 3_000 });
        assert_eq!(sizes.seats(PODS, None), Some(1));
    }

    #[test]
    fn a_few_large_objects_cost_as_much_as_many_small_ones() {
        let sizes = sizes_after(8, 8 << 20);
        assert_eq!(sizes.seats(PODS, None), Some(MAX_SEATS));
        assert_eq!(sizes.seats(PODS, Some(1)), Some(6));
    }
}
