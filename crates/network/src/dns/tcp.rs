//! DNS over TCP, for responses that do not fit into a UDP packet.
//!
//! A client may pipeline queries, and gets responses as they are ready (RFC 7766). Idle connections are closed, and
//! the number of connections is limited, in all and per client.

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
    response::Transport,
    server::{Reply, Server},
    zones::ShuffleRng,
};

const IDLE_TIMEOUT: Duration = Duration::from_secs(10);

/// Connections at a time.
const MAX_CONNECTIONS: usize = 512;
const MAX_PER_CLIENT: usize = 64;

/// Forwarded queries of one connection at a time; no further query is read meanwhile.
const MAX_PENDING: usize = 64;

pub async fn serve(listener: TcpListener, server: Arc<Server>, stop: CancellationToken) {
    let (counts, tasks) = (ConnectionCounts::default(), TaskTracker::new());
    loop {
        let (stream, client) = tokio::select! {
            () = stop.cancelled() => break,
            accepted = listener.accept() => match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    // Out of file descriptors, most likely: an immediate retry would fail too.
                    tracing::warn!(%error, "cannot accept a DNS connection");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            },
        };
        let Some(slot) = counts.acquire(client.ip()) else { continue };
        let (server, stop) = (server.clone(), stop.clone());
        tasks.spawn(async move {
            tokio::select! {
                () = stop.cancelled() => {}
                ended = serve_connection(stream, &server) => if let Err(error) = ended {
                    tracing::debug!(%error, %client, "DNS connection ended");
                },
            }
            drop(slot);
        });
    }
    tasks.close();
    tasks.wait().await;
}

async fn serve_connection(mut stream: TcpStream, server: &Server) -> io::Result<()> {
    let (mut incoming, mut outgoing) = (Vec::with_capacity(512), Vec::new());
    let mut rng = ShuffleRng::new();
    let mut pending = FuturesUnordered::new();
    loop {
        while pending.len() < MAX_PENDING
            && let Some(packet) = next_packet(&mut incoming)
        {
            let begin = outgoing.len();
            outgoing.extend([0, 0]);
            match server.reply(&packet, Transport::Tcp, &mut rng, &mut outgoing) {
                Reply::Written => write_length(&mut outgoing[begin..]),
                Reply::Ignore => outgoing.truncate(begin),
                Reply::Forward(later) => {
                    outgoing.truncate(begin);
                    pending.push(server.finish(later, Transport::Tcp));
                }
            }
        }
        if !outgoing.is_empty() {
            timeout(IDLE_TIMEOUT, stream.write_all(&outgoing)).await??;
            outgoing.clear();
        }
        tokio::select! {
            Some(packet) = pending.next() => {
                outgoing.extend([0, 0]);
                outgoing.extend_from_slice(&packet);
                write_length(&mut outgoing);
            }
            read = timeout(IDLE_TIMEOUT, stream.read_buf(&mut incoming)), if pending.len() < MAX_PENDING => match read {
                Ok(Ok(0)) if pending.is_empty() => return Ok(()),
                // The client has closed its side, and reads.
                Ok(Ok(0)) => while let Some(packet) = pending.next().await {
                    stream.write_all(&(packet.len() as u16).to_be_bytes()).await?;
                    stream.write_all(&packet).await?;
                },
                Ok(Ok(_)) => {}
                Ok(Err(error)) => return Err(error),
                Err(_) if pending.is_empty() => return Ok(()),
                Err(_) => {}
            },
        }
    }
}

/// Removes the first packet, if it is complete.
fn next_packet(incoming: &mut Vec<u8>) -> Option<Vec<u8>> {
    let (length, rest) = incoming.split_first_chunk::<2>()?;
    let length = usize::from(u16::from_be_bytes(*length));
    let packet = rest.get(..length)?.to_vec();
    incoming.drain(..2 + length);
    Some(packet)
}

/// Writes the length of what follows the first two bytes.
fn write_length(framed: &mut [u8]) {
    let length = (framed.len() - 2) as u16;
    framed[..2].copy_from_slice(&length.to_be_bytes());
}

/// Number of connections by client.
#[derive(Clone, Default)]
struct ConnectionCounts(Arc<Mutex<HashMap<IpAddr, usize>>>);

struct ConnectionSlot {
    open: ConnectionCounts,
    client: IpAddr,
}

impl ConnectionCounts {
    fn acquire(&self, client: IpAddr) -> Option<ConnectionSlot> {
        let mut open = self.0.lock();
        let all: usize = open.values().sum();
        let own = open.entry(client).or_default();
        if all >= MAX_CONNECTIONS || *own >= MAX_PER_CLIENT {
            if *own == 0 {
                open.remove(&client);
            }
            return None;
        }
        *own += 1;
        Some(ConnectionSlot { open: self.clone(), client })
    }
}

impl Drop for ConnectionSlot {
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
