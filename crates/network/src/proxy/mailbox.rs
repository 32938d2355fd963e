//! Messages to a thread of the proxy from other threads.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
};

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};

use crate::services::frontend::Frontend;

pub struct Mailbox {
    messages: Mutex<Messages>,
    stop: AtomicBool,
    wake: OwnedFd,
    /// Number of its connections, for other threads to compare.
    connections: AtomicUsize,
}

#[derive(Default)]
pub struct Messages {
    /// Frontends that have changed and have waiting connections.
    pub frontends: Vec<Frontend>,
    /// Connections that another thread accepted.
    pub accepted: Vec<OwnedFd>,
}

impl Mailbox {
    pub fn new() -> io::Result<Self> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { messages: Mutex::default(), stop: AtomicBool::new(false), wake, connections: AtomicUsize::new(0) })
    }

    pub fn changed(&self, frontend: Frontend) {
        self.messages.lock().frontends.push(frontend);
        self.wake();
    }

    pub fn hand_over(&self, client: OwnedFd) {
        self.connections.fetch_add(1, Ordering::Relaxed);
        self.messages.lock().accepted.push(client);
        self.wake();
    }

    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.wake();
    }

    pub fn should_stop(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    pub fn take(&self) -> Messages {
        let _ = rustix::io::read(&self.wake, &mut [0; 8]); // before the messages, so that later ones wake the thread again
        std::mem::take(&mut self.messages.lock())
    }

    /// Becomes readable when there are messages.
    pub fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    pub fn set_connections(&self, count: usize) {
        self.connections.store(count, Ordering::Relaxed);
    }

    fn wake(&self) {
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes()); // fails only if it is readable already
    }
}
