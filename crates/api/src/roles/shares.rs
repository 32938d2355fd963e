//! The annotation that says how much of each role's pool a bound pod takes.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::{
    resources::{ResourceList, format_quantity, parse_list},
    wellknown::mainstay::ROLE_RESOURCES,
};

/// Amounts by role and resource: `{"*":{"cpu":"500m"},"public":{"cpu":"1500m"}}`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RoleShares(BTreeMap<String, ResourceList>);

impl RoleShares {
    /// What cannot be read says nothing: the shares are then worked out anew.
    pub fn parse(text: &str) -> Self {
        let read: BTreeMap<String, BTreeMap<String, Quantity>> = serde_json::from_str(text).unwrap_or_default();
        let amounts = |list: &BTreeMap<String, Quantity>| {
            parse_list(list.iter().map(|(name, quantity)| (name.as_str(), quantity.0.as_str())))
        };
        Self(read.iter().map(|(role, list)| (role.clone(), amounts(list))).collect())
    }

    pub fn from_annotations(annotations: Option<&BTreeMap<String, String>>) -> Self {
        annotations.and_then(|all| all.get(ROLE_RESOURCES)).map_or_else(Self::default, |text| Self::parse(text))
    }

    pub fn add(&mut self, role: &str, resource: &str, amount: i64) {
        let amounts = self.0.entry(role.to_owned()).or_default();
        let entry = amounts.entry(resource.to_owned()).or_default();
        *entry = entry.saturating_add(amount);
    }

    pub fn amount(&self, role: &str, resource: &str) -> i64 {
        self.0.get(role).and_then(|amounts| amounts.get(resource)).copied().unwrap_or(0)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// As the annotation says it.
    pub fn text(&self) -> String {
        let quantities = |amounts: &ResourceList| -> BTreeMap<String, String> {
            amounts.iter().map(|(name, amount)| (name.clone(), format_quantity(name, *amount))).collect()
        };
        let all: BTreeMap<&String, _> = self.0.iter().map(|(role, amounts)| (role, quantities(amounts))).collect();
        serde_json::to_string(&all).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_read_as_they_are_written() {
        let mut shares = RoleShares::default();
        shares.add("*", "cpu", 500);
        shares.add("public", "cpu", 1500);
        shares.add("public", "memory", 1 << 30);
        assert_eq!(shares.text(), r#"{"*":{"cpu":"500m"},"public":{"cpu":"1500m","memory":"1048576Ki"}}"#);
        assert_eq!(RoleShares::parse(&shares.text()), shares);
        assert_eq!((shares.amount("public", "cpu"), shares.amount("other", "cpu")), (1500, 0));
        for odd in ["", "[]", "{\"*\":1}", "x"] {
            assert!(RoleShares::parse(odd).is_empty(), "{odd}");
        }
        assert_eq!(RoleShares::parse(r#"{"*":{"cpu":"lots","memory":"1"}}"#).amount("*", "memory"), 1);
    }
}
