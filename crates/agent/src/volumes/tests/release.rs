use std::fs;

use mainstay_files::{RemoveError, remove_tree};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use serde_json::json;

use super::*;
use crate::volumes::subpath::SubPath;

#[tokio::test]
async fn releasing_leaves_nothing_and_may_be_repeated() {
    let bench = Bench::new();
    bench.api.set_object(SECRETS, "key", json!({"data": {}}));
    let host = bench.directory.path().join("host");
    fs::create_dir(&host).unwrap();
    fs::write(host.join("kept"), "").unwrap();
    let pod = pod(json!([
        {"name": "s", "secret": {"secretName": "key"}},
        {"name": "m", "emptyDir": {"medium": "Memory"}},
        {"name": "h", "hostPath": {"path": host}},
    ]));
    bench.volumes.prepare(&pod).await.unwrap();
    let place = SubPath { volume: host.clone(), within: "part".into(), read_only: false };
    bench.volumes.sub_path(&uid(), "main", 0, place).await.unwrap();
    assert_eq!(bench.volumes.pods_on_disk(), [uid()].into());
    bench.restarted().release(&uid()).await.unwrap();
    assert!(bench.volumes.pods_on_disk().is_empty());
    assert!(host.join("kept").exists() && host.join("part").exists());
    bench.volumes.release(&uid()).await.unwrap();
}

#[tokio::test]
async fn a_mount_that_stays_keeps_everything_below_it() {
    let bench = Bench::new();
    let pod = pod(json!([{"name": "m", "emptyDir": {"medium": "Memory"}}, {"name": "d", "emptyDir": {}}]));
    bench.volumes.prepare(&pod).await.unwrap();
    let file = bench.volume("m").join("f");
    fs::write(&file, "precious").unwrap();
    let open = fs::File::open(&file).unwrap();
    let error = bench.volumes.release(&uid()).await.unwrap_err();
    assert!(error.volume == "m" && error.why.contains("still mounted"), "{error}");
    assert_eq!(fs::read_to_string(&file).unwrap(), "precious");
    assert!(bench.volume("d").exists());
    drop(open);
    bench.volumes.release(&uid()).await.unwrap();
    assert!(bench.volumes.pods_on_disk().is_empty());
}

#[test]
fn removing_stops_at_mounts_of_the_same_filesystem_too() {
    let directory = tempfile::tempdir().unwrap();
    let (tree, host) = (directory.path().join("tree"), directory.path().join("host"));
    fs::create_dir_all(tree.join("a/b")).unwrap();
    fs::create_dir(&host).unwrap();
    fs::write(host.join("kept"), "").unwrap();
    mount(Some(&host), &tree.join("a/b"), None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
    let error = remove_tree(&tree).unwrap_err();
    let untouched = host.join("kept").exists();
    umount2(&tree.join("a/b"), MntFlags::empty()).unwrap();
    assert!(matches!(error, RemoveError::Mounted(path) if path == tree.join("a/b")));
    assert!(untouched);
    remove_tree(&tree).unwrap();
    assert!(!tree.exists());
    remove_tree(&tree).unwrap();
}

#[test]
fn removing_does_not_follow_links_and_takes_any_depth_and_width() {
    let directory = tempfile::tempdir().unwrap();
    let (tree, host) = (directory.path().join("tree"), directory.path().join("host"));
    fs::create_dir(&host).unwrap();
    fs::write(host.join("kept"), "").unwrap();
    fs::create_dir_all(tree.join("wide")).unwrap();
    std::os::unix::fs::symlink(&host, tree.join("link")).unwrap();
    for i in 0..2500 {
        fs::write(tree.join(format!("wide/{i}")), "").unwrap();
    }
    let mut deep = tree.clone();
    for _ in 0..300 {
        deep.push("d");
    }
    fs::create_dir_all(&deep).unwrap();
    fs::write(deep.join("f"), "").unwrap();
    remove_tree(&tree).unwrap();
    assert!(!tree.exists() && host.join("kept").exists());
}
