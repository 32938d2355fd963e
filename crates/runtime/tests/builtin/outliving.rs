//! What a shim is for: containers outlive the agent, and nothing outlives the shim.

use std::{fs, path::Path, time::Duration, time::Instant};

use mainstay_runtime::{
    ContainerState, Runtime,
    spec::{LogLimit, PidMode, Resources},
};
use mainstay_testing::until;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::{
    pod::{ended, sandbox, says, shell, start, status},
    subject::Subject,
};

/// The shims of this instance.
fn shims(subject: &Subject) -> Vec<i32> {
    let of = |pid: i32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        // Not the first process of a pod, which is a copy of it.
        let comm = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
        let mine = comm.trim() == "mainstay-shim"
            && String::from_utf8_lossy(&line).contains(&*subject.directory.path().to_string_lossy());
        mine.then_some(pid)
    };
    let entries = fs::read_dir("/proc").expect("read /proc").flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| *pid != std::process::id() as i32).filter_map(of).collect()
}

fn is_alive(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn containers_outlive_the_agent_and_exits_meanwhile_are_reported() {
    let subject = Subject::new().await;
    let first = subject.open().await;
    let spec = sandbox(&subject, "web");
    let id = first.create_sandbox(&spec).await.unwrap();
    let stays = start(&first, &id, &shell(&first, &spec, "stays", "echo up; exec sleep 1000").await).await;
    let script = "echo up; while [ ! -e /tmp/go ]; do sleep 0.02; done; echo late; exit 42";
    let goes = start(&first, &id, &shell(&first, &spec, "goes", script).await).await;
    let pid = status(&first, &goes).await.unwrap().pid.unwrap();
    drop(first);

    fs::write(format!("/proc/{pid}/root/tmp/go"), "").unwrap();
    until("it ends", async || (!is_alive(pid)).then_some(())).await;

    let second = subject.open().await;
    assert_eq!(ended(&second, &goes).await.0, 42);
    says(&spec.log_directory.join("goes/0.log"), "stdout F late").await;
    assert!(status(&second, &stays).await.unwrap().state.is_running());
    assert!(second.observe(None).await.unwrap().sandboxes[0].ready);
    let done =
        second.exec(&stays, &["/bin/echo".into(), "hi".into()], Some(Duration::from_secs(60)), 100).await.unwrap();
    assert_eq!(done.stdout, b"hi\n");
    second.remove_sandbox(&id).await.unwrap();
    assert!(shims(&subject).is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_shim_takes_its_containers_with_it_and_that_is_reported() {
    let subject = Subject::new().await;
    let runtime = &subject.runtime;
    for pid in [PidMode::Container, PidMode::Pod, PidMode::Host] {
        let mut spec = sandbox(&subject, "web");
        spec.pid = pid;
        let id = runtime.create_sandbox(&spec).await.unwrap();
        let script = "sleep 1001 & echo up; exec sleep 1000";
        let container = start(runtime, &id, &shell(runtime, &spec, "c", script).await).await;
        says(&spec.log_directory.join("c/0.log"), "up").await;
        let first = status(runtime, &container).await.unwrap().pid.unwrap();
        let [shim] = shims(&subject)[..] else { panic!("not one shim") };
        kill(Pid::from_raw(shim), Signal::SIGKILL).unwrap();

        let (code, _, message) = ended(runtime, &container).await;
        assert_eq!((code, message.as_str()), (137, "its shim ended, and the container with it"), "{pid:?}");
        assert!(!is_alive(first), "{pid:?}");
        assert!(!runtime.observe(None).await.unwrap().sandboxes[0].ready);
        assert!(runtime.create_container(&id, &shell(runtime, &spec, "d", "true").await).await.is_err());
        // As one that was not there when it happened sees it.
        let later = subject.open().await;
        assert_eq!(ended(&later, &container).await.0, 137);
        // Asked for again, it is made anew.
        let again = runtime.create_sandbox(&spec).await.unwrap();
        assert_ne!(again, id);
        runtime.remove_sandbox(&again).await.unwrap();
        fs::remove_dir_all(&spec.log_directory).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_pods_at_once_all_run() {
    let subject = Subject::new().await;
    let began = Instant::now();
    let made = (0..20).map(|n| {
        let (runtime, spec) = (subject.runtime.clone(), sandbox(&subject, &format!("web-{n}")));
        async move {
            let id = runtime.create_sandbox(&spec).await.unwrap();
            let container = start(&runtime, &id, &shell(&runtime, &spec, "c", "exec sleep 1000").await).await;
            assert!(status(&runtime, &container).await.unwrap().state.is_running());
            id
        }
    });
    let ids = futures::future::join_all(made).await;
    println!("20 pods ran after {:?}", began.elapsed());
    assert_eq!(shims(&subject).len(), 20);
    futures::future::join_all(ids.iter().map(|id| subject.runtime.remove_sandbox(id))).await;
    assert!(shims(&subject).is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_output_is_bounded_and_harms_no_other() {
    let subject = Subject::new().await;
    let runtime = &subject.runtime;
    let spec = sandbox(&subject, "flood");
    let id = runtime.create_sandbox(&spec).await.unwrap();
    let mut flood = shell(runtime, &spec, "flood", "exec yes abcdefghijklmnopqrstuvwxyz").await;
    flood.command = ["/bin/busybox", "yes", "abcdefghijklmnopqrstuvwxyz"].map(str::to_owned).to_vec();
    flood.log_limit = LogLimit { bytes: 1 << 20, files: 3 };
    let flooding = start(runtime, &id, &flood).await;
    let calm = start(runtime, &id, &shell(runtime, &spec, "calm", "echo here; exec sleep 1000").await).await;
    says(&spec.log_directory.join("calm/0.log"), "here").await;
    let dir = spec.log_directory.join("flood");
    let files = || fs::read_dir(&dir).map_or(0, |entries| entries.count());
    until("it is set aside", async || (files() == 3).then_some(())).await;
    for _ in 0..20 {
        let size: u64 =
            fs::read_dir(&dir).unwrap().flatten().filter_map(|file| Some(file.metadata().ok()?.len())).sum();
        assert!(size <= 4 << 20, "{size} bytes of logs");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let done = runtime.exec(&calm, &["/bin/true".into()], Some(Duration::from_secs(60)), 0).await.unwrap();
    assert_eq!(done.exit_code, 0);
    runtime.stop_container(&flooding, Duration::from_secs(0)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forks_without_end_stay_in_their_pod() {
    let subject = Subject::new().await;
    let runtime = &subject.runtime;
    let mut spec = sandbox(&subject, "bomb");
    spec.resources = Resources { pids_limit: Some(60), ..Default::default() };
    let id = runtime.create_sandbox(&spec).await.unwrap();
    let bomb = shell(runtime, &spec, "bomb", "f() { f | f & }; while :; do f; done").await;
    let container = start(runtime, &id, &bomb).await;
    let other = sandbox(&subject, "other");
    let beside = runtime.create_sandbox(&other).await.unwrap();
    let well = start(runtime, &beside, &shell(runtime, &other, "c", "exit 3").await).await;
    assert_eq!(ended(runtime, &well).await.0, 3);
    runtime.stop_container(&container, Duration::ZERO).await.unwrap();
    let state = status(runtime, &container).await.unwrap().state;
    assert!(matches!(state, ContainerState::Exited { .. }), "{state:?}");
    runtime.remove_sandbox(&id).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_of_a_pod_is_left_on_the_machine() {
    let subject = Subject::new().await;
    let runtime = &subject.runtime;
    for pid in [PidMode::Container, PidMode::Pod] {
        let mut spec = sandbox(&subject, "web");
        spec.pid = pid;
        let id = runtime.create_sandbox(&spec).await.unwrap();
        let container = start(runtime, &id, &shell(runtime, &spec, "c", "sleep 1000 & exec sleep 1000").await).await;
        let ended = start(runtime, &id, &shell(runtime, &spec, "d", "true").await).await;
        crate::pod::ended(runtime, &ended).await;
        runtime.remove_container(&ended).await.unwrap();
        assert!(!traces(&subject.instance).is_empty());
        runtime.stop_container(&container, Duration::ZERO).await.unwrap();
        runtime.remove_sandbox(&id).await.unwrap();
        runtime.remove_sandbox(&id).await.unwrap();
    }
    let (instance, directory) = (subject.instance.clone(), subject.directory.path().to_string_lossy().into_owned());
    drop(subject);
    for name in [&instance, &directory] {
        assert_eq!(traces(name), Vec::<String>::new());
    }
    assert!(!Path::new("/run").join(&instance).exists());
}

/// Mounts, cgroups and processes with this in their name.
fn traces(name: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    found.extend(mounts.lines().filter(|line| line.contains(name)).map(str::to_owned));
    for hierarchy in fs::read_dir("/sys/fs/cgroup").unwrap().flatten() {
        let path = hierarchy.path().join(name);
        if !name.is_empty() && path.exists() {
            found.push(path.display().to_string());
        }
    }
    for process in fs::read_dir("/proc").unwrap().flatten() {
        let line = fs::read(process.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).into_owned();
        if line.contains("mainstay-shim") && line.contains(name) {
            found.push(line);
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shim_is_small() {
    let subject = Subject::new().await;
    let runtime = &subject.runtime;
    let mut starts = Vec::new();
    for n in 0..10 {
        let spec = sandbox(&subject, &format!("web-{n}"));
        let began = Instant::now();
        let id = runtime.create_sandbox(&spec).await.unwrap();
        let made = began.elapsed();
        start(runtime, &id, &shell(runtime, &spec, "c", "echo up; exec sleep 1000").await).await;
        starts.push((made, began.elapsed() - made));
    }
    starts.sort();
    // Nothing of a copy that ended meanwhile.
    let private = |pid: i32| -> Option<u64> {
        let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
        let lines = text.lines().filter(|line| line.starts_with("Private_"));
        Some(lines.filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok()).sum())
    };
    let sizes: Vec<u64> = shims(&subject).into_iter().filter_map(private).collect();
    println!("sandbox and container made after {:?} (median); private kB of shims: {sizes:?}", starts[5]);
    assert!(sizes.len() >= 10 && sizes.iter().all(|size| (1..16_384).contains(size)), "{sizes:?}");
}
