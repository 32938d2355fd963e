//! Questions by UDP: as many packets as there are in one call, and their answers in another.
//!
//! There are several sockets, between which the kernel divides the clients, so that cores need not take turns.

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
    answer::Transport,
    server::{Reply, Server, Waiting},
    zones::Chance,
};

/// Packets of one call.
const BATCH: usize = 32;

/// Questions are far shorter; a longer packet is cut, and refused for what it lacks.
const LONGEST_QUESTION: usize = 1500;

/// Packets that come while we are not running wait here.
const RECEIVE_BUFFER: usize = 1 << 20;

/// Questions that wait for others at the same time; past that, there is no answer, and clients ask again.
const MOST_WAITING: usize = 4096;

/// `count` sockets at one address, which nobody else may have.
pub fn bind(address: SocketAddrV4, count: usize) -> io::Result<Vec<UdpSocket>> {
    // Those of ours share the port, which would let others of the same user share it too. One who does not share
    // finds out whether there are any.
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
    // The kernel may give less, which is as well.
    let _ = socket.set_recv_buffer_size(RECEIVE_BUFFER);
    Ok(socket)
}

/// Answers what comes to the socket.
pub async fn serve(socket: UdpSocket, server: Arc<Server>, stop: CancellationToken) {
    let socket = Arc::new(socket);
    let (waiting, tasks) = (Arc::new(Semaphore::new(MOST_WAITING)), TaskTracker::new());
    let mut batch = Batch::new();
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => break,
            ready = socket.readable() => if let Err(error) = ready {
                tracing::error!(%error, "wait for questions");
                break;
            },
        }
        if let Err(error) = socket.try_io(Interest::READABLE, || batch.receive(&socket))
            && error.kind() != io::ErrorKind::WouldBlock
        {
            // Of an earlier answer that nobody took, say. It says nothing about the next question.
            tracing::debug!(%error, "receive questions");
        }
        for (client, later) in batch.answer(&server) {
            let Ok(place) = waiting.clone().try_acquire_owned() else { continue };
            let (server, socket) = (server.clone(), socket.clone());
            tasks.spawn(stop.clone().run_until_cancelled_owned(async move {
                let packet = server.finish(later, Transport::Udp).await;
                let _ = socket.send_to(&packet, client).await;
                drop(place);
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

/// Packets that came together, and what goes back.
struct Batch {
    packets: Box<[[u8; LONGEST_QUESTION]; BATCH]>,
    received: Vec<(SockaddrIn, usize)>,
    answers: Vec<Vec<u8>>,
    clients: Vec<Option<SockaddrIn>>,
    sent: usize,
    chance: Chance,
}

impl Batch {
    fn new() -> Self {
        Self {
            packets: Box::new([[0; LONGEST_QUESTION]; BATCH]),
            received: Vec::with_capacity(BATCH),
            answers: vec![Vec::new(); BATCH],
            clients: Vec::with_capacity(BATCH),
            sent: 0,
            chance: Chance::new(),
        }
    }

    /// Takes what has come. An error may come with it: that there is no more.
    fn receive(&mut self, socket: &UdpSocket) -> io::Result<()> {
        self.received.clear();
        let mut headers = MultiHeaders::preallocate(BATCH, None);
        let mut places: Vec<_> = self.packets.iter_mut().map(|packet| [IoSliceMut::new(packet)]).collect();
        let messages = recvmmsg(socket.as_raw_fd(), &mut headers, places.iter_mut(), MsgFlags::MSG_DONTWAIT, None)?;
        self.received.extend(messages.filter_map(|message| Some((message.address?, message.bytes))));
        // A call to hear that there is nothing left is saved if this says so; what comes meanwhile is heard of anew.
        match self.received.len() {
            BATCH => Ok(()),
            _ => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    /// Writes all answers that can be given now, and returns the questions for which there is none yet.
    fn answer(&mut self, server: &Server) -> Vec<(SocketAddr, Box<Waiting>)> {
        let mut later = Vec::new();
        self.clients.clear();
        self.sent = 0;
        for ((client, length), packet) in self.received.drain(..).zip(self.packets.iter()) {
            let answer = &mut self.answers[self.clients.len()];
            answer.clear();
            match server.reply(&packet[..length], Transport::Udp, &mut self.chance, answer) {
                Reply::None => {}
                Reply::Written => self.clients.push(Some(client)),
                Reply::Later(waiting) => later.push((SocketAddrV4::from(client).into(), waiting)),
            }
        }
        later
    }

    fn is_sent(&self) -> bool {
        self.sent >= self.clients.len()
    }

    /// Sends as many as there is room for; an error says that there was none.
    fn send(&mut self, socket: &UdpSocket) -> io::Result<()> {
        let clients = &self.clients[self.sent..];
        let answers: Vec<_> = self.answers[self.sent..].iter().map(|answer| [IoSlice::new(answer)]).collect();
        let mut headers = MultiHeaders::preallocate(clients.len(), None);
        let nothing: [ControlMessage<'_>; 0] = [];
        match sendmmsg(socket.as_raw_fd(), &mut headers, answers.iter(), clients, nothing, MsgFlags::MSG_DONTWAIT) {
            Ok(sent) => self.sent += sent.count().max(1),
            Err(nix::Error::EAGAIN) => return Err(io::ErrorKind::WouldBlock.into()),
            // Only the first is to blame: its client is gone, or cannot be reached.
            Err(_) => self.sent += 1,
        }
        Ok(())
    }
}
