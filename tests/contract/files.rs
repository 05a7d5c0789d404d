//! Files and datasets: in, out, on disk and in memory.

use std::fs;

use hyper::Method;
use hyper::body::Bytes;
use serde_json::json;

use crate::backend::Backend;
use belljar_testkit::client::Answer;
use belljar_testkit::session::Session;
use belljar_testkit::values::text;

async fn put(session: &Session, path: &str, bytes: impl Into<Bytes>) -> Answer {
    let request = session.client.request(Method::PUT, &session.path(path), bytes);
    session.client.send(request).await
}

async fn get(session: &Session, path: &str) -> Answer {
    session.client.get(&session.path(path)).await
}

pub(crate) async fn files_go_both_ways(on: Backend) {
    let (_site, server, session) = on.session(json!({})).await;
    put(&session, "/files/notes/today.txt", "one\n").await.json(200);
    let read = "print(open('/session/notes/today.txt').read(), end='')";
    assert_eq!(session.printed(read).await, "one\n");
    put(&session, "/files/notes/today.txt", "two, and longer\n").await.json(200);
    assert_eq!(get(&session, "/files/notes/today.txt").await.text(200), "two, and longer\n");
    session.python("import os; os.symlink('today.txt', 'notes/link'); os.mkdir('notes/a')").await;
    let listed = get(&session, "/files/notes?list").await.json(200);
    let files = listed["files"].as_array().expect("a list").iter();
    let files: Vec<String> =
        files.map(|file| format!("{} {}", text(&file["path"]), text(&file["kind"]))).collect();
    assert_eq!(files, ["a directory", "link link", "today.txt file"]);

    let big: Vec<u8> =
        (0..20_000_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    put(&session, "/files/big", big.clone()).await.json(200);
    let back = get(&session, "/files/big").await;
    assert!((back.status, &back.body[..]) == (200, &big[..]), "{} bytes", back.body.len());
    let mut request = server.request(Method::GET, &session.path("/files/big"), "");
    request.headers_mut().insert("range", "bytes=1000000-1000009".parse().expect("a value"));
    let part = server.send(request).await;
    assert_eq!((part.status, &part.body[..]), (206, &big[1_000_000..1_000_010]));

    session.python("os.mkfifo('fifo'); open('closed', 'w').close(); os.chmod('closed', 0)").await;
    get(&session, "/files/none").await.error(404, "file_not_found");
    get(&session, "/files/notes").await.error(409, "is_a_directory");
    get(&session, "/files/fifo").await.error(409, "not_a_file");
    get(&session, "/files/closed").await.error(409, "not_permitted_inside");
    get(&session, "/files//proc/self/mem").await.error(409, "not_permitted_inside");
    put(&session, "/files//usr/x", "x").await.error(409, "not_permitted_inside");
    for outside in ["/etc/shadow", "../etc/shadow", "/proc/1/root/etc/shadow"] {
        let answer = get(&session, &format!("/files/{outside}")).await;
        // Backends differ in what exists at these paths inside.
        assert!(answer.status == 404 || answer.status == 409, "{outside}: {answer}");
    }
    server.delete(&session.path("/files/notes")).await.error(409, "not_empty");
    server.delete(&session.path("/files/notes?recursive")).await.text(204);
    assert_eq!(session.printed("print(os.path.exists('notes'))").await, "False\n");
}

pub(crate) async fn files_in_memory_are_limited(on: Backend) {
    let (_site, _server, session) = on.session(json!({"limits": {"tmpfs": "16M"}})).await;
    for installation in ["/session", "/tmp", "/dev/shm"] {
        let fill =
            format!("head -c 40000000 /dev/zero > {installation}/filler; rm {installation}/filler");
        let filled = session.shell(&fill).await;
        assert!(text(&filled["stderr"]).contains("No space left"), "{installation}: {filled:#}");
    }
    put(&session, "/files/kept", "kept").await.json(200);
    put(&session, "/files/kept", vec![b'x'; 24 << 20]).await.error(507, "no_room_inside");
    assert_eq!(get(&session, "/files/kept").await.text(200), "kept");
    assert_eq!(session.printed("print('goes on')").await, "goes on\n");
}

/// Whether a session has this file on disk: in a directory, or in a file system of its own.
pub(crate) fn is_on_disk(session: &std::path::Path, file: &str) -> bool {
    session.join("files.ext4").exists() || session.join("files").join(file).exists()
}

pub(crate) async fn files_on_disk_survive(on: Backend) {
    let (site, server, session) = on.session(json!({"key": "k", "storage": "BIND"})).await;
    session
        .python("import os; os.mkdir('d'); open('/session/d/kept', 'w').write('of the first')")
        .await;
    let directory = server.path("sessions").join(&session.id);
    assert!(is_on_disk(&directory, "d/kept"));
    session.stop().await;
    site.has_no_traces().await;
    let again = server.post("/v1/sessions", json!({"key": "k"})).await.json(200);
    assert_eq!((text(&again["how"]), text(&again["id"])), ("restarted", session.id.as_str()));
    assert_eq!(session.printed("print(open('/session/d/kept').read())").await, "of the first\n");
    assert_eq!(
        session.printed("open('/session/d/kept', 'a').write('!'); print('os' in globals())").await,
        "False\n"
    );
    // Files are kept, however the sandbox ends.
    site.end_behind_our_back(&session);
    session.becomes("failed").await;
    server.post(&session.path("/start"), json!({})).await.json(200);
    assert_eq!(session.printed("print(open('/session/d/kept').read())").await, "of the first!\n");
}

pub(crate) async fn datasets_go_in(on: Backend) {
    const TABLE: &str = "city,people\nBonn,3\nKiel,2\n";
    let installation = on.installation();
    let data = installation.path("datasets");
    fs::create_dir_all(data.join("deep")).expect("a directory");
    fs::write(data.join("deep/table.csv"), TABLE).expect("a file");
    let site = crate::backend::BackendSite::of(
        on,
        installation.env("DATASETS_HOST_RO", &data.display().to_string()),
    );
    let server = site.serve().await;
    let session = server.session_with(json!({"datasets": "LOCAL_RO"})).await;
    assert_eq!(session.printed("print(open('/data/deep/table.csv').read(), end='')").await, TABLE);
    for write in [
        "echo x > /data/new",
        "rm -r /data/deep",
        "chmod 777 /data",
        "echo x >> /data/deep/table.csv",
    ] {
        assert_eq!(session.shell(write).await["status"], "error", "{write}");
    }
    let listed = get(&session, "/datasets").await.json(200);
    assert_eq!(listed["datasets"][0]["path"], "/data/deep/table.csv", "{listed:#}");
    assert_eq!(listed["datasets"][0]["columns"], json!(["city", "people"]));
    session.stop().await;

    let session = server.session_with(json!({"datasets": "API"})).await;
    let staged = put(&session, "/datasets/staged.csv", TABLE).await.json(200);
    assert_eq!(
        (&staged["path"], &staged["status"]),
        (&json!("/session/data/staged.csv"), &json!("LOADED"))
    );
    assert_eq!(
        session.printed("print(open('/session/data/staged.csv').read(), end='')").await,
        TABLE
    );
    // Large enough to be sent in several pieces.
    let large = TABLE.repeat(200_000);
    put(&session, "/datasets/large.csv", large.clone()).await.json(200);
    let digest = "import hashlib; print(hashlib.sha256(open('/session/data/large.csv', 'rb').read()).hexdigest())";
    assert_eq!(
        session.printed(digest).await.trim(),
        belljar_engine::artifacts::Digest::of(large.as_bytes()).to_string()
    );
    session.python("open('/session/data/own.csv', 'w').write('x,y\\n1,2\\n')").await;
    let ask = json!({"datasets": ["own.csv"]});
    let exported = server.post(&session.path("/datasets/export"), ask).await.json(200);
    assert_eq!(exported["refused"], json!([]), "{exported:#}");
    let host_path = text(&exported["exports"][0]["host_path"]);
    assert_eq!(fs::read_to_string(host_path).expect("an export"), "x,y\n1,2\n");
}
