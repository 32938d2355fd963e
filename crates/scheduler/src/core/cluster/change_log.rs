//! Which nodes changed since a reader last looked, so that score indexes are updated by changes only.

/// A place in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LogPosition(u64);

#[derive(Debug, Default)]
pub struct ChangeLog {
    /// How many entries were dropped before the first one kept.
    dropped: u64,
    entries: Vec<u32>,
}

impl ChangeLog {
    /// A log that is longer than this is dropped: rebuilding an index is as cheap as reading it.
    pub fn push(&mut self, node: usize, nodes: usize) {
        if self.entries.len() > 1024.max(4 * nodes) {
            self.dropped += self.entries.len() as u64;
            self.entries.clear();
        }
        self.entries.push(node as u32);
    }

    pub fn now(&self) -> LogPosition {
        LogPosition(self.dropped + self.entries.len() as u64)
    }

    /// The nodes that changed after `position`; `None` if that is too long ago to tell.
    pub fn since(&self, position: LogPosition) -> Option<&[u32]> {
        let from = position.0.checked_sub(self.dropped)?;
        self.entries.get(usize::try_from(from).ok()?..)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_sees_every_change_after_its_place_or_learns_that_it_missed_some() {
        let mut log = ChangeLog::default();
        let start = log.now();
        (0..3).for_each(|node| log.push(node, 1));
        assert_eq!(log.since(start), Some(&[0, 1, 2][..]));
        let later = log.now();
        assert_eq!(log.since(later), Some(&[][..]));
        (0..2000).for_each(|node| log.push(node, 1));
        assert_eq!(log.since(later), None);
        assert!(log.since(log.now()).is_some_and(<[u32]>::is_empty));
    }
}
