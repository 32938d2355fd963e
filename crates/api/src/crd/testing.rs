//! What the tests of this module share.

use serde_json::Value;

use super::structural::{MAX_NODES, Structural};

pub fn schema(schema: Value) -> Structural {
    Structural::parse(&schema, &mut MAX_NODES.clone()).expect("a small schema")
}
