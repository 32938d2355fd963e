//! Selectors as controllers read them, straight from the API's bytes.

use mainstay_api::selector::Labels;
use serde::{Deserialize, Deserializer, de::Error};
use serde_json::Value;

/// A `metav1.LabelSelector`, as it was written and ready to be asked.
#[derive(Clone, Debug)]
pub struct Selector {
    pub written: Value,
    pub labels: Labels,
}

impl Default for Selector {
    fn default() -> Self {
        Self { written: Value::Null, labels: Labels::nothing() }
    }
}

impl<'de> Deserialize<'de> for Selector {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let written = Value::deserialize(deserializer)?;
        let labels = Labels::from_selector(&written).map_err(D::Error::custom)?;
        Ok(Self { written, labels })
    }
}

/// For `deserialize_with`: a selector that is a plain map of labels. An empty one selects nothing.
pub fn by_map<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Selector, D::Error> {
    let written = Value::deserialize(deserializer)?;
    if written.as_object().is_none_or(serde_json::Map::is_empty) {
        return Ok(Selector::default());
    }
    Ok(Selector { labels: Labels::from_map(&written), written })
}
