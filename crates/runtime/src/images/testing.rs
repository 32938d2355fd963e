//! Archives and stores made by hand.

use std::{io::Write, path::Path};

use tar::{EntryType, Header};

use super::{layers, store::ImageStore};

/// An archive written byte for byte, so that it can hold what no honest program writes.
#[derive(Default)]
pub struct Tar {
    bytes: Vec<u8>,
}

impl Tar {
    pub fn entry(mut self, kind: EntryType, path: &str, mode: u32, link: &str, content: &[u8]) -> Self {
        self.write(kind, path, mode, (0, 0), link, content);
        self
    }

    fn write(&mut self, kind: EntryType, path: &str, mode: u32, owner: (u64, u64), link: &str, content: &[u8]) {
        let mut header = Header::new_gnu();
        header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
        header.as_old_mut().linkname[..link.len()].copy_from_slice(link.as_bytes());
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_uid(owner.0);
        header.set_gid(owner.1);
        header.set_mtime(1_700_000_000);
        header.set_size(content.len() as u64);
        if matches!(kind, EntryType::Char | EntryType::Block) {
            header.set_device_major(1).unwrap();
            header.set_device_minor(3).unwrap();
        }
        header.set_cksum();
        self.bytes.extend_from_slice(header.as_bytes());
        self.bytes.extend_from_slice(content);
        self.bytes.resize(self.bytes.len().next_multiple_of(512), 0);
    }

    pub fn file(self, path: &str, content: &str) -> Self {
        self.entry(EntryType::Regular, path, 0o644, "", content.as_bytes())
    }

    pub fn owned(mut self, path: &str, mode: u32, owner: (u64, u64)) -> Self {
        self.write(EntryType::Regular, path, mode, owner, "", b"x");
        self
    }

    pub fn dir(self, path: &str, mode: u32) -> Self {
        self.entry(EntryType::Directory, path, mode, "", b"")
    }

    pub fn symlink(self, path: &str, target: &str) -> Self {
        self.entry(EntryType::Symlink, path, 0o777, target, b"")
    }

    pub fn link(self, path: &str, target: &str) -> Self {
        self.entry(EntryType::Link, path, 0o644, target, b"")
    }

    /// Extended attributes of the entry that follows.
    pub fn pax(self, pairs: &[(&str, &str)]) -> Self {
        let mut records = String::new();
        for (key, value) in pairs {
            let rest = format!(" {key}={value}\n");
            let mut length = rest.len() + 1;
            while format!("{length}{rest}").len() != length {
                length += 1;
            }
            records.push_str(&format!("{length}{rest}"));
        }
        self.entry(EntryType::XHeader, "pax", 0o644, "", records.as_bytes())
    }

    pub fn end(mut self) -> Vec<u8> {
        self.bytes.resize(self.bytes.len() + 1024, 0);
        self.bytes
    }
}

pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

pub fn zstd(bytes: &[u8]) -> Vec<u8> {
    zstd::stream::encode_all(bytes, 1).unwrap()
}

/// A configuration for these plain layers.
pub fn config(layers: &[Vec<u8>], command: &str) -> Vec<u8> {
    let ids: Vec<String> = layers.iter().map(|layer| layers::digest(layer)).collect();
    serde_json::json!({
        "os": "linux",
        "config": { "Cmd": [command], "Env": ["A=b"], "User": "7:8", "WorkingDir": "/w", "StopSignal": "SIGQUIT" },
        "rootfs": { "type": "layers", "diff_ids": ids },
    })
    .to_string()
    .into_bytes()
}

/// A store whose root filesystems are unmounted when the test ends, however it ends.
pub struct TestStore {
    pub store: ImageStore,
    pub dir: tempfile::TempDir,
}

impl TestStore {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        Self { store: ImageStore::open(&dir.path().join("runtime/images")).unwrap(), dir }
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// An image of these layers, named.
    pub fn add(&self, name: &str, layers: &[Vec<u8>]) -> String {
        let archive = docker_archive(&[(name, layers)]);
        let file = self.dir.path().join("archive.tar");
        std::fs::write(&file, archive).unwrap();
        let imported = self.store.import(&file, None).unwrap();
        imported[0].id.clone()
    }
}

impl Drop for TestStore {
    fn drop(&mut self) {
        for container in self.store.prepared().unwrap_or_default() {
            let _ = self.store.release_rootfs(&container);
        }
    }
}

/// As `docker save` writes it: images with name and plain layers.
pub fn docker_archive(images: &[(&str, &[Vec<u8>])]) -> Vec<u8> {
    let mut tar = Tar::default();
    let mut manifest = Vec::new();
    for (number, (name, layers)) in images.iter().enumerate() {
        let json = config(layers, name);
        let mut paths = Vec::new();
        for (layer, content) in layers.iter().enumerate() {
            let path = format!("{number}-{layer}/layer.tar");
            tar = tar.entry(EntryType::Regular, &path, 0o644, "", content);
            paths.push(path);
        }
        let path = format!("{number}.json");
        tar = tar.entry(EntryType::Regular, &path, 0o644, "", &json);
        manifest.push(serde_json::json!({ "Config": path, "RepoTags": [name], "Layers": paths }));
    }
    tar.file("manifest.json", &serde_json::Value::from(manifest).to_string()).end()
}
