//! The CRI client with a containerd of its own, as a subject of the suite.

use std::{
    ops::Deref,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use async_trait::async_trait;
use mainstay_runtime::{
    Runtime,
    cgroup::Cgroup,
    cri::{Cri, CriSettings},
    suite::{self, containerd, image},
};

pub use mainstay_runtime::suite::containerd::mounts_below;

pub struct Containerd {
    pub instance: String,
    pub runtime: Arc<Cri>,
    /// Last: the pods of the instance are removed through it.
    daemon: containerd::Containerd,
}

impl Deref for Containerd {
    type Target = containerd::Containerd;

    fn deref(&self) -> &Self::Target {
        &self.daemon
    }
}

impl Containerd {
    pub async fn start() -> Self {
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let instance = format!("mainstay-cri-{}-{}", std::process::id(), STARTED.fetch_add(1, Relaxed));
        let daemon = containerd::Containerd::start();
        let address = format!("unix://{}", daemon.socket().display());
        let runtime = Arc::new(Cri::connect(&address, CriSettings::new(&instance)).expect("the address is fine"));
        let containerd = Self { instance, runtime, daemon };
        containerd.until_ready().await;
        containerd
    }

    pub fn another(&self, instance: &str) -> Cri {
        Cri::connect(&self.socket().display().to_string(), CriSettings::new(instance)).expect("the address is fine")
    }

    /// Starts the daemon and waits until its CRI part answers.
    pub async fn resume(&self) {
        self.daemon.resume();
        self.until_ready().await;
    }

    /// The CRI part of containerd answers, and knows images, a little later than the rest.
    async fn until_ready(&self) {
        let deadline = Instant::now() + Duration::from_secs(60);
        for name in [image::PLAIN, image::CONFIGURED, image::PAUSE] {
            while !matches!(self.runtime.images().find(name).await, Ok(Some(_))) {
                assert!(Instant::now() < deadline, "{name} does not appear\n{}", self.log());
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }
}

#[async_trait]
impl suite::Subject for Containerd {
    fn runtime(&self) -> Arc<dyn Runtime> {
        self.runtime.clone()
    }

    async fn reopen(&self) -> Arc<dyn Runtime> {
        Arc::new(self.another(&self.instance))
    }

    fn image(&self) -> String {
        image::PLAIN.to_owned()
    }

    fn scratch(&self) -> PathBuf {
        self.home().join("scratch")
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        if self.is_running() {
            let (socket, instance) = (self.socket(), self.instance.clone());
            // Through the runtime first: it gives back what is outside of its directories.
            let removed = std::thread::spawn(move || remove_all(&socket, &instance)).join();
            if !matches!(removed, Ok(true)) {
                eprintln!("some pods of the test could not be removed in order");
            }
        }
        self.kill();
        let _ = Cgroup::new(&self.instance).kill_all(Duration::from_secs(5));
        let _ = Cgroup::new(&self.instance).remove();
    }
}

fn remove_all(socket: &Path, instance: &str) -> bool {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a tokio runtime");
    let all = async {
        let cri = Cri::connect(&socket.display().to_string(), CriSettings::new(instance)).ok()?;
        for sandbox in cri.observe(None).await.ok()?.sandboxes {
            cri.remove_sandbox(&sandbox.id).await.ok()?;
        }
        Some(())
    };
    runtime
        .block_on(async { tokio::time::timeout(Duration::from_secs(60), all).await.is_ok_and(|done| done.is_some()) })
}
