//! Amounts of resources: cpu in thousandths, everything else in whole units.

use std::collections::BTreeMap;

use mainstay_api::quantity::Quantity;

pub const CPU: &str = "cpu";
pub const MEMORY: &str = "memory";
pub const STORAGE: &str = "ephemeral-storage";
pub const PODS: &str = "pods";

pub type Amounts = BTreeMap<String, i64>;

/// `None` if the text is no quantity. What is larger than 64 bits is as large as 64 bits.
pub fn amount(resource: &str, text: &str) -> Option<i64> {
    let parsed = Quantity::parse(text).ok()?;
    let exact = if resource == CPU { parsed.as_milli() } else { parsed.value() };
    Some(i64::try_from(exact).unwrap_or(if exact < 0 { i64::MIN } else { i64::MAX }))
}

pub fn add(to: &mut Amounts, more: &Amounts) {
    for (name, amount) in more {
        let entry = to.entry(name.clone()).or_default();
        *entry = entry.saturating_add(*amount);
    }
}

/// At least as much of everything.
pub fn raise(to: &mut Amounts, least: &Amounts) {
    for (name, amount) in least {
        let entry = to.entry(name.clone()).or_default();
        *entry = (*entry).max(*amount);
    }
}

/// As people write it: `500m cpu`, `1.5Gi memory`, `2 example.com/gpu`.
pub fn say(resource: &str, amount: i64) -> String {
    match resource {
        CPU if amount % 1000 != 0 => format!("{amount}m cpu"),
        CPU => format!("{} cpu", amount / 1000),
        MEMORY | STORAGE => format!("{} {resource}", bytes(amount)),
        name if name.starts_with("hugepages-") => format!("{} {resource}", bytes(amount)),
        _ => format!("{amount} {resource}"),
    }
}

fn bytes(amount: i64) -> String {
    let units = [(40, "Ti"), (30, "Gi"), (20, "Mi"), (10, "Ki")];
    let Some((shift, unit)) = units.into_iter().find(|(shift, _)| amount.unsigned_abs() >> shift > 0) else {
        return amount.to_string();
    };
    let tenths = (i128::from(amount) * 10) >> shift;
    let exact = tenths << shift == i128::from(amount) * 10;
    if !exact {
        return bytes_below(amount, shift);
    }
    if tenths % 10 == 0 { format!("{}{unit}", tenths / 10) } else { format!("{}.{}{unit}", tenths / 10, tenths % 10) }
}

/// In the next smaller unit, rounded up, so that what is said suffices.
fn bytes_below(amount: i64, shift: u32) -> String {
    let (smaller, unit) = match shift {
        40 => (30, "Gi"),
        30 => (20, "Mi"),
        20 => (10, "Ki"),
        _ => return amount.to_string(),
    };
    let up = (i128::from(amount) + (1 << smaller) - 1) >> smaller;
    format!("{up}{unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_read_in_their_units() {
        assert_eq!(amount(CPU, "1500m"), Some(1500));
        assert_eq!(amount(CPU, "2"), Some(2000));
        assert_eq!(amount(MEMORY, "1Gi"), Some(1 << 30));
        assert_eq!(amount("example.com/gpu", "3"), Some(3));
        assert_eq!(amount(CPU, "much"), None);
    }

    #[test]
    fn amounts_are_said_as_people_write_them() {
        for (resource, amount, said) in [
            (CPU, 500, "500m cpu"),
            (CPU, 64_000, "64 cpu"),
            (MEMORY, 1 << 30, "1Gi memory"),
            (MEMORY, 3 << 29, "1.5Gi memory"),
            (MEMORY, (1 << 30) + 1, "1025Mi memory"),
            (MEMORY, 100, "100 memory"),
            ("hugepages-2Mi", 4 << 20, "4Mi hugepages-2Mi"),
            ("example.com/gpu", 2, "2 example.com/gpu"),
        ] {
            assert_eq!(say(resource, amount), said);
        }
    }
}
