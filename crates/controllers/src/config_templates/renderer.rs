//! Where templates are rendered: in this process, or where the composition root says.

use std::{borrow::Cow, collections::BTreeMap, fmt, sync::Arc};

use futures::future::BoxFuture;
use mainstay_templates::{Input, TemplateError, render_inputs};
use serde_json::Value;

/// What a template reads under one name, as JSON.
#[derive(Clone)]
pub enum InputText {
    /// Of this template alone.
    Own(Arc<str>),
    /// The same text is read by other templates: a renderer does well to keep it. Never so for values of Secrets.
    Shared(Arc<str>),
    /// A list of such texts.
    List(Vec<Arc<str>>),
}

impl InputText {
    pub fn own(value: &Value) -> Self {
        Self::Own(value.to_string().into())
    }

    /// Texts of it that other templates may read as well.
    pub fn shared_texts(&self) -> &[Arc<str>] {
        match self {
            Self::Own(_) => &[],
            Self::Shared(text) => std::slice::from_ref(text),
            Self::List(texts) => texts,
        }
    }

    /// All of it, as one text.
    pub fn json(&self) -> Cow<'_, str> {
        match self {
            Self::Own(json) | Self::Shared(json) => Cow::Borrowed(json),
            Self::List(texts) => Cow::Owned(format!("[{}]", texts.join(","))),
        }
    }
}

/// Logs never show the value: it may be of a Secret.
impl fmt::Debug for InputText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Own(_) => "a text",
            Self::Shared(_) => "a shared text",
            Self::List(_) => "a list of shared texts",
        })
    }
}

/// Renders templates of strangers. Steps and output are bounded by the engine; time and memory are for the implementation to bound.
pub trait TemplateRenderer: Send + Sync + 'static {
    fn render(
        &self,
        template: String,
        inputs: BTreeMap<String, InputText>,
    ) -> BoxFuture<'_, Result<String, TemplateError>>;
}

/// Renders a template over inputs as they are written.
pub fn render_texts(template: &str, inputs: &BTreeMap<String, InputText>) -> Result<String, TemplateError> {
    let decode = |(name, input): (&String, &InputText)| {
        let failed = |_| TemplateError { line: None, problem: format!("input {name} is no JSON"), detail: None };
        Ok((name.clone(), Input::from_json(input.json().as_bytes()).map_err(failed)?))
    };
    let inputs: BTreeMap<String, Input> = inputs.iter().map(decode).collect::<Result<_, _>>()?;
    render_inputs(template, inputs.iter().map(|(name, input)| (name.as_str(), input.clone())))
}

/// Renders on a thread of this process. For tests, and templates that are trusted: memory is not bounded.
pub struct LocalRenderer;

impl TemplateRenderer for LocalRenderer {
    fn render(
        &self,
        template: String,
        inputs: BTreeMap<String, InputText>,
    ) -> BoxFuture<'_, Result<String, TemplateError>> {
        Box::pin(async move {
            let rendered = tokio::task::spawn_blocking(move || render_texts(&template, &inputs)).await;
            rendered.unwrap_or_else(|error| {
                Err(TemplateError { line: None, problem: format!("the renderer failed: {error}"), detail: None })
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_rendered_as_the_values_that_they_are() {
        let text = |json: &str| -> Arc<str> { json.into() };
        let inputs = BTreeMap::from([
            ("own".to_owned(), InputText::own(&serde_json::json!({ "a": [1, null] }))),
            ("shared".to_owned(), InputText::Shared(text(r#"{"b":"hidden"}"#))),
            ("list".to_owned(), InputText::List(vec![text("1"), text("[2]")])),
            ("empty".to_owned(), InputText::List(Vec::new())),
        ]);
        let template = "{{ own.a|tojson }} {{ shared.b }} {{ list|tojson }} {{ empty|length }}";
        assert_eq!(render_texts(template, &inputs).unwrap(), "[1, null] hidden [1, [2]] 0");
        assert!(!format!("{inputs:?}").contains("hidden"));
    }
}
