//! Where in an object a walk is: a list on the stack, written out as a path only when there is something to say.

use crate::field::Path;

pub enum WalkPath<'a> {
    Root,
    Field { parent: &'a WalkPath<'a>, name: &'a str },
    Index { parent: &'a WalkPath<'a>, index: usize },
}

impl<'a> WalkPath<'a> {
    pub fn field(&'a self, name: &'a str) -> WalkPath<'a> {
        WalkPath::Field { parent: self, name }
    }

    pub fn index(&'a self, index: usize) -> WalkPath<'a> {
        WalkPath::Index { parent: self, index }
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
