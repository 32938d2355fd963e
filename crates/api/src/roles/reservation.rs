//! What a machine reserves for a role, as the flag `--role` says: `batch=cpu:4,memory:8Gi,ports:31500-31600`.

use std::{fmt, str::FromStr};

use super::{ANY_ROLE, is_pooled, is_role_name};
use crate::{
    ports::PortRanges,
    quantity::Quantity,
    resources::{self, CPU, EPHEMERAL_STORAGE, MEMORY, ResourceList},
    validation::names,
};

const PORTS: &str = "ports";
const EXAMPLE: &str = "such as batch=cpu:4,memory:8Gi,ports:31500-31600";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoleReservation {
    pub role: String,
    pub resources: ResourceList,
    /// Host ports, asked for by number or not.
    pub ports: PortRanges,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RoleReservationError {
    #[error("must be ROLE=RESOURCE:AMOUNT,RESOURCE:AMOUNT, {EXAMPLE}")]
    Form,
    #[error("the role {ANY_ROLE} is what no other role has: reserve for another one, {EXAMPLE}")]
    AnyRole,
    #[error("{role:?} is not the name of a role: at most 63 small letters, digits and dashes, {EXAMPLE}")]
    RoleName { role: String },
    #[error(
        "{resource:?} cannot be reserved: name cpu, memory, ephemeral-storage, ports or a resource such as example.com/gpu"
    )]
    Resource { resource: String },
    #[error("{resource}:{amount} is not an amount above zero, such as cpu:500m, memory:8Gi or example.com/gpu:2")]
    Amount { resource: String, amount: String },
    #[error("{resource} stands there twice: add up the amounts")]
    Twice { resource: String },
    #[error("ports:{range} is not a port or a range of ports between 1 and 65535, such as ports:31500-31600")]
    Ports { range: String },
}

impl FromStr for RoleReservation {
    type Err = RoleReservationError;

    fn from_str(text: &str) -> Result<Self, RoleReservationError> {
        let (role, parts) = text.split_once('=').ok_or(RoleReservationError::Form)?;
        let role = role.trim();
        match role {
            ANY_ROLE => return Err(RoleReservationError::AnyRole),
            name if !is_role_name(name) => return Err(RoleReservationError::RoleName { role: name.to_owned() }),
            _ => {}
        }
        let (mut resources, mut ranges) = (ResourceList::new(), Vec::new());
        for part in parts.split(',').map(str::trim) {
            let (resource, amount) = part.split_once(':').ok_or(RoleReservationError::Form)?;
            let (resource, amount) = (resource.trim(), amount.trim());
            if resource == PORTS {
                let read = PortRanges::parse([amount]);
                read.map_err(|_| RoleReservationError::Ports { range: amount.to_owned() })?;
                ranges.push(amount);
                continue;
            }
            if !is_reservable(resource) {
                return Err(RoleReservationError::Resource { resource: resource.to_owned() });
            }
            let refused = || RoleReservationError::Amount { resource: resource.to_owned(), amount: amount.to_owned() };
            // Quantities are read exactly, so that no fraction of a byte or of a thousandth is rounded up.
            let quantity = Quantity::parse(amount).map_err(|_| refused())?;
            let amount = resources::parse_amount(resource, amount).filter(|amount| *amount > 0).ok_or_else(refused)?;
            if resource != CPU && quantity.as_milli() % 1000 != 0 {
                return Err(refused());
            }
            if resources.insert(resource.to_owned(), amount).is_some() {
                return Err(RoleReservationError::Twice { resource: resource.to_owned() });
            }
        }
        let ports = PortRanges::parse_valid(ranges);
        Ok(Self { role: role.to_owned(), resources, ports })
    }
}

/// As the flag says it.
impl fmt::Display for RoleReservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let amounts = self.resources.iter().map(|(name, amount)| {
            let unit = if name == CPU { "m" } else { "" };
            format!("{name}:{amount}{unit}")
        });
        let ports = self.ports.texts().into_iter().map(|range| format!("{PORTS}:{range}"));
        write!(f, "{}={}", self.role, amounts.chain(ports).collect::<Vec<_>>().join(","))
    }
}

fn is_reservable(resource: &str) -> bool {
    let is_extended = resource.contains('/') && names::qualified_name(resource).is_empty();
    is_pooled(resource)
        && (is_extended
            || [CPU, MEMORY, EPHEMERAL_STORAGE].contains(&resource)
            || resource.strip_prefix("hugepages-").is_some_and(|size| Quantity::parse(size).is_ok()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reservation_is_read_as_it_is_written() {
        let text = "batch=cpu:4,memory:8Gi,ports:31500-31600,ports:31700,example.com/gpu:2,hugepages-2Mi:4Mi";
        let read: RoleReservation = text.parse().unwrap();
        assert_eq!(read.role, "batch");
        let amounts: Vec<(&str, i64)> = read.resources.iter().map(|(name, amount)| (name.as_str(), *amount)).collect();
        let expected = [("cpu", 4000), ("example.com/gpu", 2), ("hugepages-2Mi", 4 << 20), ("memory", 8 << 30)];
        assert_eq!(amounts, expected);
        assert_eq!(read.ports.texts(), ["31500-31600", "31700"]);
        assert_eq!(read.to_string().parse(), Ok(read));
        assert!("p=cpu:500m".parse::<RoleReservation>().is_ok());
    }

    #[test]
    fn what_cannot_be_read_is_refused_with_what_would_be_right() {
        for (text, words) in [
            ("batch", "must be ROLE=RESOURCE:AMOUNT"),
            ("batch=", "must be ROLE=RESOURCE:AMOUNT"),
            ("batch=cpu", "must be ROLE=RESOURCE:AMOUNT"),
            ("batch=cpu:4,", "must be ROLE=RESOURCE:AMOUNT"),
            ("*=cpu:4", "the role * is what no other role has"),
            ("=cpu:4", "\"\" is not the name of a role"),
            ("Batch=cpu:4", "\"Batch\" is not the name of a role"),
            ("batch=pods:4", "\"pods\" cannot be reserved"),
            ("batch=gpu:4", "\"gpu\" cannot be reserved"),
            ("batch=cpu:lots", "cpu:lots is not an amount above zero"),
            ("batch=cpu:0", "cpu:0 is not an amount above zero"),
            ("batch=memory:-1Gi", "memory:-1Gi is not an amount above zero"),
            ("batch=memory:1m", "memory:1m is not an amount above zero"),
            ("batch=cpu:1,cpu:2", "cpu stands there twice"),
            ("batch=ports:0-5", "ports:0-5 is not a port or a range"),
            ("batch=ports:9-8", "ports:9-8 is not a port or a range"),
        ] {
            let error = text.parse::<RoleReservation>().unwrap_err().to_string();
            assert!(error.starts_with(words), "{text}: {error}");
        }
    }
}
