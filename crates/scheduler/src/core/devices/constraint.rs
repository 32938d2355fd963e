//! Constraints between the devices of a claim: the same value of an attribute, or a different one on each.

use k8s_openapi::api::resource::v1::DeviceConstraint;
use mainstay_cel::DeviceAttribute;

use super::{pool::Device, requests::Alternative};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    Match,
    Distinct,
}

/// A constraint, and the values of the devices chosen so far.
#[derive(Clone, Debug)]
pub struct Constraint {
    rule: Rule,
    attribute: String,
    /// Requests, or requests and subrequests; all without any.
    requests: Vec<String>,
    values: Vec<DeviceAttribute>,
}

impl Constraint {
    /// `None` for one that constrains nothing known.
    pub fn new(constraint: &DeviceConstraint) -> Option<Self> {
        let (rule, attribute) = match (&constraint.match_attribute, &constraint.distinct_attribute) {
            (Some(attribute), _) => (Rule::Match, attribute),
            (None, Some(attribute)) => (Rule::Distinct, attribute),
            (None, None) => return None,
        };
        let requests = constraint.requests.clone().unwrap_or_default();
        Some(Self { rule, attribute: attribute.clone(), requests, values: vec![] })
    }

    fn applies_to(&self, alternative: &Alternative) -> bool {
        self.requests.is_empty() || self.requests.iter().any(|name| alternative.is_named(name))
    }

    /// Takes in a device that is chosen; false, and nothing is taken in, if that would violate the constraint.
    pub fn add(&mut self, alternative: &Alternative, device: &Device) -> bool {
        if !self.applies_to(alternative) {
            return true;
        }
        let Some(value) = device.attribute(&self.attribute) else { return false };
        let holds = match self.rule {
            Rule::Match => self.values.first().is_none_or(|first| first == value),
            Rule::Distinct => !self.values.contains(value),
        };
        if holds {
            self.values.push(value.clone());
        }
        holds
    }

    /// Takes back the device that was added last.
    pub fn remove_last(&mut self, alternative: &Alternative) {
        if self.applies_to(alternative) {
            self.values.pop();
        }
    }
}
