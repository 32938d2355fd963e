//! Lists and watches the objects of one kind: what informers, reflectors and caches are built on.
//!
//! * [`watch`]: the stream of events of a [`Watch`]
//! * [`list_watch`]: the requests behind it: pages of a list, then a watch from its version, and what to do when one of them fails
//! * [`wire`]: the JSON of lists and watches; [`lines`]: lines of a response that does not end
//!
//! Everything but the decoding of an object is compiled once and not for every kind (`kube::runtime::watcher` is compiled for each, and decodes
//! by way of a buffer, which is a second decoder of every type): a program that watches fifty kinds is megabytes smaller for it.

mod lines;
mod list_watch;
mod watch;
mod wire;

pub use lines::Lines;
pub use list_watch::{WatchError, WatchOptions};
pub use watch::{Event, Watch};
pub use wire::{ListMeta, ListPage, WatchLine};
