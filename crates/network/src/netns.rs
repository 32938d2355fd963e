//! Doing something in another network namespace.
//!
//! A namespace belongs to a thread. Ours are shared by everything that runs on them, so that only a thread
//! made for the purpose may leave for another namespace, and it never comes back: it opens its
//! socket there and ends. A netlink socket belongs to the namespace it was opened in for ever.

use std::{
    fs::File,
    os::fd::{AsFd, OwnedFd},
    path::Path,
};

use nix::sched::{CloneFlags, setns};
use rtnetlink::Handle;
use tokio::{sync::oneshot, task::AbortHandle};

use crate::error::NetworkError;

/// A connection to the kernel's network configuration of one namespace.
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
    /// Of the namespace that the calling thread is in.
    pub fn here() -> Result<Self, NetworkError> {
        let (connection, handle, _) = rtnetlink::new_connection().map_err(NetworkError::system("open netlink"))?;
        Ok(Self { handle, task: tokio::spawn(connection).abort_handle() })
    }

    pub async fn inside(netns: &OwnedFd) -> Result<Self, NetworkError> {
        let runtime = tokio::runtime::Handle::current();
        let opened = within(netns, move || {
            let _entered = runtime.enter();
            rtnetlink::new_connection()
        });
        let doing = "open netlink in the pod's network namespace";
        let (connection, handle, _) = opened.await.map_err(NetworkError::system(doing))?;
        Ok(Self { handle, task: tokio::spawn(connection).abort_handle() })
    }
}

/// Runs something in a namespace.
pub async fn within<T: Send + 'static>(
    netns: &OwnedFd,
    work: impl FnOnce() -> std::io::Result<T> + Send + 'static,
) -> std::io::Result<T> {
    let netns = netns.try_clone()?;
    apart(move || {
        setns(netns.as_fd(), CloneFlags::CLONE_NEWNET)?;
        work()
    })
    .await
}

/// Opens a namespace by its file.
pub fn open(path: &Path) -> Result<OwnedFd, NetworkError> {
    let file = File::open(path).map_err(NetworkError::system(format!("open {}", path.display())))?;
    Ok(file.into())
}

/// Runs something on a thread of its own, which begins in the namespace of the caller.
pub async fn apart<T: Send + 'static>(
    work: impl FnOnce() -> std::io::Result<T> + Send + 'static,
) -> std::io::Result<T> {
    let (done, result) = oneshot::channel();
    std::thread::Builder::new().name("netns".into()).stack_size(128 << 10).spawn(move || {
        let _ = done.send(work());
    })?;
    result.await.unwrap_or_else(|_| Err(std::io::Error::other("the thread ended early")))
}
