//! Who finds a backend, who waits for one, and who is refused.

use super::{super::search::LAST_CONNECT_TIMEOUT, *};

#[test]
fn a_held_connection_is_delivered_as_soon_as_there_is_a_backend() {
    let (proxy, backend) = (proxy(), Backend::echo());
    proxy.serve(&[], LONG);
    let mut client = proxy.client();
    client.write_all(b"early ").unwrap();
    eventually("held", || proxy.waiting() == 1);
    assert_eq!(backend.count(), 0);
    // Reads time out before the hold does: only the change can deliver it.
    proxy.serve(&[backend.address], LONG);
    assert_eq!(ask(&client, "bird").unwrap(), "early bird");
    assert_eq!(proxy.waiting(), 0);
}

#[test]
fn a_half_closed_client_gets_its_response_too() {
    let (proxy, backend) = (proxy(), Backend::echo());
    proxy.serve(&[], LONG);
    let mut client = proxy.client();
    client.write_all(b"all").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    eventually("held", || proxy.waiting() == 1);
    proxy.serve(&[backend.address], LONG);
    assert_eq!(read_all(&client).unwrap(), "all");
}

#[test]
fn a_held_connection_is_reset_after_the_hold_time() {
    let proxy = proxy();
    proxy.serve(&[], WithoutBackends::Hold(Duration::from_millis(300)));
    let (client, start) = (proxy.client(), Instant::now());
    assert!(is_refusal(read_all(&client)));
    assert!(start.elapsed() >= Duration::from_millis(290), "held for only {:?}", start.elapsed());
    assert_eq!(proxy.waiting(), 0);
}

#[test]
fn without_hold_a_connection_is_reset_at_once() {
    let proxy = proxy();
    for without in [WithoutBackends::Reject, WithoutBackends::Drop, WithoutBackends::Hold(Duration::ZERO)] {
        proxy.serve(&[], without);
        assert!(is_refusal(read_all(&proxy.client())), "{without:?}");
    }
}

#[test]
fn a_removed_hold_resets_waiting_connections() {
    let proxy = proxy();
    for end in [None, Some(pool(&[], WithoutBackends::Reject))] {
        proxy.serve(&[], LONG);
        let client = proxy.client();
        eventually("held", || proxy.waiting() == 1);
        proxy.set(proxy.frontend(FRONTEND), end.as_ref());
        assert!(is_refusal(read_all(&client)), "{end:?}");
        assert_eq!(proxy.waiting(), 0);
    }
}

#[test]
fn a_connection_to_no_frontend_is_reset() {
    let proxy = proxy();
    assert!(is_refusal(read_all(&proxy.client())));
    let real = Proxy::start().unwrap();
    real.set(Frontend { address: None, port: 80, ..real.frontend(FRONTEND) }, Some(&pool(&[], LONG)));
    let direct = TcpStream::connect((Ipv4Addr::LOCALHOST, real.port())).unwrap();
    direct.set_read_timeout(Some(PATIENCE)).unwrap();
    assert!(is_refusal(read_all(&direct)), "nobody redirected it");
}

#[test]
fn a_node_port_matches_every_address_after_exact_frontends() {
    let (proxy, exact, any) = (proxy(), Backend::naming("exact"), Backend::naming("any"));
    proxy.serve(&[exact.address], LONG);
    let everywhere = Frontend { address: None, ..proxy.frontend(FRONTEND) };
    proxy.set(everywhere, Some(&pool(&[any.address], LONG)));
    assert_eq!(read_all(&proxy.client()).unwrap(), "exact");
    assert_eq!(read_all(&TcpStream::connect((Ipv4Addr::LOCALHOST, proxy.port())).unwrap()).unwrap(), "any");
}

#[test]
fn a_client_that_closes_while_held_is_not_counted_any_more() {
    let proxy = proxy();
    proxy.serve(&[], LONG);
    let (leaves, breaks) = (proxy.client(), proxy.client());
    eventually("held", || proxy.waiting() == 2);
    drop(leaves);
    eventually("noticed", || proxy.waiting() == 1);
    socket2::SockRef::from(&breaks).set_linger(Some(Duration::ZERO)).unwrap();
    drop(breaks);
    eventually("noticed", || proxy.waiting() == 0);
}

#[test]
fn a_backend_that_refuses_is_skipped() {
    let (proxy, backend) = (proxy(), Backend::naming("here"));
    proxy.serve(&[free_address(), backend.address, free_address()], WithoutBackends::Reject);
    for _ in 0..20 {
        assert_eq!(read_all(&proxy.client()).unwrap(), "here");
    }
}

#[test]
fn if_all_refuse_it_waits_until_one_listens() {
    let (proxy, address) = (proxy(), free_address());
    proxy.serve(&[address], LONG);
    let client = proxy.client();
    eventually("held", || proxy.waiting() == 1);
    let _late = Backend::listen_at(address, |mut stream| stream.write_all(b"late").unwrap());
    assert_eq!(read_all(&client).unwrap(), "late");
    assert_eq!(proxy.waiting(), 0);
}

#[test]
fn if_all_refuse_and_nothing_is_held_it_is_refused() {
    let proxy = proxy();
    proxy.serve(&[free_address(), free_address()], WithoutBackends::Reject);
    assert!(is_refusal(read_all(&proxy.client())));
}

#[test]
fn a_backend_that_does_not_answer_is_skipped() {
    let (proxy, (_silence, silent), backend) = (proxy(), silent_backend(), Backend::naming("here"));
    proxy.serve(&[silent, backend.address], LONG);
    let clients: Vec<_> = (0..8).map(|_| proxy.client()).collect();
    for client in &clients {
        assert_eq!(read_all(client).unwrap(), "here");
    }
}

#[test]
fn session_affinity_lasts_until_the_backend_is_removed() {
    let (proxy, a, b) = (proxy(), Backend::naming("a"), Backend::naming("b"));
    let sticky = |backends: &[SocketAddrV4]| BackendPool { affinity: Some(PATIENCE), ..pool(backends, LONG) };
    proxy.set(proxy.frontend(FRONTEND), Some(&sticky(&[a.address, b.address])));
    let answers: HashSet<String> = (0..30).map(|_| read_all(&proxy.client()).unwrap()).collect();
    assert_eq!(answers.len(), 1, "{answers:?}");
    let other = if answers.contains("a") { b.address } else { a.address };
    proxy.set(proxy.frontend(FRONTEND), Some(&sticky(&[other])));
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

#[test]
fn an_attempt_at_a_removed_backend_is_abandoned() {
    let (proxy, (_silence, silent), backend) = (proxy(), silent_backend(), Backend::naming("here"));
    proxy.serve(&[silent], LONG);
    let client = proxy.client();
    eventually("tried", || proxy.waiting() == 1);
    let start = Instant::now();
    proxy.serve(&[backend.address], LONG);
    assert_eq!(read_all(&client).unwrap(), "here");
    assert!(start.elapsed() < LAST_CONNECT_TIMEOUT, "it waited for the attempt to time out");
    assert_eq!(proxy.waiting(), 0);
}
