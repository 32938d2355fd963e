//! The clients, and the backend that all of them reach through a proxy. Both as lean as can be, a thread each.

use std::{
    net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream},
    os::fd::OwnedFd,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use rustix::{
    event::{
        Timespec,
        epoll::{self, CreateFlags, Event, EventData, EventFlags},
    },
    io::Errno,
    net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType},
};

const REQUEST: usize = 64;
const ANSWER: usize = 256;
const LISTENER: u64 = u64::MAX;
const FLOODS: usize = 2;

pub struct Backends {
    /// Answers every request.
    pub answers: SocketAddrV4,
    /// Sends as much as it can.
    pub flood: SocketAddrV4,
}

impl Backends {
    pub fn start() -> anyhow::Result<Self> {
        let (answers, flood) = (TcpListener::bind("127.0.0.1:0")?, TcpListener::bind("127.0.0.1:0")?);
        // Clients arrive faster than std's queue of 128 is emptied.
        rustix::net::listen(&answers, 4096)?;
        let address = |listener: &TcpListener| -> anyhow::Result<_> {
            Ok(SocketAddrV4::new(Ipv4Addr::LOCALHOST, listener.local_addr()?.port()))
        };
        let backends = Self { answers: address(&answers)?, flood: address(&flood)? };
        std::thread::spawn(move || answer(answers.into()).context("the backend failed"));
        std::thread::spawn(move || {
            for stream in flood.incoming().flatten() {
                std::thread::spawn(move || {
                    let block = vec![0; 256 << 10];
                    while rustix::net::send(&stream, &block, SendFlags::NOSIGNAL).is_ok() {}
                });
            }
        });
        Ok(backends)
    }
}

fn answer(listener: OwnedFd) -> anyhow::Result<()> {
    rustix::io::ioctl_fionbio(&listener, true)?;
    let poll = epoll::create(CreateFlags::CLOEXEC)?;
    epoll::add(&poll, &listener, EventData::new_u64(LISTENER), EventFlags::IN)?;
    let mut streams: Vec<Option<OwnedFd>> = Vec::new();
    let mut free: Vec<usize> = Vec::new();
    let mut events: Vec<Event> = Vec::with_capacity(256);
    let (mut request, answer) = ([0; REQUEST * 64], [b'a'; ANSWER]);
    loop {
        wait(&poll, &mut events, None)?;
        for event in events.drain(..) {
            let number = event.data.u64();
            if number == LISTENER {
                while let Ok(stream) = rustix::net::accept_with(&listener, SocketFlags::NONBLOCK) {
                    rustix::net::sockopt::set_tcp_nodelay(&stream, true)?;
                    let place = free.pop().unwrap_or_else(|| {
                        streams.push(None);
                        streams.len() - 1
                    });
                    epoll::add(&poll, &stream, EventData::new_u64(place as u64), EventFlags::IN)?;
                    streams[place] = Some(stream);
                }
                continue;
            }
            let place = number as usize;
            let Some(stream) = &streams[place] else { continue };
            match rustix::net::recv(stream, &mut request, RecvFlags::empty()) {
                Ok((0, _)) => {
                    streams[place] = None;
                    free.push(place);
                }
                Ok((count, _)) => {
                    for _ in 0..count / REQUEST {
                        let _ = rustix::net::send(stream, &answer, SendFlags::NOSIGNAL);
                    }
                }
                Err(Errno::AGAIN) => {}
                Err(_) => {
                    streams[place] = None;
                    free.push(place);
                }
            }
        }
    }
}

/// Connects, sends a request, reads the response and closes, as often as it can.
pub fn connections(proxy: SocketAddrV4, clients: usize, time: Duration) -> anyhow::Result<u64> {
    ask(proxy, clients, time, true)
}

/// Sends requests and reads responses on persistent connections.
pub fn requests(proxy: SocketAddrV4, clients: usize, time: Duration) -> anyhow::Result<u64> {
    ask(proxy, clients, time, false)
}

struct Client {
    stream: OwnedFd,
    heard: usize,
}

fn ask(proxy: SocketAddrV4, clients: usize, time: Duration, anew: bool) -> anyhow::Result<u64> {
    let poll = epoll::create(CreateFlags::CLOEXEC)?;
    let begin = |place: usize| -> anyhow::Result<Client> {
        let stream = rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::NONBLOCK, None)?;
        rustix::net::sockopt::set_tcp_nodelay(&stream, true)?;
        match rustix::net::connect(&stream, &proxy) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(error) => bail!("connect: {error}"),
        }
        // On this machine it is connected by now.
        rustix::net::send(&stream, &[b'r'; REQUEST], SendFlags::NOSIGNAL).context("ask first")?;
        epoll::add(&poll, &stream, EventData::new_u64(place as u64), EventFlags::IN)?;
        Ok(Client { stream, heard: 0 })
    };
    let mut all = (0..clients).map(begin).collect::<anyhow::Result<Vec<_>>>()?;
    let mut events: Vec<Event> = Vec::with_capacity(256);
    let (start, mut done, mut buffer) = (Instant::now(), 0, [0; 4096]);
    while start.elapsed() < time {
        wait(&poll, &mut events, Some(Timespec { tv_sec: 5, tv_nsec: 0 }))?;
        if events.is_empty() {
            bail!("nobody was answered for five seconds");
        }
        for event in events.drain(..) {
            let place = event.data.u64() as usize;
            let client = &mut all[place];
            let (count, _) = rustix::net::recv(&client.stream, &mut buffer, RecvFlags::empty()).context("hear")?;
            if count == 0 {
                bail!("a connection was closed before its answer");
            }
            client.heard += count;
            if client.heard < ANSWER {
                continue;
            }
            done += 1;
            if anew {
                all[place] = begin(place)?;
            } else {
                client.heard = 0;
                rustix::net::send(&client.stream, &[b'r'; REQUEST], SendFlags::NOSIGNAL).context("ask")?;
            }
        }
    }
    Ok(done)
}

/// Reads from two connections and discards the bytes.
pub fn bytes(proxy: SocketAddrV4, _: usize, time: Duration) -> anyhow::Result<u64> {
    let take = || -> anyhow::Result<u64> {
        let stream = TcpStream::connect(proxy)?;
        let (start, mut total, mut buffer) = (Instant::now(), 0, vec![0; 1 << 20]);
        while start.elapsed() < time {
            let (_, count) = rustix::net::recv(&stream, &mut *buffer, RecvFlags::TRUNC)?;
            if count == 0 {
                bail!("the flood ended");
            }
            total += count as u64;
        }
        Ok(total)
    };
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..FLOODS).map(|_| scope.spawn(take)).collect();
        let mut total = 0;
        for one in all {
            total += one.join().map_err(|_| anyhow::anyhow!("a client panicked"))??;
        }
        Ok(total)
    })
}

fn wait(poll: &OwnedFd, events: &mut Vec<Event>, limit: Option<Timespec>) -> anyhow::Result<()> {
    events.clear();
    match epoll::wait(poll, rustix::buffer::spare_capacity(events), limit.as_ref()) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
