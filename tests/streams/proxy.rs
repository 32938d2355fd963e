use std::{
    io::{Read, Write},
    net::TcpListener,
};

use serde_json::json;

use crate::cluster::{Cluster, KUBECTLS};

/// Answers every request with its first line.
fn web() -> u16 {
    serve(|line| format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{line}", line.len()))
}

/// A page with links, and a redirect at `/moved`.
fn pages() -> u16 {
    serve(|line| {
        let page = r#"<html><a href="/rewriteme">test</a><a href="here">here</a></html>"#;
        if line.contains(" /moved ") {
            "HTTP/1.1 302 Found\r\nlocation: /elsewhere\r\ncontent-length: 0\r\n\r\n".to_owned()
        } else {
            let head = "content-type: text/html; charset=utf-8\r\naccess-control-allow-origin: *";
            format!("HTTP/1.1 200 OK\r\n{head}\r\ncontent-length: {}\r\n\r\n{page}", page.len())
        }
    })
}

/// Answers every request with what is made of its first line.
fn serve(answer: impl Fn(&str) -> String + Copy + Send + 'static) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            std::thread::spawn(move || {
                let (mut stream, mut head, mut buffer) = (stream.unwrap(), Vec::new(), [0; 4096]);
                while !head.windows(4).any(|end| end == b"\r\n\r\n") {
                    match stream.read(&mut buffer) {
                        Ok(read @ 1..) => head.extend_from_slice(&buffer[..read]),
                        _ => return,
                    }
                }
                let line = String::from_utf8_lossy(&head).lines().next().unwrap_or_default().to_owned();
                let _ = stream.write_all(answer(&line).as_bytes());
            });
        }
    });
    port
}

#[test]
fn http_reaches_pods_services_and_nodes() {
    let cluster = Cluster::start();
    cluster.pod("web", &["a"]);
    let port = web();
    cluster.create(json!({
        "metadata": { "name": "front" },
        "spec": { "selector": { "app": "web" }, "ports": [{ "name": "http", "port": 80, "targetPort": port }] },
    }));
    let base = "/api/v1/namespaces/default";
    for k in KUBECTLS {
        let get = |path: &str| cluster.ok(k, &format!("get --raw '{path}'"));
        assert_eq!(
            get(&format!("{base}/pods/web:{port}/proxy/a/b%20c?limit=x&watch=2")),
            "GET /a/b%20c?limit=x&watch=2 HTTP/1.1"
        );
        assert_eq!(get(&format!("{base}/services/front:http/proxy/")), "GET / HTTP/1.1");
        assert_eq!(get(&format!("{base}/services/http:front:80/proxy/x")), "GET /x HTTP/1.1");
        assert_eq!(get("/api/v1/nodes/node-a/proxy/healthz"), "ok");
        assert!(get("/api/v1/nodes/node-a/proxy/pods").contains("\"web\""));
        let refused = cluster.refused(k, &format!("get --raw '{base}/services/front:nope/proxy/'"));
        assert!(refused.contains("no service port \"nope\" found for service \"front\""), "{refused}");
        let refused = cluster.refused(k, &format!("get --raw '{base}/pods/web:1/proxy/'"));
        assert!(refused.contains("error trying to reach service"), "{refused}");
    }
}

#[test]
fn links_of_a_proxied_page_lead_through_the_proxy() {
    let cluster = Cluster::start();
    cluster.pod("web", &["a"]);
    let port = pages();
    let prefix = format!("/api/v1/namespaces/default/pods/http:web:{port}/proxy");
    for k in KUBECTLS {
        let page = cluster.ok(k, &format!("get --raw '{prefix}/'"));
        assert_eq!(page, format!(r#"<html><a href="{prefix}/rewriteme">test</a><a href="here">here</a></html>"#));
        // The client follows the redirect through the proxy, or it would not get the page.
        assert_eq!(cluster.ok(k, &format!("get --raw '{prefix}/moved'")), page);
    }
}
