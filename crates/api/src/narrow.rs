//! Partial types of kinds: a type with the few fields that its user reads, and the API path of the whole kind.

use serde::{Deserialize, Deserializer};

/// Says of which kind a type is a view. It keeps the object's `metadata`.
#[macro_export]
macro_rules! narrow {
    ($view:ty, $kind:ty) => {
        impl $crate::k8s_openapi::Resource for $view {
            const API_VERSION: &'static str = <$kind as $crate::k8s_openapi::Resource>::API_VERSION;
            const GROUP: &'static str = <$kind as $crate::k8s_openapi::Resource>::GROUP;
            const KIND: &'static str = <$kind as $crate::k8s_openapi::Resource>::KIND;
            const VERSION: &'static str = <$kind as $crate::k8s_openapi::Resource>::VERSION;
            const URL_PATH_SEGMENT: &'static str = <$kind as $crate::k8s_openapi::Resource>::URL_PATH_SEGMENT;
            type Scope = <$kind as $crate::k8s_openapi::Resource>::Scope;
        }

        impl $crate::k8s_openapi::Metadata for $view {
            type Ty = $crate::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

            fn metadata(&self) -> &Self::Ty {
                &self.metadata
            }

            fn metadata_mut(&mut self) -> &mut Self::Ty {
                &mut self.metadata
            }
        }
    };
}

/// For `deserialize_with`: `null` is as good as missing.
pub fn or_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(from: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}
