//! What a container cannot reach: other cgroups than its own, the machine's users. And what an error says when one cannot be
//! made.

use std::{fs, os::unix::fs::MetadataExt, path::Path, time::Duration};

use mainstay_runtime::{
    Runtime, SandboxSpec,
    idmap::{IDS_PER_POD, UserNamespace},
    spec::{AppArmor, Mount, PidMode, Propagation, Resources},
};

use crate::{
    pod::{ended, sandbox, says, shell, start},
    subject::Subject,
};

const SLEEP: &str = "echo ready; sleep 100000";

fn with_users(subject: &Subject, name: &str, block: u32) -> SandboxSpec {
    let mut spec = sandbox(subject, name);
    spec.users = Some(UserNamespace { host_id: block * IDS_PER_POD, length: IDS_PER_POD });
    spec
}

fn bind(source: &Path, target: &str) -> Mount {
    Mount {
        source: source.into(),
        target: target.into(),
        read_only: false,
        recursive_read_only: Default::default(),
        propagation: Propagation::Private,
    }
}

/// Every group in every hierarchy below these roots.
fn all_groups(below: &Path, name: &str) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(below).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            if entry.file_name().to_string_lossy().contains(name) {
                found.push(entry.path());
            }
            found.extend(all_groups(&entry.path(), name));
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_container_cannot_change_its_limits_nor_make_cgroups() {
    let subject = Subject::new().await;
    let spec = sandbox(&subject, "limited");
    let id = subject.runtime.create_sandbox(&spec).await.unwrap();
    let mark = format!("evil-{}", std::process::id());
    let script = format!(
        "cd /sys/fs/cgroup\n\
         for dir in $(find . -type d); do mkdir $dir/{mark} 2>/dev/null && echo made $dir; done\n\
         for file in memory/memory.limit_in_bytes memory.max pids/pids.max pids.max cpu/cpu.cfs_quota_us; do\n\
           [ -e $file ] && echo -1 2>/dev/null > $file && echo wrote $file\n\
         done\n\
         for point in . *; do mount -o remount,rw /sys/fs/cgroup/$point 2>/dev/null && echo remounted $point; done\n\
         [ -e systemd ] && echo named; [ -e unified ] && echo unified\n\
         grep -v ':/$' /proc/self/cgroup | grep -v -e name= -e '^0:'\n\
         cat memory/memory.limit_in_bytes memory.max 2>/dev/null; echo end"
    );
    let mut container = shell(&subject.runtime, &spec, "c", &script).await;
    // On a machine of version 2 whose controllers are elsewhere nothing can be limited, and nothing written either.
    let limits = Path::new("/sys/fs/cgroup/memory").exists()
        || fs::read_to_string("/sys/fs/cgroup/cgroup.controllers").is_ok_and(|all| all.contains("memory"));
    if limits {
        container.resources = Resources { memory_limit: Some(64 << 20), pids_limit: Some(100), ..Resources::default() };
    }
    let c = start(&subject.runtime, &id, &container).await;
    assert_eq!(ended(&subject.runtime, &c).await.0, 0);
    let log = says(&container.log_path, "end").await;
    let lines: Vec<&str> = log.lines().filter_map(|line| line.split(' ').nth(3)).collect();
    let limit = limits.then(|| (64 << 20).to_string());
    assert_eq!(lines, limit.as_deref().into_iter().chain(["end"]).collect::<Vec<_>>(), "{log}");
    subject.runtime.remove_sandbox(&id).await.unwrap();
    for left in [mark.as_str(), spec.pod.uid.0.as_str()] {
        assert_eq!(all_groups(Path::new("/sys/fs/cgroup"), left), Vec::<std::path::PathBuf>::new());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_privileged_container_may_write_cgroups() {
    let subject = Subject::new().await;
    let spec = sandbox(&subject, "privileged");
    let id = subject.runtime.create_sandbox(&spec).await.unwrap();
    let script = "cd /sys/fs/cgroup; [ -d pids ] && cd pids; mkdir mine && rmdir mine && echo made";
    let mut container = shell(&subject.runtime, &spec, "c", script).await;
    container.security.privileged = true;
    start(&subject.runtime, &id, &container).await;
    says(&container.log_path, "made").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn root_in_a_user_namespace_is_nobody_on_the_machine() {
    let subject = Subject::new().await;
    let spec = with_users(&subject, "users", 40_000);
    let base = 40_000 * IDS_PER_POD;
    let volume = subject.directory.path().join("volume");
    fs::create_dir(&volume).unwrap();
    fs::write(volume.join("given"), "given\n").unwrap();
    fs::write(subject.directory.path().join("secret"), "secret\n").unwrap();
    let id = subject.runtime.create_sandbox(&spec).await.unwrap();
    let script = "cat /proc/self/uid_map; id -u; cat /volume/given; touch /volume/made /made /dev/shm/made\n\
        stat -c %u:%g /volume/given /volume/made /made / /dev/shm/made /bin; hostname\n\
        chown 1000:1000 /made && stat -c %u:%g /made\n\
        ls -ld /proc/sys/net >/dev/null && echo > /dev/stdout && echo > /dev/null && echo devices\n\
        mknod /tmp/disk b 254 0 2>/dev/null && echo disk; mkdir /sys/fs/cgroup/x 2>/dev/null && echo cgroup\n\
        mkdir /sys/fs/cgroup/pids/x 2>/dev/null && echo cgroup; ls /sys/class/net; echo end; sleep 100000";
    let mut container = shell(&subject.runtime, &spec, "c", script).await;
    container.mounts.push(bind(&volume, "/volume"));
    let c = start(&subject.runtime, &id, &container).await;
    let log = says(&container.log_path, " end").await;
    let lines: Vec<String> =
        log.lines().map(|line| line.splitn(4, ' ').nth(3).unwrap_or_default().to_owned()).collect();
    let map: Vec<&str> = lines[0].split_whitespace().collect();
    assert_eq!(map, ["0", &base.to_string(), "65536"], "{log}");
    assert_eq!(
        lines[1..],
        ["0", "given", "0:0", "0:0", "0:0", "0:0", "0:0", "0:0", "users", "1000:1000", "", "devices", "lo", "end"]
    );
    assert_eq!(fs::metadata(volume.join("made")).unwrap().uid(), 0, "on disk it has the id that the pod sees");
    // As the machine sees it.
    let status = subject.runtime.observe(None).await.unwrap();
    assert_eq!(status.containers.len(), 1);
    let uids = sleeping_uids();
    assert!(uids.contains(&base), "{uids:?}");
    // Others of the pod, and what joins them.
    let exec = async |id, script: &str| {
        let command = ["/bin/sh", "-c", script].map(str::to_owned);
        let output = subject.runtime.exec(id, &command, Some(Duration::from_secs(20)), 10_000).await.unwrap();
        String::from_utf8_lossy(&output.stdout).split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    let look = "cat /proc/self/uid_map; id -u; touch /volume/joined /joined && stat -c %u:%g /volume/joined /joined; \
        grep -c CapEff:.*425fb /proc/self/status; mknod /disk b 254 0 2>/dev/null && echo disk; chroot / true && echo chroot";
    let base_text = base.to_string();
    let expected = ["0", &base_text, "65536", "0", "0:0", "0:0", "1", "chroot"];
    assert_eq!(exec(&c, look).await, expected, "a process that joins has the same users");
    assert_eq!(fs::metadata(volume.join("joined")).unwrap().uid(), 0);
    let script = "id -u; id -G; cat /proc/self/uid_map; echo end; sleep 100000";
    let mut other = shell(&subject.runtime, &spec, "other", script).await;
    other.security.run_as_user = Some(1000);
    other.security.supplemental_groups = vec![2000];
    let other_id = start(&subject.runtime, &id, &other).await;
    let log = says(&other.log_path, " end").await;
    assert!(log.contains("F 1000") && log.contains(&base.to_string()) && log.contains("2000"), "{log}");
    let look = "id -u; id -g; id -G; grep CapEff /proc/self/status; cat /proc/self/gid_map";
    let expected = ["1000", "0", "0", "2000", "CapEff:", "0000000000000000", "0", &base_text, "65536"];
    assert_eq!(exec(&other_id, look).await, expected);
    let mut beyond = shell(&subject.runtime, &spec, "beyond", "true").await;
    beyond.security.run_as_user = Some(70_000);
    let error = subject.runtime.create_container(&id, &beyond).await.unwrap_err().to_string();
    assert!(error.contains("70000 is not among"), "{error}");
}

/// Owners of the processes that are `sleep 100000`.
fn sleeping_uids() -> Vec<u32> {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let sleeping = processes.filter(|entry| {
        fs::read(entry.path().join("cmdline")).is_ok_and(|line| line.windows(6).any(|part| part == b"100000"))
    });
    sleeping.filter_map(|entry| Some(entry.metadata().ok()?.uid())).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_pods_with_users_share_processes_within_and_nothing_between() {
    let mut subject = Subject::new().await;
    let mut spec = with_users(&subject, "one", 40_001);
    spec.pid = PidMode::Pod;
    spec.sysctls = [("kernel.shm_rmid_forced", "1"), ("net.ipv4.ip_unprivileged_port_start", "77")]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into();
    let id = subject.runtime.create_sandbox(&spec).await.unwrap();
    let one = shell(&subject.runtime, &spec, "one", SLEEP).await;
    start(&subject.runtime, &id, &one).await;
    says(&one.log_path, "ready").await;
    let script = "cat /proc/[0-9]*/cmdline | tr '\\0' ' '; echo; cat /proc/sys/kernel/shm_rmid_forced \
        /proc/sys/net/ipv4/ip_unprivileged_port_start; ls /proc/1/root/ 2>/dev/null; kill -9 1; sleep 1; echo end";
    let two = shell(&subject.runtime, &spec, "two", script).await;
    start(&subject.runtime, &id, &two).await;
    let log = says(&two.log_path, "F end").await;
    assert!(log.contains("100000") && log.contains("F 1\n") && log.contains("F 77\n"), "{log}");
    assert!(!log.contains("F etc"), "the machine's files: {log}");
    let other = with_users(&subject, "other", 40_002);
    let other_id = subject.runtime.create_sandbox(&other).await.unwrap();
    let map = shell(&subject.runtime, &other, "map", "cat /proc/self/uid_map; echo end").await;
    start(&subject.runtime, &other_id, &map).await;
    assert!(says(&map.log_path, " end").await.contains(&(40_002 * IDS_PER_POD).to_string()));
    // An agent that comes later goes on with what it finds.
    subject.runtime = std::sync::Arc::new(subject.open().await);
    let third = shell(&subject.runtime, &spec, "third", "cat /proc/self/uid_map; echo end").await;
    start(&subject.runtime, &id, &third).await;
    assert!(says(&third.log_path, " end").await.contains(&(40_001 * IDS_PER_POD).to_string()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_volume_that_cannot_be_idmapped_is_refused_by_name() {
    let subject = Subject::new().await;
    let spec = with_users(&subject, "idmap", 40_003);
    let id = subject.runtime.create_sandbox(&spec).await.unwrap();
    let mut container = shell(&subject.runtime, &spec, "c", "true").await;
    container.mounts.push(bind(Path::new("/proc/sys"), "/host"));
    let created = subject.runtime.create_container(&id, &container).await.unwrap();
    let error = subject.runtime.start_container(&created).await.unwrap_err().to_string();
    assert!(error.contains("idmap the mount of /proc/sys: Invalid argument (os error 22)"), "{error}");
    assert_eq!(error.matches("os error").count(), 1, "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mount_that_fails_names_both_paths_and_the_error_once() {
    let subject = Subject::new().await;
    let spec = sandbox(&subject, "mounts");
    let id = subject.runtime.create_sandbox(&spec).await.unwrap();
    let volume = subject.directory.path().join("volume");
    fs::create_dir(&volume).unwrap();
    let mut container = shell(&subject.runtime, &spec, "c", "true").await;
    container.mounts.push(bind(&volume, "/etc/passwd"));
    let error = subject.runtime.create_container(&id, &container).await.unwrap_err().to_string();
    assert!(
        error.contains(&format!("mount {} to /etc/passwd: Not a directory (os error 20)", volume.display())),
        "{error}"
    );
    // What only libcontainer finds out is reported too, with where and why.
    let mut container = shell(&subject.runtime, &spec, "d", "true").await;
    container.mounts.push(bind(&volume, "/proc/self/fd/x"));
    let created = subject.runtime.create_container(&id, &container).await.unwrap();
    let error = subject.runtime.start_container(&created).await.unwrap_err().to_string();
    assert!(error.contains("/proc/self/fd/x") && error.contains(&volume.display().to_string()), "{error}");
    assert_eq!(error.matches("failed to prepare rootfs").count(), 1, "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_apparmor_profile_that_cannot_be_applied_is_refused() {
    let subject = Subject::new().await;
    let spec = sandbox(&subject, "apparmor");
    let id = subject.runtime.create_sandbox(&spec).await.unwrap();
    let mut container = shell(&subject.runtime, &spec, "c", "true").await;
    container.security.apparmor = AppArmor::Localhost("no-such-profile".into());
    let error = subject.runtime.create_container(&id, &container).await.unwrap_err().to_string();
    assert!(error.starts_with("Cannot enforce AppArmor: "), "{error}");
}
