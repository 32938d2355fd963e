//! Which hollow nodes misbehave, and how: chosen by a seed, so that a run can be repeated.

use std::time::Duration;

/// How one node behaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NodeBehavior {
    #[default]
    Honest,
    /// After this long it writes nothing any more: no offers, no heartbeats, no pod statuses.
    Silent { after: Duration },
    /// It always offers all it has, whatever it already holds, and refuses what does not fit.
    Lying,
    /// It refuses every pod.
    Refusing,
}

/// How many of a hundred nodes misbehave in which way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    pub seed: u64,
    pub silent: u8,
    pub lying: u8,
    pub refusing: u8,
    /// Those that fall silent do so within this time.
    pub within: Duration,
}

impl Faults {
    /// The behavior of each of `count` nodes; the same for the same seed.
    pub fn assign_behaviors(&self, count: usize) -> Vec<NodeBehavior> {
        let mut chance = fastrand::Rng::with_seed(self.seed);
        let within = u64::try_from(self.within.as_millis()).unwrap_or(u64::MAX);
        (0..count)
            .map(|_| {
                let (drawn, after) = (chance.u8(0..100), chance.u64(0..=within));
                if drawn < self.silent {
                    NodeBehavior::Silent { after: Duration::from_millis(after) }
                } else if drawn < self.silent.saturating_add(self.lying) {
                    NodeBehavior::Lying
                } else if drawn < self.silent.saturating_add(self.lying).saturating_add(self.refusing) {
                    NodeBehavior::Refusing
                } else {
                    NodeBehavior::Honest
                }
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_fixes_who_misbehaves() {
        let faults = Faults { seed: 7, silent: 10, lying: 20, refusing: 5, within: Duration::from_secs(9) };
        let drawn = faults.assign_behaviors(1000);
        assert_eq!(drawn, faults.assign_behaviors(1000));
        assert_ne!(drawn, Faults { seed: 8, ..faults }.assign_behaviors(1000));
        let share = |is: fn(&NodeBehavior) -> bool| drawn.iter().filter(|behavior| is(behavior)).count();
        assert!((60..140).contains(&share(|c| matches!(c, NodeBehavior::Silent { .. }))));
        assert!((150..250).contains(&share(|c| *c == NodeBehavior::Lying)));
        assert!((25..75).contains(&share(|c| *c == NodeBehavior::Refusing)));
    }

    #[test]
    fn without_faults_all_are_honest() {
        assert!(Faults::default().assign_behaviors(100).iter().all(|behavior| *behavior == NodeBehavior::Honest));
    }
}
