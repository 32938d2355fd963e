use std::fs;

use super::*;
use crate::images::{
    Images,
    testing::{Tar, TestStore, config, docker_archive, gzip, zstd},
};

/// An OCI layout in a directory.
struct Oci {
    dir: tempfile::TempDir,
    entries: Vec<serde_json::Value>,
}

impl Oci {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("blobs/sha256")).unwrap();
        fs::write(dir.path().join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
        Self { dir, entries: Vec::new() }
    }

    fn blob(&self, bytes: &[u8]) -> serde_json::Value {
        let digest = layers::digest(bytes);
        fs::write(self.dir.path().join("blobs/sha256").join(&digest[7..]), bytes).unwrap();
        serde_json::json!({ "digest": digest, "size": bytes.len() })
    }

    fn manifest(&self, layers: &[Vec<u8>]) -> serde_json::Value {
        let blobs: Vec<_> = layers.iter().map(|layer| self.blob(&gzip(layer))).collect();
        let config = self.blob(&config(layers, "oci"));
        let manifest = serde_json::json!({ "schemaVersion": 2, "config": config, "layers": blobs });
        self.blob(manifest.to_string().as_bytes())
    }

    fn entry(&mut self, mut descriptor: serde_json::Value, annotations: &[(&str, &str)]) {
        descriptor["annotations"] =
            annotations.iter().map(|(key, value)| (key.to_string(), serde_json::Value::from(*value))).collect();
        self.entries.push(descriptor);
    }

    fn write(&self) -> &Path {
        let index = serde_json::json!({ "schemaVersion": 2, "manifests": self.entries });
        fs::write(self.dir.path().join("index.json"), index.to_string()).unwrap();
        self.dir.path()
    }

    fn archive(&self) -> Vec<u8> {
        self.write();
        let mut builder = tar::Builder::new(Vec::new());
        builder.append_dir_all(".", self.dir.path()).unwrap();
        builder.into_inner().unwrap()
    }
}

fn layer(name: &str) -> Vec<u8> {
    Tar::default().file(name, name).end()
}

fn saved(test: &TestStore, bytes: &[u8]) -> PathBuf {
    let path = test.path().join("import");
    fs::write(&path, bytes).unwrap();
    path
}

#[tokio::test]
async fn several_images_of_one_docker_archive_are_imported() {
    let test = TestStore::new();
    let archive =
        docker_archive(&[("a:1", &[layer("base"), layer("a")]), ("r.example/b", &[layer("base"), layer("b")])]);
    let imported = test.store.import(&saved(&test, &gzip(&archive)), None).unwrap();
    let tags: Vec<_> = imported.iter().flat_map(|image| image.tags.clone()).collect();
    assert_eq!(tags, ["docker.io/library/a:1", "r.example/b:latest"]);
    let path = test.store.prepare_rootfs(&imported[1].id, "c").unwrap().path;
    assert!(path.join("base").exists() && path.join("b").exists() && !path.join("a").exists());
    assert_eq!(fs::read_dir(test.store.inner.files.layers()).unwrap().count(), 3, "the base is shared");
    let error = test.store.import(&test.path().join("import"), Some("x")).unwrap_err();
    assert!(matches!(error, ImportError::SeveralImages(2)), "{error}");
}

#[tokio::test]
async fn an_oci_layout_is_imported_from_directory_and_archive() {
    let mut oci = Oci::new();
    let manifest = oci.manifest(&[layer("x"), layer("y")]);
    let digest = manifest["digest"].as_str().unwrap().to_owned();
    let inner = serde_json::json!({ "schemaVersion": 2, "manifests": [
        { "digest": layers::digest(b"nothing"), "platform": { "os": "unknown", "architecture": "unknown" } },
        { "digest": digest, "platform": { "os": "linux", "architecture": document::architecture() } },
    ]});
    let inner = oci.blob(inner.to_string().as_bytes());
    oci.entry(inner, &[("org.opencontainers.image.ref.name", "r.example/z:9")]);
    let archive = oci.archive();
    let renamed = TestStore::new().store.import(oci.write(), Some("mine")).unwrap();
    assert_eq!(renamed[0].tags, ["docker.io/library/mine:latest"]);
    for zipped in [None, Some(archive.clone()), Some(zstd(&archive))] {
        let test = TestStore::new();
        let imported = match zipped {
            None => test.store.import(oci.write(), None).unwrap(),
            Some(bytes) => test.store.import(&saved(&test, &bytes), None).unwrap(),
        };
        assert_eq!(imported.len(), 1);
        let image = test.store.find("r.example/z:9").await.unwrap().unwrap();
        assert_eq!(image.id, imported[0].id);
        let by_digest = test.store.find(&image.digests[0]).await.unwrap().unwrap();
        assert_eq!(by_digest, image);
        let path = test.store.prepare_rootfs(&image.id, "c").unwrap().path;
        assert_eq!(fs::read_to_string(path.join("y")).unwrap(), "y");
    }
}

