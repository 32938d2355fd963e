//! The verbs, each once, for every kind.

pub mod create;
pub mod delete;
pub mod delete_collection;
pub mod get;
pub mod list;
pub mod patch;
pub mod scale;
pub mod update;
pub mod watch;
