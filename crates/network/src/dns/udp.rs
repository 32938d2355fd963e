//! DNS over UDP: up to 32 queries in one `recvmmsg`, and their responses in one `sendmmsg`.
//!
//! There are several sockets with `SO_REUSEPORT`, between which the kernel distributes clients, so that cores do not
//! wait for each other.

use std::{
    io::{self, IoSlice, IoSliceMut},
    net::{SocketAddr, SocketAddrV4},
    os::fd::AsRawFd,
    sync::Arc,
};

use nix::sys::socket::{ControlMessage, MsgFlags, MultiHeaders, SockaddrIn, recvmmsg, sendmmsg};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::{io::Interest, net::UdpSocket, sync::Semaphore};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    response::Transport,
    server::{PendingQuery, Reply, Server},
    zones::ShuffleRng,
};

/// Packets per system call.
const BATCH: usize = 32;

/// Queries are far shorter; a longer packet is cut, and gets FORMERR.
const MAX_QUERY: usize = 1500;

/// Socket buffer for packets that arrive while we are not running.
const RECEIVE_BUFFER: usize = 1 << 20;

/// Forwarded queries at a time; more get no response, and clients repeat them.
const MAX_PENDING: usize = 4096;

/// `count` sockets with one address, which no other process has.
pub fn bind(address: SocketAddrV4, count: usize) -> io::Result<Vec<UdpSocket>> {
    // `SO_REUSEPORT` would let another process of the same user share the port. A socket without it fails to bind if
    // there is one.
    let alone = socket(false)?;
    alone.bind(&address.into())?;
    let address = match alone.local_addr()?.as_socket_ipv4() {
        Some(bound) => bound,
        None => address,
    };
    drop(alone);
    let shared = |_| {
        let socket = socket(true)?;
        socket.bind(&address.into())?;
        UdpSocket::from_std(socket.into())
    };
    (0..count).map(shared).collect()
}

fn socket(shared: bool) -> io::Result<Socket> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM.nonblocking().cloexec(), Some(Protocol::UDP))?;
    socket.set_reuse_port(shared)?;
    // The kernel may give less, and it works all the same.
    let _ = socket.set_recv_buffer_size(RECEIVE_BUFFER);
    Ok(socket)
}

/// Answers queries until it is stopped.
pub async fn serve(socket: UdpSocket, server: Arc<Server>, stop: CancellationToken) {
    let socket = Arc::new(socket);
    let (pending, tasks) = (Arc::new(Semaphore::new(MAX_PENDING)), TaskTracker::new());
    let mut batch = Batch::new();
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => break,
            ready = socket.readable() => if let Err(error) = ready {
                tracing::error!(%error, "cannot wait for DNS queries");
                break;
            },
        }
        if let Err(error) = socket.try_io(Interest::READABLE, || batch.receive(&socket))
            && error.kind() != io::ErrorKind::WouldBlock
        {
            // Say, of an earlier response that the client did not take. The next query may be fine.
            tracing::debug!(%error, "cannot receive DNS queries");
        }
        for (client, later) in batch.answer(&server) {
            let Ok(permit) = pending.clone().try_acquire_owned() else { continue };
            let (server, socket) = (server.clone(), socket.clone());
            tasks.spawn(stop.clone().run_until_cancelled_owned(async move {
                let packet = server.finish(later, Transport::Udp).await;
                let _ = socket.send_to(&packet, client).await;
                drop(permit);
            }));
        }
        while !batch.is_sent() {
            let sent = socket.try_io(Interest::WRITABLE, || batch.send(&socket));
            if sent.is_err() && socket.writable().await.is_err() {
                break;
            }
        }
        tokio::task::consume_budget().await;
    }
    tasks.close();
    tasks.wait().await;
}

/// A batch of queries and their responses.
struct Batch {
    packets: Box<[[u8; MAX_QUERY]; BATCH]>,
    received: Vec<(SockaddrIn, usize)>,
    answers: Vec<Vec<u8>>,
    clients: Vec<Option<SockaddrIn>>,
    sent: usize,
    rng: ShuffleRng,
}

impl Batch {
    fn new() -> Self {
        Self {
            packets: Box::new([[0; MAX_QUERY]; BATCH]),
            received: Vec::with_capacity(BATCH),
            answers: vec![Vec::new(); BATCH],
            clients: Vec::with_capacity(BATCH),
            sent: 0,
            rng: ShuffleRng::new(),
        }
    }

    /// Receives a batch. `WouldBlock` may come with packets: it says that there are no more.
    fn receive(&mut self, socket: &UdpSocket) -> io::Result<()> {
        self.received.clear();
        let mut headers = MultiHeaders::preallocate(BATCH, None);
        let mut buffers: Vec<_> = self.packets.iter_mut().map(|packet| [IoSliceMut::new(packet)]).collect();
        let messages = recvmmsg(socket.as_raw_fd(), &mut headers, buffers.iter_mut(), MsgFlags::MSG_DONTWAIT, None)?;
        self.received.extend(messages.filter_map(|message| Some((message.address?, message.bytes))));
        // A short batch was the last, which saves a call that returns nothing; packets that arrive meanwhile wake the
        // socket again.
        match self.received.len() {
            BATCH => Ok(()),
            _ => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    /// Writes the responses that are known now, and returns the queries that have to be forwarded.
    fn answer(&mut self, server: &Server) -> Vec<(SocketAddr, Box<PendingQuery>)> {
        let mut later = Vec::new();
        self.clients.clear();
        self.sent = 0;
        for ((client, length), packet) in self.received.drain(..).zip(self.packets.iter()) {
            let answer = &mut self.answers[self.clients.len()];
            answer.clear();
            match server.reply(&packet[..length], Transport::Udp, &mut self.rng, answer) {
                Reply::Ignore => {}
                Reply::Written => self.clients.push(Some(client)),
                Reply::Forward(pending) => later.push((SocketAddrV4::from(client).into(), pending)),
            }
        }
        later
    }

    fn is_sent(&self) -> bool {
        self.sent >= self.clients.len()
    }

    /// Sends as many as the socket buffer takes; `WouldBlock` if it takes none.
    fn send(&mut self, socket: &UdpSocket) -> io::Result<()> {
        let clients = &self.clients[self.sent..];
        let answers: Vec<_> = self.answers[self.sent..].iter().map(|answer| [IoSlice::new(answer)]).collect();
        let mut headers = MultiHeaders::preallocate(clients.len(), None);
        let nothing: [ControlMessage<'_>; 0] = [];
        match sendmmsg(socket.as_raw_fd(), &mut headers, answers.iter(), clients, nothing, MsgFlags::MSG_DONTWAIT) {
            Ok(sent) => self.sent += sent.count().max(1),
            Err(nix::Error::EAGAIN) => return Err(io::ErrorKind::WouldBlock.into()),
            // Only the first response can have caused it: its client is gone or unreachable.
            Err(_) => self.sent += 1,
        }
        Ok(())
    }
}
