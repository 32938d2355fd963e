//! Images as volumes: their files, read-only, whole or in part.

use serde_json::json;

use super::{container, manifest, once, printed, until_running};
use crate::harness::{Kubectl, Version, eventually, images::TestImage};

#[test]
fn an_image_is_a_read_only_volume_and_stays_while_a_pod_has_it() {
    let k = Kubectl::with_pods(Version::V1_32);
    let file = k.cluster.home().join("image.tar");
    TestImage::new("from the image", json!({})).write_docker(&file, "example.test/data:1");
    k.cluster.image(&["import", &file.display().to_string()]).ok();
    let volumes = json!([{"name": "v", "image": {"reference": "example.test/data:1", "pullPolicy": "IfNotPresent"}}]);
    let mounts = json!({"volumeMounts": [
        {"name": "v", "mountPath": "/whole"}, {"name": "v", "mountPath": "/part", "subPath": "etc"},
    ]});
    let script = "cat /whole/etc/marker; echo; cat /part/marker; echo; touch /whole/x 2>&1 | grep -o Read-only";
    k.create(&once("reads", script, mounts.clone(), json!({"volumes": volumes})));
    assert_eq!(printed(&k, "reads"), "from the image\nfrom the image\nRead-only");

    k.create(&manifest(
        "holds",
        json!({"containers": [container("c", "exec sleep 1000", mounts)], "volumes": volumes}),
    ));
    until_running(&k, "holds");
    k.ok("delete pod reads");
    k.cluster.image(&["rm", "example.test/data:1"]).refused();
    k.ok("delete pod holds");
    eventually("the image is free", || (k.cluster.image(&["rm", "example.test/data:1"]).code == 0).then_some(()));
}

#[test]
fn an_image_volume_that_is_missing_says_so() {
    let k = Kubectl::with_pods(Version::V1_32);
    let volumes = json!([{"name": "v", "image": {"reference": "example.test/none:1", "pullPolicy": "Never"}}]);
    let mounts = json!({"volumeMounts": [{"name": "v", "mountPath": "/v"}]});
    k.create(&once("p", "exit 0", mounts, json!({"volumes": volumes})));
    let output = eventually("an event", || {
        let output =
            k.value("events --field-selector involvedObject.name=p,reason=ErrImageNeverPull", "{.items[*].message}");
        (!output.is_empty()).then_some(output)
    });
    assert_eq!(output, "Image \"example.test/none:1\" is not present with pull policy of Never");
    k.ok("delete pod p --timeout=20s");
}
