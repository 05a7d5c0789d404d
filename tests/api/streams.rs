//! Event streams of executions: clients follow, disconnect and reconnect.

use std::time::Duration;

use hyper::Method;
use serde_json::json;
use tokio::io::AsyncWriteExt as _;

use belljar_testkit::client::{Event, printed};
use belljar_testkit::server::Server;
use belljar_testkit::session::HOLD;
use belljar_testkit::values::text;
use belljar_testkit::wait::eventually;

fn names(events: &[Event]) -> Vec<&str> {
    events.iter().map(|event| event.name.as_str()).collect()
}

#[tokio::test]
async fn events_come_in_order() {
    let server = Server::start().await;
    let session = server.session().await;
    // stdout and stderr are two pipes: their order is known only if another event comes between
    // them.
    let code = "import sys\nprint('out')\ndisplay('shown')\nprint('err', file=sys.stderr)\n\
                display('more')\nprint('again')\n6 * 7";
    let ask = json!({"code": code, "exec_id": "all"});
    let events = server.post_stream(&session.path("/exec"), ask).await.rest().await;
    let reply = ["exec", "stdout", "display", "stderr", "display", "stdout", "result", "done"];
    assert_eq!(names(&events), reply);
    assert_eq!(events[0].data, json!({"exec_id": "all"}));
    assert_eq!(events[1].data, json!({"text": "out\n"}));
    assert_eq!(events[3].data, json!({"text": "err\n"}));
    assert_eq!(events[6].data["data"]["text/plain"], "42", "{events:#?}");
    let done = &events[7].data;
    assert_eq!((&done["status"], &done["exec_id"]), (&json!("ok"), &json!("all")));
    assert!(done.get("stdout").is_none(), "told already: {done:#}");
    // Positions: bytes of output count one each, everything else counts one.
    let ids: Vec<Option<u64>> = events.iter().map(|event| event.id).collect();
    let expected = [4, 5, 9, 10, 16, 17, 18].map(Some);
    assert_eq!((ids[0], &ids[1..]), (None, &expected[..]));

    // Later requests get the same events, from any position.
    let path = session.path("/execs/all/events");
    assert_eq!(server.follow(&path).await.rest().await, events);
    let rest = server.follow(&format!("{path}?offset=10")).await.rest().await;
    assert_eq!(rest, events[5..]);
    let within = server.follow(&format!("{path}?offset=2")).await.rest().await;
    assert_eq!((&within[0].data["text"], within[0].id), (&json!("t\n"), Some(4)));
    assert_eq!(within[1..], events[2..]);
    let mut request = server.request(Method::GET, &path, "");
    request.headers_mut().insert("last-event-id", "16".parse().expect("a value"));
    assert_eq!(server.stream(request).await.rest().await, events[6..]);
    for beyond in [18, 19, u64::MAX] {
        let nothing = server.follow(&format!("{path}?offset={beyond}")).await.rest().await;
        assert_eq!(nothing, []);
    }
    server.get(&format!("{path}?offset=-1")).await.error(422, "invalid");

    let ask = json!({"code": "print('x')\nraise KeyError('missing')"});
    let events = server.post_stream(&session.path("/exec"), ask).await.rest().await;
    assert_eq!(names(&events), ["exec", "stdout", "error", "done"]);
    assert_eq!(events[2].data["name"], "KeyError");
    assert_eq!(events[3].data["status"], "error");
}

#[tokio::test]
async fn an_execution_is_left_and_joined() {
    let server = Server::start().await;
    let session = server.session().await;
    let ask = json!({"code": HOLD, "exec_id": "held"});
    let mut leaver = server.post_stream(&session.path("/exec"), ask).await;
    let first = leaver.until("stdout").await;
    assert_eq!(first.data["text"], "holding\n");
    drop(leaver);
    // Two clients follow the same execution, one of them from the position where the first client
    // left.
    let path = session.path("/execs/held/events");
    let mut whole = server.follow(&path).await;
    let rest = server.follow(&format!("{path}?offset={}", first.id.expect("a position"))).await;
    assert_eq!(whole.until("stdout").await.data["text"], "holding\n");
    assert_eq!(session.exec_info("held").await["state"], "running", "nobody ended it");
    session.release().await;
    let (whole, rest) = tokio::join!(whole.rest(), rest.rest());
    assert_eq!(names(&rest), ["stdout", "done"]);
    assert_eq!(rest[0].data["text"], "released\n");
    assert_eq!(whole, rest);
    assert_eq!(session.exec_info("held").await["result"]["stdout"], "holding\nreleased\n");
}

