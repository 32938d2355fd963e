use std::os::unix::fs::MetadataExt;

use super::*;
use crate::images::testing::{Tar, TestStore};

fn lines(store: &TestStore, image: &str, container: &str) -> PathBuf {
    store.store.prepare_rootfs(image, container).unwrap().path
}

#[tokio::test]
async fn a_root_filesystem_shows_the_layers_one_upon_the_other() {
    let test = TestStore::new();
    let id = test.add(
        "x",
        &[
            Tar::default()
                .dir("./", 0o751)
                .dir("d", 0o755)
                .file("d/a", "1")
                .file("d/b", "1")
                .dir("o", 0o700)
                .file("o/x", "")
                .end(),
            Tar::default().file("d/a", "2").file("d/.wh.b", "").file("o/.wh..wh..opq", "").file("o/y", "").end(),
        ],
    );
    let path = lines(&test, &id, "c1");
    assert_eq!(fs::read_to_string(path.join("d/a")).unwrap(), "2");
    assert!(!path.join("d/b").exists() && !path.join("o/x").exists() && path.join("o/y").exists());
    assert_eq!(fs::metadata(path.join("o")).unwrap().mode() & 0o777, 0o700);

    let before = test.store.rootfs_bytes("c1").unwrap();
    fs::write(path.join("d/own"), vec![1; 100_000]).unwrap();
    assert!(test.store.rootfs_bytes("c1").unwrap() >= before + 100_000);
    let other = lines(&test, &id, "c2");
    assert!(!other.join("d/own").exists(), "containers share what they write");
    assert_eq!(lines(&test, &id, "c1"), path, "preparing again is the same");
    assert!(path.join("d/own").exists());

    test.store.release_rootfs("c1").unwrap();
    test.store.release_rootfs("c1").unwrap();
    test.store.release_rootfs("never was").unwrap_err();
    test.store.release_rootfs("never-was").unwrap();
    assert_eq!(test.store.prepared().unwrap(), ["c2"]);
    assert!(mainstay_files::mountinfo::at_or_below(&path).unwrap().is_empty());
    assert!(lines(&test, &id, "c1").join("d/a").exists());
    assert!(!path.join("d/own").exists(), "a new container is a fresh one");
}

#[tokio::test]
async fn the_image_host_is_the_machine_without_the_data_directory() {
    let test = TestStore::new();
    let listed = test.store.list().await.unwrap();
    assert_eq!(listed[0].id, HOST_IMAGE);
    assert_eq!(test.store.find("host").await.unwrap().unwrap().id, HOST_IMAGE);
    assert!(test.store.remove("host").await.is_err());
    assert_eq!(test.store.config("host").unwrap(), ImageConfig::default());
    fs::write(test.path().join("secret"), "key").unwrap();
    let path = lines(&test, "host", "c1");
    for program in ["/bin/sh", "/etc/passwd"] {
        let real = fs::read(program).unwrap();
        assert_eq!(fs::read(path.join(&program[1..])).unwrap(), real);
    }
    let inside = path.join(test.path().strip_prefix("/").unwrap());
    assert!(!inside.join("secret").exists(), "the data directory shows");
    assert_eq!(fs::read_dir(path.join("tmp")).unwrap().count(), 0, "others' files show");
    assert_eq!(fs::metadata(path.join("tmp")).unwrap().mode(), fs::metadata("/tmp").unwrap().mode());
    fs::write(path.join("mainstay-test-of-the-host-image"), "x").unwrap();
    assert!(!Path::new("/mainstay-test-of-the-host-image").exists());
    test.store.release_rootfs("c1").unwrap();
}

