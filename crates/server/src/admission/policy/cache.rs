//! Compiled policies, one for each version of a policy that a request needed.

use std::{collections::HashMap, sync::Arc};

use mainstay_store::Revision;
use parking_lot::Mutex;

use super::CompiledPolicy;
use crate::{
    http::status::{ApiError, ApiResult},
    objects::store_cache::CachedObject,
};

#[derive(Default)]
pub struct PolicyCache {
    compiled: Mutex<HashMap<String, (Revision, Arc<CompiledPolicy>)>>,
}

impl PolicyCache {
    /// The compiled form of a policy; compiled off the workers that serve requests, since long policies take a while.
    pub async fn get(&self, policy: &CachedObject) -> ApiResult<Arc<CompiledPolicy>> {
        let name = policy.value["metadata"]["name"].as_str().unwrap_or_default();
        if let Some((revision, compiled)) = self.compiled.lock().get(name)
            && *revision == policy.modified
        {
            return Ok(compiled.clone());
        }
        let value = policy.value.clone();
        let compiled = tokio::task::spawn_blocking(move || Arc::new(CompiledPolicy::compile(&value))).await;
        let compiled =
            compiled.map_err(|error| ApiError::internal(format!("policy {name:?} cannot be compiled: {error}")))?;
        self.compiled.lock().insert(name.to_owned(), (policy.modified, compiled.clone()));
        Ok(compiled)
    }

    /// Forgets policies that are gone.
    pub fn retain(&self, policies: &[CachedObject]) {
        let mut compiled = self.compiled.lock();
        if compiled.len() > policies.len() {
            compiled.retain(|name, _| policies.iter().any(|policy| policy.value["metadata"]["name"] == *name.as_str()));
        }
    }
}
