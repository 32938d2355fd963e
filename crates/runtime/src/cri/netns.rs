//! Connects to a port of a pod on its loopback interface, from within its network namespace (port-forward).
//!
//! Entering the namespace is simpler and faster than CRI's port-forward stream, and works while the runtime's streaming server is
//! out of reach. A thread of its own enters it, as a thread that entered cannot be given back.

use std::{
    fs::File,
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream},
    path::PathBuf,
    time::Duration,
};

use nix::sched::{CloneFlags, setns};

use super::{Inner, proto};
use crate::{error::RuntimeError, observed::SandboxId, port::Result, session::Tunnel};

const PATIENCE: Duration = Duration::from_secs(10);

impl Inner {
    pub(super) async fn connect(&self, sandbox: &SandboxId, port: u16) -> Result<Tunnel> {
        let spec = self.sandbox_spec(sandbox).await?;
        let netns = match spec.host_network {
            true => None,
            false => Some(netns(&self.client.sandbox_status(&sandbox.0, true).await?).ok_or_else(|| {
                RuntimeError::failed("find the pod's network", "the runtime does not say where it is")
            })?),
        };
        let doing = || format!("connect to port {port} of the pod");
        let connected = run(move || enter_and_connect(netns, port)).await;
        let stream =
            connected.and_then(tokio::net::TcpStream::from_std).map_err(|e| RuntimeError::failed(doing(), e))?;
        Ok(Box::new(stream))
    }
}

/// Runs something on a thread that ends with it.
async fn run<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    let (tell, reported) = tokio::sync::oneshot::channel();
    std::thread::Builder::new().name("netns".to_owned()).spawn(move || {
        let _ = tell.send(work());
    })?;
    reported.await.map_err(|_| io::Error::other("the thread ended"))?
}

fn enter_and_connect(netns: Option<PathBuf>, port: u16) -> io::Result<TcpStream> {
    if let Some(path) = netns {
        setns(File::open(path)?, CloneFlags::CLONE_NEWNET)?;
    }
    let four = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let six = SocketAddr::from((Ipv6Addr::LOCALHOST, port));
    let connect = |to| TcpStream::connect_timeout(&to, PATIENCE);
    let stream = connect(four).or_else(|refused| connect(six).map_err(|_| refused))?;
    stream.set_nonblocking(true)?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// As the verbose status of containerd and CRI-O has it: a path, or the pid of a process inside.
fn netns(answer: &proto::PodSandboxStatusResponse) -> Option<PathBuf> {
    let info: serde_json::Value = serde_json::from_str(answer.info.get("info")?).ok()?;
    let namespaces = info.pointer("/runtimeSpec/linux/namespaces").and_then(|all| all.as_array());
    let network = namespaces.into_iter().flatten().find(|n| n["type"] == "network");
    let path = network.and_then(|n| n["path"].as_str()).filter(|path| !path.is_empty()).map(PathBuf::from);
    let pid = || info["pid"].as_u64().filter(|pid| *pid > 0);
    path.or_else(|| pid().map(|pid| PathBuf::from(format!("/proc/{pid}/ns/net"))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn netns_in(json: &str) -> Option<PathBuf> {
        netns(&proto::PodSandboxStatusResponse {
            info: [("info".to_owned(), json.to_owned())].into(),
            ..Default::default()
        })
    }

    #[test]
    fn the_network_is_found_by_path_or_by_process() {
        let spec = r#"{"pid": 7, "runtimeSpec": {"linux": {"namespaces": [{"type": "ipc", "path": "/i"}, {"type": "network", "path": "/n"}]}}}"#;
        assert_eq!(netns_in(spec), Some("/n".into()));
        assert_eq!(
            netns_in(r#"{"pid": 7, "runtimeSpec": {"linux": {"namespaces": [{"type": "network"}]}}}"#),
            Some("/proc/7/ns/net".into())
        );
        assert_eq!(netns_in(r#"{"pid": 0}"#), None);
        assert_eq!(netns_in("{"), None);
    }
}
