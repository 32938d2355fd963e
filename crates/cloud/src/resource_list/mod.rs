//! Servers from a list of roles (`resources.yaml`): creates those that are missing, deletes them by a tag.
//!
//! * [`list`]: the file: roles with their number, flavor, image and networks, and names that are mapped to those of a cloud
//! * [`plan`]: which servers are missing, and what belongs to a tag; [`apply`]: carries that out
//! * [`ssh_config`]: how the servers are reached by ssh
//!
//! Servers are told by their names alone: `ROLE` and a number, `_` and the tag. So a second run creates nothing, wherever it runs and however
//! the first one ended.

pub mod apply;
pub mod list;
pub mod plan;
pub mod ssh_config;
