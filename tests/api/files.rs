//! Files of a session, over HTTP.

use hyper::Method;
use hyper::body::Bytes;
use serde_json::{Value, json};

use belljar_testkit::client::{Answer, Event};
use belljar_testkit::server::Server;
use belljar_testkit::session::Session;
use belljar_testkit::values::text;

pub(crate) fn at(session: &Session, path: &str) -> String {
    session.path(&format!("/files/{path}"))
}

pub(crate) async fn put(
    server: &Server,
    session: &Session,
    path: &str,
    bytes: impl Into<Bytes>,
) -> Answer {
    server.send(server.request(Method::PUT, &at(session, path), bytes)).await
}

pub(crate) async fn get(server: &Server, session: &Session, path: &str) -> Answer {
    server.get(&at(session, path)).await
}

pub(crate) fn names(listing: &Value) -> Vec<String> {
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
    // An upload over a link replaces the link, not its target.
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

#[tokio::test]
async fn files_grow_are_copied_and_have_modes() {
    let server = Server::start().await;
    let session = server.session().await;
    put(&server, &session, "logs/today?append", "one\n").await.json(200);
    let grown = put(&server, &session, "logs/today?append", "two\n").await.json(200);
    assert_eq!(grown["size"], 8, "{grown:#}");
    assert_eq!(get(&server, &session, "logs/today").await.text(200), "one\ntwo\n");
    session.python("import os; os.symlink('today', 'logs/link')").await;
    put(&server, &session, "logs/link?append=1", "three\n").await.json(200);
    assert_eq!(get(&server, &session, "logs/today").await.text(200), "one\ntwo\nthree\n");

    let script = put(&server, &session, "bin/tool?mode=0755", "#!/bin/sh\necho works\n").await;
    assert_eq!(script.json(200)["mode"], "755");
    assert_eq!(session.shell("bin/tool").await["stdout"], "works\n");
    assert_eq!(put(&server, &session, "plain", "x").await.json(200)["mode"], "644");
    assert_eq!(put(&server, &session, "secret?mode=600", "x").await.json(200)["mode"], "600");
    put(&server, &session, "logs/new?append&mode=640", "x").await.json(200);
    assert_eq!(session.shell("stat -c %a logs/new").await["stdout"], "640\n");

    let copy = async |from: &str, to: &str| {
        server.post(&at(&session, from), json!({"to": to, "copy": true})).await
    };
    let copied = copy("bin/tool", "/tmp/tool").await.json(200);
    assert_eq!((&copied["path"], &copied["mode"]), (&json!("/tmp/tool"), &json!("755")));
    assert_eq!(session.shell("/tmp/tool && bin/tool").await["stdout"], "works\nworks\n");
    session.shell("mkdir -p tree/a/b; echo 1 > tree/a/b/f; ln -s b/f tree/a/l; chmod 711 tree/a; mkfifo tree/p").await;
    copy("tree", "copied").await.json(200);
    let look = "cd copied; find . | sort; readlink a/l; cat a/l; stat -c %a a";
    assert_eq!(session.shell(look).await["stdout"], ".\n./a\n./a/b\n./a/b/f\n./a/l\nb/f\n1\n711\n");
    copy("tree", "copied").await.json(200);
    copy("logs/link", "l2").await.json(200);
    assert_eq!(get(&server, &session, "l2?stat").await.json(200)["kind"], "link");
    copy("none", "x").await.error(404, "file_not_found");
    copy("tree", "tree/a/self").await.error(422, "invalid");
    copy("plain", "tree").await.error(409, "is_a_directory");
    copy("tree", "plain").await.error(409, "not_a_directory");
    copy("plain", "no/such/place").await.error(404, "file_not_found");
    copy("plain", "/usr/x").await.error(409, "not_permitted_inside");
    copy("tree/p", "x").await.error(409, "not_a_file");
    copy("/proc/self", "x").await.error(409, "not_permitted_inside");
    let left = session.shell("find /session /tmp -name '*.part' 2>/dev/null").await;
    assert_eq!(left["stdout"], "", "{left:#}");
    for wrong in
        ["x?mode=9", "x?mode=77777", "x?mode=4755", "x?append&mkdir", "x?mkdir&mode=700", "x?mode="]
    {
        put(&server, &session, wrong, "x").await.error(422, "invalid");
    }
    put(&server, &session, "tree?append", "x").await.error(409, "is_a_directory");
    put(&server, &session, "tree/p?append", "x").await.error(409, "not_a_file");
    put(&server, &session, "/dev/null?append", "x").await.error(409, "not_a_file");
    put(&server, &session, "plain/x?append", "x").await.error(409, "not_a_directory");
    put(&server, &session, "/proc/self/comm?append", "x").await.error(409, "not_permitted_inside");
}

#[tokio::test]
async fn directories_are_listed_by_pattern() {
    let server = Server::start().await;
    let session = server.session().await;
    let make =
        "mkdir -p p/src/deep p/.git; cd p; touch a.py b.txt .env src/c.py src/deep/d.py .git/e.py";
    session.shell(make).await;
    let list = async |query: &str| {
        let listed = get(&server, &session, &format!("p?list{query}")).await.json(200);
        names(&listed)
            .iter()
            .map(|name| name.split(' ').next().expect("a name").to_owned())
            .collect::<Vec<_>>()
            .join(" ")
    };
    assert_eq!(list("").await, ".env .git a.py b.txt src");
    assert_eq!(list("&hidden=0").await, "a.py b.txt src");
    assert_eq!(list("&glob=*.py").await, "a.py");
    assert_eq!(list("&glob=**/*.py").await, ".git/e.py a.py src/c.py src/deep/d.py");
    assert_eq!(list("&glob=**/*.py&hidden=false").await, "a.py src/c.py src/deep/d.py");
    assert_eq!(list("&glob=src/*").await, "src/c.py src/deep");
    assert_eq!(list("&glob=%5Ba-b%5D.*").await, "a.py b.txt");
    assert_eq!(list("&recursive&hidden=0").await, "a.py b.txt src src/c.py src/deep src/deep/d.py");
    for wrong in ["p?list&glob=%5Ba", "p?list&glob=/x", "p?list&glob=", "p?glob=x", "p?hidden=1"] {
        get(&server, &session, wrong).await.error(422, "invalid");
    }
}

#[tokio::test]
async fn file_changes_are_streamed_as_they_happen() {
    let server = Server::start().await;
    let session = server.session().await;
    session.shell("mkdir -p w/sub other").await;
    let mut flat = server.follow(&at(&session, "w?watch")).await;
    let mut deep = server.follow(&at(&session, "w?watch&recursive")).await;
    flat.until("watching").await;
    deep.until("watching").await;
    let changed =
        |event: &Event| format!("{} {}", text(&event.data["kind"]), text(&event.data["path"]));
    session.shell("cd w; echo 1 > a; echo 2 > sub/b; mv a c; mkdir -p new/er; echo 3 > new/er/d; rm c; rm -r sub").await;
    let mut seen = Vec::new();
    while !seen.contains(&"removed sub".to_owned()) {
        seen.push(changed(&flat.until("change").await));
    }
    let expected = [
        "created a",
        "modified a",
        "removed a",
        "created c",
        "created new",
        "removed c",
        "removed sub",
    ];
    assert_eq!(seen, expected);
    let mut seen = Vec::new();
    while !seen.contains(&"removed sub".to_owned()) {
        seen.push(changed(&deep.until("change").await));
    }
    for reply in [
        "created sub/b",
        "modified sub/b",
        "created new",
        "created new/er",
        "created new/er/d",
        "removed sub/b",
    ] {
        assert!(seen.contains(&reply.to_owned()), "no {reply} in {seen:?}");
    }
    // Uploads are reported too, under their final names.
    put(&server, &session, "w/new/er/sent", "x").await.json(200);
    loop {
        if changed(&deep.until("change").await) == "created new/er/sent" {
            break;
        }
    }
    // The watch ends when its directory is removed. Many unread changes cause no problem.
    let held = server.follow(&at(&session, "other?watch")).await;
    session.shell("for i in $(seq 3000); do : > other/$i; done; rm -r w other/*").await;
    flat.until("gone").await;
    deep.until("gone").await;
    assert!(deep.next().await.is_none());
    drop(held);
    get(&server, &session, "none?watch").await.error(404, "file_not_found");
    put(&server, &session, "file", "x").await.json(200);
    get(&server, &session, "file?watch").await.error(409, "not_a_directory");
    // Watches are limited in number, and end with the server.
    let mut all = Vec::new();
    for _ in 0..16 {
        let mut watch = server.follow(&at(&session, "other?watch")).await;
        watch.until("watching").await;
        all.push(watch);
    }
    get(&server, &session, "other?watch").await.error(429, "too_many_watches");
    server.ask_to_stop();
    for watch in &mut all {
        while watch.next().await.is_some() {}
    }
    let mut server = server;
    assert!(server.wait().await.success());
}
