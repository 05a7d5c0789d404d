//! Other operations on files: append, copy, move, find, watch and archive.

use hyper::Method;
use hyper::body::Bytes;
use serde_json::json;

use crate::backend::Backend;
use belljar_testkit::client::{Answer, Event};
use belljar_testkit::session::Session;
use belljar_testkit::values::text;

async fn put(session: &Session, path: &str, bytes: impl Into<Bytes>) -> Answer {
    let path = session.path(&format!("/files/{path}"));
    session.client.send(session.client.request(Method::PUT, &path, bytes)).await
}

async fn get(session: &Session, path: &str) -> Answer {
    session.client.get(&session.path(&format!("/files/{path}"))).await
}

async fn post(session: &Session, path: &str, to: &str, copy: bool) -> Answer {
    let ask = json!({"to": to, "copy": copy});
    session.client.post(&session.path(&format!("/files/{path}")), ask).await
}

pub(crate) async fn files_grow_are_copied_moved_and_have_modes(on: Backend) {
    let (_site, _server, session) = on.session(json!({})).await;
    put(&session, "logs/today?append", "one\n").await.json(200);
    let grown = put(&session, "logs/today?append", "two\n").await.json(200);
    assert_eq!(grown["size"], 8, "{grown:#}");
    session.shell("ln -s today logs/link; echo three >> logs/today").await;
    put(&session, "logs/link?append", "four\n").await.json(200);
    assert_eq!(get(&session, "logs/today").await.text(200), "one\ntwo\nthree\nfour\n");
    let large = vec![b'x'; 9_000_000];
    assert_eq!(put(&session, "large?append", large.clone()).await.json(200)["size"], 9_000_000);
    assert_eq!(put(&session, "large?append", large).await.json(200)["size"], 18_000_000);

    let script = put(&session, "bin/tool?mode=0755", "#!/bin/sh\necho works\n").await;
    assert_eq!(script.json(200)["mode"], "755");
    assert_eq!(session.shell("bin/tool").await["stdout"], "works\n");
    assert_eq!(put(&session, "secret?mode=600", "x").await.json(200)["mode"], "600");
    put(&session, "logs/new?append&mode=640", "x").await.json(200);
    let mode = "import os; print(oct(os.stat('/session/logs/new').st_mode))";
    assert_eq!(session.printed(mode).await, "0o100640\n");

    let copied = post(&session, "bin/tool", "/tmp/tool", true).await.json(200);
    assert_eq!((&copied["path"], &copied["mode"]), (&json!("/tmp/tool"), &json!("755")));
    session.shell("mkdir -p tree/a/b; echo 1 > tree/a/b/f; ln -s b/f tree/a/l; chmod 711 tree/a; mkfifo tree/p").await;
    post(&session, "tree", "copied", true).await.json(200);
    let look =
        "cd copied; find . | sort; readlink a/l; cat a/l; find a -maxdepth 0 -printf '%m\\n'";
    assert_eq!(session.shell(look).await["stdout"], ".\n./a\n./a/b\n./a/b/f\n./a/l\nb/f\n1\n711\n");
    let moved = post(&session, "copied", "moved", false).await.json(200);
    assert_eq!((&moved["path"], &moved["kind"]), (&json!("/session/moved"), &json!("directory")));
    get(&session, "copied?stat").await.error(404, "file_not_found");

    post(&session, "none", "x", true).await.error(404, "file_not_found");
    post(&session, "tree", "tree/a/self", true).await.error(422, "invalid");
    post(&session, "bin/tool", "tree", true).await.error(409, "is_a_directory");
    post(&session, "tree", "bin/tool", true).await.error(409, "not_a_directory");
    post(&session, "bin/tool", "no/such/place", true).await.error(404, "file_not_found");
    post(&session, "bin/tool", "/usr/x", true).await.error(409, "not_permitted_inside");
    post(&session, "bin/tool", "/usr/x", false).await.error(409, "not_permitted_inside");
    post(&session, "tree/p", "x", true).await.error(409, "not_a_file");
    put(&session, "tree?append", "x").await.error(409, "is_a_directory");
    put(&session, "tree/p?append", "x").await.error(409, "not_a_file");
    put(&session, "/dev/null?append", "x").await.error(409, "not_a_file");
    put(&session, "secret/x?append", "x").await.error(409, "not_a_directory");
    put(&session, "secret?mode=9", "x").await.error(422, "invalid");
    get(&session, "a%00b").await.error(422, "invalid");
    let left = session.shell("find /session /tmp -name '*.part' 2>/dev/null").await;
    assert_eq!(left["stdout"], "", "{left:#}");
}