#[tokio::test]
async fn the_data_directory_is_hidden_wherever_it_lies() {
    // The image shows nothing of /tmp, where a clone may lie.
    let here = tempfile::tempdir_in("/var/lib").unwrap();
    let store = ImageStore::open(&here.path().join("runtime/images")).unwrap();
    fs::write(here.path().join("secret"), "key").unwrap();
    let path = store.prepare_rootfs("host", "c1").unwrap().path;
    let lower = fs::metadata(path.with_file_name("lower")).unwrap().mode();
    assert_eq!(lower & 0o7777, 0o700, "ours, so that no start finds it open");
    let inside = path.join(here.path().strip_prefix("/").unwrap());
    let (there, beside) = (inside.exists(), inside.parent().unwrap().join("dpkg").exists());
    let shows = inside.join("secret").exists();
    store.release_rootfs("c1").unwrap();
    assert!(there && beside && !shows, "{there} {beside} {shows}");
}

#[tokio::test]
async fn images_with_very_many_layers_or_none_work() {
    let test = TestStore::new();
    let layers: Vec<_> = (0..127).map(|n| Tar::default().file(&format!("f{n}"), "x").end()).collect();
    let id = test.add("many", &layers);
    let path = lines(&test, &id, "c1");
    assert!((0..127).all(|n| path.join(format!("f{n}")).exists()));
    let id = test.add("none", &[]);
    assert_eq!(fs::read_dir(lines(&test, &id, "c2")).unwrap().count(), 0);
}

#[tokio::test]
async fn what_is_still_mounted_is_not_deleted() {
    let test = TestStore::new();
    let id = test.add("x", &[Tar::default().file("a", "x").end()]);
    lines(&test, &id, "c1");
    let precious = tempfile::tempdir().unwrap();
    fs::write(precious.path().join("data"), "x").unwrap();
    let upper = test.path().canonicalize().unwrap().join("runtime/images/rootfs/c1/upper/volume");
    fs::create_dir(&upper).unwrap();
    rustix::mount::mount_bind(precious.path(), &upper).unwrap();
    let refused = test.store.release_rootfs("c1");
    let retained = precious.path().join("data").exists();
    rustix::mount::unmount(&upper, rustix::mount::UnmountFlags::DETACH).unwrap();
    assert!(refused.unwrap_err().to_string().contains("still mounted") && retained);
    test.store.release_rootfs("c1").unwrap();
}

#[tokio::test]
async fn images_in_use_are_not_removed_and_shared_layers_stay() {
    let test = TestStore::new();
    let base = Tar::default().file("base", "x").end();
    let a = test.add("a", &[base.clone(), Tar::default().file("a", &"a".repeat(50_000)).end()]);
    let b = test.add("b", &[base, Tar::default().file("b", "b").end()]);
    let path = lines(&test, &b, "c1");
    assert!(test.store.remove(&b).await.unwrap_err().to_string().contains("in use by container c1"));
    let before = test.store.usage().await.unwrap();
    test.store.remove(&a).await.unwrap();
    test.store.remove(&a).await.unwrap();
    let after = test.store.usage().await.unwrap();
    assert!(after.bytes + 50_000 <= before.bytes && after.inodes < before.inodes, "{before:?} {after:?}");
    assert!(path.join("base").exists());
    assert_eq!(test.store.find("a").await.unwrap(), None);
    assert!(test.store.prepare_rootfs(&a, "c2").unwrap_err().to_string().contains("not present"));
    assert_eq!(fs::read_dir(test.store.inner.files.layers()).unwrap().count(), 2);
}

#[tokio::test]
async fn an_image_gets_another_name_and_takes_it_from_whoever_had_it() {
    let test = TestStore::new();
    let one = test.add("one", &[Tar::default().file("a", "x").end()]);
    let two = test.add("two", &[Tar::default().file("b", "y").end()]);
    assert_eq!(test.store.add_name("one", "web:v1").unwrap(), "docker.io/library/web:v1");
    assert_eq!(test.store.find("web:v1").await.unwrap().unwrap().id, one);
    assert_eq!(test.store.find("one").await.unwrap().unwrap().id, one, "it keeps the name it had");
    test.store.add_name("two", "web:v1").unwrap();
    assert_eq!(test.store.find("web:v1").await.unwrap().unwrap().id, two);
    assert_eq!(test.store.find("one").await.unwrap().unwrap().tags, ["docker.io/library/one:latest"]);
    for (from, name) in [("nobody", "web"), ("one", "UPPER"), ("one", "host")] {
        assert!(test.store.add_name(from, name).is_err(), "{from} {name}");
    }
}

