use std::{fs, os::unix::fs::MetadataExt, path::Path};

use serde_json::json;

use super::*;
use crate::{
    testing::until,
    volumes::{PrepareError, local_path, subpath::SubPath},
};

#[tokio::test]
async fn an_empty_dir_is_open_to_all_and_keeps_what_containers_did_to_it() {
    let bench = Bench::new();
    let pod = pod(json!([{"name": "e", "emptyDir": {}}]));
    bench.volumes.prepare(&pod).await.unwrap();
    assert_eq!(mode(bench.volume("e")), 0o777);
    fs::write(bench.volume("e").join("f"), "x").unwrap();
    fs::set_permissions(bench.volume("e"), std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    bench.restarted().prepare(&pod).await.unwrap();
    assert_eq!((mode(bench.volume("e")), bench.read("e", "f")), (0o700, "x".to_owned()));
}

#[tokio::test]
async fn memory_is_as_large_as_the_smallest_limit() {
    let bench = Bench::new();
    let pod = with_spec(json!({
        "containers": [{"name": "main", "resources": {"limits": {"memory": "2Mi"}}}],
        "securityContext": {"fsGroup": 77},
        "volumes": [
            {"name": "a", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
            {"name": "b", "emptyDir": {"medium": "Memory", "sizeLimit": "8Mi"}},
        ],
    }));
    bench.volumes.prepare(&pod).await.unwrap();
    let size = |name| {
        let disk = nix::sys::statvfs::statvfs(&bench.volume(name)).unwrap();
        disk.blocks() * disk.fragment_size()
    };
    assert_eq!((size("a"), size("b")), (1 << 20, 2 << 20));
    assert_eq!((mode(bench.volume("a")), fs::metadata(bench.volume("a")).unwrap().gid()), (0o2777, 77));
    fs::write(bench.volume("a").join("f"), "x").unwrap();
    bench.restarted().prepare(&pod).await.unwrap();
    assert_eq!(bench.read("a", "f"), "x");
    assert!(fs::write(bench.volume("a").join("big"), vec![0; 2 << 20]).is_err());
}

#[tokio::test]
async fn host_paths_are_checked_and_made_by_their_type() {
    let bench = Bench::new();
    let home = bench.directory.path().join("host");
    fs::create_dir(&home).unwrap();
    fs::write(home.join("file"), "").unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(home.join("socket")).unwrap();
    let at = |name: &str| home.join(name).display().to_string();
    let cases = [
        ("", at("made/new"), None),
        ("Directory", at(""), None),
        ("Directory", at("file"), Some("is not a directory")),
        ("Directory", at("nothing"), Some("is not a directory")),
        ("DirectoryOrCreate", at("d"), None),
        ("DirectoryOrCreate", at("file"), Some("is not a directory")),
        ("File", at("file"), None),
        ("File", at("nothing"), Some("is not a file")),
        ("FileOrCreate", at("f"), None),
        ("FileOrCreate", at("d"), Some("is not a file")),
        ("Socket", at("socket"), None),
        ("Socket", at("file"), Some("is not a socket file")),
        ("CharDevice", "/dev/null".to_owned(), None),
        ("CharDevice", at("file"), Some("is not a character device")),
        ("BlockDevice", at("file"), Some("is not a block device")),
    ];
    for (kind, path, expected) in cases {
        let pod = pod(json!([{"name": "h", "hostPath": {"path": path, "type": kind}}]));
        let result = bench.restarted().prepare(&pod).await;
        match expected {
            None => {
                result.unwrap_or_else(|error| panic!("{kind} {path}: {error}"));
                assert_eq!(bench.volumes.source(&pod, "h").unwrap().path, Path::new(&path));
            }
            Some(expected) => {
                let why = format!("hostPath type check failed: {path} {expected}");
                assert_eq!(result.unwrap_err().why(), why, "{kind} {path}");
            }
        }
    }
    assert_eq!((mode(home.join("d")), mode(home.join("f"))), (0o755, 0o644));
}

#[tokio::test]
async fn a_sub_path_is_bound_and_never_leads_out_of_its_volume() {
    let bench = Bench::new();
    let pod = pod(json!([{"name": "e", "emptyDir": {}}]));
    bench.volumes.prepare(&pod).await.unwrap();
    let volume = bench.volume("e");
    let outside = bench.directory.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("secret"), "").unwrap();
    std::os::unix::fs::symlink(&outside, volume.join("absolute")).unwrap();
    std::os::unix::fs::symlink("../../../../outside", volume.join("relative")).unwrap();
    std::os::unix::fs::symlink("real", volume.join("inside")).unwrap();
    fs::create_dir(volume.join("real")).unwrap();
    fs::write(volume.join("real/f"), "yes").unwrap();

    let bind = |index, within: &str, read_only| {
        let place = SubPath { volume: volume.clone(), within: within.into(), read_only };
        let uid = uid();
        let volumes = bench.volumes.clone();
        async move { volumes.sub_path(&uid, "main", index, place).await }
    };
    assert_eq!(fs::read_to_string(bind(0, "inside", false).await.unwrap().join("f")).unwrap(), "yes");
    assert_eq!(fs::read_to_string(bind(1, "real/f", false).await.unwrap()).unwrap(), "yes");
    for escape in ["absolute", "relative", "absolute/secret", "relative/new", "../x", "/etc"] {
        let why = bind(2, escape, false).await.unwrap_err().why;
        assert!(why.contains("leads out of the volume"), "{escape}: {why}");
    }
    assert!(!outside.join("new").exists());

    // What is missing is made like the volume itself, unless nothing may be.
    let made = bind(3, "new/dir", false).await.unwrap();
    assert_eq!((mode(volume.join("new")), mode(volume.join("new/dir"))), (0o777, 0o777));
    fs::write(made.join("x"), "through").unwrap();
    assert_eq!(fs::read_to_string(volume.join("new/dir/x")).unwrap(), "through");
    assert!(bind(4, "none", true).await.unwrap_err().why.contains("read-only"));

    // A container's second attempt finds the same place, or the new one if it has changed.
    assert_eq!(bind(3, "new/dir", false).await.unwrap(), made);
    fs::rename(volume.join("new/dir"), volume.join("new/old")).unwrap();
    fs::create_dir(volume.join("new/dir")).unwrap();
    assert!(!bind(3, "new/dir", false).await.unwrap().join("x").exists());
    bench.volumes.release(&uid()).await.unwrap();
    assert!(outside.join("secret").exists());
}

#[tokio::test]
async fn a_claim_waits_until_it_is_bound_and_then_is_the_volumes_directory() {
    let bench = Bench::new();
    let (claims, volumes) = ("/api/v1/namespaces/ns/persistentvolumeclaims", "/api/v1/persistentvolumes");
    let pod = with_spec(json!({
        "containers": [{"name": "main"}], "securityContext": {"fsGroup": 99},
        "volumes": [{"name": "c", "persistentVolumeClaim": {"claimName": "data", "readOnly": true}}],
    }));
    let why = async || bench.volumes.prepare(&pod).await.unwrap_err().why().to_owned();
    assert_eq!(why().await, "persistentvolumeclaim \"data\" not found");
    let claim = |phase| json!({"metadata": {"uid": "c1", "namespace": "ns"}, "spec": {"volumeName": "pv"}, "status": {"phase": phase}});
    bench.api.set_object(claims, "data", claim("Pending"));
    bench.wake.due().await;
    let error = bench.volumes.prepare(&pod).await.unwrap_err();
    assert!(matches!(error, PrepareError::Pending { .. }), "{error}");
    assert_eq!(
        error.to_string(),
        "Unable to attach or mount volumes: unmounted volumes=[c], unattached volumes=[], \
         failed to process volumes=[c]: error processing PVC ns/data: PVC is not bound"
    );
    let disk = bench.directory.path().join("disk");
    fs::create_dir_all(disk.join("inner")).unwrap();
    fs::write(disk.join("inner/f"), "kept").unwrap();
    let pv = |uid| json!({"spec": {"claimRef": {"uid": uid}, "local": {"path": disk}}});
    bench.api.set_object(volumes, "pv", pv("other"));
    bench.api.set_object(claims, "data", claim("Bound"));
    bench.wake.due().await;
    assert_eq!(why().await, "error processing PVC ns/data: persistentvolume \"pv\" is bound to another claim");
    bench.api.set_object(volumes, "pv", pv("c1"));
    bench.wake.due().await;
    bench.volumes.prepare(&pod).await.unwrap();
    let source = bench.volumes.source(&pod, "c").unwrap();
    assert_eq!((source.path.as_path(), source.read_only), (disk.as_path(), true));
    assert_eq!(fs::metadata(disk.join("inner/f")).unwrap().gid(), 99);
    assert_eq!(mode(disk.join("inner")) & 0o2070, 0o2070);
    bench.volumes.release(&uid()).await.unwrap();
    assert_eq!(fs::read_to_string(disk.join("inner/f")).unwrap(), "kept");
}

#[tokio::test]
async fn a_volume_made_for_a_claim_is_a_directory_from_its_first_use_until_it_is_deleted() {
    let bench = Bench::new();
    let (claims, volumes) = ("/api/v1/namespaces/ns/persistentvolumeclaims", "/api/v1/persistentvolumes");
    bench.api.set_object("/api/v1/nodes", "here", json!({"metadata": {}}));
    let keeper = local_path::LocalPath::new(bench.api.client(), &bench.settings);
    let stop = tokio_util::sync::CancellationToken::new();
    let keeper = tokio::spawn(keeper.run(stop.clone()));
    let within = local_path::directory(&bench.settings);
    until("the machine says where volumes lie", async || {
        let node = bench.api.get("/api/v1/nodes", "here").unwrap();
        node["metadata"]["annotations"][local_path::DIRECTORY] == within.display().to_string()
    })
    .await;
    let path = within.join("pvc-1");
    bench.api.set_object(
        volumes,
        "pvc-1",
        json!({
            "metadata": {"annotations": {"pv.kubernetes.io/provisioned-by": local_path::PROVISIONER},
                         "finalizers": ["kubernetes.io/pv-protection"]},
            "spec": {"claimRef": {"uid": "c1"}, "local": {"path": path}},
        }),
    );
    bench.api.set_object(
        claims,
        "data",
        json!({
            "metadata": {"uid": "c1", "namespace": "ns"}, "spec": {"volumeName": "pvc-1"}, "status": {"phase": "Bound"},
        }),
    );
    let pod = pod(json!([{"name": "c", "persistentVolumeClaim": {"claimName": "data"}}]));
    bench.volumes.prepare(&pod).await.unwrap();
    fs::write(bench.volumes.source(&pod, "c").unwrap().path.join("f"), "data").unwrap();
    assert_eq!(mode(&path), 0o777);
    let finalizers = || bench.api.get(volumes, "pvc-1").unwrap()["metadata"]["finalizers"].clone();
    assert_eq!(finalizers(), json!(["kubernetes.io/pv-protection", local_path::ON_DISK]));
    bench.volumes.release(&uid()).await.unwrap();
    assert!(path.join("f").exists());

    // Deleted and no longer protected: now its directory goes, and then the volume can.
    let mut going = bench.api.get(volumes, "pvc-1").unwrap();
    going["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    going["metadata"]["finalizers"] = json!([local_path::ON_DISK]);
    bench.api.set_object(volumes, "pvc-1", going);
    until("the directory is gone", async || !path.exists() && finalizers() == json!([])).await;
    stop.cancel();
    keeper.await.unwrap();
}
