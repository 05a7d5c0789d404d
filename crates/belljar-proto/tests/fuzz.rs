//! Fuzzes the parsers of messages: no bytes of a guest, a kernel or a zygote may make the host panic, or use more memory than a
//! fixed multiple of what was sent.

use belljar_fuzz::{Counting, Parser};
use belljar_proto::exec::Event;
use belljar_proto::frame::{self, Decoder, Frame};
use belljar_proto::guest::{
    FromGuest, KernelVariables, Listing, Opening, Request, SpillReport, Tree,
};
use belljar_proto::handshake::{self, Scanner};
use belljar_proto::kernel::{FromKernel, ToKernel};
use belljar_proto::quiescence::QuiescenceReport;
use belljar_proto::snapshot::{SnapshotCall, SnapshotReply};
use belljar_proto::terminal::TerminalInfo;
use belljar_proto::zygote::FromZygote;
use serde::de::DeserializeOwned;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Memory allowed for each byte of JSON. Two bytes (`0,`) can become a value of 32 in a list that
/// doubles as it grows, and some messages are put together from such lists.
const PER_BYTE_OF_JSON: usize = 96;

/// One example of every message, as in the snapshots of `surface.rs`.
fn messages(text: &str) -> Vec<Vec<u8>> {
    let lines = text.lines().map(str::trim).filter(|line| line.starts_with(['{', '[']));
    lines.map(|line| line.as_bytes().to_vec()).collect()
}

const FROM_GUEST: &str = include_str!("snapshots/surface__from_guest_to_host.snap");
const TO_GUEST: &str = include_str!("snapshots/surface__from_host_to_guest.snap");
const OF_KERNEL: &str = include_str!("snapshots/surface__between_guest_and_kernel-2.snap");
const STATE: &str = include_str!("snapshots/surface__the_body_of_a_state.snap");
const LINE: &str = include_str!("snapshots/surface__over_a_line_to_a_kernel-2.snap");
const TO_LINE: &str = include_str!("snapshots/surface__over_a_line_to_a_kernel.snap");

const ZYGOTE: &str = r#"
{"op":"ready","python":"3.11","modules":["json","os"],"failed":{"x":"why"},"threads":[],"rss_kib":9}
{"op":"forked","id":1,"ok":true,"error":""}
{"op":"pictured","bytes":5}
{"op":"error","error":"why"}
"#;

/// Decodes the input in pieces, whose size the first byte determines.
fn decoded(bytes: &[u8], mut see: impl FnMut(Frame)) {
    let (cut, bytes) = bytes.split_first().map_or((1, bytes), |(cut, rest)| (*cut, rest));
    let mut decoder = Decoder::default();
    for piece in bytes.chunks(usize::from(cut) * 64 + 1) {
        decoder.push(piece);
        loop {
            match decoder.next_frame() {
                Ok(Some(frame)) => see(frame),
                Ok(None) => break,
                Err(_) => return,
            }
        }
    }
}

fn frames(heads: &[&str]) -> Vec<Vec<u8>> {
    let heads = heads.iter().flat_map(|text| messages(text));
    let raw = |head: Vec<u8>| {
        let head: serde_json::Value = serde_json::from_slice(&head).expect("a message");
        [vec![1], frame::encode(&head, b"body"), frame::encode(&head, b"")].concat()
    };
    heads.map(raw).collect()
}

#[test]
fn frames_of_a_guest() {
    let seeds = frames(&[FROM_GUEST]);
    assert!(seeds.len() > 30, "{}", seeds.len());
    let parser = Parser::new("frames of a guest", seeds).cases(1500);
    parser.allocates_at_most(16 << 10, PER_BYTE_OF_JSON).withstands(|bytes| {
        decoded(bytes, |frame| {
            let _ = frame.head::<FromGuest>();
        });
    });
}

/// The handshake: in a container, any code can connect to the socket of the guest.
#[test]
fn frames_of_a_host() {
    let parser = Parser::new("frames of a host", frames(&[TO_GUEST])).cases(1500);
    parser.allocates_at_most(16 << 10, PER_BYTE_OF_JSON).withstands(|bytes| {
        decoded(bytes, |frame| {
            let _ = frame.head::<Request>();
        });
    });
}

