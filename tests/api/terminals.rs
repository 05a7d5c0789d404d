//! Terminals over WebSockets: input, output, and clients that disconnect and return.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use hyper::header;
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;

use belljar_testkit::installation::Installation;
use belljar_testkit::server::Server;
use belljar_testkit::session::Session;
use belljar_testkit::terminal::{Refused, TerminalClient, connect, refused};
use belljar_testkit::values::text;
use belljar_testkit::wait::eventually;

async fn terminals(server: &Server, session: &Session) -> Vec<Value> {
    let list = server.get(&session.path("/terminals")).await.json(200);
    list["terminals"].as_array().expect("a list").clone()
}

#[tokio::test]
async fn a_shell_at_a_terminal() {
    let server = Server::start().await;
    let session = server.session().await;
    let mut terminal = TerminalClient::take(&server.client(), &session, "rows=11&cols=66").await;
    terminal.until("~ $ ").await;
    terminal.press("tty; stty size; echo $TERM; id -u; pwd\n").await;
    let shown = terminal.until("/session\r\n").await;
    assert!(shown.contains("/dev/pts/0\r\n11 66\r\nxterm-256color\r\n1000\r\n"), "{shown}");
    // State is kept, job control works, and Ctrl-C ends the program but not the shell. The program
    // itself prints `begun`: by then it is the terminal's foreground process.
    terminal.press("x=5; sh -c 'echo be\"\"gun; exec sleep 1000'\n").await;
    terminal.until("begun\r\n").await;
    terminal.press([3]).await;
    terminal.until("^C").await;
    terminal.press("echo $x$x\n").await;
    terminal.until("55\r\n").await;
    // A resize changes the terminal's size, and programs get SIGWINCH.
    terminal.press("trap 'echo si''ze $(stty size)' WINCH; echo tra''pped\n").await;
    terminal.until("trapped\r\n").await;
    terminal.say(json!({"type": "resize", "rows": 30, "cols": 100})).await;
    terminal.until("size 30 100\r\n").await;
    assert_eq!(terminals(&server, &session).await[0]["cols"], 100);
    // An invalid message gets an error, and the terminal keeps working.
    for wrong in
        [json!({"type": "resize", "rows": 0, "cols": 9}), json!({"type": "dance"}), json!(3)]
    {
        terminal.say(wrong).await;
        let reply = terminal.reply().await;
        assert_eq!(
            (&reply["type"], &reply["code"]),
            (&json!("error"), &json!("invalid")),
            "{reply}"
        );
    }
    terminal.press("exit 7\n").await;
    let end = terminal.end().await;
    assert_eq!(
        (&end["type"], &end["exit_code"], &end["signal"]),
        (&json!("exit"), &json!(7), &json!(null))
    );
    // A client that attaches after the end still gets the exit code and the last output.
    let id = terminal.id.clone();
    let mut late =
        TerminalClient::take(&server.client(), &session, &format!("terminal={id}")).await;
    let end = late.end().await;
    assert_eq!(end["exit_code"], 7);
    assert!(late.seen.contains("size 30 100"), "{:?}", late.seen);
    let remembered = &terminals(&server, &session).await[0];
    assert_eq!((&remembered["running"], &remembered["exit_code"]), (&json!(false), &json!(7)));
    assert_eq!(server.delete(&session.path(&format!("/terminals/{id}"))).await.status, 204);
    assert!(terminals(&server, &session).await.is_empty());
}

