//! The kinds of the core group, pods and services aside.

pub mod persistent_volume_claim;
