//! Where in an object a walk is: a list on the stack, written out as a path only when there is something to say.

use crate::field::Path;

pub enum Place<'a> {
    Root,
    Field { parent: &'a Place<'a>, name: &'a str },
    Index { parent: &'a Place<'a>, index: usize },
}

impl<'a> Place<'a> {
    pub fn field(&'a self, name: &'a str) -> Place<'a> {
        Place::Field { parent: self, name }
    }

    pub fn index(&'a self, index: usize) -> Place<'a> {
        Place::Index { parent: self, index }
    }

    /// `spec.rules[0].name`.
    pub fn path(&self) -> Path {
        match self {
            Self::Root => Path::ROOT,
            Self::Field { parent, name } => parent.path().child(name),
            Self::Index { parent, index } => parent.path().index(*index),
        }
    }
}
