//! Pods reach the API of a plain `mainstay up`, which listens for this machine alone; strangers do not.

use std::process::Command;

use crate::{
    harness::{Kubectl, Version, eventually, tool},
    restarts::{pod, until},
};

/// Asks for the version as a pod does: by the Service's name, with its own token and authority.
fn question() -> String {
    let curl = tool("curl/usr/bin/curl");
    let libraries = tool("curl/libraries");
    let secrets = "/var/run/secrets/kubernetes.io/serviceaccount";
    format!(
        "LD_LIBRARY_PATH={} {} -sS --max-time 20 --cacert {secrets}/ca.crt -H \"Authorization: Bearer $(cat {secrets}/token)\" \
         https://kubernetes.default.svc/apis/authentication.k8s.io/v1",
        libraries.display(),
        curl.display()
    )
}

/// A namespace of its own on a wire to this machine, as another computer would be.
struct Stranger {
    name: String,
}

impl Stranger {
    fn new() -> Self {
        let id = std::process::id();
        let stranger = Self { name: format!("ms-stranger-{id}") };
        let [near, far] = [format!("msn{id}"), format!("msf{id}")];
        let third = id % 250;
        ip(&format!("netns add {}", stranger.name));
        ip(&format!("link add {near} type veth peer name {far} netns {}", stranger.name));
        ip(&format!("addr add 198.18.{third}.1/30 dev {near}"));
        ip(&format!("link set {near} up"));
        ip(&format!("-n {} addr add 198.18.{third}.2/30 dev {far}", stranger.name));
        ip(&format!("-n {} link set {far} up", stranger.name));
        ip(&format!("-n {} route add default via 198.18.{third}.1", stranger.name));
        stranger
    }

    fn curl(&self, url: &str) -> (Option<i32>, String) {
        let output = Command::new("nsenter")
            .arg(format!("--net=/run/netns/{}", self.name))
            .arg(tool("curl/usr/bin/curl"))
            .args(["-sSk", "--max-time", "20", url])
            .env("LD_LIBRARY_PATH", tool("curl/libraries"))
            .output()
            .expect("run curl");
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.name]).status();
    }
}

#[track_caller]
fn ip(arguments: &str) {
    let status = Command::new("ip").args(arguments.split_whitespace()).status().expect("run ip");
    assert!(status.success(), "ip {arguments}: {status}");
}

#[test]
fn pods_reach_the_api_by_its_service_and_strangers_do_not() {
    let k = Kubectl::with_pods(Version::V1_32);
    assert!(k.cluster.url().starts_with("https://127.0.0.1:"));
    k.create(&pod("bridged", &question(), "restartPolicy: Never", ""));
    let on_host = "hostNetwork: true\n  dnsPolicy: ClusterFirstWithHostNet\n  restartPolicy: Never";
    k.create(&pod("hosted", &question(), on_host, ""));
    for name in ["bridged", "hosted"] {
        until(&k, &format!("pod {name}"), "{.status.phase}", "Succeeded");
        let answer = k.ok(&format!("logs {name}"));
        assert!(answer.contains("\"APIResourceList\""), "{name}: {answer}");
    }

    let slice = "endpointslice kubernetes";
    let address = eventually("the API has an endpoint", || {
        Some(k.value(slice, "{.endpoints[0].addresses[0]}")).filter(|address| !address.is_empty())
    });
    let url = format!("https://{address}:{}/version", k.value(slice, "{.ports[0].port}"));
    let stranger = Stranger::new();
    let (code, answer) = stranger.curl(&url);
    assert!(code != Some(0) && !answer.contains("gitVersion"), "{code:?} {answer}");
    // 7 and 28 would say that nothing listens, or that no packet came back.
    assert!(!matches!(code, Some(7 | 28)), "the stranger did not get as far as being refused: {code:?}");
}
