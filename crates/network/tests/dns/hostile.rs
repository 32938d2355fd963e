//! Packets and connections that should not be.

use std::time::Duration;

use hickory_proto::op::{Message, ResponseCode};
use mainstay_network::catalogue::ServiceKind;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
    time::{Instant, timeout},
};

use crate::{
    support::{PATIENCE, Running, question},
    upstream::{Mode, Upstream},
};

const WEB: &str = "web.default.svc.cluster.local";

async fn cluster() -> Running {
    let dns = Running::start(Vec::new()).await;
    dns.add("web", ServiceKind::ClusterIp([10, 96, 0, 1].into()), []);
    dns
}

async fn is_well(dns: &Running) {
    let answer = dns.send(&question(1, WEB), PATIENCE).await.expect("still answers");
    assert_eq!(answer.answers.len(), 1);
}

fn framed(packet: &[u8]) -> Vec<u8> {
    [&(packet.len() as u16).to_be_bytes(), packet].concat()
}

async fn read_framed(stream: &mut TcpStream) -> Message {
    let length = timeout(PATIENCE, stream.read_u16()).await.expect("in time").expect("an answer");
    let mut packet = vec![0; length.into()];
    stream.read_exact(&mut packet).await.unwrap();
    Message::from_vec(&packet).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn packets_that_are_no_queries_are_refused_or_ignored() {
    let dns = cluster().await;
    let with = |at: usize, byte: u8| {
        let mut packet = question(7, WEB);
        packet[at] = byte;
        packet
    };
    let whole = question(7, WEB);
    let looped = [&whole[..12], &[0xc0, 12, 0, 1, 0, 1]].concat();
    let class = with(whole.len() - 1, 3);
    let refused: &[(&str, &[u8], ResponseCode)] = &[
        ("cut", &whole[..20], ResponseCode::FormErr),
        ("a name that points to itself", &looped, ResponseCode::FormErr),
        ("two questions", &with(5, 2), ResponseCode::FormErr),
        ("an update", &with(2, 0x28), ResponseCode::NotImp),
        ("of class CHAOS", &class, ResponseCode::Refused),
        ("oversized", &[&whole[..], &[0xff; 4000]].concat(), ResponseCode::NoError),
        ("oversized, with records", &[&with(11, 9)[..], &[0xff; 4000]].concat(), ResponseCode::FormErr),
    ];
    for (what, packet, code) in refused {
        let answer = dns.send(packet, PATIENCE).await.unwrap_or_else(|| panic!("{what}: no answer"));
        assert_eq!((answer.metadata.id, answer.metadata.response_code), (7, *code), "{what}");
    }
    for (what, packet) in [("an answer", with(2, 0x81)), ("a scrap", vec![1, 2, 3]), ("nothing", Vec::new())] {
        assert!(dns.send(&packet, Duration::from_millis(200)).await.is_none(), "{what}");
    }
    is_well(&dns).await;
    dns.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn noise_disturbs_nobody() {
    let dns = cluster().await;
    let socket = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let mut chance = fastrand::Rng::with_seed(7);
    for round in 0..5_000 {
        let mut noise = vec![0; chance.usize(0..200)];
        chance.fill(&mut noise);
        if round % 2 == 0 && noise.len() >= 12 {
            noise[2..12].copy_from_slice(&[1, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
        }
        socket.send_to(&noise, dns.address).await.unwrap();
    }
    is_well(&dns).await;
    let mut stream = TcpStream::connect(dns.address).await.unwrap();
    let mut noise = vec![0; 30_000];
    chance.fill(&mut noise);
    let _ = stream.write_all(&noise).await;
    is_well(&dns).await;
    dns.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pipelined_queries_do_not_wait_for_each_other() {
    let upstream = Upstream::start(Mode::Silent).await;
    let dns = cluster().await;
    dns.upstreams.set(vec![upstream.address]);
    let mut stream = TcpStream::connect(dns.address).await.unwrap();
    let (slow, quick) = (framed(&question(1, "slow.example")), framed(&question(2, WEB)));
    // In pieces, as TCP may cut them.
    let all = [slow, quick].concat();
    for piece in all.chunks(7) {
        stream.write_all(piece).await.unwrap();
    }
    assert_eq!(read_framed(&mut stream).await.metadata.id, 2, "the later query is answered first");
    let last = read_framed(&mut stream).await.metadata;
    assert_eq!((last.id, last.response_code), (1, ResponseCode::ServFail));
    dns.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_shut_down_its_side_still_gets_responses() {
    let dns = cluster().await;
    let mut stream = TcpStream::connect(dns.address).await.unwrap();
    stream.write_all(&framed(&question(3, WEB))).await.unwrap();
    stream.shutdown().await.unwrap();
    assert_eq!(read_framed(&mut stream).await.answers.len(), 1);
    assert_eq!(timeout(PATIENCE, stream.read(&mut [0; 1])).await.unwrap().unwrap(), 0);
    dns.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_client_cannot_take_all_connections() {
    let dns = cluster().await;
    let mut held = Vec::new();
    let refused = loop {
        let mut stream = TcpStream::connect(dns.address).await.unwrap();
        let asked = stream.write_all(&framed(&question(4, WEB))).await;
        let answered = asked.is_ok() && matches!(timeout(PATIENCE, stream.read_u16()).await, Ok(Ok(_)));
        if !answered {
            break held.len();
        }
        held.push(stream);
        assert!(held.len() < 1000, "no bound");
    };
    assert_eq!(refused, 64);

    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.2:0".parse().unwrap()).unwrap();
    let mut other = socket.connect(dns.address).await.unwrap();
    other.write_all(&framed(&question(5, WEB))).await.unwrap();
    assert_eq!(read_framed(&mut other).await.answers.len(), 1);
    dns.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_connection_is_closed() {
    let dns = cluster().await;
    let mut stream = TcpStream::connect(dns.address).await.unwrap();
    let begin = Instant::now();
    let closed = timeout(Duration::from_secs(15), stream.read(&mut [0; 1])).await.expect("closed in time");
    assert_eq!(closed.unwrap(), 0);
    assert!(begin.elapsed() > Duration::from_secs(8));
    dns.stop().await;
}
