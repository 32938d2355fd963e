//! What it takes of the machine.

use super::*;

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
    eventually("all are carried", || open_files() >= files + clients.len() * 3);
    let each = (resident_kilobytes() - before) * 1024 / clients.len();
    assert!(each < 1024, "{each} bytes each");
    println!("{each} bytes each");
}

#[test]
fn without_file_descriptors_new_connections_wait() {
    let (proxy, backend) = (proxy(), Backend::naming("here"));
    proxy.serve(&[backend.address], LONG);
    allow_files(256);
    let files = open_files();
    assert_eq!(read_all(&proxy.client()).unwrap(), "here");
    eventually("its files are closed", || open_files() == files);
    let client = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    let mut hoard: Vec<std::fs::File> = Vec::new();
    while let Ok(file) = std::fs::File::open("/dev/null") {
        hoard.push(file);
    }
    client.connect(&SocketAddrV4::new(FRONTEND, proxy.port()).into()).unwrap();
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
fn connections_above_the_waiting_limit_are_reset() {
    allow_files(20_000);
    let (proxy, listener) = (proxy(), TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
    let backend = SocketAddrV4::new(Ipv4Addr::LOCALHOST, listener.local_addr().unwrap().port());
    thread::spawn(move || listener.incoming().for_each(|stream| stream.unwrap().write_all(b"here").unwrap()));
    proxy.serve(&[], LONG);
    let clients: Vec<TcpStream> = (0..MAX_WAITING_PER_FRONTEND).map(|_| proxy.client()).collect();
    eventually("all wait", || proxy.waiting() == MAX_WAITING_PER_FRONTEND);
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
    eventually("they run", || threads() == 2);
    proxy.serve(&[backend.address], LONG);
    let carried = proxy.client();
    let (port, held) = (proxy.port(), Ipv4Addr::new(127, 77, 0, 2));
    proxy.set(proxy.frontend(held), Some(&pool(&[], LONG)));
    let held = TcpStream::connect((held, port)).unwrap();
    eventually("carried", || backend.count() == 1);
    drop(proxy);
    for (what, client) in [("carried", carried), ("held", held)] {
        let end = read_all(&client);
        assert!(matches!(&end, Ok(text) if text.is_empty()) || is_refusal(end), "{what}");
    }
    assert!(TcpStream::connect((FRONTEND, port)).is_err());
    assert_eq!(threads(), 0);
}

#[test]
fn few_connections_are_distributed_over_both_threads() {
    let (proxy, backend) = (proxy(), Backend::echo());
    proxy.serve(&[backend.address], LONG);
    let mut clients = Vec::new();
    for count in 1..=8 {
        clients.push(proxy.client());
        eventually("carried", || backend.count() == count);
        let shares = || proxy.mailboxes.iter().map(|mailbox| mailbox.connections()).collect::<Vec<_>>();
        eventually("counted", || shares().iter().sum::<usize>() == count);
        assert!(shares().iter().all(|share| *share >= count / 3), "{:?}", shares());
    }
}

#[test]
fn idle_threads_sleep() {
    let (proxy, backend) = (proxy(), Backend::echo());
    proxy.serve(&[backend.address], LONG);
    let idle = proxy.client();
    eventually("carried", || backend.count() == 1);
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
