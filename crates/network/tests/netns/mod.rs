//! Network namespaces for tests: each machine and pod is a thread in a network namespace that ends with it.

#![allow(dead_code, reason = "no test uses all of it")]

pub mod services;

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    os::fd::{AsRawFd, OwnedFd},
    path::PathBuf,
    sync::mpsc,
    time::Duration,
};

use futures::TryStreamExt;
use nix::sched::{CloneFlags, unshare};
use rtnetlink::{
    LinkMessageBuilder, LinkUnspec, LinkVeth, RouteMessageBuilder,
    packet_route::link::{InfoData, InfoVeth},
};

pub const PATIENCE: Duration = Duration::from_secs(20);

type Work = Box<dyn FnOnce() + Send>;

/// A network namespace, and a thread in it.
pub struct Netns {
    work: Option<mpsc::Sender<Work>>,
    thread: Option<std::thread::JoinHandle<()>>,
    pub path: PathBuf,
}

impl Netns {
    pub fn new() -> Self {
        let (work, queue) = mpsc::channel::<Work>();
        let (ready, path) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            unshare(CloneFlags::CLONE_NEWNET).expect("these tests need root");
            let own = format!("/proc/self/task/{}/ns/net", nix::unistd::gettid());
            ready.send(PathBuf::from(own)).unwrap();
            queue.iter().for_each(|work| work());
        });
        Self { work: Some(work), thread: Some(thread), path: path.recv().unwrap() }
    }

    /// Runs work on its thread; a panic there is one here.
    pub fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        let (done, result) = mpsc::channel();
        self.work.as_ref().unwrap().send(Box::new(move || done.send(work()).unwrap())).unwrap();
        result.recv_timeout(PATIENCE * 3).expect("the work in the namespace panicked")
    }

    pub fn run_async<T: Send + 'static, F: Future<Output = T>>(&self, work: impl FnOnce() -> F + Send + 'static) -> T {
        self.run(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async move { tokio::time::timeout(PATIENCE * 2, work()).await.expect("in time") })
        })
    }

    /// Answers every connection with the address it came from.
    pub fn serve(&self, port: u16) {
        self.run(move || {
            let listener = TcpListener::bind(("0.0.0.0", port)).unwrap();
            std::thread::spawn(move || {
                for stream in listener.incoming() {
                    let Ok(mut stream) = stream else { return };
                    let peer = stream.peer_addr().unwrap().ip().to_string();
                    let _ = stream.write_all(peer.as_bytes());
                }
            });
        });
    }

    /// The address that a server sees of us.
    pub fn ask(&self, server: impl Into<SocketAddr>) -> std::io::Result<String> {
        let server = server.into();
        self.run(move || {
            let mut stream = TcpStream::connect_timeout(&server, Duration::from_secs(5))?;
            let mut answer = String::new();
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.read_to_string(&mut answer)?;
            Ok(answer)
        })
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        self.work.take();
        let _ = self.thread.take().unwrap().join();
    }
}

/// A machine with an uplink to another host, at 192.168.77.1 and .2.
pub fn machine_and_neighbour(mtu: u32) -> (Netns, Netns) {
    let (machine, neighbour) = (Netns::new(), Netns::new());
    let other: OwnedFd = std::fs::File::open(&neighbour.path).unwrap().into();
    // br_netfilter would hide faults that machines without it have.
    let sysctl = "/proc/sys/net/bridge/bridge-nf-call-iptables";
    machine.run(move || {
        std::fs::write(sysctl, "0")
            .or_else(|error| if error.kind() == std::io::ErrorKind::NotFound { Ok(()) } else { Err(error) })
            .unwrap()
    });
    machine.run_async(move || async move {
        let (connection, handle, _) = rtnetlink::new_connection().unwrap();
        tokio::spawn(connection);
        let lo = LinkUnspec::new_with_index(1).up().build();
        handle.link().change(lo).execute().await.unwrap();
        let peer = LinkMessageBuilder::<LinkUnspec>::new().name("up").mtu(mtu).setns_by_fd(other.as_raw_fd()).build();
        let pair = LinkVeth::new("up", "up").set_info_data(InfoData::Veth(InfoVeth::Peer(peer))).mtu(mtu).up();
        handle.link().add(pair.build()).execute().await.unwrap();
        configure(&handle, [192, 168, 77, 1], Some([192, 168, 77, 2])).await;
    });
    neighbour.run_async(|| async {
        let (connection, handle, _) = rtnetlink::new_connection().unwrap();
        tokio::spawn(connection);
        configure(&handle, [192, 168, 77, 2], None).await;
    });
    (machine, neighbour)
}

async fn configure(handle: &rtnetlink::Handle, address: [u8; 4], gateway: Option<[u8; 4]>) {
    let link = handle.link().get().match_name("up").execute().try_next().await.unwrap().unwrap();
    let index = link.header.index;
    handle.address().add(index, address.into(), 24).execute().await.unwrap();
    handle.link().change(LinkUnspec::new_with_index(index).up().build()).execute().await.unwrap();
    if let Some(gateway) = gateway {
        let route = RouteMessageBuilder::<Ipv4Addr>::new().gateway(gateway.into()).build();
        handle.route().add(route).execute().await.unwrap();
    }
}
