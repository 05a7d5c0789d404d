//! Executions over a WebSocket: events in one direction, input in the other.

use std::pin::Pin;

use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;

use belljar_testkit::client::{Client, Wire};
use belljar_testkit::installation::Installation;
use belljar_testkit::server::Server;
use belljar_testkit::session::Session;
use belljar_testkit::terminal::{Refused, connect_to};
use belljar_testkit::values::text;
use belljar_testkit::wait::PATIENCE;

/// A client that follows an execution.
struct Follower(WebSocketStream<Pin<Box<dyn Wire>>>);

impl Follower {
    async fn open(client: &Client, session: &Session, query: &str) -> Follower {
        Follower(connect_to(client, &session.path("/exec"), query, &[]).await.expect("a socket"))
    }

    async fn begin(client: &Client, session: &Session, ask: Value) -> Follower {
        let mut follower = Follower::open(client, session, "").await;
        follower.say(ask).await;
        follower
    }

    async fn say(&mut self, what: Value) {
        self.0.send(Message::Text(what.to_string().into())).await.expect("a connection");
    }

    async fn feed(&mut self, input: &[u8]) {
        self.0.send(Message::Binary(input.to_vec().into())).await.expect("a connection");
    }

    /// The next event, or the code and reason with which the server closes.
    async fn next(&mut self) -> Result<Value, (u16, String)> {
        loop {
            let next = tokio::time::timeout(PATIENCE, self.0.next()).await.expect("something");
            match next.expect("no end without a word").expect("a message") {
                Message::Text(event) => return Ok(serde_json::from_str(&event).expect("JSON")),
                Message::Ping(_) | Message::Pong(_) => {}
                Message::Close(Some(frame)) => {
                    return Err((frame.code.into(), frame.reason.to_string()));
                }
                other => panic!("{other:?}"),
            }
        }
    }

    async fn until(&mut self, name: &str) -> Value {
        loop {
            let event = self.next().await.expect("an event");
            if event["event"] == name {
                return event;
            }
        }
    }

    /// Reads until this was printed, in any number of pieces.
    async fn printed(&mut self, wanted: &str) {
        let mut seen = String::new();
        while !seen.contains(wanted) {
            seen.push_str(text(&self.until("stdout").await["data"]["text"]));
        }
    }

    /// All events, and the code with which the server closed.
    async fn rest(mut self) -> (Vec<Value>, u16) {
        let mut events = Vec::new();
        loop {
            match self.next().await {
                Ok(event) => events.push(event),
                Err((code, _)) => return (events, code),
            }
        }
    }
}

#[tokio::test]
async fn the_events_are_those_of_a_stream() {
    let server = Server::start().await;
    let session = server.session().await;
    let code = "import sys\nprint('größe')\ndisplay('shown')\nprint('err', file=sys.stderr)\n\
                open('/session/artifacts/a.txt', 'w').write('x')\n1 / 0";
    let ask = json!({"code": code, "exec_id": "both"});
    let (events, closed) = Follower::begin(&server, &session, ask).await.rest().await;
    assert_eq!(closed, 1000, "{events:#?}");
    let stream = server.follow(&session.path("/execs/both/events")).await.rest().await;
    let names = |events: &[Value]| -> Vec<Value> {
        events.iter().map(|event| event["event"].clone()).collect()
    };
    assert_eq!(names(&events)[..3], ["exec", "stdout", "display"], "{events:#?}");
    assert_eq!(events.len(), stream.len());
    for (socket, streamed) in events.iter().zip(&stream) {
        assert_eq!(socket["event"], streamed.name.as_str());
        assert_eq!(socket["id"].as_u64(), streamed.id);
        // Links are new in each response.
        if streamed.name != "artifacts" {
            assert_eq!(socket["data"], streamed.data, "{}", streamed.name);
        }
    }
    // A repeated id is executed once; different code with the same id is refused.
    let ask = json!({"code": code, "exec_id": "both"});
    let (again, _) = Follower::begin(&server, &session, ask).await.rest().await;
    assert_eq!(names(&again), names(&events));
    let ask = json!({"code": "other", "exec_id": "both"});
    let (refused, closed) = Follower::begin(&server, &session, ask).await.rest().await;
    assert_eq!(
        (refused[0]["data"]["error"]["code"].as_str(), closed),
        (Some("exec_differs"), 1008)
    );
}

