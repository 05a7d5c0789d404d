//! Large files pass through the server without staying in its memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::files::at;
use belljar_testkit::server::Server;

const SIZE: usize = 256 << 20;
const PIECE: usize = 1 << 20;

/// Upper bound for the memory of the few buffers.
const GROWTH: u64 = 32 << 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_file_goes_both_ways_and_the_server_does_not_grow() {
    let server = Arc::new(Server::start().await);
    let session = server.session_with(json!({"storage": "BIND"})).await;
    let path = at(&session, "large");
    // Uses the buffers once, so that they are allocated.
    put(&server, &path, 16 << 20).await;
    assert_eq!(get(&server, &path).await, 16 << 20);

    let before = server.rss();
    let (most, over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let watching = {
        let (server, most, over) = (Arc::clone(&server), Arc::clone(&most), Arc::clone(&over));
        tokio::spawn(async move {
            while !over.load(Ordering::Relaxed) {
                most.fetch_max(server.rss(), Ordering::Relaxed);
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
    };
    put(&server, &path, SIZE).await;
    assert_eq!(get(&server, &path).await, SIZE);
    over.store(true, Ordering::Relaxed);
    watching.await.expect("no panic");
    let growth = most.load(Ordering::Relaxed).saturating_sub(before);
    assert!(growth < GROWTH, "the server grew by {} KiB", growth >> 10);
}

async fn put(server: &Server, path: &str, size: usize) {
    let mut wire = server.client().dial().await;
    let head = format!(
        "PUT {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {size}\r\n\r\n"
    );
    wire.write_all(head.as_bytes()).await.expect("a connection");
    let piece = vec![b'x'; PIECE];
    for _ in 0..size / PIECE {
        wire.write_all(&piece).await.expect("a connection");
    }
    let mut answer = String::new();
    wire.read_to_string(&mut answer).await.expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(answer.contains(&format!("\"size\":{size}")), "{answer}");
}

/// Returns how many bytes came.
async fn get(server: &Server, path: &str) -> usize {
    let mut wire = server.client().dial().await;
    let ask = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    wire.write_all(ask.as_bytes()).await.expect("a connection");
    let mut buffer = vec![0; PIECE];
    let (mut head, mut length) = (Vec::new(), 0);
    loop {
        let read = wire.read(&mut buffer).await.expect("a connection");
        if read == 0 {
            return length;
        }
        let mut body = &buffer[..read];
        if length == 0 {
            head.extend_from_slice(body);
            let Some(end) = head.windows(4).position(|part| part == b"\r\n\r\n") else { continue };
            assert!(head.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&head[..end]));
            body = &head[end + 4..];
        }
        length += body.len();
    }
}
