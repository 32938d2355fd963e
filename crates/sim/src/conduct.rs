//! How machines behave, and which of them badly: chosen by a seed, so that a run can be repeated.

use std::time::Duration;

/// How one machine behaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Conduct {
    #[default]
    Honest,
    /// It falls silent: no offers, no heartbeats, no word of its pods.
    Silent { after: Duration },
    /// It always offers all it has, whatever it already holds, and refuses what does not fit.
    Lying,
    /// It refuses every pod.
    Refusing,
}

/// How many of a hundred machines behave in which bad way.
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
    /// The conduct of each of `count` machines; the same for the same seed.
    pub fn conducts(&self, count: usize) -> Vec<Conduct> {
        let mut chance = fastrand::Rng::with_seed(self.seed);
        let within = u64::try_from(self.within.as_millis()).unwrap_or(u64::MAX);
        (0..count)
            .map(|_| {
                let (drawn, after) = (chance.u8(0..100), chance.u64(0..=within));
                if drawn < self.silent {
                    Conduct::Silent { after: Duration::from_millis(after) }
                } else if drawn < self.silent.saturating_add(self.lying) {
                    Conduct::Lying
                } else if drawn < self.silent.saturating_add(self.lying).saturating_add(self.refusing) {
                    Conduct::Refusing
                } else {
                    Conduct::Honest
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
        let drawn = faults.conducts(1000);
        assert_eq!(drawn, faults.conducts(1000));
        assert_ne!(drawn, Faults { seed: 8, ..faults }.conducts(1000));
        let share = |is: fn(&Conduct) -> bool| drawn.iter().filter(|conduct| is(conduct)).count();
        assert!((60..140).contains(&share(|c| matches!(c, Conduct::Silent { .. }))));
        assert!((150..250).contains(&share(|c| *c == Conduct::Lying)));
        assert!((25..75).contains(&share(|c| *c == Conduct::Refusing)));
    }

    #[test]
    fn without_faults_all_are_honest() {
        assert!(Faults::default().conducts(100).iter().all(|conduct| *conduct == Conduct::Honest));
    }
}
