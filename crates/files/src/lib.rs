//! Files of our own on a machine: private directories, atomic writes, format numbers, and the kernel's table of mounts.
//!
//! Everything that Mainstay keeps may hold Secrets, so the rule is one: directories 0700, files 0600, whatever the umask.

mod format;
pub mod mountinfo;
mod private;
mod write;

pub use format::{Format, FormatError, NewerFormat, VERSION, is_newer};
pub use private::{
    PRIVATE_FILE, RestrictedPath, append_private, create_private, create_private_dir, open_private, restrict_file,
    restrict_tree,
};
pub use write::{AtomicFile, Durability, write_atomic};
