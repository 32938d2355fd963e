//! Reading what containers wrote, and keeping it from filling the disk.
//!
//! [`path`] says where logs lie, [`line`] what is in them, [`options`] what a reader asks for; [`tail`]
//! finds where to begin, [`read`] delivers, [`rotate`] throws away.

pub mod line;
pub mod options;
pub mod path;
pub mod read;
pub mod rotate;
mod tail;

pub use options::Options;
