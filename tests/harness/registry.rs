//! A registry on the loopback interface that serves images by the OCI distribution specification, as little of it as
//! pulling takes, with or without a login.

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Write},
    net::{TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use base64::Engine;

use super::images::{TestImage, digest};

const TOKEN: &str = "sesame";

pub struct Registry {
    port: u16,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    port: u16,
    /// `user:password`.
    login: Option<&'static str>,
    /// By path: media type and content.
    content: Mutex<BTreeMap<String, (&'static str, Vec<u8>)>>,
    /// Paths that were served, in order.
    served: Mutex<Vec<String>>,
    closed: AtomicBool,
}

impl Registry {
    /// Whoever pulls must log in, if there is a login.
    pub fn start(login: Option<&'static str>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let shared = Arc::new(Shared { port, login, ..Shared::default() });
        let serving = shared.clone();
        std::thread::spawn(move || {
            for connection in listener.incoming().flatten() {
                if serving.closed.load(Ordering::Relaxed) {
                    return;
                }
                let serving = serving.clone();
                std::thread::spawn(move || drop(serving.serve(connection)));
            }
        });
        Self { port, shared }
    }

    /// Offers an image, and returns its name.
    pub fn push(&self, repository: &str, tag: &str, image: &TestImage) -> String {
        let manifest = ("application/vnd.oci.image.manifest.v1+json", image.manifest.clone());
        let mut content = self.shared.content.lock().expect("nobody panics here");
        for blob in [&image.config, &image.layer] {
            let path = format!("/v2/{repository}/blobs/{}", digest(blob));
            content.insert(path, ("application/octet-stream", blob.clone()));
        }
        for reference in [tag.to_owned(), digest(&image.manifest)] {
            content.insert(format!("/v2/{repository}/manifests/{reference}"), manifest.clone());
        }
        format!("127.0.0.1:{}/{repository}:{tag}", self.port)
    }

    /// `HOST:PORT`.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// How often something whose path contains this was served.
    pub fn served(&self, part: &str) -> usize {
        self.shared.served.lock().expect("nobody panics here").iter().filter(|path| path.contains(part)).count()
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(("127.0.0.1", self.port)); // the listener looks up
    }
}

impl Shared {
    /// One request per connection.
    fn serve(&self, connection: TcpStream) -> std::io::Result<()> {
        let mut lines = BufReader::new(connection.try_clone()?).lines();
        let request = lines.next().transpose()?.unwrap_or_default();
        let mut authorization = String::new();
        for line in lines {
            let line = line?;
            match line.split_once(':') {
                Some((name, value)) if name.eq_ignore_ascii_case("authorization") => {
                    authorization = value.trim().into()
                }
                Some(_) => {}
                None => break,
            }
        }
        let mut words = request.split(' ');
        let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let path = path.split('?').next().unwrap_or_default();
        let (status, head, body) = self.answer(path, &authorization);
        let mut connection = connection;
        let length = body.len();
        write!(connection, "HTTP/1.1 {status}\r\n{head}Content-Length: {length}\r\nConnection: close\r\n\r\n")?;
        if method != "HEAD" {
            connection.write_all(&body)?;
        }
        connection.flush()
    }

    fn answer(&self, path: &str, authorization: &str) -> (&'static str, String, Vec<u8>) {
        let json = |text: &str| ("Content-Type: application/json\r\n".to_owned(), text.as_bytes().to_vec());
        if let Some(login) = self.login {
            let basic = format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(login));
            if path == "/token" {
                let (head, body) = json(&format!(r#"{{"token":"{TOKEN}"}}"#));
                return if authorization == basic {
                    ("200 OK", head, body)
                } else {
                    ("401 Unauthorized", head, vec![])
                };
            }
            if authorization != format!("Bearer {TOKEN}") {
                let (head, body) = json(r#"{"errors":[{"code":"UNAUTHORIZED","message":"log in first"}]}"#);
                let realm = format!("Bearer realm=\"http://127.0.0.1:{}/token\",service=\"test\"", self.port);
                return ("401 Unauthorized", format!("{head}WWW-Authenticate: {realm}\r\n"), body);
            }
        }
        if path == "/v2/" {
            let (head, body) = json("{}");
            return ("200 OK", head, body);
        }
        let found = self.content.lock().expect("nobody panics here").get(path).cloned();
        match found {
            Some((kind, body)) => {
                self.served.lock().expect("nobody panics here").push(path.to_owned());
                let head = format!("Content-Type: {kind}\r\nDocker-Content-Digest: {}\r\n", digest(&body));
                ("200 OK", head, body)
            }
            None => {
                let (head, body) = json(r#"{"errors":[{"code":"MANIFEST_UNKNOWN","message":"no such thing"}]}"#);
                ("404 Not Found", head, body)
            }
        }
    }
}
