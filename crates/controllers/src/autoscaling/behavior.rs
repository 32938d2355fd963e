//! How fast a target may be scaled: stabilization windows, scaling policies, and the bounds of the autoscaler. Pure.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    api::autoscaling::v2::{HPAScalingRules, HorizontalPodAutoscalerBehavior},
    apimachinery::pkg::api::resource::Quantity as ApiQuantity,
};
use mainstay_api::quantity::Quantity;

use super::{history::ScaleHistory, replica_calculator::Tolerances};

/// Without a behavior: how long a decline must last before replicas are removed.
pub const DOWNSCALE_STABILIZATION: SignedDuration = SignedDuration::from_mins(5);
/// Without a behavior: by how much one step may grow, and up to what it may always.
const SCALE_UP_FACTOR: i32 = 2;
const SCALE_UP_MINIMUM: i32 = 4;
const TOLERANCE: f64 = 0.1;

/// A replica count, and why it is that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitedScale {
    pub replicas: i32,
    pub reason: &'static str,
    pub message: &'static str,
}

const WITHIN_RANGE: (&str, &str) = ("DesiredWithinRange", "the desired count is within the acceptable range");
const TOO_MANY: (&str, &str) = ("TooManyReplicas", "the desired replica count is more than the maximum replica count");
const TOO_FEW: (&str, &str) = ("TooFewReplicas", "the desired replica count is less than the minimum replica count");
const SCALE_UP_LIMIT: (&str, &str) =
    ("ScaleUpLimit", "the desired replica count is increasing faster than the maximum scale rate");
const SCALE_DOWN_LIMIT: (&str, &str) =
    ("ScaleDownLimit", "the desired replica count is decreasing faster than the maximum scale rate");
const SCALE_UP_STABILIZED: (&str, &str) = (
    "ScaleUpStabilized",
    "recent recommendations were lower than current one, applying the lowest recent recommendation",
);
const SCALE_DOWN_STABILIZED: (&str, &str) = (
    "ScaleDownStabilized",
    "recent recommendations were higher than current one, applying the highest recent recommendation",
);

fn limited(replicas: i32, (reason, message): (&'static str, &'static str)) -> LimitedScale {
    LimitedScale { replicas, reason, message }
}

/// The bounds and the speed of one autoscaler.
pub struct ScalingRules<'a> {
    pub behavior: Option<&'a HorizontalPodAutoscalerBehavior>,
    pub min: i32,
    pub max: i32,
}

