//! What containers may do, as the kernel says: capabilities, no_new_privs, seccomp, read-only roots, privileged.

use std::{collections::BTreeMap, fs};

use serde_json::{Value, json};

use super::{once, printed};
use crate::harness::{Kubectl, Version, eventually};

/// Numbers of capabilities, from `linux/capability.h`.
const CAP_NET_BIND_SERVICE: u32 = 10;
const CAP_NET_RAW: u32 = 13;
const CAP_SYS_TIME: u32 = 25;
/// What docker and containerd grant: CHOWN, DAC_OVERRIDE, FOWNER, FSETID, KILL, SETGID, SETUID, SETPCAP,
/// NET_BIND_SERVICE, NET_RAW, SYS_CHROOT, MKNOD, AUDIT_WRITE, SETFCAP.
const STOCK: u64 = 0xa804_25fb;

/// Lines of `/proc/PID/status`.
fn status(text: &str) -> BTreeMap<&str, &str> {
    text.lines().filter_map(|line| line.split_once(':')).map(|(name, value)| (name, value.trim())).collect()
}

fn capabilities(text: &str, set: &str) -> u64 {
    u64::from_str_radix(status(text)[set], 16).expect("a set of capabilities")
}

#[test]
fn a_container_has_the_capabilities_and_the_seccomp_filter_asked_for_and_no_more() {
    let k = Kubectl::with_pods(Version::V1_32);
    let profiles = k.cluster.data_dir().join("agent/seccomp");
    fs::create_dir_all(&profiles).expect("make the directory of profiles");
    let no_mkdir = json!({
        "defaultAction": "SCMP_ACT_ALLOW",
        "syscalls": [{"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO", "errnoRet": 99}],
    });
    fs::write(profiles.join("no-mkdir.json"), no_mkdir.to_string()).expect("write a profile");
    let create = |name: &str, script: &str, context: Value| {
        k.create(&once(name, script, json!({"securityContext": context}), json!({})));
    };
    let read = "cat /proc/self/status";
    create("stock", &format!("{read}; unshare -U true 2>&1 || echo may not unshare"), json!({}));
    create("dropped", read, json!({"capabilities": {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]}}));
    create("added", read, json!({"capabilities": {"drop": ["NET_RAW"], "add": ["SYS_TIME"]}}));
    create("user", read, json!({"runAsUser": 1234, "allowPrivilegeEscalation": false}));
    create("free", &format!("{read}; unshare -U echo may unshare"), json!({"seccompProfile": {"type": "Unconfined"}}));
    let local = json!({"seccompProfile": {"type": "Localhost", "localhostProfile": "no-mkdir.json"}});
    create("local", &format!("{read}; mkdir /new 2>&1 || echo may not mkdir"), local);
    let mounts = "mount -t tmpfs none /mnt && echo may mount; test -e /dev/kmsg && echo has devices";
    create("privileged", &format!("{read}; {mounts}"), json!({"privileged": true}));
    create("missing", "true", json!({"seccompProfile": {"type": "Localhost", "localhostProfile": "none.json"}}));

    let log = printed(&k, "stock");
    assert_eq!([capabilities(&log, "CapEff"), capabilities(&log, "CapBnd")], [STOCK, STOCK]);
    assert_eq!([capabilities(&log, "CapInh"), capabilities(&log, "CapAmb")], [0, 0]);
    assert_eq!((status(&log)["NoNewPrivs"], status(&log)["Seccomp"]), ("0", "2"));
    assert!(log.contains("Operation not permitted") && log.ends_with("may not unshare"), "{log}");
    let log = printed(&k, "dropped");
    let only = 1 << CAP_NET_BIND_SERVICE;
    assert_eq!([capabilities(&log, "CapEff"), capabilities(&log, "CapBnd")], [only, only]);
    let log = printed(&k, "added");
    assert_eq!(capabilities(&log, "CapEff"), STOCK & !(1 << CAP_NET_RAW) | 1 << CAP_SYS_TIME);
    let log = printed(&k, "user");
    assert_eq!([capabilities(&log, "CapEff"), capabilities(&log, "CapPrm")], [0, 0]);
    assert_eq!(status(&log)["NoNewPrivs"], "1");
    let log = printed(&k, "free");
    assert_eq!(status(&log)["Seccomp"], "0");
    assert!(log.ends_with("may unshare"), "{log}");
    let log = printed(&k, "local");
    assert_eq!(status(&log)["Seccomp"], "2");
    assert!(log.contains("Cannot assign requested address") && log.ends_with("may not mkdir"), "{log}");
    let log = printed(&k, "privileged");
    let own = fs::read_to_string("/proc/self/status").expect("our own status");
    assert_eq!(capabilities(&log, "CapEff"), capabilities(&own, "CapBnd"));
    assert_eq!(status(&log)["Seccomp"], "0");
    assert!(log.ends_with("may mount\nhas devices"), "{log}");

    eventually("a profile that is not there is named", || {
        k.ok("get events --field-selector involvedObject.name=missing").contains("none.json").then_some(())
    });
}

#[test]
fn a_read_only_root_is_read_only_everywhere_but_in_volumes() {
    let k = Kubectl::with_pods(Version::V1_32);
    let script = "touch /root/x 2>&1; touch /tmp/x 2>&1; touch /data/x && echo volume is writable; \
                  touch /etc/mtab-x 2>/dev/null || echo etc is not; echo end > /dev/termination-log";
    let fields = json!({
        "securityContext": {"readOnlyRootFilesystem": true},
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    });
    k.create(&once("p", script, fields, json!({"volumes": [{"name": "data", "emptyDir": {}}]})));
    let masked = "cat /proc/kcore 2>/dev/null | head -c 1 | wc -c; echo 1 2>/dev/null > /proc/sys/vm/drop_caches || echo read-only; \
                  ls /sys/firmware | wc -l";
    k.create(&once("masked", masked, json!({}), json!({})));
    let log = printed(&k, "p");
    assert_eq!(log.matches("Read-only file system").count(), 2, "{log}");
    assert!(log.ends_with("volume is writable\netc is not"), "{log}");
    assert_eq!(k.value("pod p", "{.status.containerStatuses[0].state.terminated.message}"), "end");
    assert_eq!(printed(&k, "masked"), "0\nread-only\n0", "what tells or changes the machine is masked");
}
