//! Fuzzes relayed streams: no sequence of messages may cause a panic, or make a stream use more memory than its windows.

use std::sync::Arc;

use belljar_fuzz::Parser;
use belljar_proto::relay::{MAX_DATA, RelayMessage, WINDOW};
use tokio::sync::mpsc;

use crate::relay::Streams;

/// Numbers of streams in this test.
const IDS: u8 = 4;

/// Memory of one stream: a window in a growing list, a pipe in each direction, a buffer.
const PER_CONNECTION: usize = 2 * WINDOW + 2 * (64 << 10) + MAX_DATA + (32 << 10);

/// Three bytes are one event: its kind, its stream, its size.
const BEGIN: [u8; 3] = [0, 1, 0];
const SEND: [u8; 3] = [2, 1, 255];
const CREDIT: [u8; 3] = [4, 1, 9];
const END: [u8; 3] = [5, 1, 0];
const RESET: [u8; 3] = [6, 1, 0];
const CARRY: [u8; 3] = [7, 2, 0];
const DROP: [u8; 3] = [8, 0, 0];

#[test]
fn a_guest_says_what_it_likes_about_connections() {
    let whole = [BEGIN, SEND, CREDIT, SEND, END, CARRY, DROP, RESET].concat();
    let greedy = [vec![BEGIN], vec![SEND; 20], vec![CREDIT; 3], vec![RESET]].concat().concat();
    let beside = [CARRY, BEGIN, SEND, DROP, BEGIN, DROP, CARRY, SEND, SEND].concat();
    let most = usize::from(IDS) * PER_CONNECTION + (256 << 10);
    let parser = Parser::new("relayed connections", vec![whole, greedy, beside]);
    parser.allocates_at_most(most, 0).withstands(|bytes| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        runtime.expect("a runtime").block_on(happen(bytes));
    });
}

async fn happen(bytes: &[u8]) {
    let streams = Arc::new(Streams::default());
    let (outbox, mut sent) = mpsc::channel(16);
    let mut relay = streams.want(outbox.clone());
    let mut open = Vec::new();
    for event in bytes.chunks_exact(3) {
        let (id, size) = (u64::from(event[1] % IDS), usize::from(event[2]) * 256);
        match event[0] % 10 {
            0 | 1 => streams.receive(id, &RelayMessage::Open, &[]),
            2 | 3 => streams.receive(id, &RelayMessage::Data, &vec![1; size]),
            4 => {
                let bytes = if size > WINDOW / 8 { u64::MAX } else { size as u64 };
                streams.receive(id, &RelayMessage::Credit { bytes }, &[]);
            }
            5 => streams.receive(id, &RelayMessage::End, &[]),
            6 => streams.receive(id, &RelayMessage::Reset, &[]),
            7 => open.extend(streams.take(id, outbox.clone())),
            8 => drop(open.pop()),
            _ => tokio::task::yield_now().await,
        }
        // Sometimes the link sends its queue, and the proxy takes new streams.
        while sent.try_recv().is_ok() {}
        if size % 512 == 0 {
            open.extend(relay.opened.try_recv());
            tokio::task::yield_now().await;
        }
        // The proxy drops the oldest streams, so that their number is bounded.
        while open.len() > usize::from(IDS) {
            drop(open.remove(0));
        }
    }
    streams.close();
}
