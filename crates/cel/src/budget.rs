//! The cost budget of evaluations, in upstream's units: about one for each step, a tenth for each byte looked at.
//!
//! Every loop and every copy of the evaluator is charged before it is done, so that work and memory of an evaluation are
//! bounded by its budget, whatever the expression and the object are.

use crate::error::EvalError;

/// Upstream's `PerCallLimit`: what one evaluation may cost.
pub const PER_CALL_LIMIT: u64 = 1_000_000;
/// Upstream's `RuntimeCELCostBudget`: what all evaluations for one object, or one policy, may cost together.
pub const RUNTIME_BUDGET: u64 = 10_000_000;

/// What is left for the evaluations of a request.
#[derive(Clone, Debug)]
pub struct Budget {
    remaining: u64,
    per_call: u64,
}

impl Default for Budget {
    fn default() -> Self {
        Self::new(RUNTIME_BUDGET, PER_CALL_LIMIT)
    }
}

impl Budget {
    pub fn new(total: u64, per_call: u64) -> Self {
        Self { remaining: total, per_call }
    }

    pub fn remaining(&self) -> u64 {
        self.remaining
    }

    pub(crate) fn start_call(&self) -> Meter {
        Meter { spent: 0, per_call: self.per_call, total: self.remaining }
    }

    pub(crate) fn end_call(&mut self, meter: &Meter) {
        self.remaining = self.remaining.saturating_sub(meter.spent);
    }
}

/// The meter of one evaluation.
#[derive(Debug)]
pub(crate) struct Meter {
    spent: u64,
    per_call: u64,
    total: u64,
}

impl Meter {
    #[inline]
    pub fn charge(&mut self, cost: u64) -> Result<(), EvalError> {
        self.spent = self.spent.saturating_add(cost);
        if self.spent > self.per_call {
            return Err(EvalError::CallCostExceeded);
        }
        if self.spent > self.total {
            return Err(EvalError::BudgetExceeded);
        }
        Ok(())
    }

    /// Charges for looking at, or copying, this many bytes or elements once.
    pub fn charge_traversal(&mut self, size: usize) -> Result<(), EvalError> {
        self.charge((size as u64).div_ceil(10))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_limited_by_itself_and_by_what_is_left() {
        let mut budget = Budget::new(15, 10);
        let mut meter = budget.start_call();
        assert_eq!(meter.charge(10), Ok(()));
        assert_eq!(meter.charge(1), Err(EvalError::CallCostExceeded));
        budget.end_call(&meter);
        let mut meter = budget.start_call();
        assert_eq!(meter.charge(4), Ok(()));
        assert_eq!(meter.charge(1), Err(EvalError::BudgetExceeded));
        budget.end_call(&meter);
        assert_eq!(budget.remaining(), 0);
    }
}
