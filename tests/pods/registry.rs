//! Images from a registry, with and without a login.

use serde_json::{Value, json};

use super::{manifest, merged, printed};
use crate::{
    harness::{
        Kubectl, Version, eventually,
        images::{TestImage, digest},
        registry::Registry,
    },
    restarts::until,
};

fn speaks(marker: &str) -> TestImage {
    TestImage::new(marker, json!({"Env": ["PATH=/bin"], "Cmd": ["cat", "/etc/marker"]}))
}

fn pod(k: &Kubectl, name: &str, image: &str, spec: Value) {
    let own = json!({"restartPolicy": "Never", "containers": [{"name": "c", "image": image}]});
    k.create(&manifest(name, merged(own, spec)));
}

#[test]
fn pods_pull_from_registries_with_the_secret_that_they_or_their_account_name() {
    let (open, closed) = (Registry::start(None), Registry::start(Some("robot:secret")));
    // This machine by an address that is not a loopback one, so that it is spoken to with TLS unless asked otherwise.
    let plain = format!("0.0.0.0:{}", open.port());
    let k = Kubectl::with_pods_and(Version::V1_32, &["--insecure-registry", &plain]);
    let image = open.push("some/web", "1", &speaks("open"));
    let private = closed.push("some/web", "1", &speaks("closed"));

    pod(&k, "open", &image, json!({}));
    assert_eq!(printed(&k, "open"), "open");
    let layer = digest(&speaks("open").layer);
    assert_eq!(open.served(&layer), 1);
    pod(&k, "cached", &image, json!({}));
    assert_eq!(printed(&k, "cached"), "open");
    assert_eq!(open.served(&layer), 1, "what is here is not fetched again");
    let output = k.ok("get events --field-selector involvedObject.name=cached");
    assert!(output.contains("already present on machine"), "{output}");
    pod(&k, "insecure", &format!("{plain}/some/web:1"), json!({}));
    assert_eq!(printed(&k, "insecure"), "open");
    let by_digest = format!("{}/some/web@{}", open.address(), digest(&speaks("open").manifest));
    pod(&k, "by-digest", &by_digest, json!({}));
    assert_eq!(printed(&k, "by-digest"), "open");

    pod(&k, "stranger", &private, json!({}));
    pod(&k, "missing", &format!("{}/some/web:none", open.address()), json!({}));
    let waiting = |name: &str| k.value(&format!("pod {name}"), "{.status.containerStatuses[0].state.waiting.reason}");
    for name in ["stranger", "missing"] {
        eventually(&format!("{name} cannot have its image"), || {
            ["ErrImagePull", "ImagePullBackOff"].contains(&&*waiting(name)).then_some(())
        });
    }
    let login = |name: &str, password: &str| {
        let server = closed.address();
        k.ok(&format!(
            "create secret docker-registry {name} --docker-server={server} --docker-username=robot --docker-password={password}"
        ));
    };
    login("right", "secret");
    login("wrong", "guess");
    pod(&k, "refused", &private, json!({"imagePullSecrets": [{"name": "wrong"}]}));
    eventually("a wrong password is refused", || (waiting("refused").contains("ImagePull")).then_some(()));
    pod(&k, "friend", &private, json!({"imagePullSecrets": [{"name": "right"}]}));
    assert_eq!(printed(&k, "friend"), "closed");
    k.ok("create serviceaccount robot");
    k.ok(r#"patch serviceaccount robot -p '{"imagePullSecrets":[{"name":"right"}]}'"#);
    let other = closed.push("some/other", "1", &speaks("by account"));
    pod(&k, "account", &other, json!({"serviceAccountName": "robot"}));
    assert_eq!(printed(&k, "account"), "by account");

    // What an administrator pulls, those who wait for it get, too.
    let password = k.cluster.file("password", "secret\n");
    let third = closed.push("some/third", "1", &speaks("third"));
    k.cluster.image(&["pull", &third]).refused();
    k.cluster.image(&["pull", &third, "--username", "robot", "--password-file", &password]).ok();
    pod(&k, "third", &third, json!({}));
    assert_eq!(printed(&k, "third"), "third");
    let unknown = k.cluster.image(&["pull", &format!("{}/some/none:1", open.address())]).refused();
    assert!(unknown.contains("not found"), "{unknown}");
    let tls = k.cluster.image(&["pull", &format!("{plain}/some/web:1")]);
    assert_ne!(tls.code, 0, "without --insecure-registry it is TLS: {tls}");
    k.cluster.image(&["pull", &format!("{plain}/some/web:1"), "--insecure-registry", &plain]).ok();

    open.push("some/web", "none", &speaks("late"));
    until(&k, "pod missing", "{.status.phase}", "Succeeded");
    assert_eq!(k.ok("logs missing"), "late");
}

#[test]
fn a_pod_is_deleted_although_its_image_is_being_pulled() {
    // Takes connections and never answers.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let k = Kubectl::with_pods(Version::V1_32);
    let image = format!("{}/some/web:1", silent.local_addr().expect("an address"));
    pod(&k, "p", &image, json!({}));
    let pulling = "events --field-selector involvedObject.name=p,reason=Pulling";
    eventually("its image is being pulled", || (!k.value(pulling, "{.items[*].message}").is_empty()).then_some(()));
    k.ok("delete pod p --timeout=10s");
}
