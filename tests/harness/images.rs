//! Images made by hand of a static busybox, in every form in which images travel.

use std::{fs, path::Path};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::tool;

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

/// One layer with a configuration.
pub struct TestImage {
    pub layer: Vec<u8>,
    pub config: Vec<u8>,
    pub manifest: Vec<u8>,
}

impl TestImage {
    /// Busybox with a shell, users `root` and `worker` (1234:2345), `/srv/work`, and this text in `/etc/marker`.
    pub fn new(marker: &str, config: Value) -> Self {
        let layer = layer(marker);
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        let config = json!({
            "architecture": architecture,
            "os": "linux",
            "config": config,
            "rootfs": {"type": "layers", "diff_ids": [digest(&layer)]},
        });
        let config = config.to_string().into_bytes();
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": {
                "mediaType": "application/vnd.oci.image.config.v1+json",
                "digest": digest(&config),
                "size": config.len(),
            },
            "layers": [{
                "mediaType": "application/vnd.oci.image.layer.v1.tar",
                "digest": digest(&layer),
                "size": layer.len(),
            }],
        });
        Self { layer, config, manifest: manifest.to_string().into_bytes() }
    }

    pub fn id(&self) -> String {
        digest(&self.config)
    }

    /// As `docker save` writes it.
    pub fn write_docker(&self, to: &Path, name: &str) {
        let manifest = json!([{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]).to_string();
        write(to, &[("config.json", &self.config), ("layer.tar", &self.layer), ("manifest.json", manifest.as_bytes())]);
    }

    /// An archive of an OCI image layout.
    pub fn write_oci(&self, to: &Path, name: &str) {
        let index = json!({
            "schemaVersion": 2,
            "manifests": [{
                "mediaType": MANIFEST,
                "digest": digest(&self.manifest),
                "size": self.manifest.len(),
                "annotations": {"org.opencontainers.image.ref.name": name},
            }],
        });
        let blobs: Vec<(String, &[u8])> = [&self.config, &self.layer, &self.manifest]
            .map(|blob| (format!("blobs/sha256/{}", &digest(blob)[7..]), &blob[..]))
            .into();
        let (layout, index) = (json!({"imageLayoutVersion": "1.0.0"}).to_string(), index.to_string());
        let mut files: Vec<(&str, &[u8])> = vec![("oci-layout", layout.as_bytes()), ("index.json", index.as_bytes())];
        files.extend(blobs.iter().map(|(name, blob)| (name.as_str(), *blob)));
        write(to, &files);
    }

    /// Nothing but the files.
    pub fn write_rootfs(&self, to: &Path) {
        fs::write(to, &self.layer).expect("write an archive");
    }
}

/// `sha256:…`
pub fn digest(bytes: &[u8]) -> String {
    let hex: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}

fn write(to: &Path, files: &[(&str, &[u8])]) {
    let mut archive = tar::Builder::new(fs::File::create(to).expect("create an archive"));
    files.iter().for_each(|(name, content)| append(&mut archive, name, content, 0o644));
    archive.into_inner().expect("write an archive");
}

fn layer(marker: &str) -> Vec<u8> {
    let mut layer = tar::Builder::new(Vec::new());
    for (directory, mode) in [("bin/", 0o755), ("etc/", 0o755), ("srv/work/", 0o755), ("tmp/", 0o1777)] {
        let mut header = header(0, mode);
        header.set_entry_type(tar::EntryType::Directory);
        layer.append_data(&mut header, directory, std::io::empty()).expect("append a directory");
    }
    let busybox = fs::read(tool("busybox/bin/busybox")).expect("read busybox");
    append(&mut layer, "bin/busybox", &busybox, 0o755);
    for name in ["sh", "echo", "cat", "sleep", "id", "env", "pwd", "true", "test", "grep", "ls"] {
        let mut header = header(0, 0o777);
        header.set_entry_type(tar::EntryType::Symlink);
        layer.append_link(&mut header, format!("bin/{name}"), "busybox").expect("append a link");
    }
    append(&mut layer, "etc/passwd", b"root:x:0:0:root:/root:/bin/sh\nworker:x:1234:2345::/srv/work:/bin/sh\n", 0o644);
    append(&mut layer, "etc/group", b"root:x:0:\nworker:x:2345:\n", 0o644);
    append(&mut layer, "etc/marker", marker.as_bytes(), 0o644);
    layer.into_inner().expect("write a layer")
}

fn header(size: u64, mode: u32) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_size(size);
    header.set_mode(mode);
    header.set_mtime(1_704_067_200);
    header
}

fn append<W: std::io::Write>(archive: &mut tar::Builder<W>, name: &str, content: &[u8], mode: u32) {
    archive.append_data(&mut header(content.len() as u64, mode), name, content).expect("append a file");
}