/// Relayed connections are frames too; their numbers and bodies are the guest's.
#[test]
fn frames_of_a_relay() {
    let part = |part: &str, body: &[u8]| {
        let head = format!(r#"{{"message":"relayed","stream":7,"part":"{part}","bytes":65536}}"#);
        let head: serde_json::Value = serde_json::from_str(&head).expect("a message");
        frame::encode(&head, body)
    };
    let whole = [&[3][..], &part("open", b""), &part("data", &[b'x'; 900]), &part("credit", b"")];
    let whole = [whole.concat(), part("end", b""), part("reset", b"")].concat();
    let parser = Parser::new("frames of a relay", vec![whole]).cases(1000);
    parser.allocates_at_most(16 << 10, PER_BYTE_OF_JSON).withstands(|bytes| {
        decoded(bytes, |frame| {
            let _ = frame.head::<FromGuest>();
        });
    });
}

fn withstands_json<T: DeserializeOwned>(name: &'static str, texts: &[&str]) {
    let seeds: Vec<_> = texts.iter().flat_map(|text| messages(text)).collect();
    assert!(seeds.iter().any(|seed| serde_json::from_slice::<T>(seed).is_ok()), "{name}: no seed");
    let parser = Parser::new(name, seeds).allocates_at_most(8 << 10, PER_BYTE_OF_JSON);
    parser.withstands(|bytes| drop(serde_json::from_slice::<T>(bytes)));
}

#[test]
fn bodies_of_answers() {
    let tree = r#"{"files":[{"path":"a%FF","size":5,"inode":2}],"skipped":[{"path":"l","reason":"why"}],"skipped_more":0}"#;
    withstands_json::<Tree>("a tree", &[tree]);
    let openings = r#"[{"opened":{"size":5,"being_written":true}},{"refused":{"code":"not_a_file","message":"why"}}]"#;
    withstands_json::<Vec<Opening>>("openings", &[openings]);
    let listing =
        r#"{"entries":[{"path":"x","kind":"file","size":5,"mode":420,"modified_ns":3}],"more":0}"#;
    withstands_json::<Listing>("a listing", &[listing]);
    withstands_json::<KernelVariables>("a state", &[STATE]);
    let spilled = r#"{"spilled":[{"name":"df","type":"t","bytes":9}],"stayed":[{"name":"x","reason":"why"}],"bytes":9}"#;
    withstands_json::<SpillReport>("a report of spilling", &[spilled]);
    let rest = r#"{"kernels":["python"],"busy":["a terminal is open"],"files":7}"#;
    withstands_json::<QuiescenceReport>("a report of rest", &[rest]);
    let terminal = r#"[{"terminal":"t","argv":["sh"],"size":{"rows":24,"cols":80},"attached":1,"oldest":2,"newest":3}]"#;
    withstands_json::<Vec<TerminalInfo>>("terminals", &[terminal]);
    withstands_json::<Event>("an event", &[FROM_GUEST]);
}

#[test]
fn messages_of_kernels_and_zygotes() {
    withstands_json::<SnapshotReply>("a kernel's answer about its snapshot", &[LINE, "{}"]);
    withstands_json::<SnapshotCall>("a request for a snapshot", &[TO_LINE]);
    withstands_json::<FromZygote>("a zygote's message", &[ZYGOTE]);
    withstands_json::<FromKernel>("a kernel's message", &[OF_KERNEL]);
    let order = r#"{"op":"exec","exec_id":"e1","echo":true,"stdin":true,"variant":"typescript","env":{"K":"V"}}"#;
    withstands_json::<ToKernel>("an order for a kernel", &[order, r#"{"op":"ping","token":7}"#]);
}

#[test]
fn markers_in_a_stream() {
    let marker = handshake::marker("0123456789abcdef0123456789abcdef");
    let seed = [b"before", &marker[..20], &marker[..], b"after", &marker[..]].concat();
    let parser = Parser::new("markers", vec![seed]).allocates_at_most(4 << 10, 8);
    parser.withstands(|bytes| {
        let mut scanner = Scanner::new(marker);
        let mut given = 0;
        for piece in bytes.chunks(7) {
            scanner.push(piece);
            while let Some(piece) = scanner.next_piece() {
                given += match piece {
                    handshake::Piece::Bytes(bytes) => bytes.len(),
                    handshake::Piece::Marker => handshake::MARKER_SIZE,
                };
            }
        }
        // Nothing is lost but the beginning of a marker that may still come.
        assert!(given <= bytes.len() && bytes.len() - given < handshake::MARKER_SIZE);
    });
}
