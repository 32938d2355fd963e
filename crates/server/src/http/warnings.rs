//! `Warning: 299 - "…"` headers: advice to the client beside the response.

use std::borrow::Cow;

use http::{HeaderMap, HeaderValue, header::WARNING};
use mainstay_api::descriptor::Descriptor;

/// More than this many, or longer than this in all, are left out rather than refused.
const MAX_WARNINGS: usize = 32;
const MAX_BYTES: usize = 4 * 1024;

/// What upstream says in every response about a kind that it will remove some day.
pub fn builtin_deprecation(group: &str, version: &str, plural: &str) -> Option<Cow<'static, str>> {
    match (group, version, plural) {
        ("", "v1", "endpoints") => {
            Some("v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice".into())
        }
        ("", "v1", "componentstatuses") => Some("v1 ComponentStatus is deprecated in v1.19+".into()),
        _ => None,
    }
}

/// The same of a version that its CustomResourceDefinition calls deprecated.
pub fn deprecation(d: &Descriptor) -> Option<Cow<'static, str>> {
    d.custom.as_ref()?.deprecation.as_ref().map(|text| text.to_string().into())
}

#[derive(Debug, Default)]
pub struct Warnings(Vec<String>);

impl Warnings {
    pub fn add(&mut self, text: String) {
        if self.0.len() < MAX_WARNINGS && !self.0.contains(&text) {
            self.0.push(text);
        }
    }

    pub fn extend(&mut self, texts: impl IntoIterator<Item = String>) {
        texts.into_iter().for_each(|text| self.add(text));
    }

    pub fn write(self, headers: &mut HeaderMap) {
        let mut room = MAX_BYTES;
        for text in self.0.into_iter().take(MAX_WARNINGS) {
            let escaped: String = text
                .chars()
                .flat_map(|c| match c {
                    '"' | '\\' => vec!['\\', c],
                    c if c.is_control() => vec![' '],
                    c => vec![c],
                })
                .collect();
            let Some(left) = room.checked_sub(escaped.len()) else { return };
            room = left;
            if let Ok(value) = HeaderValue::from_bytes(format!("299 - \"{escaped}\"").as_bytes()) {
                headers.append(WARNING, value);
            }
        }
    }
}