#[tokio::test]
async fn a_name_goes_before_its_image_does() {
    let test = TestStore::new();
    let layers = [Tar::default().file("a", "x").end()];
    let id = test.add("one", &layers);
    let file = test.path().join("archive.tar");
    test.store.import(&file, Some("two:v2")).unwrap();
    assert_eq!(test.store.find("two:v2").await.unwrap().unwrap().id, id);
    test.store.remove_name("one").unwrap();
    assert_eq!(test.store.find("one").await.unwrap(), None);
    assert_eq!(test.store.find("two:v2").await.unwrap().unwrap().tags, ["docker.io/library/two:v2"]);
    assert!(test.store.remove_name("two:v2").unwrap() > 0);
    assert_eq!(test.store.list().await.unwrap().len(), 1);
}

#[tokio::test]
async fn collecting_takes_the_least_recently_used_and_never_what_is_used() {
    let test = TestStore::new();
    let options = Options { young: Duration::ZERO, ..Options::default() };
    let store = ImageStore::open_with(&test.path().join("runtime/images"), options).unwrap();
    let ids: Vec<String> = ["a", "b", "c", "d"]
        .map(|name| test.add(name, &[Tar::default().file(name, &name.repeat(100_000)).end()]))
        .to_vec();
    let hour = |hours: u64| SystemTime::now() - Duration::from_secs(3600 * hours);
    for (id, hours) in ids.iter().zip([2, 4, 3, 5]) {
        let used = fs::File::options().write(true).open(store.inner.files.used(id).unwrap()).unwrap();
        used.set_modified(hour(hours)).unwrap();
    }
    let in_use = BTreeSet::from([ids[3].clone()]);
    assert!(store.collect(&in_use, 50_000).unwrap() >= 100_000);
    assert_eq!(store.find("b").await.unwrap(), None);
    assert!(store.find("a").await.unwrap().is_some() && store.find("c").await.unwrap().is_some());
    lines(&test, &ids[0], "c1");
    store.collect(&in_use, u64::MAX).unwrap();
    let left: BTreeSet<String> = store.list().await.unwrap().into_iter().map(|image| image.id).collect();
    assert_eq!(left, BTreeSet::from([HOST_IMAGE.to_owned(), ids[0].clone(), ids[3].clone()]));
}

#[tokio::test]
async fn an_image_added_by_another_process_is_noticed_and_found() {
    let test = TestStore::new();
    let other = ImageStore::open(&test.path().join("runtime/images")).unwrap();
    let mut changes = other.changes().unwrap();
    assert_eq!(other.find("x").await.unwrap(), None);
    test.add("x", &[Tar::default().file("a", "x").end()]);
    tokio::time::timeout(Duration::from_secs(30), changes.changed()).await.unwrap().unwrap();
    assert!(other.find("x").await.unwrap().is_some());
}

#[tokio::test]
async fn an_image_keeps_how_it_wants_to_be_run() {
    let test = TestStore::new();
    let id = test.add("x", &[Tar::default().file("a", "x").end()]);
    let config = test.store.config(&id).unwrap();
    assert_eq!((config.cmd, config.env), (vec!["x".to_owned()], vec!["A=b".to_owned()]));
    assert_eq!((config.working_dir.as_str(), config.user.as_str()), ("/w", "7:8"));
    assert_eq!(config.stop_signal.as_deref(), Some("SIGQUIT"));
    assert_eq!(test.store.find("x").await.unwrap().unwrap().user, "7:8");
    assert!(matches!(test.store.config("sha256:none"), Err(RuntimeError::ImageMissing { .. })));
}