#[tokio::test]
async fn input_goes_the_other_way_and_so_does_an_interrupt() {
    let server = Server::start().await;
    let session = server.session().await;
    let ask = json!({"command": "read a; echo [$a]; cat; echo end", "stdin": true});
    let mut follower = Follower::begin(&server, &session, ask).await;
    follower.until("exec").await;
    follower.say(json!({"type": "stdin", "data": "one\n"})).await;
    follower.printed("[one]\n").await;
    // Input may be any bytes, split anywhere.
    follower.feed(b"tw\xc3").await;
    follower.feed(b"\xb6\n").await;
    follower.printed("twö\n").await;
    // Invalid messages are refused, and the execution continues.
    for wrong in [json!({"type": "dance"}), json!(7), json!({"type": "stdin", "data": 7})] {
        follower.say(wrong).await;
        let refused = follower.until("refused").await;
        assert_eq!(refused["data"]["error"]["code"], "invalid", "{refused}");
    }
    follower.say(json!({"type": "stdin", "close": true})).await;
    let (events, closed) = follower.rest().await;
    let done = events.last().expect("an end");
    assert_eq!(
        (&done["event"], &done["data"]["status"], closed),
        (&json!("done"), &json!("ok"), 1000)
    );

    // Python asks for input, gets it, and is interrupted.
    let ask = json!({"code": "name = input('who? ')\nprint(name.upper())\nwhile True: pass", "stdin": true});
    let mut follower = Follower::begin(&server, &session, ask).await;
    follower.until("input").await;
    follower.say(json!({"type": "stdin", "data": "alice\n"})).await;
    follower.printed("ALICE").await;
    follower.say(json!({"type": "interrupt"})).await;
    let (events, _) = follower.rest().await;
    assert_eq!(events.last().expect("an end")["data"]["status"], "interrupted", "{events:#?}");

    // An execution without stdin refuses input.
    let mut follower = Follower::begin(&server, &session, json!({"command": "sleep 1000"})).await;
    follower.until("exec").await;
    follower.feed(b"x").await;
    let refused = follower.until("refused").await;
    assert!(text(&refused["data"]["error"]["message"]).contains("stdin"), "{refused}");
    follower.say(json!({"type": "interrupt"})).await;
    follower.until("done").await;
}

#[tokio::test]
async fn a_lost_connection_ends_nothing() {
    let server = Server::start().await;
    let session = server.session().await;
    let ask = json!({
        "command": "echo first; read go; echo second", "stdin": true, "exec_id": "long",
    });
    let mut follower = Follower::begin(&server, &session, ask).await;
    let first = follower.until("stdout").await;
    drop(follower);
    let query = format!("exec_id=long&offset={}", first["id"]);
    let mut back = Follower::open(&server, &session, &query).await;
    back.feed(b"go\n").await;
    let (events, closed) = back.rest().await;
    assert_eq!(closed, 1000);
    assert_eq!(events[0]["data"]["text"], "second\n", "{events:#?}");
    // Again after its end, from the beginning.
    let (all, _) = Follower::open(&server, &session, "exec_id=long").await.rest().await;
    assert_eq!(all[0], json!({"event": "exec", "data": {"exec_id": "long"}}));
    assert_eq!(all[1]["data"]["text"], "first\nsecond\n");
}

/// Status and code of a refusal before the upgrade to a WebSocket.
fn refusal(refused: Option<Refused>) -> (u16, String) {
    let refused = refused.expect("a refusal");
    let body: Value =
        serde_json::from_slice(&refused.body().clone().unwrap_or_default()).expect("JSON");
    (refused.status().as_u16(), text(&body["error"]["code"]).to_owned())
}

