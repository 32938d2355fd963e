//! Where pods come from.
//!
//! * [`api`]: those bound to this machine
//! * [`directory`]: static pods, as their [`manifest`]s say; [`mirror`]: shown in the API

pub mod api;
pub mod directory;
pub mod manifest;
pub mod mirror;
