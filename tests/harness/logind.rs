//! A systemd-logind of our own on a bus of our own: gives inhibitor locks out, and says that the machine shuts down.

use std::{
    io::{ErrorKind, PipeReader, Read},
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
    thread::JoinHandle,
};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use tempfile::TempDir;
use tokio::sync::mpsc;

use super::eventually;

const PATH: &str = "/org/freedesktop/login1";
const MANAGER: &str = "org.freedesktop.login1.Manager";

/// The reading ends of the locks: a lock is gone when nobody has its other end.
type Locks = Arc<Mutex<Vec<PipeReader>>>;

struct Manager {
    locks: Locks,
}

#[zbus::interface(name = "org.freedesktop.login1.Manager")]
impl Manager {
    fn inhibit(&self, what: String, who: String, _why: String, mode: String) -> zbus::fdo::Result<zbus::OwnedFd> {
        if (what.as_str(), who.as_str(), mode.as_str()) != ("shutdown", "mainstay", "delay") {
            return Err(zbus::fdo::Error::InvalidArgs(format!("{what} {who} {mode}")));
        }
        let (reader, writer) = std::io::pipe().map_err(|error| zbus::fdo::Error::IOError(error.to_string()))?;
        let flags = fcntl_getfl(&reader).expect("the flags of a pipe");
        fcntl_setfl(&reader, flags | OFlags::NONBLOCK).expect("a pipe that does not block");
        self.locks.lock().expect("the locks").push(reader);
        Ok(std::os::fd::OwnedFd::from(writer).into())
    }

    #[zbus(property, name = "InhibitDelayMaxUSec")]
    fn inhibit_delay_max(&self) -> u64 {
        5_000_000
    }
}

pub struct FakeLogind {
    bus: Child,
    address: String,
    locks: Locks,
    shutdowns: mpsc::UnboundedSender<()>,
    thread: Option<JoinHandle<()>>,
    _dir: TempDir,
}

impl FakeLogind {
    #[track_caller]
    pub fn start() -> Self {
        let dir = tempfile::Builder::new().prefix("mainstay-bus-").tempdir().expect("make a directory");
        let socket: PathBuf = dir.path().join("bus");
        let address = format!("unix:path={}", socket.display());
        let bus = Command::new("dbus-daemon")
            .args(["--session", "--nofork", "--nosyslog", &format!("--address={address}")])
            .stdin(Stdio::null())
            .spawn()
            .expect("run dbus-daemon, which this test needs (package dbus-daemon)");
        eventually("the bus listens", || socket.exists().then_some(()));
        let (locks, (shutdowns, mut asked)) = (Locks::default(), mpsc::unbounded_channel());
        let manager = Manager { locks: locks.clone() };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let connection = zbus::connection::Builder::address(address.as_str())
            .name("org.freedesktop.login1")
            .serve_at(PATH, manager)
            .build();
        let connection = runtime.block_on(connection).expect("serve on the bus");
        let thread = std::thread::spawn(move || {
            runtime.block_on(async {
                while asked.recv().await.is_some() {
                    let signal = connection.emit_signal(None::<&str>, PATH, MANAGER, "PrepareForShutdown", &(true,));
                    signal.await.expect("emit the signal");
                }
            });
        });
        Self { bus, address, locks, shutdowns, thread: Some(thread), _dir: dir }
    }

    /// The value of `DBUS_SYSTEM_BUS_ADDRESS`.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// How many locks are held.
    pub fn locks(&self) -> usize {
        let locks = self.locks.lock().expect("the locks");
        let is_held = |lock: &&PipeReader| matches!((&mut &**lock).read(&mut [0]), Err(error) if error.kind() == ErrorKind::WouldBlock);
        locks.iter().filter(is_held).count()
    }

    /// Says that the machine shuts down.
    pub fn shut_down(&self) {
        self.shutdowns.send(()).expect("it runs");
    }
}

impl Drop for FakeLogind {
    fn drop(&mut self) {
        let (closed, _) = mpsc::unbounded_channel();
        self.shutdowns = closed;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let _ = self.bus.kill();
        let _ = self.bus.wait();
    }
}
