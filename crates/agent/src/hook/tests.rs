use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{ContainerPort, ExecAction, HTTPGetAction, PodSpec, SleepAction, TCPSocketAction},
    apimachinery::pkg::util::intstr::IntOrString,
};
use mainstay_runtime::{
    ContainerSpec, PodUid, SandboxSpec,
    fake::{ExecResult, Fake},
    observed::PodRef,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

use super::*;

const DEADLINE: Duration = Duration::from_secs(10);

fn pod(port: u16) -> Pod {
    let ports = vec![ContainerPort { name: Some("web".into()), container_port: port.into(), ..Default::default() }];
    let container = Container { name: "c".into(), ports: Some(ports), ..Default::default() };
    let mut pod =
        Pod { spec: Some(PodSpec { containers: vec![container], ..Default::default() }), ..Default::default() };
    pod.metadata.name = Some("p".into());
    pod.metadata.namespace = Some("default".into());
    pod.metadata.uid = Some("u".into());
    pod
}

async fn run(
    hook: LifecycleHandler,
    port: u16,
    limit: impl Into<Option<Duration>>,
    code: i32,
    takes: u64,
) -> Result<(), String> {
    let runtime = Arc::new(Fake::new());
    runtime.on_exec(move |_, _| {
        let mut executed = ExecResult::code(code);
        executed.takes = Duration::from_secs(takes);
        executed.output.stderr = b"oh".to_vec();
        Ok(executed)
    });
    let pod_ref = PodRef { namespace: "default".into(), name: "p".into(), uid: PodUid("u".into()) };
    let spec = SandboxSpec {
        pod: pod_ref,
        attempt: 0,
        hostname: "p".into(),
        log_directory: std::env::temp_dir(),
        host_network: true,
        host_ipc: false,
        pid: Default::default(),
        users: None,
        runtime_handler: String::new(),
        selinux: None,
        cgroup: String::new(),
        resources: Default::default(),
        sysctls: BTreeMap::new(),
        ports: Vec::new(),
        dns: Default::default(),
        labels: BTreeMap::new(),
        annotations: BTreeMap::new(),
    };
    let sandbox = runtime.create_sandbox(&spec).await.unwrap();
    let spec = ContainerSpec { name: "c".into(), image: "busybox".into(), ..Default::default() };
    let id = runtime.create_container(&sandbox, &spec).await.unwrap();
    runtime.start_container(&id).await.unwrap();
    let pod = pod(port);
    let at = HookTarget { pod: &pod, container: "c", id: &id, address: Some([127, 0, 0, 1].into()) };
    Hooks::new(runtime).run(at, &hook, limit.into()).await.map_err(|error| error.to_string())
}

fn exec() -> LifecycleHandler {
    let exec = ExecAction { command: Some(vec!["drain".into(), "now".into()]) };
    LifecycleHandler { exec: Some(exec), ..Default::default() }
}

#[tokio::test(start_paused = true)]
async fn a_command_ends_well_badly_or_too_late() {
    assert_eq!(run(exec(), 1, DEADLINE, 0, 3).await, Ok(()));
    assert_eq!(
        run(exec(), 1, DEADLINE, 3, 0).await.unwrap_err(),
        "Exec lifecycle hook ([drain now]) for Container \"c\" in Pod \"p_default(u)\" failed - error: command 'drain \
         now' exited with 3: oh, message: \"oh\""
    );
    let late = run(exec(), 1, DEADLINE, 0, 60).await.unwrap_err();
    assert!(late.ends_with("error: command \"drain now\" timed out"), "{late}");
}

#[tokio::test(start_paused = true)]
async fn sleep_takes_its_time_within_the_deadline() {
    let sleep = |seconds| LifecycleHandler { sleep: Some(SleepAction { seconds }), ..Default::default() };
    let began = tokio::time::Instant::now();
    assert_eq!(run(sleep(5), 1, DEADLINE, 0, 0).await, Ok(()));
    assert_eq!(began.elapsed().as_secs(), 5);
    assert!(run(sleep(60), 1, DEADLINE, 0, 0).await.is_err());
    assert_eq!(began.elapsed().as_secs(), 15);
}

#[tokio::test]
async fn http_and_tcp_reach_the_pods_own_port_by_name() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut asked = [0; 1024];
            let _ = stream.read(&mut asked).await;
            let _ = stream.write_all(b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n").await;
        }
    });
    let web = IntOrString::String("web".into());
    let tcp = TCPSocketAction { port: web.clone(), host: None };
    let tcp = LifecycleHandler { tcp_socket: Some(tcp), ..Default::default() };
    assert_eq!(run(tcp, port, DEADLINE, 0, 0).await, Ok(()));
    let get = HTTPGetAction { port: web, path: Some("/bye".into()), ..Default::default() };
    let get = LifecycleHandler { http_get: Some(get), ..Default::default() };
    assert_eq!(run(get.clone(), port, DEADLINE, 0, 0).await, Ok(()), "it was told, whatever it answered");
    let refused = run(get, 1, DEADLINE, 0, 0).await.unwrap_err();
    assert!(
        refused.starts_with("HTTP lifecycle hook (/bye) for Container \"c\"") && refused.contains("refused"),
        "{refused}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_command_without_a_limit_may_take_its_time_and_its_failure_is_reported() {
    assert_eq!(run(exec(), 1, None, 0, 100_000).await, Ok(()));
    assert!(run(exec(), 1, None, 3, 100_000).await.unwrap_err().contains("exited with 3"));
    assert_eq!(run(exec(), 1, Duration::MAX, 0, 3).await, Ok(()));
}
