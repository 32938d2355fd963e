use std::{
    io::{Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
};

use crate::cluster::{Cluster, KUBECTLS};

/// Something in the pod that answers each connection with what it received, in capitals, once it has received everything.
fn listener() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            std::thread::spawn(move || {
                let mut stream = stream.unwrap();
                let mut received = Vec::new();
                let _ = stream.read_to_end(&mut received);
                received.make_ascii_uppercase();
                let _ = stream.write_all(&received);
            });
        }
    });
    port
}

fn talk(port: u16, output: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(crate::cluster::PATIENCE)).unwrap();
    let mut writer = stream.try_clone().unwrap();
    let words = output.to_vec();
    let writing = std::thread::spawn(move || {
        writer.write_all(&words).unwrap();
        writer.shutdown(Shutdown::Write).unwrap();
    });
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    writing.join().unwrap();
    answer
}

#[test]
fn connections_are_forwarded_many_at_once() {
    let cluster = Cluster::start();
    cluster.pod("web", &["a"]);
    let inside = listener();
    for k in KUBECTLS {
        let forward = cluster.begin(k, &format!("port-forward web :{inside}"));
        let output = forward.prints("Forwarding from 127.0.0.1:");
        let port = output.split("127.0.0.1:").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
        assert_eq!(talk(port, b"hello"), b"HELLO");
        let talks: Vec<_> = (0..8)
            .map(|n| {
                std::thread::spawn(move || {
                    let output = format!("{n} abcdef ").repeat(50_000);
                    assert!(talk(port, output.as_bytes()) == output.to_uppercase().as_bytes());
                })
            })
            .collect();
        for talk in talks {
            talk.join().unwrap();
        }
        drop(forward);
    }
}

#[test]
fn a_port_on_which_nobody_listens_is_reported() {
    let cluster = Cluster::start();
    cluster.pod("web", &["a"]);
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    for k in KUBECTLS {
        let forward = cluster.begin(k, &format!("port-forward web :{closed}"));
        let output = forward.prints("Forwarding from 127.0.0.1:");
        let port = output.split("127.0.0.1:").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
        assert_eq!(talk(port, b"hello"), b"");
        forward.prints("error forwarding port");
    }
}
