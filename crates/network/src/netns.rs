//! Runs work in other network namespaces.
//!
//! A network namespace belongs to a thread. The threads of the runtime are shared, so only a thread made for the
//! purpose may enter another namespace, and it never comes back: it opens its socket there and ends. A netlink socket
//! belongs to the namespace it was opened in for ever.

use std::{
    fs::File,
    os::fd::{AsFd, OwnedFd},
    path::Path,
};

use nix::sched::{CloneFlags, setns};
use rtnetlink::Handle;
use tokio::{sync::oneshot, task::AbortHandle};

use crate::error::NetworkError;

/// An rtnetlink connection of one network namespace.
pub struct Netlink {
    pub handle: Handle,
    task: AbortHandle,
}

impl Drop for Netlink {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Netlink {
    /// For the namespace of the calling thread.
    pub fn in_current_netns() -> Result<Self, NetworkError> {
        let (connection, handle, _) = rtnetlink::new_connection().map_err(NetworkError::system("open netlink"))?;
        Ok(Self { handle, task: tokio::spawn(connection).abort_handle() })
    }

    pub async fn in_netns(netns: &OwnedFd) -> Result<Self, NetworkError> {
        let runtime = tokio::runtime::Handle::current();
        let opened = run_in_netns(netns, move || {
            let _entered = runtime.enter();
            rtnetlink::new_connection()
        });
        let doing = "open netlink in the pod's network namespace";
        let (connection, handle, _) = opened.await.map_err(NetworkError::system(doing))?;
        Ok(Self { handle, task: tokio::spawn(connection).abort_handle() })
    }
}

/// Runs blocking work in a network namespace.
pub async fn run_in_netns<T: Send + 'static>(
    netns: &OwnedFd,
    work: impl FnOnce() -> std::io::Result<T> + Send + 'static,
) -> std::io::Result<T> {
    let netns = netns.try_clone()?;
    run_on_thread(move || {
        setns(netns.as_fd(), CloneFlags::CLONE_NEWNET)?;
        work()
    })
    .await
}

/// Opens a network namespace by its file.
pub fn open(path: &Path) -> Result<OwnedFd, NetworkError> {
    let file = File::open(path).map_err(NetworkError::system(format!("open {}", path.display())))?;
    Ok(file.into())
}

/// Runs blocking work on a thread of its own, which starts in the network namespace of the caller.
pub async fn run_on_thread<T: Send + 'static>(
    work: impl FnOnce() -> std::io::Result<T> + Send + 'static,
) -> std::io::Result<T> {
    let (done, result) = oneshot::channel();
    std::thread::Builder::new().name("netns".into()).stack_size(128 << 10).spawn(move || {
        let _ = done.send(work());
    })?;
    result.await.unwrap_or_else(|_| Err(std::io::Error::other("the thread panicked")))
}