#[tokio::test]
async fn a_program_at_a_terminal_and_what_cannot_be() {
    let server = Server::start().await;
    let session = server.session().await;
    let client = server.client();
    let command = "command=echo%20%24TERM%3B%20pwd%3B%20kill%20-9%20%24%24&cwd=/tmp&term=vt100";
    let mut terminal = TerminalClient::take(&client, &session, command).await;
    let end = terminal.end().await;
    assert_eq!(terminal.seen, "vt100\r\n/tmp\r\n");
    assert_eq!((&end["exit_code"], &end["signal"]), (&json!(137), &json!(9)), "{end}");

    refused(&client, &session, "rows=0", 422, "invalid").await;
    refused(&client, &session, "rows=5000", 422, "invalid").await;
    refused(&client, &session, "colour=blue", 422, "invalid").await;
    refused(&client, &session, "offset=3", 422, "invalid").await;
    refused(&client, &session, "term=a%20b", 422, "invalid").await;
    refused(&client, &session, "terminal=none", 404, "terminal_not_found").await;
    refused(&client, &session, "terminal=none&command=x", 422, "invalid").await;
    refused(&client, &session, "cwd=/nowhere", 422, "invalid").await;
    refused(&client, &Session::of(&client, "ses_none"), "", 404, "session_not_found").await;
    server.get(&session.path("/terminal")).await.error(426, "not_a_websocket");
    server.delete(&session.path("/terminals/none")).await.error(404, "terminal_not_found");
    session.stop().await;
    refused(&client, &session, "", 410, "session_ended").await;
    server.get(&session.path("/terminals")).await.error(410, "session_ended");
    // Injecting input with TIOCSTI stays refused, even at a real terminal.
    let session = server.session().await;
    let fake = "import fcntl,termios\ntry:\n fcntl.ioctl(0, termios.TIOCSTI, b'x')\nexcept OSError as e: print('errno', e.errno)";
    let write = json!({"command": format!("cat > fake.py <<'EOF'\n{fake}\nEOF")});
    session.exec(write).await.json(200);
    let mut terminal = TerminalClient::take(&client, &session, "command=python3%20fake.py").await;
    terminal.end().await;
    assert_eq!(terminal.seen, "errno 1\r\n");
}

