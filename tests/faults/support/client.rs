//! HTTP/1.1 by hand over TLS: sends exactly the bytes it is given.

use std::{
    io::{self, BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    sync::Arc,
    time::Duration,
};

use rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
};
use serde_json::Value;

use super::{HttpResponse, Identity};
use crate::harness::PATIENCE;

/// A client that keeps one connection, and makes another when that is gone.
pub struct Client {
    address: SocketAddr,
    tls: Arc<ClientConfig>,
    /// Sent with every request.
    pub headers: Vec<(String, String)>,
    open: Option<Wire>,
}

impl Clone for Client {
    fn clone(&self) -> Self {
        Self { address: self.address, tls: self.tls.clone(), headers: self.headers.clone(), open: None }
    }
}

impl Client {
    pub fn new(address: SocketAddr, ca: &str, identity: Option<&Identity>) -> Self {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(ca.as_bytes()).expect("a CA certificate")).expect("a usable CA");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("usual versions")
            .with_root_certificates(roots);
        let tls = match identity {
            None => builder.with_no_client_auth(),
            Some(Identity { certificate, key }) => {
                let chain = vec![CertificateDer::from_pem_slice(certificate.as_bytes()).expect("a certificate")];
                let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).expect("a key");
                builder.with_client_auth_cert(chain, key).expect("a usable identity")
            }
        };
        Self { address, tls: Arc::new(tls), headers: Vec::new(), open: None }
    }

    /// A new connection with its handshake done.
    pub fn connect(&self) -> io::Result<Wire> {
        let stream = TcpStream::connect(self.address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let name = ServerName::from(self.address.ip());
        let tls = ClientConnection::new(self.tls.clone(), name).map_err(io::Error::other)?;
        let mut stream = StreamOwned::new(tls, stream);
        while stream.conn.is_handshaking() {
            stream.conn.complete_io(&mut stream.sock)?;
        }
        Ok(Wire(BufReader::new(stream)))
    }

    /// One request and its answer, once, over the open connection if there is one. After an error it is
    /// not known whether the request was carried out.
    pub fn attempt(&mut self, method: &str, path: &str, kind: &str, body: &[u8]) -> io::Result<HttpResponse> {
        let mut wire = match self.open.take() {
            Some(wire) => wire,
            None => self.connect()?,
        };
        let mut head =
            format!("{method} {path} HTTP/1.1\r\nHost: {}\r\nContent-Length: {}\r\n", self.address, body.len());
        if !kind.is_empty() {
            head.push_str(&format!("Content-Type: {kind}\r\n"));
        }
        self.headers.iter().for_each(|(name, value)| head.push_str(&format!("{name}: {value}\r\n")));
        wire.send(format!("{head}\r\n").as_bytes())?;
        // A server that has seen enough answers and closes before it has everything.
        let sent = wire.send(body);
        let answer = wire.answer(method == "HEAD").map_err(|error| sent.err().unwrap_or(error))?;
        if answer.header("connection") != Some("close") {
            self.open = Some(wire);
        }
        Ok(answer)
    }

    #[track_caller]
    pub fn send(&mut self, method: &str, path: &str, kind: &str, body: &[u8]) -> HttpResponse {
        let reused = self.open.is_some();
        match self.attempt(method, path, kind, body) {
            Ok(answer) => answer,
            // The server may have closed it since.
            Err(_) if reused => {
                self.attempt(method, path, kind, body).unwrap_or_else(|e| panic!("{method} {path}: {e}"))
            }
            Err(error) => panic!("{method} {path}: {error}"),
        }
    }

    #[track_caller]
    pub fn get(&mut self, path: &str) -> HttpResponse {
        self.send("GET", path, "", b"")
    }

    #[track_caller]
    pub fn delete(&mut self, path: &str) -> HttpResponse {
        self.send("DELETE", path, "", b"")
    }

    #[track_caller]
    pub fn post(&mut self, path: &str, body: &Value) -> HttpResponse {
        self.send("POST", path, "application/json", body.to_string().as_bytes())
    }

    #[track_caller]
    pub fn put(&mut self, path: &str, body: &Value) -> HttpResponse {
        self.send("PUT", path, "application/json", body.to_string().as_bytes())
    }

    #[track_caller]
    pub fn patch(&mut self, path: &str, kind: &str, body: &Value) -> HttpResponse {
        self.send("PATCH", path, &format!("application/{kind}"), body.to_string().as_bytes())
    }

    /// Starts a watch on a connection of its own.
    #[track_caller]
    pub fn watch(&self, path: &str) -> Events {
        let mut wire = self.connect().expect("connect to watch");
        wire.send(format!("GET {path} HTTP/1.1\r\nHost: {}\r\n\r\n", self.address).as_bytes()).expect("ask to watch");
        let (code, headers) = wire.head().expect("the answer to a watch");
        if code != 200 {
            let body = wire.body(&headers).unwrap_or_default();
            panic!("watch refused with {code}: {}", String::from_utf8_lossy(&body));
        }
        Events { wire, held: Vec::new() }
    }
}

