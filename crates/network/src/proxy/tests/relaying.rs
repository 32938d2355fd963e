//! Relayed bytes arrive, and so does how the connection ended.

use super::*;

#[test]
fn data_after_the_client_closed_its_side_arrives() {
    let (proxy, backend) = (proxy(), Backend::echo());
    proxy.serve(&[backend.address], LONG);
    assert_eq!(ask(&proxy.client(), "hello").unwrap(), "hello");
}

#[test]
fn data_after_the_backend_closed_its_side_arrives() {
    let (outcome_sender, outcomes) = mpsc::channel();
    let backend = Backend::new(move |mut stream| {
        stream.write_all(b"first").unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        outcome_sender.send(read_all(&stream).unwrap()).unwrap();
    });
    let proxy = proxy();
    proxy.serve(&[backend.address], LONG);
    let mut client = proxy.client();
    assert_eq!(read_all(&client).unwrap(), "first");
    client.write_all(b"second").unwrap();
    drop(client);
    assert_eq!(outcomes.recv_timeout(PATIENCE).unwrap(), "second");
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
    eventually("the sender stands still", || {
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
    let (outcome_sender, outcomes) = mpsc::channel();
    let backend = Backend::new(move |mut stream| {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        if byte == *b"r" {
            socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
            return;
        }
        stream.write_all(b"!").unwrap();
        outcome_sender.send(stream.read(&mut byte).map_err(|error| error.kind())).unwrap();
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
    assert_eq!(outcomes.recv_timeout(PATIENCE).unwrap(), Err(ErrorKind::ConnectionReset), "from the client");
}

#[test]
fn a_reset_after_a_half_close_is_noticed() {
    let (outcome_sender, outcomes) = mpsc::channel();
    let backend = Backend::new(move |mut stream| {
        let _ = read_all(&stream).unwrap();
        outcome_sender.send(Ok(0)).unwrap();
        // Nothing is written, so that only the reset can end this.
        eventually("reset", || stream.take_error().unwrap().is_some());
        outcome_sender.send(stream.write(b"x").map_err(|error| error.kind())).unwrap();
    });
    let proxy = proxy();
    proxy.serve(&[backend.address], LONG);
    let client = proxy.client();
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(outcomes.recv_timeout(PATIENCE).unwrap(), Ok(0));
    socket2::SockRef::from(&client).set_linger(Some(Duration::ZERO)).unwrap();
    drop(client);
    assert!(outcomes.recv_timeout(PATIENCE).unwrap().is_err());
}
