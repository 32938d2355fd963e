//! What templates rendered to last: a reconcile because of a consumer does not render anew.

use std::collections::{BTreeMap, HashMap};

use mainstay_api::config_template::ConfigTemplate;
use parking_lot::Mutex;

use super::{inputs::Inputs, plan::Rendered};
use crate::runtime::ObjectKey;

/// Larger results are rendered again, rather than that thousands of them are kept.
const MAX_CONTENT: usize = 64 * 1024;

#[derive(Default)]
pub struct RenderCache(Mutex<HashMap<ObjectKey, Entry>>);

struct Entry {
    template: TemplateVersion,
    digests: BTreeMap<String, String>,
    rendered: Rendered,
}

/// Changes with the spec of a template.
#[derive(Clone, Debug, PartialEq)]
pub struct TemplateVersion {
    pub uid: String,
    pub generation: Option<i64>,
}

impl TemplateVersion {
    pub fn new(template: &ConfigTemplate) -> Self {
        Self { uid: template.uid().to_owned(), generation: template.metadata.generation }
    }
}

impl RenderCache {
    /// What this template rendered to with these inputs.
    pub fn get(&self, key: &ObjectKey, template: &ConfigTemplate, inputs: &Inputs) -> Option<Rendered> {
        let entries = self.0.lock();
        let entry = entries.get(key)?;
        let is_same = entry.template == TemplateVersion::new(template) && entry.digests == inputs.digests;
        (is_same && inputs.missing.is_empty()).then(|| entry.rendered.clone())
    }

    pub fn set(&self, key: &ObjectKey, template: &ConfigTemplate, rendered: &Rendered) {
        let is_kept = rendered.result.as_ref().is_ok_and(|rendered| rendered.content.0.len() <= MAX_CONTENT);
        let mut entries = self.0.lock();
        if is_kept {
            let (template, digests) = (TemplateVersion::new(template), rendered.digests.clone());
            entries.insert(key.clone(), Entry { template, digests, rendered: rendered.clone() });
        } else {
            entries.remove(key);
        }
    }

    pub fn forget(&self, key: &ObjectKey) {
        self.0.lock().remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config_templates::{notify::Content, plan::RenderedVersion};

    #[test]
    fn a_result_counts_while_template_and_inputs_are_the_same() {
        let (cache, key) = (RenderCache::default(), ObjectKey::new("shop", "zones"));
        let template = |generation: i64| {
            let mut template = ConfigTemplate::default();
            template.metadata.generation = Some(generation);
            template
        };
        let digests = |digest: &str| BTreeMap::from([("db".to_owned(), digest.to_owned())]);
        let inputs = |digest: &str| Inputs { digests: digests(digest), ..Inputs::default() };
        let rendered = |length: usize| {
            let version = RenderedVersion { version: "v".to_owned(), content: Content("x".repeat(length)) };
            Rendered { result: Ok(version), digests: digests("1"), managers: BTreeMap::new() }
        };
        assert!(cache.get(&key, &template(1), &inputs("1")).is_none());
        cache.set(&key, &template(1), &rendered(1));
        assert!(cache.get(&key, &template(1), &inputs("1")).is_some());
        assert!(cache.get(&key, &template(2), &inputs("1")).is_none());
        assert!(cache.get(&key, &template(1), &inputs("2")).is_none());
        let missing = Inputs { missing: vec!["db".to_owned()], ..inputs("1") };
        assert!(cache.get(&key, &template(1), &missing).is_none());
        cache.set(&key, &template(1), &rendered(MAX_CONTENT + 1));
        assert!(cache.get(&key, &template(1), &inputs("1")).is_none());
    }
}
