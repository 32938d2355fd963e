//! SPDY: frames alone, and a whole connection.

use std::sync::LazyLock;

use bytes::BytesMut;
use mainstay_spdy::{frame::Decoder, server::Connection};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    runtime::Runtime,
};

static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime")
});

/// Frames are the same however the bytes are cut; data frames arrive in pieces as they come, so only the others are compared.
pub fn frames(input: &[u8]) {
    let whole = decode(input, input.len().max(1));
    let cut = decode(input, 3);
    assert_eq!(whole, cut);
}

fn decode(input: &[u8], piece: usize) -> Vec<String> {
    let (mut decoder, mut buffer, mut read) = (Decoder::default(), BytesMut::new(), Vec::new());
    for bytes in input.chunks(piece) {
        buffer.extend_from_slice(bytes);
        loop {
            match decoder.decode(&mut buffer) {
                Ok(None) => break,
                Ok(Some(mainstay_spdy::frame::Frame::Data { .. })) => {}
                Ok(Some(frame)) => read.push(format!("{frame:?}")),
                Err(error) => {
                    read.push(error.to_string());
                    return read;
                }
            }
        }
    }
    read
}

/// A client that sends this and hangs up leaves nothing behind.
pub fn connection(input: &[u8]) {
    let input = input.to_vec();
    RUNTIME.block_on(async move {
        let (client, server) = tokio::io::duplex(4096);
        let mut connection = Connection::start(server);
        let (mut answers, mut sender) = tokio::io::split(client);
        let reading = tokio::spawn(async move {
            let mut sink = Vec::new();
            let _ = answers.read_to_end(&mut sink).await;
        });
        let writing = tokio::spawn(async move {
            let _ = sender.write_all(&input).await;
            let _ = sender.shutdown().await;
        });
        while let Some(mut stream) = connection.accept().await {
            tokio::spawn(async move { while stream.incoming.recv().await.is_some() {} });
        }
        writing.await.expect("no panic");
        drop(connection);
        reading.await.expect("no panic");
    });
}
