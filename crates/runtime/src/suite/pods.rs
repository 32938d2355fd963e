//! What the containers of a pod share, and what they do not.

use std::{fs, sync::Arc};

use crate::{
    spec::PidMode,
    suite::{
        Bench,
        bench::{bind, eventually},
    },
};

fn namespace_of_machine(namespace: &str) -> String {
    let link = fs::read_link(format!("/proc/self/ns/{namespace}")).expect("read a namespace");
    link.to_string_lossy().into_owned()
}

fn print_namespaces(namespaces: &[&str]) -> String {
    namespaces.iter().map(|n| format!("readlink /proc/self/ns/{n};")).collect()
}

pub async fn containers_share_network_and_host_name(b: Arc<Bench>) {
    let pod = b.pod().await;
    let one = pod.print(pod.shell("one", &print_namespaces(&["net", "uts"]))).await;
    let two = pod.print(pod.shell("two", &print_namespaces(&["net", "uts"]))).await;
    assert_eq!(one, two);
    for namespace in ["net", "uts"] {
        assert!(!one.contains(&namespace_of_machine(namespace)), "{namespace} is not the machine's: {one}");
    }
    let other = b.pod().await;
    let three = other.print(other.shell("three", &print_namespaces(&["net", "uts"]))).await;
    assert!(!one.lines().any(|line| three.contains(line)), "pods do not share: {one} {three}");
}

pub async fn containers_share_loopback(b: Arc<Bench>) {
    let pod = b.pod().await;
    pod.start(pod.shell("server", "echo hello | nc -l -p 7777")).await;
    let client = pod.shell("client", "until nc 127.0.0.1 7777 </dev/null; do sleep 0.05; done");
    assert_eq!(pod.print(client).await.lines().last(), Some("hello"));
}

pub async fn containers_share_ipc_but_not_the_machines(b: Arc<Bench>) {
    let pod = b.pod().await;
    let one = pod.print(pod.shell("one", &print_namespaces(&["ipc"]))).await;
    let two = pod.print(pod.shell("two", &print_namespaces(&["ipc"]))).await;
    assert_eq!(one, two);
    assert_ne!(one.trim(), namespace_of_machine("ipc"));
    let mut spec = b.pod_spec();
    spec.host_ipc = true;
    let open = b.pod_of(spec).await;
    assert_eq!(open.print(open.shell("c", &print_namespaces(&["ipc"]))).await.trim(), namespace_of_machine("ipc"));
}

pub async fn containers_see_their_own_processes_only(b: Arc<Bench>) {
    let pod = b.pod().await;
    pod.start(pod.program("other", &[super::bench::BOX, "sleep", "271828"])).await;
    let observed = pod.print(pod.shell("c", "echo $$; cat /proc/[0-9]*/cmdline | tr '\\0' ' '")).await;
    assert!(observed.starts_with("1\n"), "{observed}");
    assert!(!observed.contains("271828"), "{observed}");
}

pub async fn a_shared_pid_namespace_shows_all(b: Arc<Bench>) {
    let mut spec = b.pod_spec();
    spec.pid = PidMode::Pod;
    let pod = b.pod_of(spec).await;
    let id = pod.start(pod.program("other", &[super::bench::BOX, "sleep", "271828"])).await;
    let observed =
        pod.print(pod.shell("c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '; readlink /proc/self/ns/pid")).await;
    assert!(observed.contains("271828"), "{observed}");
    assert!(!observed.contains(&namespace_of_machine("pid")), "{observed}");
    // The exit code is the container's own, whoever else lives in the namespace.
    b.runtime.stop_container(&id, std::time::Duration::ZERO).await.expect("stop");
    assert_eq!(super::bench::code(&pod.ended(&id).await), 137);
    let status = pod.run(pod.shell("last", "exit 6")).await;
    assert_eq!(super::bench::code(&status), 6);
}

