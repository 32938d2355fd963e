//! The user-space TCP proxy: holds connections while a Service has no backend, and relays all connections of Services
//! that ask for it.
//!
//! nftables redirects such connections to one port of this process; the kernel still knows their original destination
//! ([`socket::original_destination`]), which names the frontend. A frontend without backends **holds** its
//! connections: they are accepted but not read, so that each costs a socket and a few hundred bytes, until `set`
//! brings a backend, or until the hold time is over and they are reset. If a backend does not answer, the connection
//! tries another, and waits if there is none ([`search`]).
//!
//! A few threads of its own ([`worker`]) do this, each with its own listener on the port, its own epoll and its own
//! connections; they share only the table of frontends ([`table`]). They are apart from the async runtime of the
//! process: a flood of traffic here delays no probe there, and relaying a byte involves neither a task nor a timer.
//! Idle threads sleep until a socket wakes them.
//!
//! What every proxy gives up: backends see this machine's address, and connections end with the process. The number
//! of connections per minute to one backend that clients close first is limited by the kernel's local ports (28,000
//! by default, TIME_WAIT); beyond that, connections wait for a port as they would for a backend.

mod affinity;
mod connection;
mod mailbox;
mod poller;
mod resources;
mod search;
mod socket;
mod table;
#[cfg(test)]
mod tests;
mod worker;

use std::{io, sync::Arc, thread::JoinHandle};

pub use socket::{Destination, local_address, original_destination};

use self::{mailbox::Mailbox, resources::Limits, table::FrontendTable, worker::Worker};
use crate::services::frontend::{BackendPool, Frontend};

/// More would take cores from the pods: most traffic goes through the kernel.
const MAX_THREADS: usize = 2;

/// Listens and relays until it is dropped.
pub struct Proxy {
    port: u16,
    table: Arc<FrontendTable>,
    mailboxes: Vec<Arc<Mailbox>>,
    threads: Vec<JoinHandle<()>>,
}

impl Proxy {
    /// Listens on a free port of all addresses, on threads of its own.
    pub fn start() -> io::Result<Arc<Self>> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self::start_with(original_destination, cores.min(MAX_THREADS))
    }

    /// As `start`, with another source of original destinations, for use without nftables.
    pub fn start_with(destination: Destination, threads: usize) -> io::Result<Arc<Self>> {
        let threads = threads.max(1);
        let first = socket::listen(0)?;
        let port = socket::port(&first)?;
        let mut listeners = vec![first];
        for _ in 1..threads {
            listeners.push(socket::listen(port)?);
        }
        let table = Arc::new(FrontendTable::default());
        let limits = Limits::from_rlimit(threads);
        let mailboxes = listeners.iter().map(|_| Mailbox::new().map(Arc::new)).collect::<io::Result<Vec<_>>>()?;
        let mut proxy = Self { port, table, mailboxes, threads: Vec::new() };
        for (number, listener) in listeners.into_iter().enumerate() {
            let mut others = proxy.mailboxes.clone();
            let own = others.swap_remove(number);
            let worker = Worker::new(listener, destination, limits, proxy.table.clone(), own, others)?;
            let thread = std::thread::Builder::new().name("proxy".into()).stack_size(256 << 10);
            proxy.threads.push(thread.spawn(move || worker.run())?);
        }
        Ok(Arc::new(proxy))
    }

    /// The port to which nftables redirects connections.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Sets the backends of a frontend, also for connections that wait.
    pub fn set(&self, frontend: Frontend, pool: Option<&BackendPool>) {
        if self.table.set(frontend, pool) {
            self.mailboxes.iter().for_each(|mailbox| mailbox.changed(frontend));
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.mailboxes.iter().for_each(|mailbox| mailbox.stop());
        for thread in self.threads.drain(..) {
            let _ = thread.join(); // a panic has been printed already
        }
    }
}
