//! What an expression may refer to: variables with their types; and objects that it may build.

use std::{collections::BTreeMap, sync::Arc};

use crate::types::Type;

#[derive(Clone, Debug, Default)]
pub struct Environment {
    pub(crate) variables: BTreeMap<Arc<str>, Type>,
    pub(crate) builds_objects: bool,
}

impl Environment {
    pub fn new() -> Self {
        Self::default()
    }

    /// Declares a variable. A name may be qualified: `variables.replicas`, `authorizer.requestResource`.
    pub fn variable(mut self, name: &str, ty: Type) -> Self {
        self.variables.insert(name.into(), ty);
        self
    }

    /// Lets expressions build `Object{…}`, `Object.spec{…}` and `JSONPatch{…}`, as mutations do.
    pub fn with_objects(mut self) -> Self {
        self.builds_objects = true;
        self
    }

    /// Whether some variable's name begins with this one and a dot.
    pub(crate) fn is_namespace(&self, name: &str) -> bool {
        self.variables.keys().any(|key| key.strip_prefix(name).is_some_and(|rest| rest.starts_with('.')))
    }
}