pub async fn the_machines_pid_namespace_can_be_asked_for(b: Arc<Bench>) {
    let mut spec = b.pod_spec();
    spec.pid = PidMode::Host;
    let pod = b.pod_of(spec).await;
    assert_eq!(pod.print(pod.shell("c", &print_namespaces(&["pid"]))).await.trim(), namespace_of_machine("pid"));
    let status = pod.run(pod.shell("d", "exit 8")).await;
    assert_eq!(super::bench::code(&status), 8);
}

pub async fn the_machines_network_can_be_asked_for(b: Arc<Bench>) {
    let mut spec = b.pod_spec();
    spec.host_network = true;
    let pod = b.pod_of(spec).await;
    assert_eq!(pod.print(pod.shell("c", &print_namespaces(&["net"]))).await.trim(), namespace_of_machine("net"));
}

pub async fn the_host_name_is_as_asked(b: Arc<Bench>) {
    let mut spec = b.pod_spec();
    spec.hostname = "chosen-name".to_owned();
    let pod = b.pod_of(spec).await;
    assert_eq!(pod.print(pod.shell("c", "hostname")).await, "chosen-name\n");
}

pub async fn sysctls_are_set_in_the_pod_only(b: Arc<Bench>) {
    let name = "/proc/sys/net/ipv4/ip_unprivileged_port_start";
    let before = fs::read_to_string(name).expect("read a setting");
    let mut spec = b.pod_spec();
    spec.sysctls.insert("net.ipv4.ip_unprivileged_port_start".to_owned(), "77".to_owned());
    let pod = b.pod_of(spec).await;
    assert_eq!(pod.print(pod.shell("c", &format!("cat {name}"))).await, "77\n");
    assert_eq!(fs::read_to_string(name).expect("read a setting"), before);
}

pub async fn mounts_are_shared_and_honour_read_only(b: Arc<Bench>) {
    let pod = b.pod().await;
    let shared = b.path("shared");
    fs::create_dir_all(&shared).expect("make a directory");
    let mut writer = pod.shell("writer", "echo from writer > /deep/inside/file; echo written");
    writer.mounts.push(bind(&shared, "/deep/inside", false));
    assert_eq!(pod.print(writer).await, "written\n");
    assert_eq!(fs::read_to_string(shared.join("file")).expect("it is on the machine"), "from writer\n");
    let mut reader = pod.shell("reader", "cat /in/file; (echo no > /in/file) 2>/dev/null || echo refused");
    reader.mounts.push(bind(&shared, "/in", true));
    let printed = pod.print(reader).await;
    assert_eq!(printed, "from writer\nrefused\n");
}

pub async fn a_single_file_can_be_mounted(b: Arc<Bench>) {
    let pod = b.pod().await;
    let file = b.path("one");
    fs::write(&file, "first\n").expect("write a file");
    let mut spec = pod.shell("c", "cat /etc/one; until grep -q second /etc/one; do sleep 0.05; done; echo seen");
    spec.mounts.push(bind(&file, "/etc/one", true));
    let id = pod.start(spec).await;
    pod.says("c", "first").await;
    fs::write(&file, "second\n").expect("change it in place");
    pod.says("c", "seen").await;
    assert_eq!(super::bench::code(&pod.ended(&id).await), 0);
}

pub async fn root_filesystems_are_private(b: Arc<Bench>) {
    let pod = b.pod().await;
    let id = pod.start(pod.shell("one", "echo mine > /tmp/suite-mark; echo done; sleep 100000")).await;
    pod.says("one", "done").await;
    let look = "[ -e /tmp/suite-mark ] && echo seen || echo clean";
    assert_eq!(pod.print(pod.shell("two", look)).await, "clean\n");
    assert!(!std::path::Path::new("/tmp/suite-mark").exists(), "nor is it the machine's");
    // A restart begins from the image again.
    b.runtime.stop_container(&id, std::time::Duration::ZERO).await.expect("stop");
    let mut again = pod.shell("one", look);
    again.attempt = 1;
    again.log_path = pod.log_path("one", 1);
    assert_eq!(pod.print(again).await, "clean\n");
    b.runtime.remove_sandbox(&pod.id).await.expect("remove");
    eventually("the pod is gone", async || pod.sandboxes().await.is_empty().then_some(())).await;
}
