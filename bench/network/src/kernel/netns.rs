//! A network namespace, and a thread in it.

use std::{
    path::{Path, PathBuf},
    sync::mpsc,
};

use anyhow::Context;
use nix::sched::{CloneFlags, unshare};

type Work = Box<dyn FnOnce() + Send>;

pub struct Netns {
    work: mpsc::Sender<Work>,
    path: PathBuf,
}

impl Netns {
    pub fn new() -> anyhow::Result<Self> {
        let (work, queue) = mpsc::channel::<Work>();
        let (ready, made) = mpsc::channel();
        std::thread::spawn(move || {
            let own = format!("/proc/self/task/{}/ns/net", nix::unistd::gettid());
            let _ = ready.send(unshare(CloneFlags::CLONE_NEWNET).map(|()| PathBuf::from(own)));
            queue.iter().for_each(|work| work());
        });
        let path = made.recv()?.context("create a network namespace (this needs root)")?;
        Ok(Self { work, path })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> anyhow::Result<T> + Send + 'static,
    ) -> anyhow::Result<T> {
        let (done, result) = mpsc::channel();
        let sent = self.work.send(Box::new(move || drop(done.send(work()))));
        sent.ok().context("the namespace is gone")?;
        result.recv().context("failed in its namespace")?
    }
}
