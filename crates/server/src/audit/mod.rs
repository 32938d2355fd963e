//! The audit log: who did what, in upstream's `audit.k8s.io/v1` form.
//!
//! Each request carries an [`AuditContext`]. Once its user and object are known, the [`policy`] decides at which level it is logged; when
//! it is answered, an event goes to the [`log`] through a bounded queue. Nothing here ever waits: an event that finds the queue
//! full is dropped and counted. JSON is made by the thread that writes.
//!
//! At level Metadata, which is the default, no bodies are logged.

mod context;
mod event;
mod log;
mod policy;

use std::{io, path::PathBuf, sync::Arc};

use prometheus_client::registry::Registry;

pub use context::AuditContext;
pub use log::Rotation;
pub use policy::{Policy, PolicyError};

use self::{event::Event, log::AuditLog};

/// Decides what is logged, and logs it.
pub struct Audit {
    policy: Policy,
    log: AuditLog,
}

impl Audit {
    /// Opens the log, which only its owner can read.
    pub fn open(policy: Policy, file: PathBuf, rotation: Rotation) -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self { policy, log: AuditLog::open(file, rotation)? }))
    }

    /// What it counts: events taken, and events lost.
    pub fn metrics(&self) -> Registry {
        self.log.metrics()
    }

    /// Writes what is queued, and no more after that.
    pub fn close(&self) {
        self.log.close();
    }

    fn record(&self, event: Event) {
        self.log.send(event);
    }
}

#[cfg(test)]
mod tests;
