//! Reading what containers wrote, and keeping it from filling the disk.

pub mod path;
