//! The controller framework: shared caches, work queues, and the loop that reconciles one key at a time.
//!
//! * [`cache`]: the objects of one kind in memory (an informer that reads its own writes)
//! * [`queue`]: the work queue of a controller; [`runner`]: takes keys from it, one reconcile per key at a time
//! * [`reconcile`]: what a controller is: `observe → plan → apply → report`
//! * [`context`]: what all controllers share: client, caches, event recorder, metrics, clock
//! * [`recorder`]: events about objects; [`metrics`]: work queue metrics under upstream's names
//! * [`discovery`]: which resources the server has; [`metadata_watch`]: metadata of the objects of all of them
//! * [`index`]: objects by another object they name
//! * [`object_writes`]: creates, deletes and status writes that the caches learn of at once
//! * [`scale_client`]: the `scale` subresource of any kind
//! * [`error`]: API calls that failed; [`outage`]: one warning per outage of a list or watch
//!
//! To write a controller: implement [`Controller`], write `fn controller(context) -> Runnable` that makes its work
//! queue, adds keys to it from cache changes and returns [`Context::runnable`], and put it into the list in
//! `manager.rs`.

pub mod cache;
pub mod context;
pub mod discovery;
pub mod error;
pub mod index;
pub mod metadata_watch;
pub mod metrics;
pub mod object_meta;
pub mod object_writes;
mod outage;
pub mod queue;
pub mod reconcile;
pub mod recorder;
pub mod runner;
pub mod scale_client;

pub use cache::{Cache, CachedObject, Change, ObjectKey, controller_of, version_of};
pub use context::{Caches, Clients, Clock, Context, Runnable};
pub use error::ApiError;
pub use metrics::ControllerMetrics;
pub use queue::WorkQueue;
pub use reconcile::{Controller, Outcomes, Plan, reconcile};
pub use recorder::EventRecorder;
pub use runner::Limits;
