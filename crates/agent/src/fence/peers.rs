//! Asks other nodes whether they have contact with a server, and answers when others ask.
//!
//! A question is a TLS handshake in which both sides show the client certificates of their nodes, and the answer is one byte: nothing
//! is parsed, and nothing else can be asked. It is served on the agent's own port and told apart by its protocol name (ALPN).

use std::{io, net::SocketAddr, sync::Arc};

use rustls::{ClientConfig, pki_types::ServerName};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
};
use tokio_rustls::TlsConnector;

use super::state::ContactAnswer;

/// The protocol by which a question is told apart from other connections to an agent.
pub const CONTACT_PROTOCOL: &[u8] = b"mainstay-contact/1";

/// Another node, as the API tells of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    pub address: SocketAddr,
    pub is_ready: bool,
}

impl ContactAnswer {
    fn to_byte(self) -> u8 {
        match self {
            Self::HasContact => b'+',
            Self::Undecided => b'?',
            Self::HasNoContact => b'-',
        }
    }

    fn from_byte(byte: u8) -> Option<Self> {
        [Self::HasContact, Self::Undecided, Self::HasNoContact].into_iter().find(|answer| answer.to_byte() == byte)
    }
}

/// Asks the node at this address. `tls` accepts that node alone.
pub async fn ask(address: SocketAddr, tls: Arc<ClientConfig>) -> io::Result<ContactAnswer> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    // The certificate is judged by the node's name in it, not by an address.
    let name = ServerName::IpAddress(address.ip().into());
    let mut stream = TlsConnector::from(tls).connect(name, stream).await?;
    let answer = stream.read_u8().await?;
    ContactAnswer::from_byte(answer).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
}

/// Answers on a connection whose other side is known to be a node of the cluster.
pub async fn answer(mut stream: impl AsyncRead + AsyncWrite + Unpin, answer: ContactAnswer) -> io::Result<()> {
    stream.write_u8(answer.to_byte()).await?;
    stream.shutdown().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read_as_they_were_written() {
        for answer in [ContactAnswer::HasContact, ContactAnswer::Undecided, ContactAnswer::HasNoContact] {
            assert_eq!(ContactAnswer::from_byte(answer.to_byte()), Some(answer));
        }
        assert_eq!(ContactAnswer::from_byte(b'x'), None);
    }
}
