//! Checkpoints of pods: a file for each pod bound to this machine, for a start while no server can be reached.
//!
//! A file holds the old content or the new one, never a part, also after a power cut: content is synced before it takes its
//! name. A thread of its own writes, so that nobody waits for the disk; of several changes to a pod that queue up, the last
//! is written. What cannot be written is logged and costs nothing but the memory of a start without a server.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
    fs, io,
    path::{Path, PathBuf},
    sync::mpsc,
    thread::{self, JoinHandle},
};

use k8s_openapi::api::core::v1::Pod;
use mainstay_files::{Durability, Format, PRIVATE_FILE, create_private_dir, write_atomic};
use mainstay_runtime::PodUid;

/// A checkpoint is the pod in the API's own form, with this number beside it.
pub const FORMAT: Format = Format::new("the checkpoint of a pod", 1);

enum Order {
    Write {
        file: OsString,
        content: Vec<u8>,
    },
    Remove {
        file: OsString,
    },
    /// Removes all files but these.
    Retain {
        files: BTreeSet<OsString>,
    },
}

pub struct PodCheckpoints {
    directory: PathBuf,
    /// None only while this is dropped.
    orders: Option<mpsc::Sender<Order>>,
    writer: Option<JoinHandle<()>>,
}

impl PodCheckpoints {
    pub fn open(directory: PathBuf) -> io::Result<Self> {
        create_private_dir(&directory)?;
        let (orders, received) = mpsc::channel();
        let of_thread = directory.clone();
        let writer =
            thread::Builder::new().name("checkpoints".into()).spawn(move || write_all(&of_thread, &received))?;
        Ok(Self { directory, orders: Some(orders), writer: Some(writer) })
    }

    /// The pods of an earlier process. A file that cannot be read stays until the API says that there is no such pod.
    pub fn load(&self) -> Vec<Pod> {
        let Ok(files) = fs::read_dir(&self.directory) else { return vec![] };
        let mut pods = Vec::new();
        for path in files.flatten().map(|file| file.path()).filter(|path| path.extension().is_some_and(|e| e == "json"))
        {
            match fs::read(&path).and_then(|content| Ok(FORMAT.decode::<Pod>(&content)?)) {
                Ok(pod) => pods.push(pod),
                Err(error) => tracing::warn!(file = %path.display(), %error, "the checkpoint of a pod cannot be read"),
            }
        }
        pods
    }

    /// With its status: it tells how often its containers have been made, and since when it runs.
    pub fn write(&self, pod: &Pod) {
        let Some(uid) = pod.metadata.uid.clone().map(PodUid) else { return };
        let mut pod = pod.clone();
        pod.metadata.managed_fields = None;
        pod.metadata.resource_version = None;
        if let Ok(content) = FORMAT.encode(&pod) {
            self.order(Order::Write { file: file_name(&uid), content });
        }
    }

    pub fn remove(&self, uid: &PodUid) {
        self.order(Order::Remove { file: file_name(uid) });
    }

    /// These are all the pods there are.
    pub fn replace(&self, pods: &[Pod]) {
        let files = pods.iter().filter_map(|pod| Some(file_name(&PodUid(pod.metadata.uid.clone()?)))).collect();
        self.order(Order::Retain { files });
        pods.iter().for_each(|pod| self.write(pod));
    }

    fn order(&self, order: Order) {
        if let Some(orders) = &self.orders {
            let _ = orders.send(order);
        }
    }
}

impl Drop for PodCheckpoints {
    /// Everything ordered is on disk afterwards.
    fn drop(&mut self) {
        self.orders = None;
        if let Some(writer) = self.writer.take() {
            let _ = writer.join();
        }
    }
}

fn file_name(uid: &PodUid) -> OsString {
    format!("{uid}.json").into()
}

