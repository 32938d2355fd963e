//! One attempt of a probe, with upstream's messages.
//!
//! Every attempt makes its own connection and closes it, so that what is tested is what a new client
//! would meet.

pub mod exec;
pub mod grpc;
pub mod http;
pub mod tcp;

use std::{net::IpAddr, time::Duration};

use k8s_openapi::{
    api::core::v1::{Container, Probe},
    apimachinery::pkg::util::intstr::IntOrString,
};
use mainstay_runtime::{ContainerId, Runtime};

/// What a probe says of itself to those it asks.
pub const USER_AGENT: &str = "kube-probe/1.37";

/// Of what a server or a command says, this much is kept.
pub const KEPT: usize = 10 << 10;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Success,
    /// Counts as success, but someone ought to know.
    Warning(String),
    Failure(String),
    /// Neither good nor bad: it could not be asked.
    Errored(String),
    /// There is no such container any more.
    Gone,
}

/// What is probed.
pub struct Target<'a> {
    pub runtime: &'a dyn Runtime,
    pub id: &'a ContainerId,
    pub container: &'a Container,
    pub address: Option<IpAddr>,
}

pub async fn attempt(target: &Target<'_>, probe: &Probe) -> Outcome {
    let timeout = Duration::from_secs(probe.timeout_seconds.unwrap_or(1).max(1) as u64);
    if let Some(exec) = &probe.exec {
        return exec::attempt(target, exec, timeout).await;
    }
    let request = if let Some(get) = &probe.http_get {
        http::Request::new(get, target.container, target.address, USER_AGENT).map(ProbeRequest::Http)
    } else if let Some(socket) = &probe.tcp_socket {
        target_host(socket.host.as_deref(), target.address)
            .and_then(|host| Ok(ProbeRequest::Tcp(host, port(&socket.port, target.container)?)))
    } else if let Some(grpc) = &probe.grpc {
        target_host(None, target.address).and_then(|host| {
            Ok(ProbeRequest::Grpc(host, number(grpc.port)?, grpc.service.as_deref().unwrap_or_default()))
        })
    } else {
        Err(format!("missing probe handler for {}", target.container.name))
    };
    match request {
        Ok(ProbeRequest::Http(request)) => http::attempt(request, timeout).await,
        Ok(ProbeRequest::Tcp(host, port)) => tcp::attempt(&host, port, timeout).await,
        Ok(ProbeRequest::Grpc(host, port, service)) => grpc::attempt(&host, port, service, timeout).await,
        Err(why) => Outcome::Errored(why),
    }
}

enum ProbeRequest<'a> {
    Http(http::Request),
    Tcp(String, u16),
    Grpc(String, u16, &'a str),
}

/// The host to ask: the one named, or the pod itself.
pub fn target_host(host: Option<&str>, address: Option<IpAddr>) -> Result<String, String> {
    match (host.filter(|host| !host.is_empty()), address) {
        (Some(host), _) => Ok(host.trim_start_matches('[').trim_end_matches(']').to_owned()),
        (None, Some(address)) => Ok(address.to_string()),
        (None, None) => Err("the pod has no address yet".to_owned()),
    }
}

/// A port by number or by the name the container gives it.
pub fn port(port: &IntOrString, container: &Container) -> Result<u16, String> {
    match port {
        IntOrString::Int(port) => number(*port),
        IntOrString::String(name) => {
            let named = container.ports.iter().flatten().find(|port| port.name.as_deref() == Some(name));
            match (named, name.parse::<i32>()) {
                (Some(port), _) => number(port.container_port),
                (None, Ok(port)) => number(port),
                (None, Err(_)) => Err(format!("strconv.Atoi: parsing {name:?}: invalid syntax")),
            }
        }
    }
}

fn number(port: i32) -> Result<u16, String> {
    u16::try_from(port).ok().filter(|port| *port > 0).ok_or_else(|| format!("invalid port number: {port}"))
}

/// `10.0.0.1:80`, `[fd00::1]:80`.
pub fn join(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// `1s`, `1m30s`: as Go writes it.
pub fn format_duration(time: Duration) -> String {
    let seconds = time.as_secs();
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, s) => format!("{s}s"),
        (0, m, s) => format!("{m}m{s}s"),
        (h, m, s) => format!("{h}h{m}m{s}s"),
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ContainerPort;

    use super::*;

    #[test]
    fn ports_are_found_by_number_name_and_numeric_name() {
        let named = ContainerPort { name: Some("web".into()), container_port: 8080, ..Default::default() };
        let container = Container { ports: Some(vec![named]), ..Default::default() };
        assert_eq!(port(&IntOrString::Int(80), &container), Ok(80));
        assert_eq!(port(&IntOrString::String("web".into()), &container), Ok(8080));
        assert_eq!(port(&IntOrString::String("81".into()), &container), Ok(81));
        assert_eq!(
            port(&IntOrString::String("www".into()), &container),
            Err("strconv.Atoi: parsing \"www\": invalid syntax".into())
        );
        assert_eq!(port(&IntOrString::Int(70000), &container), Err("invalid port number: 70000".into()));
    }

    #[test]
    fn durations_read_as_in_upstreams_messages() {
        let texts = [1, 60, 95, 3600].map(|s| format_duration(Duration::from_secs(s)));
        assert_eq!(texts, ["1s", "1m0s", "1m35s", "1h0m0s"]);
    }
}
