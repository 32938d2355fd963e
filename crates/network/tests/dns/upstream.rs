//! A resolver of the world outside that can be made to misbehave.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use hickory_proto::{
    op::{Message, MessageType, ResponseCode},
    rr::{
        Name, RData, Record,
        rdata::{A, CNAME, SOA, TXT},
    },
};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream, UdpSocket},
};
use tokio_util::sync::{CancellationToken, DropGuard};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Answers with this TTL.
    Well(u32),
    Late(Duration),
    Silent,
    Failing,
    /// Answers in small letters.
    LosesLetters,
    /// Somebody else is quicker, but has to guess.
    Spoofed,
    /// Knows nothing of EDNS.
    Old,
}

pub struct Upstream {
    pub address: SocketAddr,
    state: Arc<State>,
    _stop: DropGuard,
}

struct State {
    mode: Mutex<Mode>,
    by_udp: AtomicUsize,
    by_tcp: AtomicUsize,
    names: Mutex<Vec<String>>,
}

impl Upstream {
    pub async fn start(mode: Mode) -> Self {
        let (listener, socket) = loop {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            // The same port may be taken for UDP.
            if let Ok(socket) = UdpSocket::bind(listener.local_addr().unwrap()).await {
                break (listener, socket);
            }
        };
        let address = listener.local_addr().unwrap();
        let state = State {
            mode: Mutex::new(mode),
            by_udp: AtomicUsize::new(0),
            by_tcp: AtomicUsize::new(0),
            names: Mutex::default(),
        };
        let (state, stop) = (Arc::new(state), CancellationToken::new());
        tokio::spawn(stop.clone().run_until_cancelled_owned(udp(Arc::new(socket), state.clone())));
        tokio::spawn(stop.clone().run_until_cancelled_owned(tcp(listener, state.clone())));
        Self { address, state, _stop: stop.drop_guard() }
    }

    pub fn set(&self, mode: Mode) {
        *self.state.mode.lock() = mode;
    }

    /// How often it was asked, by UDP and by TCP.
    pub fn query_counts(&self) -> (usize, usize) {
        (self.state.by_udp.load(Ordering::SeqCst), self.state.by_tcp.load(Ordering::SeqCst))
    }

    /// The names in the letters in which they were asked for.
    pub fn names(&self) -> Vec<String> {
        self.state.names.lock().clone()
    }
}

async fn udp(socket: Arc<UdpSocket>, state: Arc<State>) {
    let mut buffer = [0; 4096];
    while let Ok((length, client)) = socket.recv_from(&mut buffer).await {
        state.by_udp.fetch_add(1, Ordering::SeqCst);
        let question = Message::from_vec(&buffer[..length]).expect("questions can be read");
        let (socket, state) = (socket.clone(), state.clone());
        tokio::spawn(async move {
            for answer in answers(&state, question, true).await {
                socket.send_to(&answer.to_vec().unwrap(), client).await.unwrap();
            }
        });
    }
}

async fn tcp(listener: TcpListener, state: Arc<State>) {
    while let Ok((stream, _)) = listener.accept().await {
        tokio::spawn(converse(stream, state.clone()));
    }
}

async fn converse(mut stream: TcpStream, state: Arc<State>) -> std::io::Result<()> {
    loop {
        let mut packet = vec![0; stream.read_u16().await?.into()];
        stream.read_exact(&mut packet).await?;
        state.by_tcp.fetch_add(1, Ordering::SeqCst);
        for answer in answers(&state, Message::from_vec(&packet).expect("questions can be read"), false).await {
            let packet = answer.to_vec().unwrap();
            stream.write_u16(packet.len() as u16).await?;
            stream.write_all(&packet).await?;
        }
    }
}

async fn answers(state: &State, question: Message, udp: bool) -> Vec<Message> {
    let mode = *state.mode.lock();
    let name = question.queries[0].name.clone();
    state.names.lock().push(name.to_ascii());
    let mut answer = Message::new(question.metadata.id, MessageType::Response, question.metadata.op_code);
    answer.metadata.recursion_available = true;
    answer.queries = question.queries.clone();
    let ttl = match mode {
        Mode::Silent => return Vec::new(),
        Mode::Failing => {
            answer.metadata.response_code = ResponseCode::ServFail;
            return vec![answer];
        }
        Mode::Old if question.edns.is_some() => {
            answer.metadata.response_code = ResponseCode::FormErr;
            return vec![answer];
        }
        Mode::Well(ttl) => ttl,
        Mode::Late(delay) => {
            tokio::time::sleep(delay).await;
            60
        }
        Mode::LosesLetters | Mode::Spoofed | Mode::Old => 60,
    };
    if mode == Mode::LosesLetters {
        answer.queries[0].name = name.to_lowercase();
    }
    fill(&mut answer, &name, ttl, udp);
    let mut all = vec![answer.clone()];
    if mode == Mode::Spoofed {
        let lie = |mut lie: Message| {
            lie.answers = vec![Record::from_rdata(name.clone(), 60, RData::A(A::new(6, 6, 6, 6)))];
            lie
        };
        let (mut number, mut other) = (lie(answer.clone()), lie(answer.clone()));
        number.metadata.id ^= 1;
        other.queries[0].name = Name::from_ascii("bank.example.").unwrap();
        all = vec![number, other, answer];
    }
    all
}

fn fill(answer: &mut Message, name: &Name, ttl: u32, udp: bool) {
    let text = name.to_lowercase().to_ascii();
    let address = |name: &Name, last: u8| Record::from_rdata(name.clone(), ttl, RData::A(A::new(192, 0, 2, last)));
    let soa = || {
        let (zone, mailbox) = (Name::from_ascii("example.").unwrap(), Name::from_ascii("hostmaster.example.").unwrap());
        Record::from_rdata(zone.clone(), 3600, RData::SOA(SOA::new(zone, mailbox, 1, 2, 3, 4, ttl)))
    };
    match text.split('.').next().unwrap_or_default() {
        "none" => {
            answer.metadata.response_code = ResponseCode::NXDomain;
            answer.authorities.push(soa());
        }
        "empty" => answer.authorities.push(soa()),
        "unsaid" => answer.metadata.response_code = ResponseCode::NXDomain,
        "big" if udp => answer.metadata.truncation = true,
        "big" => answer.answers.extend((1..=100).map(|last| address(name, last))),
        "alias" => {
            let target = Name::from_ascii("target.example.").unwrap();
            answer.answers.push(Record::from_rdata(name.clone(), ttl, RData::CNAME(CNAME(target.clone()))));
            answer.answers.push(address(&target, 9));
        }
        "text" => {
            let text = TXT::new(vec!["Some Text".into()]);
            answer.answers.push(Record::from_rdata(name.clone(), ttl, RData::TXT(text)));
        }
        _ => answer.answers.push(address(name, 1)),
    }
}
