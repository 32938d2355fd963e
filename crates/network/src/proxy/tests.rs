//! Tests with real sockets on loopback addresses, each of which is a frontend; shared helpers.

mod holding;
mod limits;
mod relaying;

use std::{
    collections::HashSet,
    io::{ErrorKind, Read, Write},
    net::{Ipv4Addr, Shutdown, SocketAddrV4, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use mainstay_testing::eventually;

use super::{resources::MAX_WAITING_PER_FRONTEND, *};
use crate::{journal::Protocol, services::frontend::WithoutBackends};

const PATIENCE: Duration = Duration::from_secs(20);
const LONG: WithoutBackends = WithoutBackends::Hold(Duration::from_secs(30));
const FRONTEND: Ipv4Addr = Ipv4Addr::new(127, 77, 0, 1);

fn proxy() -> Arc<Proxy> {
    Proxy::start_with(local_address, 2).unwrap()
}

fn pool(backends: &[SocketAddrV4], without_backends: WithoutBackends) -> BackendPool {
    let mut backends = backends.to_vec();
    backends.sort();
    BackendPool {
        backends,
        affinity: None,
        masquerade: false,
        through_user_space: true,
        without_backends,
        internal: None,
        terminating: Vec::new(),
    }
}

impl Proxy {
    fn frontend(&self, address: Ipv4Addr) -> Frontend {
        Frontend { address: Some(address), protocol: Protocol::Tcp, port: self.port }
    }

    fn serve(&self, backends: &[SocketAddrV4], without: WithoutBackends) {
        self.set(self.frontend(FRONTEND), Some(&pool(backends, without)));
    }

    fn client(&self) -> TcpStream {
        let stream = TcpStream::connect((FRONTEND, self.port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    fn waiting(&self) -> u32 {
        self.table.waiting(self.frontend(FRONTEND))
    }
}

/// Answers whole requests: what it has read until the end of a connection.
struct Backend {
    address: SocketAddrV4,
    connections: Arc<AtomicUsize>,
}

impl Backend {
    /// What `serve` does with every connection, on a thread of its own.
    fn new(serve: impl Fn(TcpStream) + Send + Sync + 'static) -> Self {
        Self::listen_at(free_address(), serve)
    }

    fn listen_at(address: SocketAddrV4, serve: impl Fn(TcpStream) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind(address).unwrap();
        let connections = Arc::new(AtomicUsize::new(0));
        let (count, serve) = (connections.clone(), Arc::new(serve));
        thread::spawn(move || {
            for stream in listener.incoming() {
                count.fetch_add(1, Ordering::Relaxed);
                let serve = serve.clone();
                thread::spawn(move || serve(stream.unwrap()));
            }
        });
        Self { address, connections }
    }

    fn echo() -> Self {
        Self::new(|stream| {
            let _ = std::io::copy(&mut &stream, &mut &stream);
            let _ = stream.shutdown(Shutdown::Write);
        })
    }

    fn naming(name: &'static str) -> Self {
        Self::new(move |mut stream| {
            let _ = stream.write_all(name.as_bytes());
        })
    }

    fn count(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }
}

/// An address without a listener.
fn free_address() -> SocketAddrV4 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    SocketAddrV4::new(Ipv4Addr::LOCALHOST, listener.local_addr().unwrap().port())
}

fn read_all(mut stream: &TcpStream) -> std::io::Result<String> {
    let mut text = String::new();
    stream.read_to_string(&mut text).map(|_| text)
}

fn ask(mut stream: &TcpStream, question: &str) -> std::io::Result<String> {
    stream.write_all(question.as_bytes())?;
    stream.shutdown(Shutdown::Write)?;
    read_all(stream)
}

fn is_refusal(result: std::io::Result<String>) -> bool {
    result.is_err_and(|error| matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe))
}

/// A listener whose queue is full lets further attempts go unanswered, for as long as the first of these is kept.
fn silent_backend() -> ((socket2::Socket, Vec<TcpStream>), SocketAddrV4) {
    let listener = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    listener.bind(&SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    listener.listen(0).unwrap();
    let address = listener.local_addr().unwrap().as_socket_ipv4().unwrap();
    let one_more = || TcpStream::connect_timeout(&address.into(), Duration::from_millis(100)).ok();
    let queue = std::iter::from_fn(one_more).take(8).collect();
    ((listener, queue), address)
}
