//! Resource limits in the cgroup, and resource usage.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use crate::{
    observed::{ContainerId, ContainerState},
    spec::Resources,
    suite::{
        Bench,
        bench::{BOX, Pod, code, eventually},
    },
};

/// The cgroup of a process for one controller: version 1's if it has one, else version 2's.
fn cgroup(pid: u32, controller: &str) -> (PathBuf, bool) {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).expect("read a process's cgroups");
    let mut unified = None;
    for line in text.lines() {
        let mut parts = line.splitn(3, ':');
        let (_, names, path) = (parts.next(), parts.next().expect("three parts"), parts.next().expect("three parts"));
        let path = path.trim_start_matches('/');
        if names.split(',').any(|name| name == controller) {
            let mounted = [controller.to_owned(), names.to_owned()].map(|name| Path::new("/sys/fs/cgroup").join(name));
            let root = mounted.into_iter().find(|root| root.exists()).expect("it is mounted");
            return (root.join(path), true);
        }
        if names.is_empty() {
            let hybrid = Path::new("/sys/fs/cgroup/unified");
            let root = if hybrid.exists() { hybrid } else { Path::new("/sys/fs/cgroup") };
            unified = Some(root.join(path));
        }
    }
    (unified.expect("a unified cgroup"), false)
}

struct ContainerCgroup {
    directory: PathBuf,
    one: bool,
}

impl ContainerCgroup {
    async fn find(pod: &Pod, id: &ContainerId, controller: &str) -> Self {
        let pid = pod.status(id).await.expect("is observed").pid.expect("its pid is known");
        let (directory, one) = cgroup(pid, controller);
        Self { directory, one }
    }

    /// That of the whole pod, above it.
    fn pod(&self, pod: &Pod) -> Self {
        let name = format!("pod{}", pod.uid());
        let above = self.directory.ancestors().find(|d| d.file_name().is_some_and(|n| n == name.as_str()));
        let directory = above.unwrap_or_else(|| panic!("{} lies below {name}", self.directory.display())).to_owned();
        Self { directory, one: self.one }
    }

    fn read(&self, one: &str, two: &str) -> String {
        let path = self.directory.join(if self.one { one } else { two });
        fs::read_to_string(&path).unwrap_or_else(|e| panic!("read {}: {e}", path.display())).trim().to_owned()
    }

    fn memory(&self) -> String {
        self.read("memory.limit_in_bytes", "memory.max")
    }

    /// Microseconds of each period.
    fn quota(&self) -> String {
        self.read("cpu.cfs_quota_us", "cpu.max").split(' ').next().unwrap_or_default().to_owned()
    }

    fn pids(&self) -> String {
        self.read("pids.max", "pids.max")
    }
}

fn limits(mebibytes: i64, quota: i64) -> Resources {
    Resources {
        cpu_shares: Some(512),
        cpu_quota: Some(quota),
        cpu_period: Some(100_000),
        memory_limit: Some(mebibytes << 20),
        ..Resources::default()
    }
}

pub async fn memory_and_cpu_limits_are_in_the_cgroup(b: Arc<Bench>) {
    let pod = b.pod().await;
    let mut spec = pod.sleeper("c");
    spec.resources = limits(64, 50_000);
    let id = pod.start(spec).await;
    assert_eq!(ContainerCgroup::find(&pod, &id, "memory").await.memory(), (64 << 20).to_string());
    let cpu = ContainerCgroup::find(&pod, &id, "cpu").await;
    assert_eq!(cpu.quota(), "50000");
    if cpu.one {
        assert_eq!(cpu.read("cpu.shares", ""), "512");
    }
}

pub async fn the_pods_limits_are_in_its_cgroup(b: Arc<Bench>) {
    let mut spec = b.pod_spec();
    spec.resources = Resources { pids_limit: Some(99), ..limits(96, 70_000) };
    let pod = b.pod_of(spec).await;
    let id = pod.start(pod.sleeper("c")).await;
    assert_eq!(ContainerCgroup::find(&pod, &id, "memory").await.pod(&pod).memory(), (96 << 20).to_string());
    assert_eq!(ContainerCgroup::find(&pod, &id, "cpu").await.pod(&pod).quota(), "70000");
    assert_eq!(ContainerCgroup::find(&pod, &id, "pids").await.pod(&pod).pids(), "99");
}

pub async fn limits_are_updated_in_place(b: Arc<Bench>) {
    let mut spec = b.pod_spec();
    spec.resources = limits(96, 50_000);
    let pod = b.pod_of(spec).await;
    let mut spec = pod.sleeper("c");
    spec.resources = limits(64, 50_000);
    let id = pod.start(spec).await;
    let pid = pod.status(&id).await.expect("is observed").pid;
    b.runtime.update_sandbox(&pod.id, &limits(256, 80_000)).await.expect("raise the pod's");
    b.runtime.update_container(&id, &limits(128, 80_000)).await.expect("raise the container's");
    let (memory, cpu) =
        (ContainerCgroup::find(&pod, &id, "memory").await, ContainerCgroup::find(&pod, &id, "cpu").await);
    assert_eq!((memory.memory(), memory.pod(&pod).memory()), ((128 << 20).to_string(), (256 << 20).to_string()));
    assert_eq!((cpu.quota(), cpu.pod(&pod).quota()), ("80000".to_owned(), "80000".to_owned()));
    b.runtime.update_container(&id, &limits(32, 20_000)).await.expect("lower the container's");
    b.runtime.update_sandbox(&pod.id, &limits(48, 20_000)).await.expect("lower the pod's");
    assert_eq!((memory.memory(), memory.pod(&pod).memory()), ((32 << 20).to_string(), (48 << 20).to_string()));
    assert_eq!((cpu.quota(), cpu.pod(&pod).quota()), ("20000".to_owned(), "20000".to_owned()));
    assert_eq!(pod.status(&id).await.expect("is observed").pid, pid, "without a restart");
}

