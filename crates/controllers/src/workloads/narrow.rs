//! Kinds as far as controllers look at them, read straight from the API's bytes.

use mainstay_api::selector::Labels;
use serde::{Deserialize, Deserializer, de::Error};
use serde_json::Value;

/// Says which resource a narrow type is a view of.
macro_rules! narrow {
    ($type:ty, $group:literal, $version:literal, $kind:literal, $plural:literal) => {
        impl kube::Resource for $type {
            type DynamicType = ();
            type Scope = k8s_openapi::NamespaceResourceScope;

            fn kind((): &()) -> std::borrow::Cow<'_, str> {
                $kind.into()
            }

            fn group((): &()) -> std::borrow::Cow<'_, str> {
                $group.into()
            }

            fn version((): &()) -> std::borrow::Cow<'_, str> {
                $version.into()
            }

            fn plural((): &()) -> std::borrow::Cow<'_, str> {
                $plural.into()
            }

            fn meta(&self) -> &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
                &self.metadata
            }

            fn meta_mut(&mut self) -> &mut k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
                &mut self.metadata
            }
        }
    };
}
pub(crate) use narrow;

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
