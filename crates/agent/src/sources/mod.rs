//! Where pods come from.

pub mod api;
pub mod directory;
