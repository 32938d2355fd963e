use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use k8s_openapi::ByteString;
use serde_json::json;

use super::*;

#[tokio::test]
async fn a_config_map_appears_with_its_modes_and_follows_changes() {
    let bench = Bench::new();
    bench.api.set_object(
        MAPS,
        "web",
        json!({"data": {"a": "1", "b": "2"}, "binaryData": {"c": ByteString(vec![0, 255])}}),
    );
    let pod = pod(json!([
        {"name": "all", "configMap": {"name": "web", "defaultMode": 0o400}},
        {"name": "some", "configMap": {"name": "web", "items": [{"key": "a", "path": "deep/er/a", "mode": 0o755}]}},
    ]));
    bench.volumes.prepare(&pod).await.unwrap();
    assert_eq!((bench.read("all", "a"), bench.read("all", "b")), ("1".to_owned(), "2".to_owned()));
    assert_eq!(fs::read(bench.volume("all").join("c")).unwrap(), [0, 255]);
    assert_eq!(mode(bench.volume("all").join("..data/a")), 0o400);
    assert_eq!(mode(bench.volume("some").join("..data/deep/er/a")), 0o755);
    assert_eq!(fs::read_link(bench.volume("some").join("deep")).unwrap(), Path::new("..data/deep"));
    assert!(!bench.volume("some").join("b").exists());
    let before = fs::read_link(bench.volume("all").join("..data")).unwrap();

    // Nothing new: nothing is touched, also by an agent that knows nothing of the last one.
    bench.volumes.prepare(&pod).await.unwrap();
    bench.restarted().prepare(&pod).await.unwrap();
    assert_eq!(fs::read_link(bench.volume("all").join("..data")).unwrap(), before);

    bench.api.set_object(MAPS, "web", json!({"data": {"a": "new", "d": "4"}}));
    bench.wake.due().await;
    bench.volumes.prepare(&pod).await.unwrap();
    assert_eq!((bench.read("all", "a"), bench.read("all", "d")), ("new".to_owned(), "4".to_owned()));
    assert!(!bench.volume("all").join("b").is_symlink());
    assert_eq!(bench.read("some", "deep/er/a"), "new");
    let left: Vec<_> = fs::read_dir(bench.volume("all")).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left.iter().filter(|name| name.to_string_lossy().starts_with("..2")).count(), 1, "{left:?}");
}

#[tokio::test]
async fn readers_never_see_half_of_an_update() {
    let bench = Bench::new();
    let pod = pod(json!([{"name": "v", "configMap": {"name": "web"}}]));
    let put = |n: u32| bench.api.set_object(MAPS, "web", json!({"data": {"a": n.to_string(), "b": n.to_string()}}));
    put(0);
    bench.volumes.prepare(&pod).await.unwrap();
    let (done, volume) = (Arc::new(AtomicBool::new(false)), bench.volume("v"));
    let reader = std::thread::spawn({
        let done = done.clone();
        move || {
            let mut observed = 0;
            while !done.load(Ordering::Relaxed) {
                // One look at the link, as a program would open the directory it names.
                let now = volume.join(fs::read_link(volume.join("..data")).unwrap());
                let pair = (fs::read_to_string(now.join("a")), fs::read_to_string(now.join("b")));
                if let (Ok(a), Ok(b)) = pair {
                    assert_eq!(a, b);
                    observed += 1;
                }
            }
            observed
        }
    });
    for n in 1..100 {
        put(n);
        bench.wake.due().await;
        bench.volumes.prepare(&pod).await.unwrap();
    }
    done.store(true, Ordering::Relaxed);
    assert!(reader.join().unwrap() > 0);
    assert_eq!(bench.read("v", "a"), "99");
}

#[tokio::test]
async fn what_is_missing_is_named_and_ends_when_it_appears() {
    let bench = Bench::new();
    let cases = [
        (json!({"configMap": {"name": "no"}}), "configmap \"no\" not found"),
        (json!({"secret": {"secretName": "no"}}), "secret \"no\" not found"),
        (
            json!({"projected": {"sources": [{"configMap": {"name": "no"}}, {"secret": {"name": "no"}}]}}),
            "[configmap \"no\" not found, secret \"no\" not found]",
        ),
        (
            json!({"cephfs": {"monitors": ["x"]}}),
            "volumes of type cephfs are not supported; supported are configMap, downwardAPI, emptyDir, ephemeral, \
             hostPath, image, nfs, persistentVolumeClaim, projected and secret",
        ),
        (
            json!({"configMap": {"name": "there", "items": [{"key": "no", "path": "p"}]}}),
            "references non-existent config key: no",
        ),
    ];
    bench.api.set_object(MAPS, "there", json!({"data": {"k": "v"}}));
    for (source, expected) in cases {
        let mut volume = source.clone();
        volume["name"] = "v".into();
        let error = bench.volumes.prepare(&pod(json!([volume]))).await.unwrap_err();
        assert_eq!(error.to_string(), format!("MountVolume.SetUp failed for volume \"v\" : {expected}"));
    }
    let optional = pod(json!([
        {"name": "o", "configMap": {"name": "no", "optional": true}},
        {"name": "k", "configMap": {"name": "there", "optional": true, "items": [{"key": "no", "path": "p"}]}},
    ]));
    bench.volumes.prepare(&optional).await.unwrap();
    bench.api.set_object(MAPS, "no", json!({"data": {"late": "yes"}}));
    bench.wake.due().await;
    bench.volumes.prepare(&optional).await.unwrap();
    assert_eq!(bench.read("o", "late"), "yes");
}

