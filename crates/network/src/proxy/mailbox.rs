//! How a thread hears from the others and from the rest of the process.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
};

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};

use crate::services::frontend::Frontend;

pub struct Mailbox {
    mail: Mutex<Mail>,
    stop: AtomicBool,
    wake: OwnedFd,
    /// How many its thread has, for the others to compare.
    connections: AtomicUsize,
}

#[derive(Default)]
pub struct Mail {
    /// They have changed, and somebody waits there.
    pub frontends: Vec<Frontend>,
    /// Connections that another thread accepted.
    pub arrivals: Vec<OwnedFd>,
}

impl Mailbox {
    pub fn new() -> io::Result<Self> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { mail: Mutex::default(), stop: AtomicBool::new(false), wake, connections: AtomicUsize::new(0) })
    }

    pub fn changed(&self, frontend: Frontend) {
        self.mail.lock().frontends.push(frontend);
        self.wake();
    }

    pub fn hand_over(&self, client: OwnedFd) {
        self.connections.fetch_add(1, Ordering::Relaxed);
        self.mail.lock().arrivals.push(client);
        self.wake();
    }

    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.wake();
    }

    pub fn is_to_stop(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    pub fn take(&self) -> Mail {
        let _ = rustix::io::read(&self.wake, &mut [0; 8]); // before the mail, so that what comes later wakes again
        std::mem::take(&mut self.mail.lock())
    }

    /// Becomes readable when there is mail.
    pub fn announcement(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    pub fn set_connections(&self, count: usize) {
        self.connections.store(count, Ordering::Relaxed);
    }

    fn wake(&self) {
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes()); // fails only if it is awake already
    }
}
