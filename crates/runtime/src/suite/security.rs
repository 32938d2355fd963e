//! Who a process is and what it may do.

use std::{fs, sync::Arc};

use crate::{
    spec::{Seccomp, Security},
    suite::Bench,
};

/// The capabilities that containers get unless asked otherwise, as a mask.
const USUAL: u64 = 0xa804_25fb;
const NET_BIND_SERVICE: u64 = 1 << 10;
const NET_ADMIN: u64 = 1 << 12;

const EFFECTIVE: &str = "grep CapEff /proc/self/status | cut -f 2";

fn mask(printed: &str) -> u64 {
    u64::from_str_radix(printed.trim(), 16).unwrap_or_else(|e| panic!("{printed:?}: {e}"))
}

pub async fn users_and_groups_are_as_asked(b: Arc<Bench>) {
    let pod = b.pod().await;
    let mut spec = pod.shell("c", "id -u; id -g; id -G; echo mine > /tmp/mine && stat -c %u:%g /tmp/mine");
    spec.security = Security {
        run_as_user: Some(1000),
        run_as_group: Some(3000),
        supplemental_groups: vec![4000, 5000],
        ..Security::default()
    };
    assert_eq!(pod.print(spec).await, "1000\n3000\n3000 4000 5000\n1000:3000\n");
    let mut spec = pod.shell("root", "id -u; id -g");
    spec.security.run_as_user = Some(0);
    assert_eq!(pod.print(spec).await, "0\n0\n");
}

pub async fn a_read_only_root_refuses_writes(b: Arc<Bench>) {
    let pod = b.pod().await;
    let data = b.path("data");
    fs::create_dir_all(&data).expect("make a directory");
    let mut spec =
        pod.shell("c", "touch /new || echo refused; touch /data/new && echo allowed; echo x > /dev/shm/x && echo shm");
    spec.security.read_only_root = true;
    spec.mounts.push(super::bench::bind(&data, "/data", false));
    let printed = pod.print(spec).await;
    for word in ["refused", "allowed", "shm"] {
        assert!(printed.lines().any(|line| line == word), "{word} in {printed}");
    }
}

pub async fn capabilities_are_the_usual_ones(b: Arc<Bench>) {
    let pod = b.pod().await;
    let bounding = "grep CapBnd /proc/self/status | cut -f 2";
    assert_eq!(mask(&pod.print(pod.shell("c", EFFECTIVE)).await), USUAL);
    assert_eq!(mask(&pod.print(pod.shell("d", bounding)).await), USUAL);
    let mut spec = pod.shell("user", EFFECTIVE);
    spec.security.run_as_user = Some(1000);
    assert_eq!(mask(&pod.print(spec).await), 0, "a normal user has none");
}

pub async fn capabilities_are_added_and_dropped(b: Arc<Bench>) {
    let pod = b.pod().await;
    for (name, add, drop, expected) in [
        ("none", "", "ALL", 0),
        ("one", "NET_BIND_SERVICE", "ALL", NET_BIND_SERVICE),
        ("more", "NET_ADMIN", "", USUAL | NET_ADMIN),
        ("less", "", "NET_BIND_SERVICE", USUAL & !NET_BIND_SERVICE),
    ] {
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect();
        let mut spec = pod.shell(name, EFFECTIVE);
        spec.security.add_capabilities = words(add);
        spec.security.drop_capabilities = words(drop);
        assert_eq!(mask(&pod.print(spec).await), expected, "{name}");
    }
}

pub async fn privileged_has_everything(b: Arc<Bench>) {
    let pod = b.pod().await;
    let mut spec = pod.shell("c", "grep CapEff /proc/self/status | cut -f 2; ls /dev/kmsg; echo > /proc/sys/kernel/domainname; grep Seccomp: /proc/self/status");
    spec.security.privileged = true;
    spec.security.seccomp = Seccomp::Unconfined;
    let printed = pod.print(spec).await;
    let status = fs::read_to_string("/proc/self/status").expect("read our own status");
    let ours = status.lines().find_map(|line| line.strip_prefix("CapBnd:")).expect("it is listed");
    let lines: Vec<_> = printed.lines().collect();
    assert_eq!(mask(lines[0]), mask(ours), "all that this machine can give");
    assert_eq!(lines[1..], ["/dev/kmsg", "Seccomp:\t0"]);
}

pub async fn new_privileges_can_be_refused(b: Arc<Bench>) {
    let pod = b.pod().await;
    let look = "grep NoNewPrivs /proc/self/status | cut -f 2";
    assert_eq!(pod.print(pod.shell("c", look)).await, "0\n");
    let mut spec = pod.shell("d", look);
    spec.security.no_new_privileges = true;
    assert_eq!(pod.print(spec).await, "1\n");
}

pub async fn system_calls_are_filtered_unless_unconfined(b: Arc<Bench>) {
    let pod = b.pod().await;
    let look = "grep Seccomp: /proc/self/status | cut -f 2";
    assert_eq!(pod.print(pod.shell("c", look)).await, "2\n");
    let mut spec = pod.shell("d", look);
    spec.security.seccomp = Seccomp::Unconfined;
    assert_eq!(pod.print(spec).await, "0\n");
    // What the usual filter refuses, and what a profile of one's own does.
    let unshare = "unshare -U true && echo allowed || echo refused";
    assert!(pod.print(pod.shell("e", unshare)).await.contains("refused"));
    let profile = b.path("profile.json");
    let json = r#"{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO"}]}"#;
    fs::write(&profile, json).expect("write a profile");
    let mut spec = pod.shell("f", "mkdir /tmp/made && echo allowed || echo refused");
    spec.security.seccomp = Seccomp::Localhost(profile);
    assert!(pod.print(spec).await.contains("refused"));
}

pub async fn kernel_files_are_masked_and_read_only(b: Arc<Bench>) {
    let pod = b.pod().await;
    let script = "cat /proc/timer_list /proc/keys /proc/interrupts | wc -c; echo > /proc/sys/kernel/domainname || echo refused; \
        grep -c ' /sys ro' /proc/self/mountinfo; grep -c ' /proc/keys ' /proc/self/mountinfo";
    let printed = pod.print(shell_ok(pod.shell("c", script))).await;
    let lines: Vec<_> = printed.lines().filter(|line| !line.contains(':')).collect();
    assert_eq!(lines, ["0", "refused", "1", "1"], "{printed}");
    let mut spec = shell_ok(pod.shell("d", "grep -c -e ' /proc/keys ' -e ' /proc/sys ' /proc/self/mountinfo"));
    spec.security.unmasked_proc = true;
    assert_eq!(pod.print(spec).await, "0\n");
}

/// Ends well whatever its last command says.
fn shell_ok(mut spec: crate::ContainerSpec) -> crate::ContainerSpec {
    if let Some(script) = spec.command.last_mut() {
        script.push_str("; true");
    }
    spec
}
