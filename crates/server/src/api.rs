//! What every handler works with.

use std::sync::Arc;

use jiff::Timestamp;
use mainstay_api::{descriptor::Descriptor, registry::Registry, schema::Schema};
use mainstay_store::{Entry, Store};

use crate::{
    keys,
    settings::Settings,
    status::{ApiError, ApiResult},
};

/// The API over one store.
pub struct Api {
    pub registry: Registry,
    pub store: Arc<dyn Store>,
    pub schema: &'static Schema,
    pub settings: Settings,
}

/// The object or collection a request is about.
pub struct Target {
    pub d: Arc<Descriptor>,
    pub namespace: Option<String>,
    /// Empty for a collection.
    pub name: String,
}

impl Api {
    pub fn new(registry: Registry, store: Arc<dyn Store>, settings: Settings) -> Self {
        Self { registry, store, schema: Schema::builtin(), settings }
    }

    /// The stored object a request names.
    pub async fn existing(&self, target: &Target) -> ApiResult<Arc<Entry>> {
        let (entry, _) = self.store.get(&target.key()).await?;
        entry.ok_or_else(|| ApiError::not_found(&target.d, &target.name))
    }
}

impl Target {
    pub fn key(&self) -> Arc<str> {
        keys::key(&self.d, self.namespace.as_deref(), &self.name)
    }

    pub fn prefix(&self) -> String {
        keys::prefix(&self.d, self.namespace.as_deref())
    }
}

/// Now, as precise as API timestamps are.
pub fn now() -> Timestamp {
    let now = Timestamp::now();
    Timestamp::from_second(now.as_second()).unwrap_or(now)
}
