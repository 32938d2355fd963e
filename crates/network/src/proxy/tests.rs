//! With real sockets on loopback addresses, each of which is a front, and once with the kernel's packet rules.

use std::{
    collections::HashSet,
    io::{ErrorKind, Read, Write},
    net::{Ipv4Addr, Shutdown, SocketAddrV4, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use super::{limits::WAITING_PER_FRONT, *};
use crate::{journal::Protocol, services::frontend::WithoutBackends};

const PATIENCE: Duration = Duration::from_secs(20);
const LONG: WithoutBackends = WithoutBackends::Hold(Duration::from_secs(30));
const FRONT: Ipv4Addr = Ipv4Addr::new(127, 77, 0, 1);

fn proxy() -> Arc<Proxy> {
    Proxy::start_with(local_address, 2).unwrap()
}

fn target(backends: &[SocketAddrV4], without_backends: WithoutBackends) -> Target {
    let mut backends = backends.to_vec();
    backends.sort();
    Target { backends, affinity: None, masquerade: false, through_user_space: true, without_backends }
}

impl Proxy {
    fn at(&self, address: Ipv4Addr) -> Front {
        Front { address: Some(address), protocol: Protocol::Tcp, port: self.port }
    }

    fn serve(&self, backends: &[SocketAddrV4], without: WithoutBackends) {
        self.set(self.at(FRONT), Some(&target(backends, without)));
    }

    fn client(&self) -> TcpStream {
        let stream = TcpStream::connect((FRONT, self.port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    fn waiting(&self) -> u32 {
        self.table.waiting(self.at(FRONT))
    }
}

/// Answers whole requests: what it has read until the end of a connection.
struct Backend {
    address: SocketAddrV4,
    connections: Arc<AtomicUsize>,
}

impl Backend {
    /// What `serve` does with every connection, on a thread of its own.
    fn new(serve: impl Fn(TcpStream) + Send + Sync + 'static) -> Self {
        Self::at(free_address(), serve)
    }

    fn at(address: SocketAddrV4, serve: impl Fn(TcpStream) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind(address).unwrap();
        let connections = Arc::new(AtomicUsize::new(0));
        let (count, serve) = (connections.clone(), Arc::new(serve));
        thread::spawn(move || {
            for stream in listener.incoming() {
                count.fetch_add(1, Ordering::Relaxed);
                let serve = serve.clone();
                thread::spawn(move || serve(stream.unwrap()));
            }
        });
        Self { address, connections }
    }

    fn echo() -> Self {
        Self::new(|stream| {
            let _ = std::io::copy(&mut &stream, &mut &stream);
            let _ = stream.shutdown(Shutdown::Write);
        })
    }

    fn naming(name: &'static str) -> Self {
        Self::new(move |mut stream| {
            let _ = stream.write_all(name.as_bytes());
        })
    }

    fn count(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }
}

/// Where nobody listens.
fn free_address() -> SocketAddrV4 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    SocketAddrV4::new(Ipv4Addr::LOCALHOST, listener.local_addr().unwrap().port())
}

fn until(what: &str, holds: impl Fn() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "{what}: not within {PATIENCE:?}");
        thread::sleep(Duration::from_millis(2));
    }
}

fn read_all(mut stream: &TcpStream) -> std::io::Result<String> {
    let mut text = String::new();
    stream.read_to_string(&mut text).map(|_| text)
}

fn ask(mut stream: &TcpStream, question: &str) -> std::io::Result<String> {
    stream.write_all(question.as_bytes())?;
    stream.shutdown(Shutdown::Write)?;
    read_all(stream)
}

fn is_refusal(result: std::io::Result<String>) -> bool {
    result.is_err_and(|error| matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe))
}

#[test]
fn what_is_said_after_the_client_has_ended_still_arrives() {
    let (proxy, backend) = (proxy(), Backend::echo());
    proxy.serve(&[backend.address], LONG);
    assert_eq!(ask(&proxy.client(), "hello").unwrap(), "hello");
}

#[test]
fn what_is_said_after_the_backend_has_ended_still_arrives() {
    let (heard, hears) = mpsc::channel();
    let backend = Backend::new(move |mut stream| {
        stream.write_all(b"first").unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        heard.send(read_all(&stream).unwrap()).unwrap();
    });
    let proxy = proxy();
    proxy.serve(&[backend.address], LONG);
    let mut client = proxy.client();
    assert_eq!(read_all(&client).unwrap(), "first");
    client.write_all(b"second").unwrap();
    drop(client);
    assert_eq!(hears.recv_timeout(PATIENCE).unwrap(), "second");
}

#[test]
fn a_held_connection_is_delivered_as_soon_as_there_is_a_backend() {
    let (proxy, backend) = (proxy(), Backend::echo());
    proxy.serve(&[], LONG);
    let mut client = proxy.client();
    client.write_all(b"early ").unwrap();
    until("held", || proxy.waiting() == 1);
    assert_eq!(backend.count(), 0);
    let start = Instant::now();
    proxy.serve(&[backend.address], LONG);
    assert_eq!(ask(&client, "bird").unwrap(), "early bird");
    assert!(start.elapsed() < Duration::from_secs(1), "nothing polls: {:?}", start.elapsed());
    assert_eq!(proxy.waiting(), 0);
}

#[test]
fn one_that_asked_and_said_that_this_was_all_gets_its_answer_too() {
    let (proxy, backend) = (proxy(), Backend::echo());
    proxy.serve(&[], LONG);
    let mut client = proxy.client();
    client.write_all(b"all").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    until("held", || proxy.waiting() == 1);
    proxy.serve(&[backend.address], LONG);
    assert_eq!(read_all(&client).unwrap(), "all");
}

#[test]
fn a_held_connection_is_refused_when_its_time_is_over() {
    let proxy = proxy();
    proxy.serve(&[], WithoutBackends::Hold(Duration::from_millis(300)));
    let (client, start) = (proxy.client(), Instant::now());
    assert!(is_refusal(read_all(&client)));
    assert!(start.elapsed() >= Duration::from_millis(290), "held for only {:?}", start.elapsed());
    assert!(start.elapsed() < Duration::from_secs(5), "held for {:?}", start.elapsed());
    assert_eq!(proxy.waiting(), 0);
}

#[test]
fn where_nothing_is_held_it_is_refused_at_once() {
    let proxy = proxy();
    for without in [WithoutBackends::Refuse, WithoutBackends::Drop, WithoutBackends::Hold(Duration::ZERO)] {
        proxy.serve(&[], without);
        assert!(is_refusal(read_all(&proxy.client())), "{without:?}");
    }
}

#[test]
fn a_hold_that_is_taken_back_ends_for_those_who_wait() {
    let proxy = proxy();
    for end in [None, Some(target(&[], WithoutBackends::Refuse))] {
        proxy.serve(&[], LONG);
        let client = proxy.client();
        until("held", || proxy.waiting() == 1);
        proxy.set(proxy.at(FRONT), end.as_ref());
        assert!(is_refusal(read_all(&client)), "{end:?}");
        assert_eq!(proxy.waiting(), 0);
    }
}

#[test]
fn what_goes_to_no_front_of_ours_is_closed_at_once() {
    let proxy = proxy();
    assert!(is_refusal(read_all(&proxy.client())));
    let real = Proxy::start().unwrap();
    real.set(Front { address: None, port: 80, ..real.at(FRONT) }, Some(&target(&[], LONG)));
    let direct = TcpStream::connect((Ipv4Addr::LOCALHOST, real.port())).unwrap();
    direct.set_read_timeout(Some(PATIENCE)).unwrap();
    assert!(is_refusal(read_all(&direct)), "nobody redirected it");
}

#[test]
fn a_node_port_answers_at_every_address_and_an_exact_front_before_it() {
    let (proxy, exact, any) = (proxy(), Backend::naming("exact"), Backend::naming("any"));
    proxy.serve(&[exact.address], LONG);
    let everywhere = Front { address: None, ..proxy.at(FRONT) };
    proxy.set(everywhere, Some(&target(&[any.address], LONG)));
    assert_eq!(read_all(&proxy.client()).unwrap(), "exact");
    assert_eq!(read_all(&TcpStream::connect((Ipv4Addr::LOCALHOST, proxy.port())).unwrap()).unwrap(), "any");
}

#[test]
fn a_client_that_leaves_while_it_is_held_frees_its_place() {
    let proxy = proxy();
    proxy.serve(&[], LONG);
    let (leaves, breaks) = (proxy.client(), proxy.client());
    until("held", || proxy.waiting() == 2);
    drop(leaves);
    until("noticed", || proxy.waiting() == 1);
    socket2::SockRef::from(&breaks).set_linger(Some(Duration::ZERO)).unwrap();
    drop(breaks);
    until("noticed", || proxy.waiting() == 0);
}

#[test]
fn a_backend_that_refuses_is_passed_over() {
    let (proxy, backend) = (proxy(), Backend::naming("here"));
    proxy.serve(&[free_address(), backend.address, free_address()], WithoutBackends::Refuse);
    for _ in 0..20 {
        assert_eq!(read_all(&proxy.client()).unwrap(), "here");
    }
}

#[test]
fn if_all_refuse_it_waits_until_one_listens() {
    let (proxy, address) = (proxy(), free_address());
    proxy.serve(&[address], LONG);
    let client = proxy.client();
    until("held", || proxy.waiting() == 1);
    let _late = Backend::at(address, |mut stream| stream.write_all(b"late").unwrap());
    assert_eq!(read_all(&client).unwrap(), "late");
    assert_eq!(proxy.waiting(), 0);
}

#[test]
fn if_all_refuse_and_nothing_is_held_it_is_refused() {
    let proxy = proxy();
    proxy.serve(&[free_address(), free_address()], WithoutBackends::Refuse);
    assert!(is_refusal(read_all(&proxy.client())));
}

#[test]
fn a_backend_that_does_not_answer_is_passed_over() {
    // A listener whose queue is full lets further attempts go unanswered.
    let deaf = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    deaf.bind(&SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    deaf.listen(0).unwrap();
    let address = SocketAddrV4::new(Ipv4Addr::LOCALHOST, deaf.local_addr().unwrap().as_socket_ipv4().unwrap().port());
    let _queue: Vec<TcpStream> =
        std::iter::from_fn(|| TcpStream::connect_timeout(&address.into(), Duration::from_millis(100)).ok())
            .take(8)
            .collect();
    let (proxy, backend) = (proxy(), Backend::naming("here"));
    proxy.serve(&[address, backend.address], LONG);
    let clients: Vec<_> = (0..8).map(|_| proxy.client()).collect();
    for client in &clients {
        assert_eq!(read_all(client).unwrap(), "here");
    }
}

#[test]
fn a_client_stays_with_its_backend_and_finds_another_when_it_is_gone() {
    let (proxy, a, b) = (proxy(), Backend::naming("a"), Backend::naming("b"));
    let sticky = |backends: &[SocketAddrV4]| Target { affinity: Some(PATIENCE), ..target(backends, LONG) };
    proxy.set(proxy.at(FRONT), Some(&sticky(&[a.address, b.address])));
    let answers: HashSet<String> = (0..30).map(|_| read_all(&proxy.client()).unwrap()).collect();
    assert_eq!(answers.len(), 1, "{answers:?}");
    let other = if answers.contains("a") { b.address } else { a.address };
    proxy.set(proxy.at(FRONT), Some(&sticky(&[other])));
    let after = read_all(&proxy.client()).unwrap();
    assert!(!answers.contains(&after));
}

#[test]
fn without_affinity_every_backend_gets_some() {
    let (proxy, a, b) = (proxy(), Backend::naming("a"), Backend::naming("b"));
    proxy.serve(&[a.address, b.address], LONG);
    for _ in 0..60 {
        read_all(&proxy.client()).unwrap();
    }
    assert!(a.count() > 5 && b.count() > 5, "{} and {}", a.count(), b.count());
}

#[test]
fn two_hundred_clients_do_not_notice_that_backends_come_and_go() {
    let proxy = proxy();
    let backends: Vec<Backend> = (0..3).map(|_| Backend::echo()).collect();
    proxy.serve(&[], LONG);
    let stop = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> = (0..200)
        .map(|number| {
            let (proxy, stop) = (proxy.clone(), stop.clone());
            thread::spawn(move || {
                let mut asked = 0;
                while asked < 3 || !stop.load(Ordering::Relaxed) {
                    let question = format!("{number}/{asked}");
                    assert_eq!(ask(&proxy.client(), &question).unwrap(), question);
                    asked += 1;
                }
                asked
            })
        })
        .collect();
    for change in 0..150 {
        let some = match change % 4 {
            0 => vec![],
            1 => vec![backends[0].address, free_address()],
            2 => vec![backends[1].address],
            _ => backends.iter().map(|backend| backend.address).collect(),
        };
        proxy.serve(&some, LONG);
        thread::sleep(Duration::from_millis(10));
    }
    proxy.serve(&[backends[2].address], LONG);
    stop.store(true, Ordering::Relaxed);
    let asked: usize = clients.into_iter().map(|client| client.join().unwrap()).sum();
    assert!(asked >= 600);
    assert_eq!(proxy.waiting(), 0);
}

/// Bytes that no two places have in common for long.
fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    fastrand::Rng::with_seed(seed).fill(&mut bytes);
    bytes
}

#[test]
fn a_hundred_megabytes_arrive_unharmed_in_both_directions_at_once() {
    const BLOCK: usize = 1 << 20;
    const BLOCKS: usize = 100;
    fn send(mut stream: &TcpStream, seed: u64) -> u64 {
        let mut digest = xxhash_rust::xxh3::Xxh3::new();
        for number in 0..BLOCKS {
            let block = pattern(seed + number as u64, BLOCK);
            digest.update(&block);
            stream.write_all(&block).unwrap();
        }
        stream.shutdown(Shutdown::Write).unwrap();
        digest.digest()
    }
    fn receive(mut stream: &TcpStream) -> (u64, usize) {
        let (mut digest, mut length, mut buffer) = (xxhash_rust::xxh3::Xxh3::new(), 0, vec![0; 200_000]);
        loop {
            match stream.read(&mut buffer).unwrap() {
                0 => return (digest.digest(), length),
                count => {
                    digest.update(&buffer[..count]);
                    length += count;
                }
            }
        }
    }
    fn both(stream: &TcpStream, seed: u64) -> (u64, (u64, usize)) {
        thread::scope(|scope| {
            let sent = scope.spawn(|| send(stream, seed));
            let received = receive(stream);
            (sent.join().unwrap(), received)
        })
    }
    let (done, result) = mpsc::channel();
    let backend = Backend::new(move |stream| done.send(both(&stream, 1000)).unwrap());
    let proxy = proxy();
    proxy.serve(&[backend.address], LONG);
    let (sent, received) = both(&proxy.client(), 0);
    let (sent_back, received_there) = result.recv_timeout(PATIENCE * 3).unwrap();
    assert_eq!(received, (sent_back, BLOCK * BLOCKS));
    assert_eq!(received_there, (sent, BLOCK * BLOCKS));
}

#[test]
fn a_slow_reader_blocks_its_sender_and_nobody_else() {
    let sent = Arc::new(AtomicUsize::new(0));
    let count = sent.clone();
    let flood = Backend::new(move |mut stream| {
        let block = vec![7; 64 << 10];
        while stream.write_all(&block).is_ok() {
            count.fetch_add(block.len(), Ordering::Relaxed);
        }
    });
    let proxy = Proxy::start_with(local_address, 1).unwrap();
    proxy.serve(&[flood.address], LONG);
    let slow = proxy.client();
    until("the sender stands still", || {
        let now = sent.load(Ordering::Relaxed);
        thread::sleep(Duration::from_millis(100));
        now > 0 && now == sent.load(Ordering::Relaxed)
    });
    let echo = Backend::echo();
    proxy.serve(&[echo.address], LONG);
    for _ in 0..10 {
        assert_eq!(ask(&proxy.client(), "quick").unwrap(), "quick");
    }
    let held = sent.load(Ordering::Relaxed);
    assert!(held < 64 << 20, "{held} bytes went somewhere");
    drop(slow);
}

#[test]
fn a_reset_is_passed_on_as_a_reset_both_ways() {
    let (heard, hears) = mpsc::channel();
    let backend = Backend::new(move |mut stream| {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        if byte == *b"r" {
            socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
            return;
        }
        stream.write_all(b"!").unwrap();
        heard.send(stream.read(&mut byte).map_err(|error| error.kind())).unwrap();
    });
    let proxy = proxy();
    proxy.serve(&[backend.address], LONG);
    let mut client = proxy.client();
    client.write_all(b"r").unwrap();
    assert!(is_refusal(read_all(&client)), "from the backend");
    let mut client = proxy.client();
    client.write_all(b"x").unwrap();
    client.read_exact(&mut [0]).unwrap();
    socket2::SockRef::from(&client).set_linger(Some(Duration::ZERO)).unwrap();
    drop(client);
    assert_eq!(hears.recv_timeout(PATIENCE).unwrap(), Err(ErrorKind::ConnectionReset), "from the client");
}

#[test]
fn a_client_that_ended_and_then_broke_is_noticed() {
    let (heard, hears) = mpsc::channel();
    let backend = Backend::new(move |mut stream| {
        let _ = read_all(&stream).unwrap();
        heard.send(Ok(0)).unwrap();
        // Nothing is written, so that only the reset can end this.
        until("reset", || stream.take_error().unwrap().is_some());
        heard.send(stream.write(b"x").map_err(|error| error.kind())).unwrap();
    });
    let proxy = proxy();
    proxy.serve(&[backend.address], LONG);
    let client = proxy.client();
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(hears.recv_timeout(PATIENCE).unwrap(), Ok(0));
    socket2::SockRef::from(&client).set_linger(Some(Duration::ZERO)).unwrap();
    drop(client);
    assert!(hears.recv_timeout(PATIENCE).unwrap().is_err());
}

fn resident_kilobytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

fn allow_files(count: u64) {
    use nix::sys::resource::{Resource::RLIMIT_NOFILE, getrlimit, setrlimit};
    let hard = getrlimit(RLIMIT_NOFILE).unwrap().1;
    setrlimit(RLIMIT_NOFILE, count.min(hard), hard).unwrap();
}

fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn five_thousand_idle_connections_take_little_memory() {
    allow_files(20_000);
    let proxy = proxy();
    // Nobody accepts there, which is as good to be connected to and takes no files.
    let listeners = [(); 2].map(|()| {
        let listener = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        listener.bind(&SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        listener.listen(4096).unwrap();
        listener
    });
    let backends = listeners.each_ref().map(|listener| listener.local_addr().unwrap().as_socket_ipv4().unwrap());
    proxy.serve(&backends, LONG);
    let (before, files) = (resident_kilobytes(), open_files());
    let clients: Vec<TcpStream> = (0..5000).map(|_| proxy.client()).collect();
    until("all are carried", || open_files() >= files + clients.len() * 3);
    let each = (resident_kilobytes() - before) * 1024 / clients.len();
    assert!(each < 1024, "{each} bytes each");
    println!("{each} bytes each");
}

#[test]
fn without_files_new_connections_wait_until_there_are_some_again() {
    let (proxy, backend) = (proxy(), Backend::naming("here"));
    proxy.serve(&[backend.address], LONG);
    allow_files(256);
    let files = open_files();
    assert_eq!(read_all(&proxy.client()).unwrap(), "here");
    until("its files are closed", || open_files() == files);
    let client = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    let mut hoard: Vec<std::fs::File> = Vec::new();
    while let Ok(file) = std::fs::File::open("/dev/null") {
        hoard.push(file);
    }
    client.connect(&SocketAddrV4::new(FRONT, proxy.port()).into()).unwrap();
    let client = TcpStream::from(client);
    let spent = || nix::sys::resource::getrusage(nix::sys::resource::UsageWho::RUSAGE_SELF).unwrap().system_time();
    let before = spent();
    client.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    assert!(read_all(&client).is_err_and(|error| error.kind() == ErrorKind::WouldBlock), "nobody is refused");
    let busy = spent() - before;
    assert!(busy.tv_sec() == 0 && busy.tv_usec() < 100_000, "it spins: {busy}");
    drop(hoard);
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(read_all(&client).unwrap(), "here");
}

#[test]
fn more_than_may_wait_are_refused_and_the_rest_are_delivered() {
    allow_files(20_000);
    let (proxy, listener) = (proxy(), TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
    let backend = SocketAddrV4::new(Ipv4Addr::LOCALHOST, listener.local_addr().unwrap().port());
    thread::spawn(move || listener.incoming().for_each(|stream| stream.unwrap().write_all(b"here").unwrap()));
    proxy.serve(&[], LONG);
    let clients: Vec<TcpStream> = (0..WAITING_PER_FRONT).map(|_| proxy.client()).collect();
    until("all wait", || proxy.waiting() == WAITING_PER_FRONT);
    assert!(is_refusal(read_all(&proxy.client())));
    proxy.serve(&[backend], LONG);
    for client in &clients {
        assert_eq!(read_all(client).unwrap(), "here");
    }
}

#[test]
fn dropping_it_stops_its_threads_and_closes_everything() {
    let threads = || {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        let names = tasks.filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")).ok());
        names.filter(|name| name.trim() == "proxy").count()
    };
    let (proxy, backend) = (proxy(), Backend::echo());
    until("they run", || threads() == 2);
    proxy.serve(&[backend.address], LONG);
    let carried = proxy.client();
    let (port, held) = (proxy.port(), Ipv4Addr::new(127, 77, 0, 2));
    proxy.set(proxy.at(held), Some(&target(&[], LONG)));
    let held = TcpStream::connect((held, port)).unwrap();
    until("carried", || backend.count() == 1);
    drop(proxy);
    assert!(read_all(&carried).is_ok_and(|text| text.is_empty()) || is_refusal(read_all(&carried)));
    assert!(read_all(&held).is_ok_and(|text| text.is_empty()) || is_refusal(read_all(&held)));
    assert!(TcpStream::connect((FRONT, port)).is_err());
    assert_eq!(threads(), 0);
}

#[test]
fn both_threads_have_their_share_of_a_few() {
    let (proxy, backend) = (proxy(), Backend::echo());
    proxy.serve(&[backend.address], LONG);
    let mut clients = Vec::new();
    for count in 1..=8 {
        clients.push(proxy.client());
        until("carried", || backend.count() == count);
        let shares = || proxy.mailboxes.iter().map(|mailbox| mailbox.connections()).collect::<Vec<_>>();
        until("counted", || shares().iter().sum::<usize>() == count);
        assert!(shares().iter().all(|share| *share >= count / 3), "{:?}", shares());
    }
}

#[test]
fn idle_threads_sleep() {
    let (proxy, backend) = (proxy(), Backend::echo());
    proxy.serve(&[backend.address], LONG);
    let idle = proxy.client();
    until("carried", || backend.count() == 1);
    let switches = || -> u64 {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
        let ours =
            tasks.filter(|task| std::fs::read_to_string(task.join("comm")).is_ok_and(|name| name.trim() == "proxy"));
        let of = |task: std::path::PathBuf| std::fs::read_to_string(task.join("status")).unwrap_or_default();
        let count = |status: String| -> u64 {
            let lines = status.lines().filter(|line| line.starts_with("voluntary_ctxt_switches:"));
            lines.filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok()).sum()
        };
        ours.map(of).map(count).sum()
    };
    // After a second it is old enough to be asked for signs of life, which the kernel does.
    thread::sleep(Duration::from_millis(1500));
    let before = switches();
    thread::sleep(Duration::from_secs(1));
    assert_eq!(switches(), before);
    drop(idle);
}