#[tokio::test]
async fn one_volume_that_fails_does_not_keep_the_others_from_being_current() {
    let bench = Bench::new();
    bench.api.set_object(MAPS, "web", json!({"data": {"a": "1"}}));
    let pod = pod(json!([
        {"name": "bad", "configMap": {"name": "no"}},
        {"name": "file", "hostPath": {"path": "/etc/hostname", "type": "Directory"}},
        {"name": "good", "configMap": {"name": "web"}},
    ]));
    bench.volumes.prepare(&pod).await.unwrap_err();
    assert_eq!(bench.read("good", "a"), "1");
}

#[tokio::test]
async fn secrets_stay_in_memory_and_belong_to_the_group() {
    let bench = Bench::new();
    bench.api.set_object(SECRETS, "key", json!({"data": {"k": ByteString(b"s3cret".to_vec())}}));
    let pod = with_spec(json!({
        "containers": [{"name": "main"}], "securityContext": {"fsGroup": 4242},
        "volumes": [{"name": "s", "secret": {"secretName": "key", "defaultMode": 0o400}}],
    }));
    bench.volumes.prepare(&pod).await.unwrap();
    let volume = bench.volume("s");
    assert_eq!(bench.read("s", "k"), "s3cret");
    let filesystem = nix::sys::statfs::statfs(&volume).unwrap().filesystem_type();
    assert_eq!(filesystem, nix::sys::statfs::TMPFS_MAGIC);
    assert_eq!((mode(volume.join("..data/k")), fs::metadata(volume.join("k")).unwrap().gid()), (0o440, 4242));
    assert_eq!(fs::metadata(&volume).unwrap().gid(), 4242);
    assert_eq!(mode(&volume) & 0o2000, 0o2000);
    let before = fs::read_link(volume.join("..data")).unwrap();
    bench.restarted().prepare(&pod).await.unwrap();
    assert_eq!(fs::read_link(volume.join("..data")).unwrap(), before);
}

#[tokio::test]
async fn everything_can_be_projected_together() {
    let bench = Bench::new();
    bench.api.set_object(MAPS, "kube-root-ca.crt", json!({"data": {"ca.crt": "PEM"}}));
    let mut pod = with_spec(json!({
        "serviceAccountName": "robot",
        "containers": [{"name": "main", "resources": {"limits": {"cpu": "1500m"}, "requests": {"memory": "1Mi"}}}],
        "securityContext": {"runAsUser": 1000},
        "volumes": [{"name": "p", "projected": {"defaultMode": 0o644, "sources": [
            {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}},
            {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
            {"downwardAPI": {"items": [
                {"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}},
                {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}},
                {"path": "cpu", "resourceFieldRef": {"containerName": "main", "resource": "limits.cpu"}},
                {"path": "mem", "mode": 0o600, "resourceFieldRef":
                    {"containerName": "main", "resource": "requests.memory", "divisor": "1Ki"}},
            ]}},
        ]}}],
    }));
    bench.volumes.prepare(&pod).await.unwrap();
    assert_eq!(bench.read("p", "token"), "token-1");
    let token = fs::metadata(bench.volume("p").join("token")).unwrap();
    assert_eq!((token.mode() & 0o777, token.uid()), (0o600, 1000));
    assert_eq!((bench.read("p", "ca.crt"), bench.read("p", "namespace")), ("PEM".to_owned(), "ns".to_owned()));
    assert_eq!(bench.read("p", "labels"), "app=\"web\"\nb=\"a\\\"\\n\"");
    assert_eq!((bench.read("p", "cpu"), bench.read("p", "mem")), ("2".to_owned(), "1024".to_owned()));
    assert_eq!(mode(bench.volume("p").join("..data/mem")), 0o600);
    pod.metadata.labels.as_mut().unwrap().insert("app".to_owned(), "new".to_owned());
    bench.volumes.prepare(&pod).await.unwrap();
    assert!(bench.read("p", "labels").starts_with("app=\"new\""));
}

#[tokio::test]
async fn files_that_are_there_serve_while_the_api_is_away() {
    let bench = Bench::new();
    bench.api.set_object(MAPS, "web", json!({"data": {"a": "1"}}));
    let pod = pod(json!([{"name": "v", "configMap": {"name": "web"}}]));
    bench.volumes.prepare(&pod).await.unwrap();
    bench.api.set_down(true);
    bench.restarted().prepare(&pod).await.unwrap();
    assert_eq!(bench.read("v", "a"), "1");
    let other = super::pod(json!([{"name": "w", "configMap": {"name": "other"}}]));
    let error = bench.restarted().prepare(&other).await.unwrap_err();
    assert!(!error.why().contains("not found"), "{error}");
}

