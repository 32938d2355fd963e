//! The JSON of lists and watches, around objects that are left as they are.

use serde::Deserialize;
use serde_json::value::RawValue;

/// A page of a list.
#[derive(Deserialize)]
pub struct ListPage<'a> {
    pub metadata: ListMeta,
    #[serde(borrow)]
    items: Option<Vec<&'a RawValue>>,
}

impl<'a> ListPage<'a> {
    pub fn items(&self) -> impl Iterator<Item = &'a RawValue> {
        self.items.iter().flatten().copied()
    }

    /// What to ask for the next page with; nothing after the last.
    pub fn continue_token(&self) -> Option<&str> {
        self.metadata.continue_token.as_deref().filter(|token| !token.is_empty())
    }
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub struct ListMeta {
    pub resource_version: String,
    #[serde(rename = "continue")]
    continue_token: Option<String>,
}

/// An event of a watch.
#[derive(Deserialize)]
pub struct WatchLine<'a> {
    /// `ADDED`, `MODIFIED`, `DELETED`, `BOOKMARK` or `ERROR`.
    #[serde(rename = "type")]
    pub type_: &'a str,
    #[serde(borrow)]
    pub object: &'a RawValue,
}
