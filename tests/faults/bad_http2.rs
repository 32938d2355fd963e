//! HTTP/2 as an attacker speaks it, frame by frame.

use std::{io, time::Duration};

use super::support::{Server, Wire};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RESET: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// What the server may take beyond what it had, in MiB.
const BOUND: u64 = 100;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("a short frame").to_be_bytes();
    let mut frame = vec![length[1], length[2], length[3], kind, flags];
    frame.extend_from_slice(&stream.to_be_bytes());
    frame.extend_from_slice(payload);
    frame
}

/// `GET https://x/` in the static table's words.
const GET_ROOT: &[u8] = &[0x82, 0x84, 0x87, 0x41, 0x01, b'x'];
/// `POST https://x/`.
const POST_ROOT: &[u8] = &[0x83, 0x84, 0x87, 0x41, 0x01, b'x'];

fn connect(server: &Server) -> Wire {
    let mut wire = server.client().connect().expect("connect");
    wire.send(PREFACE).and_then(|()| wire.send(&frame(SETTINGS, 0, 0, &[]))).expect("send the preface");
    wire
}

/// Lets it send until it is done or the server has had enough, and checks that the server bore it.
#[track_caller]
fn borne(attack: impl FnOnce(&mut Wire) -> io::Result<()>) {
    let mut server = Server::start();
    let before = server.resident_memory();
    let mut wire = connect(&server);
    let cut_off = attack(&mut wire).is_err();
    let grown = server.peak_memory().saturating_sub(before);
    println!("{grown} MiB, {}", if cut_off { "cut off" } else { "sat out" });
    assert!(grown < BOUND, "grew by {grown} MiB");
    server.assert_well();
}

#[test]
fn streams_opened_and_reset_in_a_hurry_are_borne() {
    borne(|wire| {
        for batch in 0..200u32 {
            let mut bytes = Vec::new();
            for n in 0..100 {
                let stream = (batch * 100 + n) * 2 + 1;
                bytes.extend(frame(HEADERS, END_HEADERS | END_STREAM, stream, GET_ROOT));
                bytes.extend(frame(RESET, 0, stream, &8u32.to_be_bytes()));
            }
            wire.send(&bytes)?;
        }
        Ok(())
    });
}

#[test]
fn a_head_that_continues_without_end_is_borne() {
    borne(|wire| {
        wire.send(&frame(HEADERS, 0, 1, GET_ROOT))?;
        // A literal header of 8 KiB per frame.
        let mut header = vec![0x00, 0x01, b'a', 0x7f, 0x81, 0x3f];
        header.extend(vec![b'x'; 8192]);
        (0..10_000).try_for_each(|_| wire.send(&frame(CONTINUATION, 0, 1, &header)))
    });
}

#[test]
fn a_head_that_expands_is_borne() {
    borne(|wire| {
        // One large header put into the table, then named over and over.
        let mut block = GET_ROOT.to_vec();
        block.extend([0x40, 0x01, b'a', 0x7f, 0xa1, 0x1e]);
        block.extend(vec![b'x'; 0x7f + 0x21 + (0x1e << 7)]);
        block.extend(vec![0xbe; 12_000]);
        (0..100u32).try_for_each(|n| wire.send(&frame(HEADERS, END_HEADERS | END_STREAM, n * 2 + 1, &block)))
    });
}

#[test]
fn pings_settings_and_empty_frames_without_end_are_borne() {
    for flood in [frame(PING, 0, 0, &[0; 8]), frame(SETTINGS, 0, 0, &[]), frame(DATA, 0, 1, &[])] {
        borne(|wire| {
            wire.send(&frame(HEADERS, END_HEADERS, 1, POST_ROOT))?;
            let many = flood.repeat(1000);
            (0..100).try_for_each(|_| wire.send(&many))
        });
    }
}

#[test]
fn a_body_sent_past_the_window_is_borne() {
    borne(|wire| {
        wire.send(&frame(HEADERS, END_HEADERS, 1, POST_ROOT))?;
        (0..2_000).try_for_each(|_| wire.send(&frame(DATA, 0, 1, &[b' '; 16_000])))
    });
}

#[test]
fn answers_that_nobody_takes_are_borne() {
    borne(|wire| {
        // Windows of zero: nothing may be sent to us.
        wire.send(&frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]))?;
        let requests: Vec<u8> =
            (0..900u32).flat_map(|n| frame(HEADERS, END_HEADERS | END_STREAM, n * 2 + 1, GET_ROOT)).collect();
        wire.send(&requests)?;
        // Ours is read in order: once the ping is answered, so were the requests looked at.
        wire.send(&frame(PING, 0, 0, &[0; 8]))?;
        std::thread::sleep(std::time::Duration::from_secs(1));
        Ok(())
    });
}

/// A connection that takes no data, on which `count` requests for a document were sent.
fn takes_nothing(server: &Server, count: u32) -> Wire {
    let ann = server.authority().client("ann", &[]);
    let mut wire = server.client_as(&ann).connect().expect("connect");
    let windows_of_zero = frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]);
    // `GET https://x/openapi/v3`.
    let mut get = vec![0x82, 0x87, 0x41, 0x01, b'x', 0x04, 0x0b];
    get.extend(b"/openapi/v3");
    let requests = (0..count).flat_map(|n| frame(HEADERS, END_HEADERS | END_STREAM, n * 2 + 1, &get));
    let sent: Vec<u8> = PREFACE.iter().copied().chain(windows_of_zero).chain(requests).collect();
    wire.send(&sent).expect("send the requests");
    wire
}

#[test]
fn answers_that_nobody_takes_count_against_the_share_of_whoever_asked() {
    let server = Server::start_with(&["--max-reads", "30", "--max-writes", "10"]);
    let mut wire = takes_nothing(&server, 30);
    let mut codes = Vec::new();
    while codes.len() < 30 {
        let mut head = [0; 9];
        wire.read_exact(&mut head).expect("a frame");
        let mut payload = vec![0; usize::from(head[1]) << 8 | usize::from(head[2])];
        wire.read_exact(&mut payload).expect("all of the frame");
        if head[3] == HEADERS {
            codes.push(payload[0] == 0x88); // `:status: 200` of the static table
        }
    }
    assert_eq!(codes.iter().filter(|granted| **granted).count(), 10, "a quarter of all seats");
}

#[test]
fn an_answer_that_nobody_takes_ends_its_connection() {
    let server = Server::start_with(&["--stall-timeout", "1"]);
    assert!(takes_nothing(&server, 1).is_closed_within(Duration::from_secs(20)));
}
