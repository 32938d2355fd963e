//! Where templates are rendered: in this process, or where the composition root says.

use std::collections::BTreeMap;

use futures::future::BoxFuture;
use mainstay_templates::{TemplateError, render};
use serde_json::Value;

/// Renders templates of strangers. Steps and output are bounded by the engine; time and memory are for the implementation to bound.
pub trait TemplateRenderer: Send + Sync + 'static {
    fn render(&self, template: String, inputs: BTreeMap<String, Value>)
    -> BoxFuture<'_, Result<String, TemplateError>>;
}

/// Renders on a thread of this process. For tests, and templates that are trusted: memory is not bounded.
pub struct LocalRenderer;

impl TemplateRenderer for LocalRenderer {
    fn render(
        &self,
        template: String,
        inputs: BTreeMap<String, Value>,
    ) -> BoxFuture<'_, Result<String, TemplateError>> {
        Box::pin(async move {
            let rendered = tokio::task::spawn_blocking(move || render(&template, &inputs)).await;
            rendered.unwrap_or_else(|error| {
                Err(TemplateError { line: None, problem: format!("the renderer failed: {error}"), detail: None })
            })
        })
    }
}
