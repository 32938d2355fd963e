//! What fails around us: the daemon, the network, images, agents that ended half-way.

use std::{fs, path::Path, time::Duration};

use mainstay_runtime::{
    Runtime, RuntimeError,
    cgroup::Cgroup,
    images::{HOST_IMAGE, PullError},
    observed::ContainerState,
    suite::{Subject, image},
};
use mainstay_testing::until;

use crate::{
    containerd::{Containerd, mounts_below},
    pods,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_daemon_that_comes_back_finds_its_containers_and_their_ends() {
    let d = Containerd::start().await;
    let pod = pods::sandbox(&d, "p");
    let id = d.runtime.create_sandbox(&pod).await.expect("create");
    let go = d.scratch().join("go");
    let script = format!("until [ -e {} ]; do sleep 0.02; done; exit 21", go.display());
    let mut short = pods::shell(&d, &pod, "short", &script);
    short.mounts = vec![pods::bind(&d.scratch(), &d.scratch().display().to_string())];
    let short = d.runtime.create_container(&id, &short).await.expect("create");
    let long = d.runtime.create_container(&id, &pods::shell(&d, &pod, "long", "sleep 1000")).await.expect("create");
    for container in [&short, &long] {
        d.runtime.start_container(container).await.expect("start");
    }
    let mut wakeups = d.runtime.wakeups();
    d.kill();
    let gone = d.runtime.observe(None).await.expect_err("nobody answers");
    assert!(matches!(gone, RuntimeError::Unavailable { .. }), "{gone:?}");
    let gone = d.runtime.start_container(&short).await.expect_err("nobody answers");
    assert!(matches!(gone, RuntimeError::Unavailable { .. }), "{gone:?}");
    fs::write(&go, "").expect("let it go");
    d.resume().await;
    let ended = until("its end is known", async || {
        let found = d.runtime.observe(Some(&pod.pod.uid)).await.ok()?;
        found.containers.into_iter().find(|c| c.id == short && c.state.has_ended())
    })
    .await;
    assert!(matches!(ended.state, ContainerState::Exited { exit_code: 21, .. }), "{ended:?}");
    let found = d.runtime.observe(Some(&pod.pod.uid)).await.expect("observe");
    assert!(found.sandboxes[0].ready);
    assert!(found.containers.iter().any(|c| c.id == long && c.state.is_running()));
    let woken = tokio::time::timeout(Duration::from_secs(30), wakeups.recv()).await.expect("a wake-up comes");
    assert_eq!(woken.expect("open"), pod.pod.uid);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sandbox_without_network_fails_is_never_ready_and_made_later() {
    let d = Containerd::start().await;
    let network = d.home().join("cni/10-test.conflist");
    let good = fs::read_to_string(&network).expect("read the network");
    // Valid, but its plugin is not there.
    let broken = good.replace(r#""type":"host-local""#, r#""type":"no-such-plugin""#);
    assert_ne!(good, broken);
    fs::write(&network, broken).expect("break the network");
    let pod = pods::sandbox(&d, "p");
    until("containerd has noticed", async || d.runtime.create_sandbox(&pod).await.err()).await;
    // What containerd cannot tear down without its network either stays, for all to see that it is of no use.
    let found = d.runtime.observe(Some(&pod.pod.uid)).await.expect("observe");
    assert!(found.sandboxes.iter().all(|s| !s.ready), "{found:?}");
    fs::write(&network, good).expect("mend the network");
    let id = until("it can be made again", async || d.runtime.create_sandbox(&pod).await.ok()).await;
    let found = d.runtime.observe(Some(&pod.pod.uid)).await.expect("observe");
    assert_eq!(found.sandboxes.iter().map(|s| (&s.id, s.ready)).collect::<Vec<_>>(), [(&id, true)]);
    d.runtime.remove_sandbox(&id).await.expect("remove");
    assert!(!Cgroup::new(format!("{}/{}", d.instance, pod.cgroup)).exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_left_behind() {
    let d = Containerd::start().await;
    let mounts = mounts_below(d.home()).len();
    let veths = || fs::read_dir(Path::new("/sys/class/net").join(d.bridge()).join("brif")).map_or(0, Iterator::count);
    let addresses = || {
        fs::read_dir(d.home().join("addresses").join(d.bridge())).map_or(0, |all| {
            all.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with("10.")).count()
        })
    };
    let pod = pods::sandbox(&d, "p");
    let id = d.runtime.create_sandbox(&pod).await.expect("create");
    let container = d.runtime.create_container(&id, &pods::shell(&d, &pod, "c", "sleep 1000")).await.expect("create");
    d.runtime.start_container(&container).await.expect("start");
    assert!(mounts_below(d.home()).len() > mounts && veths() == 1 && addresses() == 1, "something is there to leave");
    d.runtime.remove_sandbox(&id).await.expect("remove");
    assert_eq!((mounts_below(d.home()).len(), veths(), addresses()), (mounts, 0, 0));
    let top = Cgroup::new(d.instance.clone());
    assert!(!top.exists(), "the cgroup above all pods goes with the last of them");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cgroups_of_an_agent_that_ended_half_way_are_removed_by_the_next() {
    let d = Containerd::start().await;
    let instance = format!("{}-next", d.instance);
    let left = Cgroup::new(format!("{instance}/burstable/pod0-left-behind"));
    left.create().expect("make a cgroup");
    let _next = d.another(&instance);
    until("it is swept", async || (!left.exists()).then_some(())).await;
    Cgroup::new(&instance).remove().expect("remove what is above");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn images_are_found_refused_and_removed() {
    let d = Containerd::start().await;
    let images = d.runtime.images();
    let configured = images.find(image::CONFIGURED).await.expect("ask").expect("is there");
    assert_eq!((configured.user.as_str(), &configured.tags), ("worker", &vec![image::CONFIGURED.to_owned()]));
    assert!(configured.id.starts_with("sha256:") && configured.size > 0, "{configured:?}");
    assert_eq!(images.find(&configured.id).await.expect("ask").expect("by id").id, configured.id);
    assert!(images.list().await.expect("list").iter().any(|i| i.id == configured.id));
    assert!(images.find("mainstay.test/nothing:1").await.expect("ask").is_none());
    let odd = images.pull("Not A Name", None).await.expect_err("no such name");
    assert!(matches!(odd, PullError::InvalidName { .. }), "{odd:?}");
    let host = images.find(HOST_IMAGE).await.expect_err("not with CRI");
    assert!(matches!(host, RuntimeError::Invalid { .. }), "{host:?}");

    let pod = pods::sandbox(&d, "p");
    let id = d.runtime.create_sandbox(&pod).await.expect("create");
    let mut spec = pods::shell(&d, &pod, "c", "true");
    spec.image = image::CONFIGURED.to_owned();
    let container = d.runtime.create_container(&id, &spec).await.expect("create");
    let used = images.remove(&configured.id).await.expect_err("a container is made of it");
    assert!(matches!(used, RuntimeError::Invalid { .. }), "{used:?}");
    d.runtime.remove_container(&container).await.expect("remove");
    images.remove(&configured.id).await.expect("remove");
    images.remove(&configured.id).await.expect("remove again");
    assert!(images.find(image::CONFIGURED).await.expect("ask").is_none());
    spec.image = HOST_IMAGE.to_owned();
    let host = d.runtime.create_container(&id, &spec).await.expect_err("not with CRI");
    assert!(host.to_string().contains("built-in"), "{host}");
    assert!(images.usage().await.is_ok());
    d.runtime.remove_sandbox(&id).await.expect("remove");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agents_at_one_runtime_do_not_see_each_other() {
    let d = Containerd::start().await;
    let other = d.another(&format!("{}-other", d.instance));
    let pod = pods::sandbox(&d, "p");
    let id = d.runtime.create_sandbox(&pod).await.expect("create");
    assert!(other.observe(None).await.expect("observe").sandboxes.is_empty());
    assert!(other.observe(Some(&pod.pod.uid)).await.expect("observe").sandboxes.is_empty());
    assert_eq!(d.runtime.observe(None).await.expect("observe").sandboxes.len(), 1);
    d.runtime.remove_sandbox(&id).await.expect("remove");
}
