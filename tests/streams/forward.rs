use std::{
    io::{Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
};

use crate::cluster::{Cluster, KUBECTLS};

/// Something in the pod that answers each connection with what it heard, in capitals, once it has heard everything.
fn listener() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            std::thread::spawn(move || {
                let mut stream = stream.unwrap();
                let mut heard = Vec::new();
                let _ = stream.read_to_end(&mut heard);
                heard.make_ascii_uppercase();
                let _ = stream.write_all(&heard);
            });
        }
    });
    port
}

fn talk(port: u16, said: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(crate::cluster::PATIENCE)).unwrap();
    let mut writer = stream.try_clone().unwrap();
    let words = said.to_vec();
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
        let said = forward.prints("Forwarding from 127.0.0.1:");
        let port = said.split("127.0.0.1:").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
        assert_eq!(talk(port, b"hello"), b"HELLO");
        let talks: Vec<_> = (0..8)
            .map(|n| {
                std::thread::spawn(move || {
                    let said = format!("{n} abcdef ").repeat(50_000);
                    assert!(talk(port, said.as_bytes()) == said.to_uppercase().as_bytes());
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
fn a_port_on_which_nobody_listens_is_told() {
    let cluster = Cluster::start();
    cluster.pod("web", &["a"]);
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    for k in KUBECTLS {
        let forward = cluster.begin(k, &format!("port-forward web :{closed}"));
        let said = forward.prints("Forwarding from 127.0.0.1:");
        let port = said.split("127.0.0.1:").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
        assert_eq!(talk(port, b"hello"), b"");
        forward.prints("error forwarding port");
    }
}
