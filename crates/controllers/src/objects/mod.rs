//! Objects as far as controllers read them: narrow types that are parsed straight from the API's bytes.
//!
//! What is not named in such a type is neither parsed nor kept in memory, and is not lost: these types are read, and
//! writes are patches.

pub mod deployment;
pub mod pod;
pub mod replica_set;
pub mod selector;
pub mod service;
