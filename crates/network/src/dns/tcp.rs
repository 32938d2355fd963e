//! Questions by TCP, for what does not fit into a packet.
//!
//! A client may ask several things before it is answered, and gets answers as they are ready (RFC 7766). A connection on
//! which nothing happens is closed, and there are only so many, in all and of one client.

use std::{collections::HashMap, io, net::IpAddr, sync::Arc, time::Duration};

use futures::{StreamExt, stream::FuturesUnordered};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    time::timeout,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    answer::Transport,
    server::{Reply, Server},
    zones::Chance,
};

/// How long a connection may be silent.
const IDLE: Duration = Duration::from_secs(10);

/// Connections at the same time.
const MOST: usize = 512;
const MOST_OF_ONE: usize = 64;

/// Questions of one connection that wait for others; the next one is read when one of them is answered.
const MOST_WAITING: usize = 64;

pub async fn serve(listener: TcpListener, server: Arc<Server>, stop: CancellationToken) {
    let (open, tasks) = (Open::default(), TaskTracker::new());
    loop {
        let (stream, client) = tokio::select! {
            () = stop.cancelled() => break,
            accepted = listener.accept() => match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    // Out of files, most likely; nothing is won by trying at once.
                    tracing::warn!(%error, "accept DNS connection");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            },
        };
        let Some(place) = open.take(client.ip()) else { continue };
        let (server, stop) = (server.clone(), stop.clone());
        tasks.spawn(async move {
            tokio::select! {
                () = stop.cancelled() => {}
                ended = converse(stream, &server) => if let Err(error) = ended {
                    tracing::debug!(%error, %client, "DNS connection ended");
                },
            }
            drop(place);
        });
    }
    tasks.close();
    tasks.wait().await;
}

async fn converse(mut stream: TcpStream, server: &Server) -> io::Result<()> {
    let (mut incoming, mut outgoing) = (Vec::with_capacity(512), Vec::new());
    let mut chance = Chance::new();
    let mut waiting = FuturesUnordered::new();
    loop {
        while waiting.len() < MOST_WAITING
            && let Some(packet) = next_packet(&mut incoming)
        {
            let begin = outgoing.len();
            outgoing.extend([0, 0]);
            match server.reply(&packet, Transport::Tcp, &mut chance, &mut outgoing) {
                Reply::Written => put_length(&mut outgoing[begin..]),
                Reply::None => outgoing.truncate(begin),
                Reply::Later(later) => {
                    outgoing.truncate(begin);
                    waiting.push(server.finish(later, Transport::Tcp));
                }
            }
        }
        if !outgoing.is_empty() {
            timeout(IDLE, stream.write_all(&outgoing)).await??;
            outgoing.clear();
        }
        tokio::select! {
            Some(packet) = waiting.next() => {
                outgoing.extend([0, 0]);
                outgoing.extend_from_slice(&packet);
                put_length(&mut outgoing);
            }
            read = timeout(IDLE, stream.read_buf(&mut incoming)), if waiting.len() < MOST_WAITING => match read {
                Ok(Ok(0)) if waiting.is_empty() => return Ok(()),
                // It said all it has to say, and listens.
                Ok(Ok(0)) => while let Some(packet) = waiting.next().await {
                    stream.write_all(&(packet.len() as u16).to_be_bytes()).await?;
                    stream.write_all(&packet).await?;
                },
                Ok(Ok(_)) => {}
                Ok(Err(error)) => return Err(error),
                Err(_) if waiting.is_empty() => return Ok(()),
                Err(_) => {}
            },
        }
    }
}

/// Takes a packet from the frontend, if a whole one is there.
fn next_packet(incoming: &mut Vec<u8>) -> Option<Vec<u8>> {
    let (length, rest) = incoming.split_first_chunk::<2>()?;
    let length = usize::from(u16::from_be_bytes(*length));
    let packet = rest.get(..length)?.to_vec();
    incoming.drain(..2 + length);
    Some(packet)
}

/// Of what follows the first two bytes.
fn put_length(framed: &mut [u8]) {
    let length = (framed.len() - 2) as u16;
    framed[..2].copy_from_slice(&length.to_be_bytes());
}

/// Connections there are, by client.
#[derive(Clone, Default)]
struct Open(Arc<Mutex<HashMap<IpAddr, usize>>>);

struct Place {
    open: Open,
    client: IpAddr,
}

impl Open {
    fn take(&self, client: IpAddr) -> Option<Place> {
        let mut open = self.0.lock();
        let all: usize = open.values().sum();
        let own = open.entry(client).or_default();
        if all >= MOST || *own >= MOST_OF_ONE {
            if *own == 0 {
                open.remove(&client);
            }
            return None;
        }
        *own += 1;
        Some(Place { open: self.clone(), client })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut open = self.open.0.lock();
        if let Some(own) = open.get_mut(&self.client) {
            *own -= 1;
            if *own == 0 {
                open.remove(&self.client);
            }
        }
    }
}
