//! Sources of desired pods: the API, and a directory of static pods.
//!
//! * [`pod_watch`]: those bound to this machine; `checkpoints`: their files, for a start without a server
//! * [`directory`]: static pods, as their [`manifest`]s say; [`mirror`]: shown in the API

pub mod checkpoints;
pub mod directory;
pub mod manifest;
pub mod mirror;
pub mod pod_watch;
