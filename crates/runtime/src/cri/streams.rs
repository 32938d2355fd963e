//! Connects to the streaming server of a CRI runtime: an HTTP request that upgrades to SPDY/3.1.
//!
//! WebSocket would be simpler, but in the version that runtimes serve standard input cannot be ended by
//! it without ending everything.

use std::{io, time::Duration};

use bytes::BytesMut;
use http::Uri;
use mainstay_spdy::client::Connection;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tokio_util::sync::CancellationToken;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// Of the answer to the upgrade.
const LONGEST_HEAD: usize = 16 << 10;

/// Everything ends when `closed` is cancelled, and it is when the connection ends.
pub async fn connect(url: &str, closed: CancellationToken) -> io::Result<Connection<TcpStream>> {
    let (stream, input) = tokio::time::timeout(CONNECT_TIMEOUT, upgrade(url)).await??;
    Ok(Connection::start(stream, input, closed))
}

/// The upgraded connection, and what was read of it behind the head of the answer.
async fn upgrade(url: &str) -> io::Result<(TcpStream, BytesMut)> {
    let uri: Uri = url.parse().map_err(io::Error::other)?;
    let (Some("http"), Some(authority), Some(path)) = (uri.scheme_str(), uri.authority(), uri.path_and_query()) else {
        return Err(io::Error::other(format!("the runtime streams at {url}, which cannot be reached from here")));
    };
    let host = authority.host().trim_matches(['[', ']']);
    let mut stream = TcpStream::connect((host, authority.port_u16().unwrap_or(80))).await?;
    stream.set_nodelay(true)?;
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: {authority}\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\
         X-Stream-Protocol-Version: v4.channel.k8s.io\r\nContent-Length: 0\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await?;
    let mut input = BytesMut::with_capacity(4096);
    loop {
        if let Some(end) = input.windows(4).position(|four| four == b"\r\n\r\n") {
            let head = input.split_to(end + 4);
            let first = String::from_utf8_lossy(&head).lines().next().unwrap_or_default().to_owned();
            return match first.split(' ').nth(1) {
                Some("101") => Ok((stream, input)),
                _ => Err(io::Error::other(format!("the runtime's streaming server answers {first:?}"))),
            };
        }
        if input.len() > LONGEST_HEAD || stream.read_buf(&mut input).await? == 0 {
            return Err(io::Error::other("the runtime's streaming server does not speak HTTP"));
        }
    }
}
