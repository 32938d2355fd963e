//! Amounts of compute resources as the scheduler and nodes count them: cpu in thousandths, everything else in whole units.
//!
//! Amounts saturate at 64 bits instead of overflowing: what is that large fits nowhere, whatever the exact number.

use std::collections::BTreeMap;

use crate::quantity::Quantity;

pub const CPU: &str = "cpu";
pub const MEMORY: &str = "memory";
pub const EPHEMERAL_STORAGE: &str = "ephemeral-storage";
pub const PODS: &str = "pods";

/// Amounts by the name of the resource.
pub type ResourceList = BTreeMap<String, i64>;

/// `None` if the text is no quantity.
pub fn parse_amount(resource: &str, text: &str) -> Option<i64> {
    let quantity = Quantity::parse(text).ok()?;
    let exact = if resource == CPU { quantity.as_milli() } else { quantity.value() };
    Some(i64::try_from(exact).unwrap_or(if exact < 0 { i64::MIN } else { i64::MAX }))
}

/// Reads names and quantities; those that are no quantities are left out, since validation has refused them.
pub fn parse_list<'a>(quantities: impl IntoIterator<Item = (&'a str, &'a str)>) -> ResourceList {
    let amounts = quantities.into_iter().filter_map(|(name, text)| Some((name.to_owned(), parse_amount(name, text)?)));
    amounts.collect()
}

pub fn add(to: &mut ResourceList, more: &ResourceList) {
    for (name, amount) in more {
        let entry = to.entry(name.clone()).or_default();
        *entry = entry.saturating_add(*amount);
    }
}

/// Raises every amount of `to` to at least that of `floor`.
pub fn raise(to: &mut ResourceList, floor: &ResourceList) {
    for (name, amount) in floor {
        let entry = to.entry(name.clone()).or_default();
        *entry = (*entry).max(*amount);
    }
}

/// What the containers of a pod need at the worst moment: all of `containers` beside the sidecars, or one ordinary init
/// container beside the sidecars that were started before it, whichever is more.
pub fn peak(
    init_containers: impl IntoIterator<Item = InitContainer>,
    containers: impl IntoIterator<Item = ResourceList>,
) -> ResourceList {
    let (mut sidecars, mut peak) = (ResourceList::new(), ResourceList::new());
    for init in init_containers {
        let needed = match init {
            InitContainer::Sidecar(amounts) => {
                add(&mut sidecars, &amounts);
                sidecars.clone()
            }
            InitContainer::Ordinary(mut amounts) => {
                add(&mut amounts, &sidecars);
                amounts
            }
        };
        raise(&mut peak, &needed);
    }
    let mut running = sidecars;
    containers.into_iter().for_each(|amounts| add(&mut running, &amounts));
    raise(&mut running, &peak);
    running
}

/// The amounts of an init container, by whether it goes on running (`restartPolicy: Always`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InitContainer {
    Sidecar(ResourceList),
    Ordinary(ResourceList),
}

/// As the API writes it: `500m`, `16Ki`, `2`.
pub fn format_quantity(resource: &str, amount: i64) -> String {
    let is_sized = [MEMORY, EPHEMERAL_STORAGE].contains(&resource) || resource.starts_with("hugepages-");
    match resource {
        CPU if amount % 1000 != 0 => format!("{amount}m"),
        CPU => (amount / 1000).to_string(),
        _ if is_sized && amount > 0 && amount % 1024 == 0 => format!("{}Ki", amount / 1024),
        _ => amount.to_string(),
    }
}

/// As people write it: `500m cpu`, `1.5Gi memory`, `2 example.com/gpu`.
pub fn format_amount(resource: &str, amount: i64) -> String {
    match resource {
        CPU if amount % 1000 != 0 => format!("{amount}m cpu"),
        CPU => format!("{} cpu", amount / 1000),
        MEMORY | EPHEMERAL_STORAGE => format!("{} {resource}", format_bytes(amount)),
        name if name.starts_with("hugepages-") => format!("{} {resource}", format_bytes(amount)),
        _ => format!("{amount} {resource}"),
    }
}

/// In the largest unit that needs at most one decimal, else rounded up in the next smaller one, so that what is said suffices.
pub fn format_bytes(amount: i64) -> String {
    const UNITS: [(u32, &str); 4] = [(40, "Ti"), (30, "Gi"), (20, "Mi"), (10, "Ki")];
    let Some(position) = UNITS.iter().position(|(shift, _)| amount.unsigned_abs() >> shift > 0) else {
        return amount.to_string();
    };
    let (shift, unit) = UNITS[position];
    let tenths = (i128::from(amount) * 10) >> shift;
    if tenths << shift == i128::from(amount) * 10 {
        let (whole, tenth) = (tenths / 10, tenths % 10);
        return if tenth == 0 { format!("{whole}{unit}") } else { format!("{whole}.{tenth}{unit}") };
    }
    match UNITS.get(position + 1) {
        Some((shift, unit)) => format!("{}{unit}", (i128::from(amount) + (1 << shift) - 1) >> shift),
        None => amount.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(amounts: &[(&str, i64)]) -> ResourceList {
        amounts.iter().map(|(name, amount)| ((*name).to_owned(), *amount)).collect()
    }

    #[test]
    fn amounts_are_read_in_their_units_and_saturate() {
        assert_eq!(parse_amount(CPU, "1500m"), Some(1500));
        assert_eq!(parse_amount(CPU, "2"), Some(2000));
        assert_eq!(parse_amount(MEMORY, "1Gi"), Some(1 << 30));
        assert_eq!(parse_amount(MEMORY, "9999999Ei"), Some(i64::MAX));
        assert_eq!(parse_amount(MEMORY, "much"), None);
        assert_eq!(parse_list([("cpu", "1"), ("memory", "no")]), list(&[("cpu", 1000)]));
    }

    #[test]
    fn init_containers_count_beside_the_sidecars_started_before_them() {
        let sidecar = |cpu| InitContainer::Sidecar(list(&[(CPU, cpu)]));
        let ordinary = |cpu| InitContainer::Ordinary(list(&[(CPU, cpu)]));
        let containers = || [list(&[(CPU, 300)]), list(&[(CPU, 200)])];
        for (init, cpu) in [
            (vec![], 500),
            (vec![ordinary(400)], 500),
            (vec![ordinary(900)], 900),
            (vec![sidecar(100), ordinary(900)], 1000),
            (vec![ordinary(900), sidecar(100)], 900),
            (vec![sidecar(100), sidecar(50)], 650),
        ] {
            assert_eq!(peak(init.clone(), containers()), list(&[(CPU, cpu)]), "{init:?}");
        }
    }

    #[test]
    fn amounts_are_written_as_people_write_them() {
        for (resource, amount, text) in [
            (CPU, 500, "500m cpu"),
            (CPU, 2000, "2 cpu"),
            (MEMORY, 3 << 29, "1.5Gi memory"),
            (MEMORY, (1 << 30) + 1, "1025Mi memory"),
            (MEMORY, 100, "100 memory"),
            (EPHEMERAL_STORAGE, 1 << 40, "1Ti ephemeral-storage"),
            ("example.com/gpu", 2, "2 example.com/gpu"),
        ] {
            assert_eq!(format_amount(resource, amount), text);
        }
    }
}
