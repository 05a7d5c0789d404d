//! Files of a session, from outside.

use hyper::Method;
use hyper::body::Bytes;
use serde_json::{Value, json};

use crate::client::Answer;
use crate::server::{Server, Session, text};

fn at(session: &Session, path: &str) -> String {
    session.path(&format!("/files/{path}"))
}

async fn put(server: &Server, session: &Session, path: &str, bytes: impl Into<Bytes>) -> Answer {
    server.send(server.request(Method::PUT, &at(session, path), bytes)).await
}

async fn get(server: &Server, session: &Session, path: &str) -> Answer {
    server.get(&at(session, path)).await
}

fn names(listing: &Value) -> Vec<String> {
    let files = listing["files"].as_array().expect("a list").iter();
    files.map(|file| format!("{} {}", text(&file["path"]), text(&file["kind"]))).collect()
}

#[tokio::test]
async fn files_are_written_read_listed_moved_and_removed() {
    let server = Server::start().await;
    let session = server.session().await;
    let written = put(&server, &session, "notes/today.txt", "one\n").await.json(200);
    assert_eq!((&written["kind"], &written["size"]), (&json!("file"), &json!(4)), "{written:#}");
    assert_eq!(
        session.printed("print(open('/session/notes/today.txt').read(), end='')").await,
        "one\n"
    );
    put(&server, &session, "notes/today.txt", "two, and longer\n").await.json(200);
    assert_eq!(get(&server, &session, "notes/today.txt").await.text(200), "two, and longer\n");
    assert_eq!(
        get(&server, &session, "%2Fsession/notes/today.txt").await.text(200),
        "two, and longer\n"
    );

    session.python("import os; os.symlink('today.txt', 'notes/link'); os.makedirs('notes/a/b'); open('/tmp/x', 'w').write('t')").await;
    assert_eq!(
        get(&server, &session, "/tmp/x").await.text(200),
        "t",
        "two slashes make it absolute"
    );
    assert_eq!(get(&server, &session, "notes/link").await.text(200), "two, and longer\n");
    let listed = get(&server, &session, "notes?list").await.json(200);
    assert_eq!(names(&listed), ["a directory", "link link", "today.txt file"]);
    let all = get(&server, &session, "notes?list&recursive").await.json(200);
    assert_eq!(names(&all), ["a directory", "a/b directory", "link link", "today.txt file"]);
    assert_eq!(get(&server, &session, "notes/link?stat").await.json(200)["kind"], "link");

    let moved = server.post(&at(&session, "notes/today.txt"), json!({"to": "/tmp/moved"})).await;
    assert_eq!(moved.json(200)["path"], "/tmp/moved");
    get(&server, &session, "notes/link").await.error(404, "file_not_found");
    server.send(server.request(Method::PUT, &at(&session, "made/deep?mkdir"), "")).await.json(200);
    server.delete(&at(&session, "made")).await.error(409, "not_empty");
    server.delete(&at(&session, "made?recursive")).await.text(204);
    server.delete(&at(&session, "notes/link")).await.text(204);
    assert_eq!(session.printed("print(sorted(os.listdir('/session/notes')))").await, "['a']\n");
    // A file that replaces a link replaces the link.
    session.python("os.symlink('/tmp/moved', '/session/trap')").await;
    put(&server, &session, "trap", "mine").await.json(200);
    assert_eq!(
        session.printed("print(os.path.islink('/session/trap'), open('/tmp/moved').read())").await,
        "False two, and longer\n\n"
    );
}

#[tokio::test]
async fn large_and_odd_files_go_both_ways() {
    let server = Server::start().await;
    let session = server.session().await;
    let big: Vec<u8> =
        (0..20_000_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    put(&server, &session, "big", big.clone()).await.json(200);
    let back = get(&server, &session, "big").await;
    assert_eq!((back.status, back.body.len()), (200, big.len()));
    assert!(back.body == big);
    let mut request = server.request(Method::GET, &at(&session, "big"), "");
    request.headers_mut().insert("range", "bytes=1000000-1000009".parse().expect("a value"));
    let part = server.send(request).await;
    assert_eq!((part.status, &part.body[..]), (206, &big[1_000_000..1_000_010]));
    put(&server, &session, "empty", "").await.json(200);
    assert_eq!(get(&server, &session, "empty").await.text(200), "");
    put(&server, &session, "gr%C3%BC%C3%9Fe%20%E4%B8%96.txt", "x").await.json(200);
    assert_eq!(
        session.printed("import os; print(os.path.exists('/session/grüße 世.txt'))").await,
        "True\n"
    );
    let head = server.send(server.request(Method::HEAD, &at(&session, "big"), "")).await;
    assert_eq!((head.status, head.body.len()), (200, 0));
}

#[tokio::test]
async fn what_cannot_be_is_said_precisely_and_nothing_leads_outside() {
    let server = Server::start().await;
    let session = server.session().await;
    session.python("import os, socket\nos.mkfifo('fifo'); os.mkdir('d'); os.symlink('/etc/shadow', 'shadow'); open('closed', 'w').close(); os.chmod('closed', 0)").await;
    get(&server, &session, "none").await.error(404, "file_not_found");
    get(&server, &session, "d").await.error(409, "is_a_directory");
    get(&server, &session, "fifo").await.error(409, "not_a_file");
    get(&server, &session, "closed").await.error(409, "not_permitted_inside");
    get(&server, &session, "closed/x").await.error(409, "not_a_directory");
    get(&server, &session, "/dev/zero").await.error(409, "not_a_file");
    for outside in [
        "shadow",
        "/etc/shadow",
        "../etc/shadow",
        "..%2F..%2Fetc%2Fshadow",
        "/proc/1/root/etc/shadow",
    ] {
        let answer = get(&server, &session, outside).await;
        assert!(
            answer.status == 404 || answer.status == 409,
            "{outside}: {}",
            answer.text(answer.status)
        );
    }
    get(&server, &session, "/proc/self/mem").await.error(409, "not_permitted_inside");
    put(&server, &session, "d", "x").await.error(409, "is_a_directory");
    put(&server, &session, "/usr/x", "x").await.error(409, "not_permitted_inside");
    put(&server, &session, "closed/x", "x").await.error(409, "not_a_directory");
    put(&server, &session, "d/..", "x").await.error(422, "invalid");
    get(&server, &session, "a%00b").await.error(422, "invalid");
    get(&server, &session, "d?lst").await.error(422, "invalid");
    get(&server, &session, "closed?list").await.error(409, "not_a_directory");
    assert_eq!(session.printed("print(sorted(os.listdir('/session/d')))").await, "[]\n");
    let other = Session::of(&server.client(), "ses_none");
    get(&server, &other, "x").await.error(404, "session_not_found");
    server.delete(&session.path("")).await.json(200);
    get(&server, &session, "d").await.error(410, "session_ended");
}

#[tokio::test]
async fn a_file_that_does_not_fit_leaves_nothing() {
    let server = Server::start().await;
    let session = server.session_with(json!({"limits": {"tmpfs": "8M"}})).await;
    put(&server, &session, "big", "kept").await.json(200);
    put(&server, &session, "big", vec![b'x'; 12 << 20]).await.error(507, "no_room_inside");
    assert_eq!(get(&server, &session, "big").await.text(200), "kept");
    let left = session
        .printed("import os; print([n for n in os.listdir('/session') if n.endswith('.part')])")
        .await;
    assert_eq!(left, "[]\n");
}