#[tokio::test]
async fn a_repeated_id_replays_and_a_different_request_is_refused() {
    let server = Server::start().await;
    let session = server.session().await;
    session.python("count = 0").await;
    let ask = json!({"exec_id": "once", "code": "count += 1\nprint(count)"});
    let mut all = Vec::new();
    for _ in 0..2 {
        let (events, closed) = Follower::begin(&server, &session, ask.clone()).await.rest().await;
        assert_eq!(closed, 1000);
        all.push(events);
    }
    assert_eq!(all[0], all[1]);
    assert_eq!(session.printed("print(count)").await, "1\n");
    let other = json!({"exec_id": "once", "code": "count += 2"});
    let (events, closed) = Follower::begin(&server, &session, other).await.rest().await;
    assert_eq!((events.len(), closed), (1, 1008), "{events:#?}");
    assert_eq!(events[0]["data"]["status"], 409);
    assert_eq!(events[0]["data"]["error"]["code"], "exec_differs");
}

#[tokio::test]
async fn what_cannot_be_is_refused_before_or_after_the_upgrade() {
    let server = Server::start().await;
    let session = server.session().await;
    let path = session.path("/exec");
    server.get(&path).await.error(426, "not_a_websocket");
    for (path, query, status, code) in [
        ("/v1/sessions/ses_none/exec", "", 404, "session_not_found"),
        (&path, "exec_id=none", 404, "exec_not_found"),
        (&path, "offset=3", 422, "invalid"),
        (&path, "colour=blue", 422, "invalid"),
    ] {
        let refused = connect_to(&server, path, query, &[]).await.err();
        assert_eq!(refusal(refused), (status, code.to_owned()), "{query}");
    }
    let refused = connect_to(&server, &path, "", &[("origin", "http://evil.example")]).await.err();
    assert_eq!(refusal(refused), (403, "wrong_origin".to_owned()));
    for wrong in [json!({}), json!({"code": "1", "command": "2"}), json!([]), json!({"cod": 1})] {
        let (events, closed) = Follower::begin(&server, &session, wrong.clone()).await.rest().await;
        assert_eq!((events.len(), closed), (1, 1008), "{wrong}: {events:#?}");
        assert_eq!(events[0]["event"], "failed");
        assert_eq!(events[0]["data"]["status"], 422, "{events:#?}");
        assert_eq!(events[0]["data"]["error"]["code"], "invalid");
    }
    let mut bytes = Follower::open(&server, &session, "").await;
    bytes.feed(b"{}").await;
    assert_eq!(bytes.rest().await.1, 1008);
    session.stop().await;
    let refused = connect_to(&server, &path, "", &[]).await.err();
    assert_eq!(refusal(refused), (410, "session_ended".to_owned()));
}

#[tokio::test]
async fn a_page_comes_with_a_ticket() {
    let installation = std::sync::Arc::new(Installation::new());
    let key = installation.key(&["--name", "page"]);
    let server = installation.serve().await;
    let client = server.client().with_key(text(&key["secret"]));
    let session = client_session(&client).await;
    let path = session.path("/exec");
    let refused = connect_to(&server, &path, "", &[]).await.err();
    assert_eq!(refusal(refused), (401, "unauthorized".to_owned()));
    let ticket = client.post(&session.path("/terminal/ticket"), json!({})).await.json(200);
    let offered: Vec<&str> =
        ticket["protocols"].as_array().expect("a list").iter().map(text).collect();
    let offered = [("sec-websocket-protocol", offered.join(", "))];
    let offered: Vec<(&'static str, &str)> =
        offered.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let mut follower = Follower(connect_to(&server, &path, "", &offered).await.expect("a socket"));
    follower.say(json!({"code": "6 * 7"})).await;
    assert_eq!(follower.until("result").await["data"]["data"]["text/plain"], "42");
    // A ticket works once, and only for a WebSocket.
    assert_eq!(refusal(connect_to(&server, &path, "", &offered).await.err()).0, 401);
}

async fn client_session(client: &Client) -> Session {
    let made = client.post("/v1/sessions", json!({})).await.json(201);
    Session::of(client, text(&made["id"]))
}
