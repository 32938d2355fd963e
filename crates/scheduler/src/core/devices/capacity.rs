//! Capacity of devices that several claims may use at once: how much a request consumes, and whether that much is left.
//!
//! Amounts are in thousandths. What a request asks for is raised to the next amount that the device's request policy
//! allows; what it does not mention is the policy's default, or without a policy all there is.

use std::collections::BTreeMap;

use k8s_openapi::{api::resource::v1 as api, apimachinery::pkg::api::resource::Quantity as ApiQuantity};
use mainstay_api::quantity::Quantity;

/// A quantity, and how it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Amount {
    pub milli: i128,
    text: String,
}

impl Amount {
    pub fn parse(quantity: &ApiQuantity) -> Option<Self> {
        Some(Self { milli: Quantity::parse(&quantity.0).ok()?.as_milli(), text: quantity.0.clone() })
    }

    fn from_milli(milli: i128) -> Self {
        let text = if milli % 1000 == 0 { (milli / 1000).to_string() } else { format!("{milli}m") };
        Self { milli, text: Quantity::parse(&text).map_or(text, |quantity| quantity.canonical()) }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceCapacity {
    value: Amount,
    policy: Option<RequestPolicy>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct RequestPolicy {
    default: Option<Amount>,
    valid: ValidAmounts,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum ValidAmounts {
    Any,
    /// Ascending.
    Values(Vec<Amount>),
    Range {
        min: i128,
        max: Option<i128>,
        step: Option<i128>,
    },
}

impl DeviceCapacity {
    pub fn parse(capacity: &api::DeviceCapacity) -> Option<Self> {
        let policy = capacity.request_policy.as_ref().map(|policy| {
            let milli = |quantity: &ApiQuantity| Amount::parse(quantity).map(|amount| amount.milli);
            let valid = match (&policy.valid_range, &policy.valid_values) {
                (Some(range), _) => ValidAmounts::Range {
                    min: milli(&range.min).unwrap_or(0),
                    max: range.max.as_ref().and_then(milli),
                    step: range.step.as_ref().and_then(milli).filter(|step| *step > 0),
                },
                (None, Some(values)) if !values.is_empty() => {
                    let mut values: Vec<Amount> = values.iter().filter_map(Amount::parse).collect();
                    values.sort_by_key(|amount| amount.milli);
                    ValidAmounts::Values(values)
                }
                (None, _) => ValidAmounts::Any,
            };
            RequestPolicy { default: policy.default.as_ref().and_then(Amount::parse), valid }
        });
        Some(Self { value: Amount::parse(&capacity.value)?, policy })
    }

    /// What a request consumes; `None` if the device cannot give that much to one request.
    fn consumed(&self, requested: Option<&Amount>) -> Option<Amount> {
        let amount = match (requested, &self.policy) {
            (None, None) => self.value.clone(),
            (None, Some(policy)) => policy.default.clone().unwrap_or_else(|| self.value.clone()),
            (Some(requested), None) => requested.clone(),
            (Some(requested), Some(policy)) => policy.valid.round_up(requested)?,
        };
        (amount.milli <= self.value.milli).then_some(amount)
    }
}

impl ValidAmounts {
    fn round_up(&self, requested: &Amount) -> Option<Amount> {
        match self {
            Self::Any => Some(requested.clone()),
            Self::Values(values) => values.iter().find(|value| value.milli >= requested.milli).cloned(),
            Self::Range { min, max, step } => {
                let mut milli = requested.milli.max(*min);
                if let Some(step) = step {
                    let above = milli - min;
                    milli = min + (above + step - 1) / step * step;
                }
                if max.is_some_and(|max| milli > max) {
                    return None;
                }
                Some(if milli == requested.milli { requested.clone() } else { Amount::from_milli(milli) })
            }
        }
    }
}

/// What one request consumes of a device, by the name of the capacity.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConsumedCapacity(BTreeMap<String, Amount>);

impl ConsumedCapacity {
    /// `None` if the device lacks a capacity that is requested, or has too little of one even when nobody else uses it.
    pub fn of_request(
        driver: &str,
        capacities: &BTreeMap<String, DeviceCapacity>,
        requests: &BTreeMap<String, Amount>,
    ) -> Option<Self> {
        let short =
            |name: &str| name.split_once('/').filter(|(domain, _)| *domain == driver).map(|(_, own)| own.to_owned());
        let requested_for = |name: &str| {
            requests.get(name).or_else(|| {
                requests.iter().find(|(key, _)| short(key).as_deref() == Some(name)).map(|(_, amount)| amount)
            })
        };
        let known =
            |name: &str| capacities.contains_key(name) || short(name).is_some_and(|own| capacities.contains_key(&own));
        if !requests.keys().all(|name| known(name)) {
            return None;
        }
        let consumed = capacities.iter().map(|(name, own)| Some((name.clone(), own.consumed(requested_for(name))?)));
        consumed.collect::<Option<BTreeMap<_, _>>>().map(Self)
    }

    pub fn from_result(consumed: &BTreeMap<String, ApiQuantity>) -> Self {
        Self(consumed.iter().filter_map(|(name, amount)| Some((name.clone(), Amount::parse(amount)?))).collect())
    }

    pub fn quantities(&self) -> BTreeMap<String, ApiQuantity> {
        self.0.iter().map(|(name, amount)| (name.clone(), ApiQuantity(amount.text.clone()))).collect()
    }

    /// Whether this much is left beside what others consume.
    pub fn fits(&self, capacities: &BTreeMap<String, DeviceCapacity>, used: &[&CapacitySum]) -> bool {
        self.0.iter().all(|(name, amount)| {
            let others: i128 = used.iter().map(|sum| sum.0.get(name).copied().unwrap_or(0)).sum();
            capacities.get(name).is_some_and(|own| others + amount.milli <= own.value.milli)
        })
    }
}

/// What several requests consume together, in thousandths.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CapacitySum(BTreeMap<String, i128>);

impl CapacitySum {
    pub fn add(&mut self, consumed: &ConsumedCapacity) {
        for (name, amount) in &consumed.0 {
            *self.0.entry(name.clone()).or_default() += amount.milli;
        }
    }

    pub fn subtract(&mut self, consumed: &ConsumedCapacity) {
        for (name, amount) in &consumed.0 {
            *self.0.entry(name.clone()).or_default() -= amount.milli;
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn consumed(capacity: Value, requested: Option<&str>) -> Option<String> {
        let capacity = DeviceCapacity::parse(&serde_json::from_value(capacity).unwrap()).unwrap();
        let requested = requested.map(|text| Amount::parse(&ApiQuantity(text.to_owned())).unwrap());
        capacity.consumed(requested.as_ref()).map(|amount| amount.text)
    }

    #[test]
    fn a_request_consumes_what_the_policy_of_the_device_makes_of_it() {
        let plain = json!({ "value": "40Gi" });
        let values = json!({ "value": "8", "requestPolicy": { "default": "1", "validValues": ["1", "2", "4"] } });
        let range = json!({ "value": "10", "requestPolicy": {
            "default": "2", "validRange": { "min": "2", "max": "8", "step": "2" },
        } });
        for (capacity, requested, expected) in [
            (&plain, None, Some("40Gi")),
            (&plain, Some("10Gi"), Some("10Gi")),
            (&plain, Some("41Gi"), None),
            (&values, None, Some("1")),
            (&values, Some("3"), Some("4")),
            (&values, Some("5"), None),
            (&range, None, Some("2")),
            (&range, Some("1"), Some("2")),
            (&range, Some("3"), Some("4")),
            (&range, Some("8"), Some("8")),
            (&range, Some("9"), None),
        ] {
            assert_eq!(consumed(capacity.clone(), requested).as_deref(), expected, "{requested:?} of {capacity}");
        }
    }
}
