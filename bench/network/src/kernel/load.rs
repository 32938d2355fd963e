//! Clients and backend, with a thread for each connection at a time.

use std::{
    io::{Read, Write},
    net::{SocketAddrV4, TcpListener, TcpStream},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use anyhow::bail;
use socket2::SockRef;

const REQUEST: [u8; 64] = [b'r'; 64];
const ANSWER: [u8; 256] = [b'a'; 256];
const BLOCK: usize = 256 << 10;
const ANSWERING: usize = 4;

/// The ports where every request is answered, and where as much is sent as goes.
pub fn serve() -> anyhow::Result<(u16, u16)> {
    let (answers, flood) = (TcpListener::bind("0.0.0.0:0")?, TcpListener::bind("0.0.0.0:0")?);
    let ports = (answers.local_addr()?.port(), flood.local_addr()?.port());
    for _ in 0..ANSWERING {
        let listener = answers.try_clone()?;
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let mut request = REQUEST;
                if stream.read_exact(&mut request).is_ok() {
                    let _ = stream.write_all(&ANSWER);
                    // Whoever asked ends it.
                    let _ = stream.read(&mut request);
                }
            }
        });
    }
    std::thread::spawn(move || {
        for mut stream in flood.incoming().flatten() {
            std::thread::spawn(move || {
                let block = vec![0; BLOCK];
                while stream.write_all(&block).is_ok() {}
            });
        }
    });
    Ok(ports)
}

/// Connects, sends a request, reads the response and closes, as often as it can.
pub fn connections(to: SocketAddrV4, clients: usize, time: Duration) -> anyhow::Result<u64> {
    together(clients, move || {
        let (start, mut done) = (Instant::now(), 0);
        while start.elapsed() < time {
            let mut stream = TcpStream::connect(to)?;
            stream.write_all(&REQUEST)?;
            let mut answer = ANSWER;
            stream.read_exact(&mut answer)?;
            // Without a state that lasts, or there would be no ports left.
            SockRef::from(&stream).set_linger(Some(Duration::ZERO))?;
            done += 1;
        }
        Ok(done)
    })
}

/// Receives as much as it can.
pub fn bytes(to: SocketAddrV4, clients: usize, time: Duration) -> anyhow::Result<u64> {
    together(clients, move || {
        let mut stream = TcpStream::connect(to)?;
        let (start, mut done, mut block) = (Instant::now(), 0, vec![0; BLOCK]);
        while start.elapsed() < time {
            match stream.read(&mut block)? {
                0 => bail!("the backend ended the connection"),
                count => done += count as u64,
            }
        }
        Ok(done)
    })
}

fn together(clients: usize, work: impl Fn() -> anyhow::Result<u64> + Clone + Send + 'static) -> anyhow::Result<u64> {
    let threads: Vec<JoinHandle<anyhow::Result<u64>>> =
        (0..clients).map(|_| std::thread::spawn(work.clone())).collect();
    let done = threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| bail!("a client failed")));
    done.sum()
}