/// A connection to say anything on.
pub struct Wire(BufReader<StreamOwned<ClientConnection, TcpStream>>);

impl Wire {
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.get_mut().write_all(bytes)?;
        self.0.get_mut().flush()
    }

    pub fn socket(&self) -> &TcpStream {
        &self.0.get_ref().sock
    }

    pub fn read_exact(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        self.0.read_exact(bytes)
    }

    pub fn answer(&mut self, headless: bool) -> io::Result<HttpResponse> {
        let (code, headers) = self.head()?;
        let bodyless = headless || code == 204 || code == 304;
        let body = if bodyless { Vec::new() } else { self.body(&headers)? };
        Ok(HttpResponse { code, headers, body })
    }

    fn head(&mut self) -> io::Result<(u16, Vec<(String, String)>)> {
        let bad = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
        let first = self.line()?;
        let code = first.split(' ').nth(1).and_then(|c| c.parse().ok()).ok_or_else(|| bad(&first))?;
        let mut headers = Vec::new();
        loop {
            let line = self.line()?;
            if line.is_empty() {
                return Ok((code, headers));
            }
            let (name, value) = line.split_once(':').ok_or_else(|| bad(&line))?;
            headers.push((name.trim().to_ascii_lowercase(), value.trim().to_owned()));
        }
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = Vec::new();
        if self.0.read_until(b'\n', &mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(String::from_utf8_lossy(&line).trim_end().to_owned())
    }

    fn body(&mut self, headers: &[(String, String)]) -> io::Result<Vec<u8>> {
        let header = |name: &str| headers.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str());
        if header("transfer-encoding") == Some("chunked") {
            let mut body = Vec::new();
            while let Some(piece) = self.chunk()? {
                body.extend_from_slice(&piece);
            }
            return Ok(body);
        }
        let length = header("content-length").and_then(|l| l.parse().ok()).unwrap_or(0);
        let mut body = vec![0; length];
        self.0.read_exact(&mut body)?;
        Ok(body)
    }

    fn chunk(&mut self) -> io::Result<Option<Vec<u8>>> {
        let size = usize::from_str_radix(&self.line()?, 16).map_err(io::Error::other)?;
        let mut piece = vec![0; size + 2];
        self.0.read_exact(&mut piece)?;
        piece.truncate(size);
        Ok((size > 0).then_some(piece))
    }

    /// Whether the server closes the connection within this time; what it says before is skipped.
    pub fn is_closed_within(&mut self, patience: Duration) -> bool {
        let deadline = std::time::Instant::now() + patience;
        let mut bytes = [0; 4096];
        loop {
            let left = deadline.saturating_duration_since(std::time::Instant::now());
            if left.is_zero() {
                return false;
            }
            self.socket().set_read_timeout(Some(left)).expect("a timeout");
            match self.0.read(&mut bytes) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => return false,
                Err(_) => return true,
            }
        }
    }
}

/// The events of a watch.
pub struct Events {
    wire: Wire,
    held: Vec<u8>,
}

impl Events {
    /// The next event; `None` when the server ended the watch.
    pub fn next(&mut self) -> io::Result<Option<Value>> {
        loop {
            if let Some(end) = self.held.iter().position(|b| *b == b'\n') {
                let line: Vec<u8> = self.held.drain(..=end).collect();
                return serde_json::from_slice(&line).map(Some).map_err(io::Error::other);
            }
            match self.wire.chunk()? {
                Some(piece) => self.held.extend_from_slice(&piece),
                None => return Ok(None),
            }
        }
    }

    /// The next event for which this holds.
    #[track_caller]
    pub fn until(&mut self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        loop {
            match self.next() {
                Ok(Some(event)) if wanted(&event) => return event,
                Ok(Some(_)) => {}
                Ok(None) => panic!("the watch ended before {what}"),
                Err(error) => panic!("the watch broke before {what}: {error}"),
            }
        }
    }

    /// The next event about an object of this name.
    #[track_caller]
    pub fn about(&mut self, name: &str) -> Value {
        self.until(name, |event| event["object"]["metadata"]["name"] == name)
    }
}
