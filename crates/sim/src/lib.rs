//! Hollow machines: everything of a cluster but the containers, in one process.