fn write_all(directory: &Path, orders: &mpsc::Receiver<Order>) {
    while let Ok(first) = orders.recv() {
        // By file, nothing if it is to go: what queued up behind the disk counts once.
        let mut latest: BTreeMap<OsString, Option<Vec<u8>>> = BTreeMap::new();
        for order in std::iter::once(first).chain(orders.try_iter()) {
            match order {
                Order::Write { file, content } => drop(latest.insert(file, Some(content))),
                Order::Remove { file } => drop(latest.insert(file, None)),
                Order::Retain { files } => {
                    let found = fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.file_name());
                    let stale: Vec<OsString> = found.chain(latest.keys().cloned()).collect();
                    latest.extend(stale.into_iter().filter(|file| !files.contains(file)).map(|file| (file, None)));
                }
            }
        }
        for (file, content) in latest {
            let path = directory.join(file);
            let done = match content {
                Some(content) if fs::read(&path).is_ok_and(|found| found == content) => Ok(()),
                Some(content) => write_atomic(&path, &content, PRIVATE_FILE, Durability::Durable),
                None => fs::remove_file(&path),
            };
            match done {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    tracing::warn!(file = %path.display(), %error, "cannot change the checkpoint of a pod");
                }
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(uid: &str, node: &str) -> Pod {
        let mut pod = Pod::default();
        pod.metadata.uid = Some(uid.into());
        pod.spec.get_or_insert_default().node_name = Some(node.into());
        pod
    }

    fn loaded(directory: &Path) -> Vec<(String, String)> {
        let pods = PodCheckpoints::open(directory.to_owned()).unwrap().load();
        let mut found: Vec<_> =
            pods.into_iter().map(|pod| (pod.metadata.uid.unwrap(), pod.spec.unwrap().node_name.unwrap())).collect();
        found.sort();
        found
    }

    fn expected(pods: &[(&str, &str)]) -> Vec<(String, String)> {
        pods.iter().map(|(uid, node)| ((*uid).to_owned(), (*node).to_owned())).collect()
    }

    #[test]
    fn pods_are_found_again_until_the_api_no_longer_has_them() {
        let directory = tempfile::tempdir().unwrap();
        let checkpoints = PodCheckpoints::open(directory.path().to_owned()).unwrap();
        checkpoints.write(&pod("a", "one"));
        checkpoints.write(&pod("b", "one"));
        checkpoints.write(&pod("b", "two"));
        drop(checkpoints);
        assert_eq!(loaded(directory.path()), expected(&[("a", "one"), ("b", "two")]));
        let checkpoints = PodCheckpoints::open(directory.path().to_owned()).unwrap();
        checkpoints.write(&pod("d", "one"));
        checkpoints.replace(&[pod("b", "two"), pod("c", "one")]);
        checkpoints.remove(&PodUid("b".into()));
        drop(checkpoints);
        assert_eq!(loaded(directory.path()), expected(&[("c", "one")]));
    }

    #[test]
    fn a_checkpoint_of_format_1_is_read() {
        let directory = tempfile::tempdir().unwrap();
        let checkpoints = PodCheckpoints::open(directory.path().to_owned()).unwrap();
        checkpoints.write(&pod("a", "one"));
        drop(checkpoints);
        let written = fs::read(directory.path().join("a.json")).unwrap();
        let fixture =
            mainstay_testing::format_fixture(env!("CARGO_MANIFEST_DIR"), "format-1/pod-checkpoint.json", &written);
        fs::write(directory.path().join("a.json"), fixture).unwrap();
        assert_eq!(loaded(directory.path()), expected(&[("a", "one")]));
    }

    #[test]
    fn a_damaged_file_is_no_pod_and_stays_until_the_api_has_spoken() {
        let directory = tempfile::tempdir().unwrap();
        let damaged = directory.path().join("d.json");
        fs::write(&damaged, "{").unwrap();
        fs::write(directory.path().join("e.json.new"), "{}").unwrap();
        let checkpoints = PodCheckpoints::open(directory.path().to_owned()).unwrap();
        assert!(checkpoints.load().is_empty() && damaged.exists());
        checkpoints.replace(&[]);
        drop(checkpoints);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }
}