#[tokio::test]
async fn pages_of_other_sites_and_strangers_get_no_terminal() {
    let server = Server::start().await;
    let session = server.session().await;
    let client = server.client();
    for (name, value, code) in [
        ("origin", "http://evil.example", "wrong_origin"),
        ("origin", "null", "wrong_origin"),
        ("host", "evil.example", "wrong_host"),
    ] {
        let refusal =
            connect(&client, &session, "", &[(name, value)]).await.err().expect("refused");
        let body = String::from_utf8(refusal.body().clone().unwrap_or_default()).expect("text");
        assert_eq!(refusal.status(), 403);
        assert!(body.contains(code), "{body}");
    }
    assert!(terminals(&server, &session).await.is_empty(), "nothing was started");
    // With keys: a terminal needs a key, and the session must belong to the key's tenant.
    let installation = Arc::clone(&server.installation);
    let [one, other] = ["one", "other"].map(|tenant| {
        let key = installation.key(&["--name", tenant, "--tenant", tenant]);
        text(&key["secret"]).to_owned()
    });
    eventually("keys are wanted", async || server.get("/v1/sessions").await.status == 401).await;
    let bearer = |key: &str| format!("Bearer {key}");
    let own = client.with_key(&one).session_with(json!({})).await;
    let with = async |headers: &[(&'static str, &str)]| connect(&client, &own, "", headers).await;
    let status = |refused: Option<Refused>| refused.expect("refused").status().as_u16();
    assert_eq!(status(with(&[]).await.err()), 401);
    assert_eq!(status(with(&[("authorization", "Bearer wrong")]).await.err()), 401);
    assert_eq!(status(with(&[("authorization", &bearer(&other))]).await.err()), 404);
    let mut terminal =
        with(&[(header::AUTHORIZATION.as_str(), &bearer(&one))]).await.expect("a seat");
    assert!(matches!(terminal.next().await, Some(Ok(Message::Text(_)))));
    let is_opened = |entry: &Value| entry["action"] == "terminal" && entry["outcome"] == "opened";
    eventually("it is written down", async || installation.audit().iter().any(is_opened)).await;
}

#[tokio::test]
async fn a_page_in_a_browser_comes_with_a_ticket() {
    let installation =
        Arc::new(Installation::new().env("BELLJAR_ALLOWED_ORIGINS", "https://app.example"));
    let [one, other] = ["one", "other"].map(|tenant| {
        let key = installation.key(&["--name", tenant, "--tenant", tenant]);
        (text(&key["id"]).to_owned(), text(&key["secret"]).to_owned())
    });
    let server = installation.serve().await;
    let client = server.client();
    let keyed = client.with_key(&one.1);
    let session = keyed.session_with(json!({})).await;
    let beside = keyed.session_with(json!({})).await;
    let ask = session.path("/terminal/ticket");
    let ticket = async || keyed.post(&ask, json!({})).await.json(200);
    let offer = |ticket: &Value| {
        format!("{}, {}", text(&ticket["protocols"][0]), text(&ticket["protocols"][1]))
    };
    let come = async |at: &Session, offered: &str, origin: &str| {
        let headers = [("sec-websocket-protocol", offered), ("origin", origin)];
        connect(&client, at, "", &headers).await
    };
    const PAGE: &str = "https://app.example";
    let reply = ticket().await;
    assert_eq!(reply["expires_in"], 60);
    let mut terminal = come(&session, &offer(&reply), PAGE).await.expect("a terminal");
    assert!(matches!(terminal.next().await, Some(Ok(Message::Text(_)))));
    // A ticket works once, for its own session, from an allowed origin, and only while its key is
    // valid.
    let status = |refused: Option<Refused>| refused.expect("refused").status().as_u16();
    assert_eq!(status(come(&session, &offer(&reply), PAGE).await.err()), 401);
    assert_eq!(status(come(&beside, &offer(&ticket().await), PAGE).await.err()), 401);
    assert_eq!(
        status(come(&session, &offer(&ticket().await), "https://evil.example").await.err()),
        403
    );
    for wrong in ["belljar.terminal", "belljar.terminal, belljar.ticket.", "belljar.ticket.00"] {
        assert_eq!(status(come(&session, wrong, PAGE).await.err()), 401, "{wrong}");
    }
    client.post(&ask, json!({})).await.error(401, "unauthorized");
    client.with_key(&other.1).post(&ask, json!({})).await.error(404, "session_not_found");
    // A ticket is valid for no other request.
    let unused = ticket().await;
    let mut request = server.request(hyper::Method::GET, &session.path("/terminals"), "");
    let value = offer(&unused).parse().expect("a value");
    request.headers_mut().insert("sec-websocket-protocol", value);
    server.send(request).await.error(401, "unauthorized");
    let said = server.said();
    assert!(!said.contains(text(&reply["ticket"])), "{said}");
    installation.belljar(&["key", "revoke", &one.0]).output().expect("belljar starts");
    assert_eq!(status(come(&session, &offer(&unused), PAGE).await.err()), 401, "revoked");
}

#[tokio::test]
async fn who_comes_back_misses_nothing() {
    let server = Server::start().await;
    let session = server.session_with(json!({"storage": "BIND"})).await;
    let mut terminal = TerminalClient::take(&server.client(), &session, "cols=200").await;
    terminal.press("x=kept; while [ ! -e go ]; do sleep 0.02; done; echo be''hind; seq 3\n").await;
    terminal.until("seq 3\r\n").await;
    let (id, position) = (terminal.id.clone(), terminal.position);
    // Two clients of one terminal get the same output.
    let mut second =
        TerminalClient::take(&server.client(), &session, &format!("terminal={id}")).await;
    second.until("seq 3\r\n").await;
    assert_eq!(terminals(&server, &session).await[0]["attached"], 2);
    drop(second);
    drop(terminal);
    eventually("both have left", async || terminals(&server, &session).await[0]["attached"] == 0)
        .await;
    session.shell("touch go").await;
    // The terminal keeps running without clients, and even without a server.
    let installation = server.kill().await;
    let server = installation.serve().await;
    let session = Session::of(&server, &session.id);
    let query = format!("terminal={id}&offset={position}");
    let mut terminal = TerminalClient::take(&server.client(), &session, &query).await;
    assert_eq!(terminal.position, position);
    let rest = terminal.until("3\r\n").await;
    assert!(rest.ends_with("behind\r\n1\r\n2\r\n3\r\n"), "{rest:?}");
    terminal.press("echo $x\n").await;
    terminal.until("\rkept\r\n").await;
    // A server that is asked to stop closes with 1012, and the terminal stays for the next server.
    server.ask_to_stop();
    loop {
        match terminal.next().await {
            Some(Message::Close(Some(frame))) => break assert_eq!(u16::from(frame.code), 1012),
            Some(Message::Binary(_)) => {}
            other => panic!("{other:?}"),
        }
    }
    let mut server = server;
    assert!(server.wait().await.success());
    let server = installation.serve().await;
    let session = Session::of(&server, &session.id);
    let mut terminal =
        TerminalClient::take(&server.client(), &session, &format!("terminal={id}")).await;
    terminal.until("behind\r\n").await;
    terminal.say(json!({"type": "close"})).await;
    assert_eq!(terminal.end().await["type"], "exit");
    assert!(terminals(&server, &session).await.is_empty());
}

#[tokio::test]
async fn terminals_end_with_all_they_started_and_are_counted() {
    const MOST: usize = 16;
    let server = Server::start().await;
    let session = server.session().await;
    let client = server.client();
    let mut seats = Vec::new();
    for _ in 0..MOST {
        seats.push(TerminalClient::take(&client, &session, "command=sleep%201000").await);
    }
    refused(&client, &session, "", 429, "too_many_terminals").await;
    let first = seats.remove(0);
    let path = session.path(&format!("/terminals/{}", first.id));
    assert_eq!(server.delete(&path).await.status, 204);
    let mut terminal = TerminalClient::take(&client, &session, "").await;
    // A daemon that left the terminal's session is killed with the terminal.
    let daemon = "setsid -f bash -c 'trap \"\" HUP; echo $$ > daemon; sleep 1000' </dev/null >/dev/null 2>&1\n";
    terminal.press(daemon).await;
    session.shell("until [ -s daemon ]; do sleep 0.02; done").await;
    assert_eq!(session.shell("kill -0 $(cat daemon)").await["exit_code"], 0);
    let path = session.path(&format!("/terminals/{}", terminal.id));
    assert_eq!(server.delete(&path).await.status, 204);
    assert_eq!(terminal.end().await["type"], "exit");
    assert_ne!(session.shell("kill -0 $(cat daemon)").await["exit_code"], 0);
    // Attached clients get an error when the session ends.
    session.stop().await;
    let reply = seats[0].reply().await;
    assert_eq!(
        (&reply["type"], &reply["code"]),
        (&json!("error"), &json!("session_ended")),
        "{reply}"
    );
    server.installation.has_no_traces().await;
}

#[tokio::test]
async fn a_session_with_an_attached_terminal_is_not_idle() {
    let server = Server::start().await;
    let session = server.session_with(json!({"ttl": 600, "idle_timeout": 1})).await;
    let mut terminal = TerminalClient::take(&server.client(), &session, "").await;
    // Longer than the idle timeout.
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    assert_eq!(session.show().await["state"], "ready");
    terminal.press("echo st''ill\n").await;
    terminal.until("still\r\n").await;
    drop(terminal);
    assert_eq!(session.becomes("stopped").await["ended_because"], "it was idle for too long");
}

#[tokio::test]
async fn a_terminal_client_that_does_not_read_delays_no_one_and_costs_nothing() {
    let server = Server::start().await;
    let session = server.session().await;
    let client = server.client();
    let mut deaf = TerminalClient::take(&client, &session, "").await;
    deaf.press("head -c 100000000 /dev/zero | tr '\\0' x | fold -w 99; echo do''ne > done\n").await;
    let before = server.rss();
    // The program waits for a slow client for a moment only.
    let began = Instant::now();
    let waited = session
        .exec(json!({"command": "until [ -e done ]; do sleep 0.1; done", "timeout": 90}))
        .await
        .json(200);
    assert_eq!(waited["status"], "ok", "{waited:#}");
    assert!(began.elapsed() > Duration::from_secs(4), "nobody waited");
    let grown = server.rss().saturating_sub(before);
    assert!(grown < 32 << 20, "{grown} bytes more");
    // The slow client gets the number of bytes it missed, and then continues at the current output.
    loop {
        let reply = deaf.reply().await;
        deaf.seen.clear();
        if reply["type"] == "skipped" {
            assert!(reply["bytes"].as_u64().expect("a number") > 1_000_000, "{reply}");
            break;
        }
    }
    deaf.press("echo awa''ke\n").await;
    deaf.until("awake\r\n").await;
    // A client that reads gets every line, however slowly it reads.
    let mut terminal = TerminalClient::take(&client, &session, "command=seq%20400000").await;
    let mut lines = 0;
    let mut rest = String::new();
    while let Some(message) = terminal.next().await {
        let Message::Binary(bytes) = message else { break };
        rest.push_str(&String::from_utf8_lossy(&bytes));
        while let Some((line, after)) = rest.split_once("\r\n") {
            lines += 1;
            assert_eq!(line, lines.to_string());
            rest = after.to_owned();
        }
    }
    assert_eq!(lines, 400_000);
}

#[tokio::test]
async fn unread_terminal_input_is_bounded() {
    let installation = Arc::new(Installation::new());
    let server = installation.serve().await;
    let session = server.session().await;
    let command = "command=stty%20raw%20-echo%3B%20echo%20ready%3B%20sleep%201000";
    let mut terminal = TerminalClient::take(&server.client(), &session, command).await;
    terminal.until("ready").await;
    let before = server.rss();
    let pasted = tokio::time::timeout(Duration::from_secs(5), async {
        for _ in 0..4_000 {
            terminal.press([b'x'; 60_000]).await;
        }
    });
    assert!(pasted.await.is_err(), "240 MB went somewhere");
    assert!(server.rss().saturating_sub(before) < 32 << 20);
    assert_eq!(session.shell("echo alive").await["stdout"], "alive\n");
    session.stop().await;
    installation.has_no_traces().await;
}
