//! The random numbers of one run. All who hold a clone draw from one sequence, so that one seed is one run.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;

#[derive(Clone)]
pub struct Chance(Arc<Mutex<fastrand::Rng>>);

impl Chance {
    pub fn new(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(fastrand::Rng::with_seed(seed))))
    }

    /// From here on as if it was new with this seed, for all who hold it.
    pub fn reseed(&self, seed: u64) {
        *self.0.lock() = fastrand::Rng::with_seed(seed);
    }

    pub fn per_mille(&self, of_thousand: u32) -> bool {
        of_thousand > 0 && self.0.lock().u32(0..1000) < of_thousand
    }

    /// Below `bound`, which is not zero.
    pub fn below(&self, bound: usize) -> usize {
        self.0.lock().usize(0..bound)
    }

    pub fn between(&self, low: i64, high: i64) -> i64 {
        self.0.lock().i64(low..=high)
    }

    pub fn up_to(&self, longest: Duration) -> Duration {
        longest.mul_f64(self.0.lock().f64())
    }

    pub fn pick<'a, T>(&self, of: &'a [T]) -> Option<&'a T> {
        (!of.is_empty()).then(|| &of[self.below(of.len())])
    }
}
