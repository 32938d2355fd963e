//! `mainstay image`, and what pods get from the images it brought.

use serde_json::json;

use super::{manifest, merged, printed, until_running};
use crate::{
    harness::{Kubectl, Version, eventually, images::TestImage},
    restarts::until,
};

/// An image whose every setting can be told from the defaults.
fn configured(marker: &str) -> TestImage {
    TestImage::new(
        marker,
        json!({
            "Env": ["PATH=/bin", "FROM=image", "BOTH=image"],
            "Entrypoint": ["/bin/sh", "-c", "echo entry $0 $FROM $BOTH; pwd; id -u; id -g; cat /etc/marker"],
            "Cmd": ["cmd"],
            "WorkingDir": "/srv/work",
            "User": "worker",
        }),
    )
}

#[test]
fn archives_of_every_kind_are_imported_and_the_settings_of_images_honoured() {
    let k = Kubectl::with_pods(Version::V1_32);
    let file = |name: &str| k.cluster.home().join(name);
    let image = |arguments: &[&str]| k.cluster.image(arguments);
    let path = |name: &str| file(name).display().to_string();
    // One waits for its image already when it comes.
    let pod = |name: &str, image: &str, fields: serde_json::Value| {
        let own = json!({"name": "c", "image": image, "imagePullPolicy": "Never"});
        k.create(&manifest(name, json!({"restartPolicy": "Never", "containers": [merged(own, fields)]})));
    };
    pod("from-docker", "example.test/docker:1", json!({}));
    until(&k, "pod from-docker", "{.status.containerStatuses[0].state.waiting.reason}", "ErrImageNeverPull");

    configured("docker").write_docker(&file("docker.tar"), "example.test/docker:1");
    configured("oci").write_oci(&file("oci.tar"), "example.test/oci:1");
    TestImage::new("rootfs", json!({})).write_rootfs(&file("rootfs.tar"));
    let output = image(&["import", &path("docker.tar")]).ok();
    assert!(output.starts_with("example.test/docker:1  sha256:"), "{output}");
    image(&["import", &path("oci.tar")]).ok();
    let refused = image(&["import", &path("rootfs.tar")]).refused();
    assert!(refused.contains("give a name"), "{refused}");
    image(&["import", &path("rootfs.tar"), "--name", "example.test/rootfs:1"]).ok();
    std::fs::write(file("nonsense.tar"), "no archive at all").expect("write a file");
    image(&["import", &path("nonsense.tar"), "--name", "example.test/nonsense:1"]).refused();

    pod("from-oci", "example.test/oci:1", json!({}));
    pod("other-args", "example.test/oci:1", json!({"args": ["args"], "env": [{"name": "BOTH", "value": "pod"}]}));
    let replaced = json!({
        "command": ["/bin/sh", "-c", "echo $# $FROM; pwd; id -u"], "workingDir": "/tmp", "securityContext": {"runAsUser": 77},
    });
    pod("other-command", "example.test/oci:1", replaced);
    pod("from-rootfs", "example.test/rootfs:1", json!({"command": ["/bin/cat", "/etc/marker"]}));
    assert_eq!(printed(&k, "from-docker"), "entry cmd image image\n/srv/work\n1234\n2345\ndocker");
    assert_eq!(printed(&k, "from-oci"), "entry cmd image image\n/srv/work\n1234\n2345\noci");
    assert_eq!(printed(&k, "other-args"), "entry args image pod\n/srv/work\n1234\n2345\noci");
    assert_eq!(printed(&k, "other-command"), "0 image\n/tmp\n77");
    assert_eq!(printed(&k, "from-rootfs"), "rootfs");
    let id = configured("oci").id();
    let shown = k.value("pod from-oci", "{.status.containerStatuses[0].image} {.status.containerStatuses[0].imageID}");
    assert!(shown.starts_with("example.test/oci:1 ") && shown.contains("sha256:"), "{shown}");

    image(&["tag", "example.test/oci:1", "example.test/other:2"]).ok();
    let list = image(&["ls"]).ok();
    for name in ["host", "example.test/docker:1", "example.test/oci:1", "example.test/other:2", "example.test/rootfs:1"]
    {
        assert!(list.lines().any(|line| line.split_whitespace().next() == Some(name)), "{name} is not in\n{list}");
    }
    let short = &id[7..19];
    assert_eq!(list.lines().filter(|line| line.contains(short)).count(), 2, "one image with two names:\n{list}");
    pod("by-tag", "example.test/other:2", json!({}));
    assert_eq!(printed(&k, "by-tag"), "entry cmd image image\n/srv/work\n1234\n2345\noci");
    image(&["rm", "example.test/other:2"]).ok();
    let list = image(&["ls"]).ok();
    assert!(list.contains("example.test/oci:1") && !list.contains("other:2"), "{list}");
    image(&["rm", "no-such-image:1"]).refused();
    image(&["tag", "no-such-image:1", "x:1"]).refused();
    let refused = image(&["tag", "host", "x:1"]).refused();
    assert!(refused.contains("the image host is this machine"), "{refused}");
    k.ok("delete pod --all");
    image(&["rm", "example.test/oci:1", short]).refused();
    image(&["rm", "example.test/docker:1", "example.test/rootfs:1"]).ok();
    assert_eq!(image(&["ls"]).ok().lines().filter(|line| line.contains("example.test")).count(), 0);
}