pub(crate) async fn files_are_found_by_pattern(on: Backend) {
    let (_site, _server, session) = on.session(json!({})).await;
    let make =
        "mkdir -p p/src/deep p/.git; cd p; touch a.py b.txt .env src/c.py src/deep/d.py .git/e.py";
    session.shell(make).await;
    let list = async |query: &str| {
        let listed = get(&session, &format!("p?list{query}")).await.json(200);
        let files = listed["files"].as_array().expect("a list").iter();
        files.map(|file| text(&file["path"]).to_owned()).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(list("").await, ".env .git a.py b.txt src");
    assert_eq!(list("&hidden=0").await, "a.py b.txt src");
    assert_eq!(list("&glob=**/*.py").await, ".git/e.py a.py src/c.py src/deep/d.py");
    assert_eq!(list("&glob=%5Ba-b%5D.*").await, "a.py b.txt");
    assert_eq!(list("&recursive&hidden=0").await, "a.py b.txt src src/c.py src/deep src/deep/d.py");
    get(&session, "p?list&glob=%5Ba").await.error(422, "invalid");
}

pub(crate) async fn file_changes_are_streamed_as_they_happen(on: Backend) {
    let (_site, server, session) = on.session(json!({})).await;
    session.shell("mkdir -p w/sub").await;
    let mut watch = server.follow(&session.path("/files/w?watch&recursive")).await;
    watch.until("watching").await;
    let changed =
        |event: &Event| format!("{} {}", text(&event.data["kind"]), text(&event.data["path"]));
    session.shell("cd w; echo 1 > a; echo 2 > sub/b; mv a c; mkdir new; rm c; rm -r sub").await;
    let mut seen = Vec::new();
    while !seen.contains(&"removed sub".to_owned()) {
        seen.push(changed(&watch.until("change").await));
    }
    for reply in [
        "created a",
        "modified a",
        "removed a",
        "created c",
        "created sub/b",
        "created new",
        "removed c",
        "removed sub/b",
    ] {
        assert!(seen.contains(&reply.to_owned()), "no {reply} in {seen:?}");
    }
    // Writes through the API are reported too, under the file's own name.
    put(&session, "w/new/sent", "x").await.json(200);
    while changed(&watch.until("change").await) != "created new/sent" {}
    session.shell("rm -r w").await;
    watch.until("gone").await;
    assert!(watch.next().await.is_none());
    get(&session, "none?watch").await.error(404, "file_not_found");
}

pub(crate) async fn directories_travel_as_archives(on: Backend) {
    let (_site, _server, session) = on.session(json!({})).await;
    let make = "mkdir -p t/a/'b c'/gr\u{fc}n t/empty; cd t; seq 300000 > a/numbers; echo '#!/bin/sh' > run; \
        chmod 755 run; chmod 700 a; ln -s a/numbers link; ln -s /etc/passwd out; : > a/'b c'/none";
    assert_eq!(session.shell(make).await["exit_code"], 0);
    let look = "find . -printf '%P %y %m %l ' -type f -exec md5sum {} \\; -o -printf '\\n' | sort";
    let tree = async |path: &str| {
        let seen = session.shell(&format!("cd {path} && {look}")).await;
        assert_eq!(seen["exit_code"], 0, "{seen:#}");
        text(&seen["stdout"]).to_owned()
    };
    for format in ["tar", "tar.gz", "zip"] {
        let archive = get(&session, &format!("t?archive={format}")).await;
        assert_eq!(archive.status, 200, "{archive}");
        let there = format!("back-{format}");
        let query = format!("{there}?archive={format}");
        let back = put(&session, &query, archive.body.clone()).await.json(200);
        assert_eq!((&back["path"], &back["skipped"]), (&json!(there), &json!(0)));
        assert_eq!(tree(&there).await, tree("t").await, "{format}");
        // Content that is no archive, or half of one, is refused.
        let half = archive.body.slice(..archive.body.len() / 2);
        for broken in [Bytes::from_static(b"no archive at all, only some words"), half] {
            let refused = put(&session, &format!("broken?archive={format}"), broken).await;
            refused.error(422, "invalid");
        }
    }
    get(&session, "none?archive=tar").await.error(404, "file_not_found");
    get(&session, "t/run?archive=tar").await.error(409, "not_a_directory");
    put(&session, "t/run?archive=tar", "x").await.error(409, "exists");
    // Downloads that the client abandons do no harm, nor do several at once.
    session.shell("head -c 20000000 /dev/urandom > t/large").await;
    for _ in 0..3 {
        let path = session.path("/files/t?archive=tar");
        let request = session.client.request(Method::GET, &path, "");
        let begun = session.client.send(request);
        let _ = tokio::time::timeout(std::time::Duration::from_millis(15), begun).await;
    }
    let (one, other) =
        tokio::join!(get(&session, "t?archive=tar"), get(&session, "t?archive=tar.gz"));
    assert!(one.body.len() > 20_000_000 && other.body.len() > 20_000_000);
    assert_eq!(session.printed("print('goes on')").await, "goes on\n");
}
