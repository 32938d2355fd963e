//! Files on a machine: private directories, atomic writes, format numbers, the kernel's table of mounts; and directory trees that containers
//! have written, whatever their shape: [`walk_tree`], [`disk_usage`], [`remove_tree`].
//!
//! Everything that Mainstay keeps may hold Secrets, so the rule is one: directories 0700, files 0600, whatever the umask.

mod disk_usage;
mod format;
pub mod mountinfo;
mod private;
mod remove;
mod walk;
mod write;

pub use disk_usage::{DiskUsage, disk_usage};
pub use format::{Format, FormatError, NewerFormat, VERSION, is_newer};
pub use private::{
    PRIVATE_FILE, RestrictedPath, append_private, create_private, create_private_dir, open_private, restrict_file,
    restrict_tree,
};
pub use remove::{RemoveError, remove_file_if_exists, remove_tree};
pub use walk::{WalkError, walk_tree};
pub use write::{AtomicFile, Durability, write_atomic};
