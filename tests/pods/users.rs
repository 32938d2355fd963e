//! Whom containers run as, and whose their volumes are.

use serde_json::json;

use super::{once, printed};
use crate::{
    harness::{Kubectl, Version, eventually},
    restarts::until,
};

#[test]
fn containers_run_as_the_users_and_groups_asked_for_and_volumes_belong_to_the_group() {
    let k = Kubectl::with_pods(Version::V1_32);
    k.ok("create secret generic s --from-literal=password=sesame");
    let script = "id -u; id -g; id -G; stat -c '%g %a' /data; touch /data/new && stat -c '%u %g' /data/new; \
                  stat -L -c '%g %a' /secret/password; cat /secret/password; echo; cat /proc/1/status | grep ^Uid";
    let mounts = json!({"volumeMounts": [
        {"name": "data", "mountPath": "/data"}, {"name": "secret", "mountPath": "/secret"},
    ]});
    let of_pod = json!({
        "securityContext": {"runAsUser": 1234, "runAsGroup": 2345, "fsGroup": 3456, "supplementalGroups": [4567]},
        "volumes": [
            {"name": "data", "emptyDir": {}}, {"name": "secret", "secret": {"secretName": "s", "defaultMode": 0o400}},
        ],
    });
    k.create(&once("pod-says", script, mounts, of_pod));
    let own = json!({"securityContext": {"runAsUser": 77, "runAsGroup": 88}});
    let of_pod = json!({"securityContext": {"runAsUser": 1234, "runAsGroup": 2345}});
    k.create(&once("container-says", "id -u; id -g; id -G", own, of_pod));
    k.create(&once("root-is-refused", "id -u", json!({"securityContext": {"runAsNonRoot": true}}), json!({})));

    let expected = "1234\n2345\n2345 3456 4567\n3456 2777\n1234 3456\n3456 440\nsesame\nUid:\t1234\t1234\t1234\t1234";
    let log = printed(&k, "pod-says");
    let sorted = log.replace("2345 4567 3456", "2345 3456 4567");
    assert_eq!(sorted, expected);
    assert_eq!(printed(&k, "container-says"), "77\n88\n88");
    let waiting = "{.status.containerStatuses[0].state.waiting.reason}";
    until(&k, "pod root-is-refused", waiting, "CreateContainerConfigError");
    eventually("it is said why", || {
        let why = k.value("pod root-is-refused", "{.status.containerStatuses[0].state.waiting.message}");
        why.contains("container has runAsNonRoot and image will run as root").then_some(())
    });
}
