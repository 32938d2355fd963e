//! The built-in runtime: containers from nothing but the kernel.

pub mod rootfs;
