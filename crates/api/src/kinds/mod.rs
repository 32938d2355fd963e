//! The built-in descriptors, one file per API group.

use crate::descriptor::Descriptor;

pub fn all() -> Vec<Descriptor> {
    Vec::new()
}
