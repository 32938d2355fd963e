//! `mainstay demo-web`: the program of the demo's pods. Says who it is over HTTP.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use anyhow::Context;
use clap::Args;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    signal::unix::{SignalKind, signal},
};
use tokio_util::task::TaskTracker;

use crate::exit::Exit;

/// Longest request that is read.
const MOST: usize = 16 << 10;
const PATIENCE: Duration = Duration::from_secs(10);
/// How long somebody who is connected already may take to be noticed.
const LAST_CALLERS: Duration = Duration::from_millis(50);

#[derive(Debug, Args)]
pub struct WebOptions {
    /// Port to listen on
    #[arg(long, default_value_t = 8080)]
    pub port: u16,

    /// What to call itself
    #[arg(long, default_value = "demo")]
    pub name: String,

    /// Tells this demo's processes from another's
    #[arg(long, default_value = "")]
    pub run: String,
}

pub fn run(options: &WebOptions) -> Result<(), Exit> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("start the runtime")?;
    runtime.block_on(async {
        // As the first process of a container it is sent no signal that it does not listen for.
        let mut terminate = signal(SignalKind::terminate()).context("listen for SIGTERM")?;
        let listener = TcpListener::bind(("0.0.0.0", options.port)).await;
        let listener = listener.with_context(|| format!("listen on port {}", options.port))?;
        println!("{} listens on port {}", options.name, options.port);
        let answers = TaskTracker::new();
        tokio::select! {
            () = serve(&listener, &options.name, &answers) => {}
            _ = terminate.recv() => println!("{} was told to end", options.name),
        }
        // Who came before the end is answered.
        let _ = tokio::time::timeout(LAST_CALLERS, serve(&listener, &options.name, &answers)).await;
        answers.close();
        let _ = tokio::time::timeout(PATIENCE, answers.wait()).await;
        Ok(())
    })
}

async fn serve(listener: &TcpListener, name: &str, answers: &TaskTracker) {
    static ANSWERED: AtomicU64 = AtomicU64::new(0);
    let started = Instant::now();
    loop {
        let Ok((connection, peer)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(10)).await; // out of descriptors: some will come back
            continue;
        };
        let count = ANSWERED.fetch_add(1, Ordering::Relaxed) + 1;
        let text = format!("Hello from {name}, up for {:.1} s, answer {count}.\n", started.elapsed().as_secs_f64());
        answers.spawn(async move {
            match tokio::time::timeout(PATIENCE, answer(connection, &text)).await {
                Ok(Ok(line)) => println!("{peer} {line}"),
                Ok(Err(error)) => println!("{peer} {error}"),
                Err(_) => println!("{peer} took too long"),
            }
        });
    }
}

/// Answers one request and says what it was.
async fn answer(mut connection: TcpStream, text: &str) -> std::io::Result<String> {
    let mut request = Vec::new();
    while !request.windows(4).any(|end| end == b"\r\n\r\n") && request.len() < MOST {
        if connection.read_buf(&mut request).await? == 0 {
            break;
        }
    }
    let response = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{text}",
        text.len()
    );
    connection.write_all(response.as_bytes()).await?;
    connection.shutdown().await?;
    Ok(String::from_utf8_lossy(&request).lines().next().unwrap_or_default().to_owned())
}

/// The first line of what a web server at this address answers.
pub async fn ask(address: (std::net::IpAddr, u16)) -> std::io::Result<String> {
    ask_within(address, Duration::from_secs(2)).await
}

pub async fn ask_within(address: (std::net::IpAddr, u16), patience: Duration) -> std::io::Result<String> {
    let asking = async {
        let mut connection = TcpStream::connect(address).await?;
        connection.write_all(b"GET / HTTP/1.1\r\nhost: demo\r\nconnection: close\r\n\r\n").await?;
        let mut answer = Vec::new();
        connection.take(MOST as u64).read_to_end(&mut answer).await?;
        let answer = String::from_utf8_lossy(&answer).into_owned();
        match answer.split_once("\r\n\r\n") {
            Some((head, body)) if head.starts_with("HTTP/1.1 200") => Ok(body.trim_end().to_owned()),
            _ => Err(std::io::Error::other("no answer")),
        }
    };
    tokio::time::timeout(patience, asking).await.map_err(std::io::Error::from)?
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    #[tokio::test]
    async fn it_says_who_it_is() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move { serve(&listener, "web-7", &TaskTracker::new()).await });
        let address = (IpAddr::from([127, 0, 0, 1]), port);
        assert!(ask(address).await.unwrap().starts_with("Hello from web-7"));
        assert!(ask(address).await.is_ok());
        assert!(ask((address.0, 1)).await.is_err());
    }
}
