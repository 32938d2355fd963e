//! A runtime in a directory of its own, and what it leaves behind: nothing.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
};

use async_trait::async_trait;
use mainstay_runtime::{
    PodNetwork, Runtime, RuntimeError, SandboxId, SandboxSpec,
    builtin::{Builtin, BuiltinSettings},
    images::ImageStore,
    suite,
};
use tempfile::TempDir;

/// Says addresses, makes none: how pods are connected is not the runtime's.
#[derive(Default)]
pub struct Nowhere {
    next: AtomicU8,
}

#[async_trait]
impl PodNetwork for Nowhere {
    async fn attach(&self, _: &SandboxId, netns: &Path, _: &SandboxSpec) -> Result<Vec<IpAddr>, RuntimeError> {
        assert!(netns.exists(), "no namespace at {}", netns.display());
        let host = self.next.fetch_add(1, Ordering::Relaxed);
        Ok(vec![Ipv4Addr::new(10, 0, 0, host + 2).into()])
    }

    async fn detach(&self, _: &SandboxId) -> Result<(), RuntimeError> {
        Ok(())
    }

    async fn retain(&self, _: &BTreeSet<SandboxId>) -> Result<(), RuntimeError> {
        Ok(())
    }
}

pub struct Subject {
    pub directory: TempDir,
    pub instance: String,
    pub runtime: Arc<Builtin>,
    network: Arc<Nowhere>,
}

impl Subject {
    pub async fn new() -> Self {
        let directory = tempfile::Builder::new().prefix("mainstay-test-").tempdir().expect("make a directory");
        let instance = format!("mainstay-t{}", &uuid::Uuid::new_v4().simple().to_string()[..8]);
        let images = ImageStore::open(&directory.path().join("images")).expect("open an image store");
        let archive = directory.path().join("image.tar");
        suite::image::write(&archive).expect("write an image");
        images.import(&archive, None).expect("import an image");
        let network = Arc::new(Nowhere::default());
        let runtime = open(directory.path(), &instance, network.clone()).await;
        Self { runtime: Arc::new(runtime), directory, instance, network }
    }

    pub async fn open(&self) -> Builtin {
        open(self.directory.path(), &self.instance, self.network.clone()).await
    }
}

async fn open(directory: &Path, instance: &str, network: Arc<Nowhere>) -> Builtin {
    let settings = BuiltinSettings {
        directory: directory.join("runtime"),
        run_dir: Path::new("/run").join(instance),
        cgroup_parent: instance.to_owned(),
        shim: vec![env!("CARGO_BIN_EXE_mainstay-shim").into()],
        network,
        images: Arc::new(ImageStore::open(&directory.join("images")).expect("open an image store")),
    };
    Builtin::open(settings).await.expect("open the runtime")
}

#[async_trait]
impl suite::Subject for Subject {
    fn runtime(&self) -> Arc<dyn Runtime> {
        self.runtime.clone()
    }

    async fn reopen(&self) -> Arc<dyn Runtime> {
        Arc::new(self.open().await)
    }

    fn image(&self) -> String {
        suite::image::PLAIN.to_owned()
    }

    fn scratch(&self) -> PathBuf {
        self.directory.path().join("scratch")
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        let runtime = self.runtime.clone();
        let clear = async move {
            for sandbox in runtime.observe(None).await?.sandboxes {
                runtime.remove_sandbox(&sandbox.id).await?;
            }
            runtime.remove_leftovers().await
        };
        let handle = tokio::runtime::Handle::current();
        let cleared = tokio::task::block_in_place(|| handle.block_on(clear));
        if !std::thread::panicking() {
            cleared.expect("leave nothing behind");
        }
    }
}
