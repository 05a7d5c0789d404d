//! Fuzzes requests of sandboxes, responses of sites, and policies.

use std::time::Duration;

use belljar_fuzz::Parser;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::{Proxy, proxy};
use crate::Policy;
use crate::host::Target;

/// The longest time that one input may take; most inputs end at once.
const MOMENT: Duration = Duration::from_millis(200);

/// Two heads of 64 KiB, the buffers of hyper to parse them, and pipes of the test itself.
const FIXED: usize = 1 << 20;
const PER_BYTE: usize = 8;

/// A placeholder in all requests and policies, which is replaced by the port of the site.
const PORT: &str = "12345";

fn hasty(port: u16) -> Proxy {
    let mut proxy = proxy(&format!("site.test:{port} 127.0.0.1:{port}"));
    proxy.network.timeouts.head = MOMENT;
    proxy.network.timeouts.connect = MOMENT;
    proxy.network.timeouts.idle = MOMENT;
    proxy
}

/// Returns what a client receives for this request if the site sends this answer.
async fn conversation(request: &[u8], answer: &[u8]) -> Vec<u8> {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let site = async {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut buffer = [0; 4096];
            // The site answers without waiting for the end of the request.
            if stream.read(&mut buffer).await.is_ok_and(|read| read > 0) {
                let _ = stream.write_all(answer).await;
                let _ = stream.shutdown().await;
            }
        }
    };
    let listening = hasty(port).start();
    let client = async {
        let mut client = listening.connect();
        let _ = client.write_all(&with_port(request, port)).await;
        let _ = client.shutdown().await;
        let mut received = Vec::new();
        let ended = tokio::time::timeout(20 * MOMENT, client.read_to_end(&mut received)).await;
        assert!(ended.is_ok(), "the proxy does not end");
        received
    };
    tokio::select! {
        received = client => received,
        () = site => unreachable!("it listens for ever"),
    }
}

fn with_port(request: &[u8], port: u16) -> Vec<u8> {
    let mut request = request.to_vec();
    let port = format!("{port:05}");
    for at in 0..request.len().saturating_sub(PORT.len() - 1) {
        if request[at..].starts_with(PORT.as_bytes()) {
            request[at..at + PORT.len()].copy_from_slice(port.as_bytes());
        }
    }
    request
}

fn requests() -> Vec<Vec<u8>> {
    [
        "GET http://site.test:12345/a?b=c HTTP/1.1\r\nHost: site.test:12345\r\nAccept: */*\r\n\r\n",
        "POST http://site.test:12345/ HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nConnection: close, x\r\nX: 1\r\n\r\nhello",
        "PUT http://127.0.0.1:12345/ HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n5;a=b\r\nhello\r\n0\r\nT: 1\r\n\r\n",
        "CONNECT site.test:12345 HTTP/1.1\r\nHost: site.test:12345\r\n\r\n\x16\x03\x01 bytes",
        "GET http://site.test:12345/1 HTTP/1.1\r\nHost: a\r\n\r\nGET http://[::ffff:127.0.0.1]:12345/2 HTTP/1.0\r\n\r\n",
        "OPTIONS http://b\u{fc}cher.test:12345?q HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n",
    ]
    .iter()
    .map(|text| text.as_bytes().to_vec())
    .collect()
}

fn answers() -> Vec<Vec<u8>> {
    [
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close, x-y\r\nX-Y: z\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\nTrailer: T\r\n\r\n5;a=b\r\nhello\r\n0\r\nT: 1\r\n\r\n",
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.0 404 Not Found\r\nSet-Cookie: a\r\nSet-Cookie: b\r\n\r\nuntil the end",
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n\x00\x01",
        "HTTP/1.1 204 \r\n\r\n",
    ]
    .iter()
    .map(|text| text.as_bytes().to_vec())
    .collect()
}

fn run(request: &[u8], answer: &[u8]) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let received = runtime.block_on(conversation(request, answer));
    // Every response of the proxy begins like an HTTP response.
    assert!(received.is_empty() || received.starts_with(b"HTTP/1."), "{}", received.escape_ascii());
}

#[test]
fn requests_to_the_proxy() {
    let parser = Parser::new("requests to the proxy", requests()).cases(300);
    parser.allocates_at_most(FIXED, PER_BYTE).withstands(|request| run(request, &answers()[0]));
}

#[test]
fn answers_of_sites() {
    let parser = Parser::new("answers of sites", answers()).cases(300);
    parser.allocates_at_most(FIXED, PER_BYTE).withstands(|answer| run(&requests()[1], answer));
}

#[test]
fn names_of_hosts_and_policies() {
    let seeds = [
        "example.org:443",
        "*.example.com:*, [fd00::7]:80 10.0.0.5:8080 open",
        r#"{"allow": ["api.test"], "inject": [{"host": "api.test", "header": "A", "value_from": "K", "tls": "terminate"}]}"#,
        "b\u{fc}cher\u{3002}example:1",
    ];
    let seeds = seeds.iter().map(|text| text.as_bytes().to_vec()).collect();
    let parser = Parser::new("hosts and policies", seeds).cases(1000);
    parser.allocates_at_most(64 << 10, 96).withstands(|bytes| {
        let text = String::from_utf8_lossy(bytes);
        if let Ok(target) = Target::parse(&text, Some(80)) {
            assert_eq!(Target::parse(&target.to_string(), None).as_ref(), Ok(&target));
        }
        if let Ok(policy) = Policy::parse(&text) {
            let written = serde_json::to_string(&policy).unwrap();
            assert_eq!(Policy::parse(&written).as_ref(), Ok(&policy), "{written}");
        }
    });
}