#[tokio::test]
async fn a_bare_tag_needs_a_name_to_go_with() {
    let mut oci = Oci::new();
    let manifest = oci.manifest(&[layer("x")]);
    oci.entry(manifest, &[("org.opencontainers.image.ref.name", "v3")]);
    let test = TestStore::new();
    let imported = test.store.import(oci.write(), None).unwrap();
    assert!(imported[0].tags.is_empty());
    let imported = test.store.import(oci.write(), Some("web")).unwrap();
    assert_eq!(imported[0].tags, ["docker.io/library/web:v3"]);
    let imported = test.store.import(oci.write(), Some("web:own")).unwrap();
    assert_eq!(imported[0].tags, ["docker.io/library/web:own"]);
}

#[tokio::test]
async fn a_damaged_layout_is_refused_and_leaves_nothing() {
    for victim in ["layer", "config", "manifest"] {
        let mut oci = Oci::new();
        let layers = [layer("x")];
        let manifest = oci.manifest(&layers);
        let digest = match victim {
            "layer" => layers::digest(&gzip(&layers[0])),
            "config" => layers::digest(&config(&layers, "oci")),
            _ => manifest["digest"].as_str().unwrap().to_owned(),
        };
        oci.entry(manifest, &[]);
        let path = oci.dir.path().join("blobs/sha256").join(&digest[7..]);
        let mut bytes = fs::read(&path).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        fs::write(&path, bytes).unwrap();
        let test = TestStore::new();
        test.store.import(oci.write(), Some("x")).expect_err(victim);
        assert_eq!(test.store.list().await.unwrap().len(), 1, "{victim}");
        assert_eq!(fs::read_dir(test.store.inner.files.layers()).unwrap().count(), 0, "{victim}");
    }
}

#[tokio::test]
async fn a_plain_root_filesystem_needs_a_name() {
    let test = TestStore::new();
    let file = saved(&test, &gzip(&Tar::default().dir("bin", 0o755).file("bin/sh", "x").end()));
    assert!(matches!(test.store.import(&file, None), Err(ImportError::NotAnImage(_))));
    let imported = test.store.import(&file, Some("mine:1")).unwrap();
    assert_eq!(imported[0].tags, ["docker.io/library/mine:1"]);
    assert_eq!(test.store.import(&file, Some("mine:1")).unwrap(), imported, "again is the same");
    let path = test.store.prepare_rootfs(&imported[0].id, "c").unwrap().path;
    assert!(path.join("bin/sh").exists());
}

#[tokio::test]
async fn an_archive_cannot_point_at_files_of_the_machine() {
    let test = TestStore::new();
    let manifest = r#"[{"Config":"config.json","RepoTags":["x"],"Layers":[]}]"#;
    let link = Tar::default().symlink("config.json", "/etc/passwd").file("manifest.json", manifest).end();
    let error = test.store.import(&saved(&test, &link), None).unwrap_err();
    assert!(matches!(error, ImportError::Read { .. }), "{error}");
    let climbing = manifest.replace("config.json", "../../../../../../etc/passwd");
    let error =
        test.store.import(&saved(&test, &Tar::default().file("manifest.json", &climbing).end()), None).unwrap_err();
    assert!(matches!(error, ImportError::Read { .. }), "{error}");
}

#[tokio::test]
async fn what_is_no_archive_is_refused() {
    let test = TestStore::new();
    for bytes in [&b"hello"[..], &gzip(b"hello")[..10]] {
        let refused = test.store.import(&saved(&test, bytes), Some("x"));
        assert!(matches!(refused, Err(ImportError::NotAnArchive(_))), "{refused:?}");
    }
    assert!(test.store.import(&saved(&test, b""), None).is_err());
    let empty = Oci::new();
    assert!(matches!(test.store.import(empty.write(), None), Err(ImportError::Empty(_))));
    assert!(test.store.import(Path::new("/nowhere"), None).is_err());
}
