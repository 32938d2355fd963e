//! TCP probe: success if a connection can be made.

use std::{io::ErrorKind, time::Duration};

use tokio::net::TcpStream;

use super::{Outcome, join};

pub async fn attempt(host: &str, port: u16, timeout: Duration) -> Outcome {
    match connect(host, port, timeout).await {
        Ok(_) => Outcome::Success,
        Err(why) => Outcome::Failure(why),
    }
}

/// A fresh connection, or why not, as Go says it.
pub async fn connect(host: &str, port: u16, timeout: Duration) -> Result<TcpStream, String> {
    let dial = format!("dial tcp {}", join(host, port));
    match tokio::time::timeout(timeout, TcpStream::connect((host, port))).await {
        Err(_) => Err(format!("{dial}: i/o timeout")),
        Ok(Ok(stream)) => {
            // The port is free again at once: thousands of probes do not leave thousands of lingering ones.
            let _ = stream.set_zero_linger();
            Ok(stream)
        }
        Ok(Err(error)) => Err(match error.kind() {
            ErrorKind::ConnectionRefused => format!("{dial}: connect: connection refused"),
            ErrorKind::HostUnreachable => format!("{dial}: connect: no route to host"),
            ErrorKind::NetworkUnreachable => format!("{dial}: connect: network is unreachable"),
            ErrorKind::ConnectionReset => format!("{dial}: connect: connection reset by peer"),
            _ if host.parse::<std::net::IpAddr>().is_err() => format!("dial tcp: lookup {host}: no such host"),
            _ => format!("{dial}: {error}"),
        }),
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn an_open_port_is_good_and_a_closed_one_refuses() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        assert_eq!(attempt("127.0.0.1", port, Duration::from_secs(5)).await, Outcome::Success);
        drop(listener);
        let refused = format!("dial tcp 127.0.0.1:{port}: connect: connection refused");
        assert_eq!(attempt("127.0.0.1", port, Duration::from_secs(5)).await, Outcome::Failure(refused));
    }
}