pub async fn want_of_memory_is_distinguished_from_other_kills(b: Arc<Bench>) {
    let pod = b.pod().await;
    // containerd listens for want of memory only once the container runs, and nothing tells since when.
    let script = format!("{BOX} sleep 1; exec {BOX} dd if=/dev/zero of=/dev/null bs=256M count=1");
    let mut spec = pod.program("greedy", &[BOX, "sh", "-c", &script]);
    spec.resources = limits(32, 100_000);
    let id = pod.start(spec).await;
    // containerd learns of the cause from an event of its own, after the end.
    let exit_code = eventually("the cause of the end is known", async || match pod.ended(&id).await.state {
        ContainerState::Exited { exit_code, oom: true, .. } => Some(exit_code),
        _ => None,
    })
    .await;
    assert_eq!(exit_code, 137);
    let mut spec = pod.sleeper("modest");
    spec.resources = limits(32, 100_000);
    let id = pod.start(spec).await;
    b.runtime.stop_container(&id, Duration::ZERO).await.expect("stop");
    let status = pod.ended(&id).await;
    let ContainerState::Exited { exit_code, oom, .. } = status.state else { panic!("{status:?}") };
    assert_eq!((exit_code, oom), (137, false));
}

pub async fn forks_stop_at_the_pids_limit(b: Arc<Bench>) {
    let mut spec = b.pod_spec();
    spec.resources.pids_limit = Some(20);
    let pod = b.pod_of(spec).await;
    let forks = "i=0; while [ $i -lt 50 ]; do i=$((i+1)); sleep 1000 & done; echo all of them";
    let status = pod.run(pod.shell("c", forks)).await;
    assert_ne!(code(&status), 0);
    let output = pod.says("c", "fork").await;
    assert!(!output.contains("all of them"), "{output}");
    let other = b.pod().await;
    assert_eq!(code(&other.run(other.shell("c", forks)).await), 0, "others are undisturbed");
}

pub async fn stats_report_what_is_used(b: Arc<Bench>) {
    let pod = b.pod().await;
    let script = "x=$(head -c 8000000 /dev/zero | tr '\\0' x); echo ready; while :; do :; done";
    let mut spec = pod.shell("busy", script);
    spec.resources = limits(256, 20_000);
    pod.start(spec).await;
    pod.says("busy", "ready").await;
    let found = eventually("it has used some", async || {
        let all = b.runtime.stats().await.expect("stats");
        all.into_iter().find(|s| s.pod.as_ref() == Some(&pod.spec.pod) && s.name == "busy" && s.cpu_nanos > 50_000_000)
    })
    .await;
    assert!(found.working_set > 8_000_000 && found.working_set < 256 << 20, "{found:?}");
    assert!(found.memory_usage >= found.working_set, "{found:?}");
    assert!(found.pids >= 1, "{found:?}");
    let later = eventually("it uses more", async || {
        let all = b.runtime.stats().await.expect("stats");
        all.into_iter().find(|s| s.pod.as_ref() == Some(&pod.spec.pod) && s.cpu_nanos > found.cpu_nanos)
    })
    .await;
    assert_eq!(later.name, "busy");
}

pub async fn no_cgroup_is_left_behind(b: Arc<Bench>) {
    let pod = b.pod().await;
    pod.start(pod.sleeper("c")).await;
    let name = format!("pod{}", pod.uid());
    assert!(exists(Path::new("/sys/fs/cgroup"), &name, 6), "it has a cgroup");
    b.runtime.remove_sandbox(&pod.id).await.expect("remove");
    assert!(!exists(Path::new("/sys/fs/cgroup"), &name, 6), "and then none");
}

fn exists(below: &Path, name: &str, depth: u32) -> bool {
    let entries = fs::read_dir(below).into_iter().flatten().filter_map(Result::ok);
    let mut directories = entries.filter(|e| e.file_type().is_ok_and(|t| t.is_dir()));
    depth > 0 && directories.any(|e| e.file_name() == name || exists(&e.path(), name, depth - 1))
}

pub async fn the_oom_score_is_as_asked(b: Arc<Bench>) {
    let pod = b.pod().await;
    let mut spec = pod.shell("c", "cat /proc/self/oom_score_adj");
    spec.resources.oom_score_adj = Some(700);
    assert_eq!(pod.print(spec).await, "700\n");
}