#[tokio::test]
async fn a_client_that_leaves_ends_no_execution() {
    let server = Server::start().await;
    let session = server.session().await;
    let held = session.hold("held").await;
    let queued = session.begin("queued", "queued", json!({"code": "print('done')"})).await;
    held.abandon();
    queued.abandon();
    session.release().await;
    session.reaches("queued", "finished").await;
    assert_eq!(session.exec_info("held").await["result"]["status"], "ok");
    assert_eq!(session.exec_info("queued").await["result"]["stdout"], "done\n");
}

#[tokio::test]
async fn characters_are_never_torn() {
    let server = Server::start().await;
    let session = server.session().await;
    // Byte by byte, so that every character is incomplete at some point.
    let code = "import sys\nfor byte in 'añ€𝄞·'.encode() * 20:\n    \
                sys.stdout.buffer.write(bytes([byte])); sys.stdout.flush()\n\
                sys.stdout.buffer.write(b'\\xf0\\x9f'); sys.stdout.flush()";
    let ask = json!({"code": code, "exec_id": "torn"});
    let events = server.post_stream(&session.path("/exec"), ask).await.rest().await;
    let expected = "añ€𝄞·".repeat(20) + "\u{fffd}";
    assert_eq!(printed(&events, "stdout"), expected);
    assert_eq!(session.exec_info("torn").await["result"]["stdout"], expected);
    // Larger than one event, and no multiple of a character's length.
    let ask = json!({"code": "print('x' + '€' * 200_000, end='')"});
    let events = server.post_stream(&session.path("/exec"), ask).await.rest().await;
    assert!(events.len() > 5, "in several pieces");
    let said = printed(&events, "stdout");
    assert_eq!((said.len(), said.contains('\u{fffd}')), (600_001, false));
}

#[tokio::test]
async fn a_client_that_does_not_read_delays_no_one() {
    const SIZE: u64 = 32 << 20;
    const READERS: u64 = 8;
    let server = Server::start().await;
    let session = server.session().await;
    session.python("import sys; line = 'x' * 1023 + chr(10)").await;
    let before = server.rss();
    let code =
        format!("for _ in range({}): sys.stdout.write(line)\nsys.stdout.flush()\n", SIZE / 1024);
    let ask = json!({"code": code + HOLD, "exec_id": "much", "max_output": "64M"});
    let held = session.begin("much", "running", ask).await;
    let mut readers = Vec::new();
    for _ in 0..READERS {
        let mut wire = server.dial().await;
        let request = format!(
            "GET {} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
            session.path("/execs/much/events")
        );
        wire.write_all(request.as_bytes()).await.expect("it listens");
        readers.push(wire);
    }
    // Everything that is printed is stored, although these clients do not read it.
    let mut follower =
        server.follow(&session.path(&format!("/execs/much/events?offset={SIZE}"))).await;
    assert_eq!(follower.until("stdout").await.data["text"], "holding\n");
    assert_eq!(session.shell("echo quick").await["stdout"], "quick\n");
    let other = server.session().await;
    assert_eq!(other.printed("print('other')").await, "other\n");
    let grown = server.rss().saturating_sub(before);
    // The output is kept once; a copy per reader would be eight times that.
    assert!(grown < 4 * SIZE, "grown by {} MiB", grown >> 20);
    session.release().await;
    let result = held.result().await;
    assert_eq!(text(&result["stdout"]).len() as u64, SIZE + "holding\nreleased\n".len() as u64);
    drop((readers, follower));
    session.stop().await;
    eventually("memory is given back", async || server.rss() < before + 2 * SIZE).await;
}

#[tokio::test]
async fn a_stream_begins_before_anything_is_said() {
    let server = Server::start().await;
    let session = server.session().await;
    let code = "import time, os\nwhile not os.path.exists('/session/go'): time.sleep(0.01)";
    let ask = json!({"code": code, "exec_id": "silent"});
    let mut events = server.post_stream(&session.path("/exec"), ask).await;
    assert_eq!(events.next().await.expect("an event").data["exec_id"], "silent");
    let waiting = tokio::time::timeout(Duration::from_millis(100), events.next()).await;
    assert!(waiting.is_err(), "nothing was said: {waiting:?}");
    // A queued execution can be followed too.
    let ask = json!({"code": "print('late')", "exec_id": "late"});
    let queued = server.post_stream(&session.path("/exec"), ask).await;
    session.release().await;
    assert_eq!(events.until("done").await.data["status"], "ok");
    assert_eq!(printed(&queued.rest().await, "stdout"), "late\n");
}
