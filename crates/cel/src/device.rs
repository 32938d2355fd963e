//! What selectors of devices see (`resource.k8s.io`): `device`, with its driver, attributes and capacities by domain.
//!
//! A domain that a device has nothing of is an empty map, as upstream's: `device.attributes["other.example.com"]` is no
//! error, and a selector asks with `in` or `?` for what may be missing in it.

use std::{collections::BTreeMap, sync::Arc};

use crate::{
    environment::Environment,
    library::quantity::Quantity,
    types::{MapType, ObjectType, Type},
    value::{Key, Value},
};

/// The longest text of an attribute.
const MAX_TEXT: u64 = 64;
/// The most attributes and capacities of a device.
const MAX_PROPERTIES: u64 = 32;

/// One attribute of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceAttribute {
    Bool(bool),
    Int(i64),
    String(String),
    /// A semantic version.
    Version(semver::Version),
}

/// A device as selectors see it. Names without a domain are in the driver's.
#[derive(Clone, Debug)]
pub struct DeviceFacts {
    pub driver: String,
    pub attributes: BTreeMap<String, DeviceAttribute>,
    /// Quantities.
    pub capacity: BTreeMap<String, String>,
    pub allow_multiple_allocations: bool,
}

/// The variable `device` and its type.
pub fn device_environment() -> Environment {
    let sized = |value: Type| {
        Type::Map(Arc::new(MapType { key: Type::String(Some(MAX_TEXT)), value, max_properties: Some(MAX_PROPERTIES) }))
    };
    let device = ObjectType::with_fields(
        "kubernetes.DRADevice",
        [
            ("driver", Type::String(Some(MAX_TEXT))),
            ("attributes", sized(sized(Type::Dyn))),
            ("capacity", sized(sized(Type::named("kubernetes.Quantity")))),
            ("allowMultipleAllocations", Type::Bool),
        ],
    );
    Environment::new().variable("device", device)
}

impl DeviceFacts {
    pub fn to_value(&self) -> Value<'static> {
        let attributes = self.attributes.iter().map(|(name, attribute)| (name.as_str(), attribute_value(attribute)));
        let capacity = self.capacity.iter().filter_map(|(name, quantity)| {
            Some((name.as_str(), Value::Quantity(Arc::new(Quantity::parse(quantity)?))))
        });
        Value::map(BTreeMap::from([
            (key("driver"), Value::string(self.driver.clone())),
            (key("attributes"), self.by_domain(attributes)),
            (key("capacity"), self.by_domain(capacity)),
            (key("allowMultipleAllocations"), Value::Bool(self.allow_multiple_allocations)),
        ]))
    }

    fn by_domain<'n>(&self, properties: impl Iterator<Item = (&'n str, Value<'static>)>) -> Value<'static> {
        let mut domains: BTreeMap<Key, BTreeMap<Key, Value<'static>>> = BTreeMap::new();
        for (name, value) in properties {
            let (domain, name) = name.split_once('/').unwrap_or((&self.driver, name));
            domains.entry(key(domain)).or_default().insert(key(name), value);
        }
        Value::map_or_empty(domains.into_iter().map(|(domain, values)| (domain, Value::map(values))).collect())
    }
}

fn key(text: &str) -> Key {
    Key::String(text.into())
}

fn attribute_value(attribute: &DeviceAttribute) -> Value<'static> {
    match attribute {
        DeviceAttribute::Bool(value) => Value::Bool(*value),
        DeviceAttribute::Int(value) => Value::Int(*value),
        DeviceAttribute::String(text) => Value::string(text.clone()),
        DeviceAttribute::Version(version) => Value::Semver(Arc::new(version.clone())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Budget, Program, Variables};

    fn selects(expression: &str) -> Result<Option<bool>, String> {
        let device = DeviceFacts {
            driver: "gpu.example.com".to_owned(),
            attributes: BTreeMap::from([
                ("model".to_owned(), DeviceAttribute::String("a100".to_owned())),
                ("other.example.com/numa".to_owned(), DeviceAttribute::Int(1)),
                ("firmware".to_owned(), DeviceAttribute::Version(semver::Version::new(1, 2, 3))),
            ]),
            capacity: BTreeMap::from([("memory".to_owned(), "40Gi".to_owned())]),
            allow_multiple_allocations: false,
        };
        let program = Program::compile(&device_environment(), expression).map_err(|error| error.to_string())?;
        let value = device.to_value();
        let result = program.evaluate(&Variables::new().value("device", value), &mut Budget::default());
        result.map(|value| value.as_bool()).map_err(|error| error.to_string())
    }

    #[test]
    fn selectors_see_driver_attributes_and_capacity_by_domain() {
        for (expression, expected) in [
            (r#"device.driver == "gpu.example.com""#, true),
            (r#"device.attributes["gpu.example.com"].model == "a100""#, true),
            (r#"device.attributes["other.example.com"].numa == 0"#, false),
            (r#"device.attributes["gpu.example.com"].firmware.isGreaterThan(semver("1.2.0"))"#, true),
            (r#"device.capacity["gpu.example.com"].memory.compareTo(quantity("40Gi")) >= 0"#, true),
            (r#""numa" in device.attributes["nobody.example.com"]"#, false),
            (r#"has(device.attributes["nobody.example.com"].numa)"#, false),
            (r#"cel.bind(gpu, device.attributes["gpu.example.com"], gpu.model.startsWith("a"))"#, true),
            ("device.allowMultipleAllocations", false),
        ] {
            assert_eq!(selects(expression), Ok(Some(expected)), "{expression}");
        }
    }

    #[test]
    fn what_is_not_there_is_an_error() {
        assert!(selects(r#"device.attributes["gpu.example.com"].speed > 1"#).unwrap_err().contains("speed"));
        assert!(selects("device.price > 1").unwrap_err().contains("undefined field 'price'"));
    }
}
