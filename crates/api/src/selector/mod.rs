//! Label and field selectors: the two small query languages of lists and watches.
//!
//! Both are parsed once per request and then asked about every object, so matching allocates
//! nothing. Refusals use the API's own words, for people grep for them.

mod fields;
mod labels;
mod parse;

pub use fields::{Fields, Operator, Requirement};
pub use labels::{Labels, Relation, Term};

/// Why a selector was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SelectorError(String);

impl SelectorError {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self(message.into())
    }
}
