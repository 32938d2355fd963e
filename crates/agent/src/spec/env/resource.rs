//! `resourceFieldRef`: requests and limits as environment variables and downward API files.

use k8s_openapi::api::core::v1::{Container, ResourceFieldSelector};
use mainstay_api::{quantity::Quantity as Amount, validation::resources as rules};

use crate::spec::machine::Allocatable;

/// In units of the divisor, rounded up. A limit that is not set is all that the machine has for pods.
pub fn value(
    reference: &ResourceFieldSelector,
    container: &Container,
    allocatable: &Allocatable,
) -> Result<String, String> {
    let unsupported = || format!("unsupported container resource : {}", reference.resource);
    let (list, name) = reference.resource.split_once('.').ok_or_else(unsupported)?;
    let resources = container.resources.as_ref();
    let specified = match list {
        "limits" => resources.and_then(|own| rules::find(&own.limits, name)),
        "requests" => resources.and_then(|own| rules::find(&own.requests, name)),
        _ => return Err(unsupported()),
    };
    let specified = specified.filter(|amount| !amount.is_zero());
    let millis = name == "cpu";
    let counted = |amount: Amount| if millis { amount.as_milli() } else { amount.value() };
    let all = match (list, name) {
        ("limits", "cpu") => allocatable.cpu_millis,
        ("limits", "memory") => allocatable.memory,
        ("limits", "ephemeral-storage") => allocatable.ephemeral_storage,
        _ => 0,
    };
    let known = ["cpu", "memory", "ephemeral-storage"].contains(&name) || name.starts_with("hugepages-");
    if !known {
        return Err(unsupported());
    }
    let amount = specified.map_or(i128::from(all), counted);
    let one = if millis { 1000 } else { 1 };
    let divisor = reference.divisor.as_ref().map(rules::amount).filter(|divisor| !divisor.is_zero());
    let divisor = divisor.map_or(one, counted).max(1);
    Ok(((amount + divisor - 1) / divisor).to_string())
}
