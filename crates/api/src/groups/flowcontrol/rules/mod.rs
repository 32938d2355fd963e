//! Rules of `flowcontrol.apiserver.k8s.io/v1`.

mod flow_schema;
mod policy_rules;
mod priority_level;

pub use flow_schema::FlowSchemaRules;
pub use priority_level::PriorityLevelConfigurationRules;

use crate::field::{Errors, FieldError, Path};

/// Conditions, by their types: each is named, and named once.
fn validate_conditions<'a>(types: impl Iterator<Item = &'a str>, errors: &mut Errors) {
    let path = Path::new("status").child("conditions");
    let mut seen = std::collections::BTreeSet::new();
    for (i, kind) in types.enumerate() {
        let at = path.index(i).child("type");
        if !seen.insert(kind) {
            errors.push(FieldError::duplicate(&at, kind));
        }
        if kind.is_empty() {
            errors.push(FieldError::required(&at, "must not be empty"));
        }
    }
}