#[test]
fn an_image_that_is_here_and_is_to_be_pulled_always_is_named_in_event_and_why() {
    let k = Kubectl::with_pods(Version::V1_32);
    let file = k.cluster.home().join("web.tar");
    let name = "registry.invalid/web:latest";
    configured("web").write_docker(&file, name);
    k.cluster.image(&["import", &file.display().to_string()]).ok();
    k.create(&manifest("p", json!({"containers": [{"name": "c", "image": name}]})));
    until(&k, "pod p", "{.status.containerStatuses[0].state.waiting.reason}", "ImagePullBackOff");
    let hint = format!("image {name:?} is on this machine; imagePullPolicy IfNotPresent would use it");
    eventually("an event that says so", || {
        k.value("events --field-selector reason=ImagePresent", "{.items[*].message}").contains(&hint).then_some(())
    });
    let why = k.cluster.mainstay("why", "pod/p").ok();
    assert!(why.contains("set imagePullPolicy: IfNotPresent for container c"), "{why}");
}

#[test]
fn an_image_changed_in_place_restarts_its_container_alone() {
    let k = Kubectl::with_pods(Version::V1_32);
    for version in ["1", "2"] {
        let file = k.cluster.home().join(version);
        let sleeps = json!({"Env": ["PATH=/bin"], "Cmd": ["sh", "-c", "cat /etc/marker; echo; exec sleep 1000"]});
        TestImage::new(version, sleeps).write_docker(&file, &format!("example.test/web:{version}"));
        k.cluster.image(&["import", &file.display().to_string()]).ok();
    }
    let of = |name: &str| json!({"name": name, "image": "example.test/web:1"});
    k.create(&manifest("p", json!({"containers": [of("a"), of("b")]})));
    until_running(&k, "p");
    let id =
        |name: &str| k.value("pod p", &format!("{{.status.containerStatuses[?(@.name==\"{name}\")].containerID}}"));
    let before = (id("a"), id("b"), k.value("pod p", "{.status.podIP}"));
    k.ok("set image pod/p a=example.test/web:2");
    eventually("the new image runs", || (k.run("logs p -c a").stdout == "2\n").then_some(()));
    until(&k, "pod p", "{.status.containerStatuses[*].ready}", "true true");
    assert_ne!(id("a"), before.0);
    assert_eq!((id("b"), k.value("pod p", "{.status.podIP}")), (before.1, before.2));
    assert_eq!(k.value("pod p", "{.status.containerStatuses[*].restartCount}"), "1 0");
    assert_eq!(k.ok("logs p -c b"), "1");
    let output = k.ok("get events --field-selector involvedObject.name=p,reason=Killing");
    assert!(output.contains("Container a definition changed, will be restarted"), "{output}");
}
