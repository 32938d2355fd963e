//! Counters in the status of replicated sets.

use crate::{
    field::{Errors, FieldError, Path},
    validation::check::count,
};

/// The counters every set reports, each with the name of its field.
pub struct Counters<'a> {
    pub replicas: i32,
    pub ready: Option<i32>,
    pub available: Option<i32>,
    /// Those that only may not exceed `replicas`.
    pub others: &'a [(&'static str, Option<i32>)],
    /// Those that only may not be negative.
    pub free: &'a [(&'static str, Option<i32>)],
    pub observed_generation: Option<i64>,
    /// How an excess of available over ready ones is put.
    pub beyond_ready: &'static str,
}

impl Counters<'_> {
    pub fn validate(&self, errors: &mut Errors) {
        let path = Path::new("status");
        let bounded: Vec<_> = self
            .others
            .iter()
            .copied()
            .chain([("readyReplicas", self.ready), ("availableReplicas", self.available)])
            .collect();
        count(Some(self.replicas), &path.child("replicas"), errors);
        count(self.observed_generation, &path.child("observedGeneration"), errors);
        for (name, value) in bounded.iter().chain(self.free) {
            count(*value, &path.child(name), errors);
        }
        for (name, value) in &bounded {
            if let Some(value) = value.filter(|value| *value > self.replicas) {
                errors.push(FieldError::invalid(&path.child(name), value, "cannot be greater than status.replicas"));
            }
        }
        if self.available.unwrap_or(0) > self.ready.unwrap_or(0) {
            let at = path.child("availableReplicas");
            errors.push(FieldError::invalid(&at, self.available.unwrap_or(0), self.beyond_ready));
        }
    }
}

/// A collision count distinguishes names; it only ever grows.
pub fn validate_collisions(new: Option<i32>, old: Option<i32>, errors: &mut Errors) {
    let path = Path::new("status").child("collisionCount");
    count(new, &path, errors);
    if old.is_some_and(|old| new.unwrap_or(0) < old) {
        errors.push(FieldError::invalid(&path, new.unwrap_or(0), "cannot be decremented"));
    }
}
