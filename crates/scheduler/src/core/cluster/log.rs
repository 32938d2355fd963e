//! Which machines changed since somebody last looked, so that what is kept per class is brought up to date by
//! changes only.

/// A place in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position(u64);

#[derive(Debug, Default)]
pub struct Log {
    /// How many entries were dropped before the first one kept.
    dropped: u64,
    entries: Vec<u32>,
}

impl Log {
    /// Longer than this, looking at every machine is as cheap.
    pub fn push(&mut self, machine: usize, machines: usize) {
        if self.entries.len() > 1024.max(4 * machines) {
            self.dropped += self.entries.len() as u64;
            self.entries.clear();
        }
        self.entries.push(machine as u32);
    }

    pub fn now(&self) -> Position {
        Position(self.dropped + self.entries.len() as u64)
    }

    /// The machines that changed after `position`; `None` if that is too long ago to tell.
    pub fn since(&self, position: Position) -> Option<&[u32]> {
        let from = position.0.checked_sub(self.dropped)?;
        self.entries.get(usize::try_from(from).ok()?..)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_sees_every_change_after_its_place_or_learns_that_it_missed_some() {
        let mut log = Log::default();
        let start = log.now();
        (0..3).for_each(|machine| log.push(machine, 1));
        assert_eq!(log.since(start), Some(&[0, 1, 2][..]));
        let later = log.now();
        assert_eq!(log.since(later), Some(&[][..]));
        (0..2000).for_each(|machine| log.push(machine, 1));
        assert_eq!(log.since(later), None);
        assert!(log.since(log.now()).is_some_and(<[u32]>::is_empty));
    }
}