/// A pod that reads versions of two ConfigMaps and a Secret.
fn versioned(copies: Value) -> Pod {
    let mut pod = pod(json!([
        {"name": "zones", "configMap": {"name": "zones"}},
        {"name": "both", "projected": {"sources": [{"configMap": {"name": "zones"}}, {"configMap": {"name": "ports", "optional": true}}]}},
        {"name": "key", "secret": {"secretName": "key"}},
        {"name": "info", "downwardAPI": {"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}},
    ]));
    let annotation = mainstay_api::config_versions::ANNOTATION.to_owned();
    pod.metadata.annotations = Some([(annotation, copies.to_string())].into());
    pod
}

fn copies(digit: &str) -> Value {
    let copy = |name: &str| format!("{name}-{}", digit.repeat(16));
    json!({"configmap/zones": copy("zones"), "configmap/ports": copy("ports"), "secret/key": copy("key")})
}

impl Bench {
    /// Copies of everything, in which the digit stands.
    fn set_copies(&self, digit: &str) {
        let hash = digit.repeat(16);
        self.api.set_object(MAPS, &format!("zones-{hash}"), json!({"data": {"zones": digit}}));
        self.api.set_object(MAPS, &format!("ports-{hash}"), json!({"data": {"ports": digit}}));
        let key = ByteString(digit.as_bytes().to_vec());
        self.api.set_object(SECRETS, &format!("key-{hash}"), json!({"data": {"key": key}}));
    }

    /// What the volumes of [`versioned`] show.
    fn shown(&self) -> [String; 4] {
        [("zones", "zones"), ("both", "zones"), ("both", "ports"), ("key", "key")].map(|(v, file)| self.read(v, file))
    }
}

#[tokio::test]
async fn all_references_of_a_pod_show_the_version_that_it_names_and_follow_to_another() {
    let bench = Bench::new();
    bench.api.set_object(MAPS, "zones", json!({"data": {"zones": "original"}}));
    bench.set_copies("1");
    bench.set_copies("2");
    bench.volumes.prepare(&versioned(copies("1"))).await.unwrap();
    assert_eq!(bench.shown(), ["1"; 4]);
    bench.api.set_object(MAPS, "zones", json!({"data": {"zones": "changed"}}));
    bench.volumes.prepare(&versioned(copies("1"))).await.unwrap();
    assert_eq!(bench.shown(), ["1"; 4]);
    assert_eq!(bench.volumes.config_versions(&versioned(copies("2"))).to_string(), copies("1").to_string());
    bench.volumes.prepare(&versioned(copies("2"))).await.unwrap();
    assert_eq!(bench.shown(), ["2"; 4]);
    assert_eq!(bench.volumes.config_versions(&versioned(copies("1"))).to_string(), copies("2").to_string());
    // The copies of before are no longer followed.
    crate::testing::until("three watches are left", async || bench.api.watches() == 3).await;
    bench.volumes.prepare(&versioned(json!({}))).await.unwrap_err();
    assert_eq!(bench.volumes.config_versions(&versioned(json!({}))).to_string(), copies("2").to_string());
}

#[tokio::test]
async fn while_one_copy_is_missing_no_volume_shows_the_new_version() {
    let bench = Bench::new();
    bench.set_copies("1");
    bench.volumes.prepare(&versioned(copies("1"))).await.unwrap();
    bench.set_copies("2");
    // Optional or not: a version that is named is waited for.
    bench.api.delete(MAPS, &format!("ports-{}", "2".repeat(16)));
    let mut second = versioned(copies("2"));
    second.metadata.name = Some("renamed".to_owned());
    let error = bench.volumes.prepare(&second).await.unwrap_err();
    assert!(error.to_string().contains("configmap \"ports-2222222222222222\" not found"), "{error}");
    assert_eq!(bench.shown(), ["1"; 4]);
    assert_eq!(bench.volumes.config_versions(&second).to_string(), copies("1").to_string());
    assert_eq!(bench.read("info", "name"), "renamed", "what has no versions stays current");
    bench.set_copies("2");
    crate::testing::until("the copy is there", async || bench.volumes.prepare(&second).await.is_ok()).await;
    assert_eq!(bench.shown(), ["2"; 4]);
}

#[tokio::test]
async fn without_the_api_versions_stay_and_an_agent_that_knows_none_starts_nothing() {
    let bench = Bench::new();
    bench.set_copies("1");
    bench.volumes.prepare(&versioned(copies("1"))).await.unwrap();
    bench.api.set_down(true);
    bench.volumes.prepare(&versioned(copies("2"))).await.unwrap();
    assert_eq!(bench.shown(), ["1"; 4]);
    assert_eq!(bench.volumes.config_versions(&versioned(copies("2"))).to_string(), copies("1").to_string());
    bench.restarted().prepare(&versioned(copies("2"))).await.unwrap_err();
    assert_eq!(bench.shown(), ["1"; 4]);
}