impl ScalingRules<'_> {
    fn up(&self) -> Option<&HPAScalingRules> {
        self.behavior?.scale_up.as_ref()
    }

    fn down(&self) -> Option<&HPAScalingRules> {
        self.behavior?.scale_down.as_ref()
    }

    pub fn tolerances(&self) -> Tolerances {
        let own = |rules: Option<&HPAScalingRules>| rules.and_then(|rules| parse(rules.tolerance.as_ref()?));
        Tolerances { scale_down: own(self.down()).unwrap_or(TOLERANCE), scale_up: own(self.up()).unwrap_or(TOLERANCE) }
    }

    fn up_window(&self) -> SignedDuration {
        seconds(self.up().and_then(|rules| rules.stabilization_window_seconds).unwrap_or(0))
    }

    fn down_window(&self) -> SignedDuration {
        let own = self.down().and_then(|rules| rules.stabilization_window_seconds);
        own.map_or(DOWNSCALE_STABILIZATION, seconds)
    }

    /// How long recommendations matter.
    pub fn longest_window(&self) -> SignedDuration {
        self.up_window().max(self.down_window())
    }

    /// How long scale events matter.
    pub fn longest_period(&self) -> SignedDuration {
        let rules = [self.up(), self.down()].into_iter().flatten();
        let periods = rules.flat_map(|rules| rules.policies.iter().flatten()).map(|policy| policy.period_seconds);
        seconds(periods.max().unwrap_or(0))
    }

    /// The replicas that the recommendations of both windows allow. `recommended` itself if nothing held it up.
    pub fn stabilize(&self, history: &ScaleHistory, current: i32, recommended: i32, now: Timestamp) -> LimitedScale {
        let lowest = history.lowest_since(now - self.up_window()).map_or(recommended, |low| low.min(recommended));
        let highest = history.highest_since(now - self.down_window()).map_or(recommended, |high| high.max(recommended));
        if self.behavior.is_none() {
            return limited(highest, SCALE_DOWN_STABILIZED);
        }
        let replicas = current.max(lowest).min(highest);
        limited(replicas, if recommended >= current { SCALE_UP_STABILIZED } else { SCALE_DOWN_STABILIZED })
    }

    /// The replicas that the bounds and the policies allow.
    pub fn limit(&self, history: &ScaleHistory, current: i32, desired: i32, now: Timestamp) -> LimitedScale {
        if self.behavior.is_none() {
            let scale_up_limit = current.saturating_mul(SCALE_UP_FACTOR).max(SCALE_UP_MINIMUM);
            return self.clamp(desired, self.min, TOO_FEW, scale_up_limit);
        }
        if desired > current {
            let scale_up_limit = self.scale_up_limit(history, current, now).max(current);
            return self.clamp(desired, i32::MIN, TOO_FEW, scale_up_limit);
        }
        if desired < current {
            let scale_down_limit = self.scale_down_limit(history, current, now).min(current);
            let lowest = self.min.max(scale_down_limit);
            let why = if lowest > self.min { SCALE_DOWN_LIMIT } else { TOO_FEW };
            return self.clamp(desired, lowest, why, i32::MAX);
        }
        limited(desired, WITHIN_RANGE)
    }

    fn clamp(
        &self,
        desired: i32,
        lowest: i32,
        too_few: (&'static str, &'static str),
        scale_up_limit: i32,
    ) -> LimitedScale {
        let (highest, too_many) = match self.max > scale_up_limit {
            true => (scale_up_limit, SCALE_UP_LIMIT),
            false => (self.max, TOO_MANY),
        };
        if desired < lowest {
            limited(lowest, too_few)
        } else if desired > highest {
            limited(highest, too_many)
        } else {
            limited(desired, WITHIN_RANGE)
        }
    }

    fn scale_up_limit(&self, history: &ScaleHistory, current: i32, now: Timestamp) -> i32 {
        let grow = |start: i32, type_: &str, value: i32| match type_ {
            "Pods" => start.saturating_add(value),
            _ => (f64::from(start) * (1.0 + f64::from(value) / 100.0)).ceil() as i32,
        };
        let limits = policy_limits(self.up(), history, current, now, grow);
        let limit = match select_policy(self.up()) {
            "Disabled" => return current,
            "Min" => limits.min(),
            _ => limits.max(),
        };
        limit.unwrap_or(i32::MAX)
    }

    fn scale_down_limit(&self, history: &ScaleHistory, current: i32, now: Timestamp) -> i32 {
        let shrink = |start: i32, type_: &str, value: i32| match type_ {
            "Pods" => start.saturating_sub(value),
            _ => (f64::from(start) * (1.0 - f64::from(value) / 100.0)) as i32,
        };
        let limits = policy_limits(self.down(), history, current, now, shrink);
        let limit = match select_policy(self.down()) {
            "Disabled" => return current,
            "Min" => limits.max(), // the smallest change
            _ => limits.min(),
        };
        limit.unwrap_or(i32::MIN)
    }
}

/// What each policy allows, counted from the replicas at the start of its period.
fn policy_limits<'a>(
    rules: Option<&'a HPAScalingRules>,
    history: &'a ScaleHistory,
    current: i32,
    now: Timestamp,
    limit: impl Fn(i32, &str, i32) -> i32 + 'a,
) -> impl Iterator<Item = i32> + 'a {
    rules.into_iter().flat_map(|rules| rules.policies.iter().flatten()).map(move |policy| {
        let start = current.saturating_sub(history.change_since(now - seconds(policy.period_seconds)));
        limit(start, &policy.type_, policy.value)
    })
}

fn select_policy(rules: Option<&HPAScalingRules>) -> &str {
    rules.and_then(|rules| rules.select_policy.as_deref()).unwrap_or("Max")
}

fn seconds(number: i32) -> SignedDuration {
    SignedDuration::from_secs(number.into())
}

fn parse(quantity: &ApiQuantity) -> Option<f64> {
    Some(Quantity::parse(&quantity.0).ok()?.as_milli() as f64 / 1000.0)
}

#[cfg(test)]
mod tests;
