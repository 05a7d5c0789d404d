//! Sessions with storage BIND: their size limit, restarts with other options, and removal.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::sync::Arc;

use hyper::Method;
use serde_json::{Value, json};

use crate::keys::{secret, with_keys};
use belljar_testkit::installation::Installation;
use belljar_testkit::server::Server;
use belljar_testkit::session::Session;
use belljar_testkit::values::{names, text};
use belljar_testkit::wait::eventually;

fn directory(server: &Server, session: &Session) -> PathBuf {
    server.path("sessions").join(&session.id)
}

/// The directories of sessions, without `by-key`.
fn directories(server: &Server) -> Vec<String> {
    let names = names(&server.path("sessions"));
    names.into_iter().filter(|name| name != "by-key").collect()
}

async fn purge(server: &Server, session: &Session) -> Value {
    server.delete(&session.path("?purge=true")).await.json(200)
}

#[tokio::test]
async fn a_stopped_session_goes_on_with_new_options() {
    let installation = Arc::new(Installation::new());
    let server = installation.serve().await;
    let session = server.session_with(json!({"key": "k", "storage": "BIND"})).await;
    session.shell("echo kept > file").await;
    session.stop().await;
    let other = json!({"key": "k", "limits": {"memory": "600M", "pids": 99}, "env": {"A": "b"},
                       "ttl": 1234, "metadata": {"user": 7}});
    let again = server.post("/v1/sessions", other.clone()).await.json(200);
    assert_eq!((&again["how"], &again["id"]), (&json!("restarted"), &json!(session.id)));
    assert_eq!(
        (&again["limits"]["memory"], &again["limits"]["pids"]),
        (&json!(600 << 20), &json!(99))
    );
    assert_eq!((&again["ttl"], &again["metadata"]), (&json!(1234), &json!({"user": 7})));
    assert_eq!(session.shell("cat file; echo $A").await["stdout"], "kept\nb\n");
    // Options of a running session cannot change; the error says what to do.
    let changed = json!({"key": "k", "limits": {"memory": "700M"}});
    let refused = server.post("/v1/sessions", changed.clone()).await;
    refused.error(409, "session_differs");
    assert!(refused.to_string().contains("stop it first"), "{refused}");

    // Changed options are kept by the next server, and by requests that omit them.
    let installation = server.kill().await;
    let server = installation.serve().await;
    let session = Session::of(&server, &session.id);
    assert_eq!(server.post("/v1/sessions", other).await.json(200)["how"], "found");
    session.stop().await;
    let again = server.post("/v1/sessions", json!({"key": "k"})).await.json(200);
    assert_eq!((&again["limits"]["memory"], &again["ttl"]), (&json!(600 << 20), &json!(1234)));
    session.stop().await;
    let again = server.post("/v1/sessions", changed).await.json(200);
    assert_eq!(
        (&again["limits"]["memory"], &again["limits"]["pids"]),
        (&json!(700 << 20), &json!(99))
    );
    assert_eq!(session.shell("cat file; echo $A").await["stdout"], "kept\nb\n");
    // Invalid options are refused with a reason, and change nothing.
    session.stop().await;
    let message = server.post("/v1/sessions", json!({"key": "k", "checkpoints": true})).await;
    assert!(message.error(422, "invalid").contains("TMPFS"), "{message}");
    assert_eq!(session.show().await["state"], "stopped");
}

#[tokio::test]
async fn a_removed_session_is_gone_with_its_files() {
    let server = Server::start().await;
    for storage in ["BIND", "TMPFS"] {
        for state in ["busy", "hibernated", "stopped"] {
            let session = server.session_with(json!({"key": "k", "storage": storage})).await;
            session.shell("echo precious > file").await;
            let held = match state {
                "busy" => Some(session.hold("held").await),
                "hibernated" => {
                    server.post(&session.path("/hibernate"), json!({})).await.json(200);
                    assert_eq!(server.installation.sleepers(), [session.id.as_str()]);
                    None
                }
                _ => {
                    session.stop().await;
                    None
                }
            };
            let removed = purge(&server, &session).await;
            assert_eq!(
                (&removed["id"], &removed["state"]),
                (&json!(session.id), &json!("stopped"))
            );
            if let Some(held) = held {
                assert_eq!(held.result().await["status"], "interrupted");
            }
            for path in ["", "/log", "/execs/held"] {
                server.get(&session.path(path)).await.error(404, "session_not_found");
            }
            server.delete(&session.path("?purge")).await.error(404, "session_not_found");
            server.post(&session.path("/start"), json!({})).await.error(404, "session_not_found");
            assert_eq!(directories(&server), [""; 0], "{storage}, {state}");
            assert!(!server.path("sessions/by-key/k").is_symlink(), "{storage}, {state}");
            assert_eq!(server.installation.sleepers(), [""; 0], "{storage}, {state}");
            let listed = server.get("/v1/sessions?key=k").await.json(200);
            assert_eq!(listed["sessions"], json!([]));
        }
    }
    // The key is as if it had never been used.
    let made = server.post("/v1/sessions", json!({"key": "k", "storage": "BIND"})).await.json(201);
    assert_eq!((&made["how"], made.get("replaced")), (&json!("created"), None));
    let session = Session::of(&server, text(&made["id"]));
    server.delete(&session.path("?purge=perhaps")).await.error(422, "invalid");
    server.delete(&session.path("?purge=false")).await.json(200);
    assert!(directory(&server, &session).exists(), "stopped, and not removed");
    // Of several concurrent requests, one removes it.
    let removing = (0..5).map(|_| {
        let (client, path) = (server.client(), session.path("?purge=1"));
        tokio::spawn(async move { client.delete(&path).await.status })
    });
    let mut statuses = Vec::new();
    for status in removing.collect::<Vec<_>>() {
        statuses.push(status.await.expect("no panic"));
    }
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 404, 404, 404, 404]);
    eventually("all are in the audit log, of which one removed it", async || {
        let audit = server.installation.audit();
        let removing = audit.iter().filter(|entry| entry["action"] == "remove");
        let of_session = removing.filter(|entry| entry["session"] == session.id.as_str());
        let outcomes: Vec<&str> = of_session.map(|entry| text(&entry["outcome"])).collect();
        let removed = outcomes.iter().filter(|outcome| **outcome == "removed");
        (outcomes.len(), removed.count()) == (5, 1)
    })
    .await;
    server.installation.has_no_traces().await;
}

#[tokio::test]
async fn only_its_tenant_removes_a_session() {
    let (server, keys) =
        with_keys(&[&["--name", "a", "--tenant", "acme"], &["--name", "b", "--tenant", "bell"]])
            .await;
    let [acme, bell] = [0, 1].map(|n: usize| server.with_key(secret(&keys[n])));
    let session = acme.session_with(json!({"key": "k", "storage": "BIND"})).await;
    session.shell("echo precious > file").await;
    for _ in 0..2 {
        let path = session.path("?purge=true");
        let answer = bell.send(bell.request(Method::DELETE, &path, String::new())).await;
        answer.error(404, "session_not_found");
        assert_eq!(session.shell("cat file").await["stdout"], "precious\n");
        session.stop().await;
        acme.post("/v1/sessions", json!({"key": "k"})).await.json(200);
    }
    acme.delete(&session.path("?purge=true")).await.json(200);
}

#[tokio::test]
async fn files_on_disk_have_a_size_that_holds() {
    let server = Server::with(&[("BELLJAR_SESSION_SIZE", "16M")]).await;
    let made = server.post("/v1/sessions", json!({"key": "k", "storage": "BIND"})).await.json(201);
    assert_eq!(made.get("warnings"), None, "{made:#}");
    let session = Session::of(&server, text(&made["id"]));
    let image = directory(&server, &session).join("files.ext4");
    let taken = || fs::metadata(&image).expect("an image").blocks() * 512;
    assert!(taken() < 2 << 20, "an empty one takes {} bytes of the disk", taken());
    session.shell("echo kept > kept").await;
    let fill = "head -c 64M /dev/zero | tr '\\0' x > big; stat -c %s big";
    for _ in 0..2 {
        let filled = session.shell(fill).await;
        assert!(text(&filled["stderr"]).contains("No space left"), "{filled:#}");
        let size: u64 = text(&filled["stdout"]).trim().parse().expect("a number");
        assert!((15 << 20..18 << 20).contains(&size), "{size}");
        // An upload from outside gets an error too.
        let path = session.path("/files/more");
        let upload = server.send(server.request(Method::PUT, &path, "x".repeat(1 << 20))).await;
        upload.error(507, "no_room_inside");
        assert!(upload.to_string().contains("BELLJAR_SESSION_SIZE"), "{upload}");
        assert_eq!(session.python("6 * 7").await["status"], "ok");
        // A full session can be stopped, started and emptied.
        session.stop().await;
        let again = server.post("/v1/sessions", json!({"key": "k"})).await.json(200);
        assert_eq!(again["how"], "restarted");
        let emptied =
            session.shell("cat kept; rm big; sync; df -m --output=used . | tail -1").await;
        assert!(text(&emptied["stdout"]).starts_with("kept\n"), "{emptied:#}");
    }
    // Space that is freed inside is returned to the host's disk.
    eventually("the image is small again", async || taken() < 8 << 20).await;
    // The sandbox's user may use the whole file system.
    let many =
        session.shell("mkdir d; for n in $(seq 1000); do : > d/$n; done; ls d | wc -l").await;
    assert_eq!(many["stdout"], "1000\n", "{many:#}");
    purge(&server, &session).await;
    server.installation.has_no_traces().await;
}

#[tokio::test]
async fn a_fork_on_disk_has_files_of_its_own() {
    let server = Server::with(&[("BELLJAR_SESSION_SIZE", "32M")]).await;
    let session = server.session_with(json!({"storage": "BIND"})).await;
    session.python("x = 1; print('shared', file=open('file', 'w'))").await;
    let forked = server.post(&session.path("/fork"), json!({"count": 1})).await.json(201);
    let fork = Session::of(&server, text(&forked["sessions"][0]["id"]));
    assert_eq!(fork.shell("cat file; echo own > file").await["stdout"], "shared\n");
    assert_eq!(fork.printed("print(x)").await, "1\n");
    let filled = fork.shell("head -c 64M /dev/zero > big").await;
    assert!(text(&filled["stderr"]).contains("No space left"), "{filled:#}");
    purge(&server, &session).await;
    assert_eq!(fork.shell("cat file").await["stdout"], "own\n");
    assert_eq!(directories(&server), [fork.id.as_str()]);
}

#[tokio::test]
async fn plain_directories_go_on_and_are_said_not_to_be_enforced() {
    let installation = Installation::new().env("BELLJAR_SESSION_FILES", "directory");
    let installation = installation.env("BELLJAR_SESSION_SIZE", "4M");
    let server = Arc::new(installation).serve().await;
    let made = server.post("/v1/sessions", json!({"key": "k", "storage": "BIND"})).await.json(201);
    let session = Session::of(&server, text(&made["id"]));
    assert!(made["warnings"].to_string().contains("not enforced"), "{made:#}");
    session.shell("echo kept > kept; head -c 8M /dev/zero > big").await;
    let files = directory(&server, &session).join("files");
    assert_eq!(fs::read_to_string(files.join("kept")).expect("people can read it"), "kept\n");
    session.stop().await;
    // A session that is over its size can still be used, with a warning.
    let again = server.post("/v1/sessions", json!({"key": "k"})).await.json(200);
    assert!(again["warnings"].to_string().contains("more than 4194304 bytes"), "{again:#}");
    session.stop().await;

    // A server that would create images continues with the plain directory.
    let sessions = server.path("sessions").display().to_string();
    let state = server.path("state").display().to_string();
    let own = [("SESSIONS_ROOT", sessions.as_str()), ("BELLJAR_STATE_DIR", state.as_str())];
    let installation = Arc::clone(&server.installation);
    server.terminate().await;
    let newer = own
        .iter()
        .fold(Installation::new(), |installation, (name, value)| installation.env(name, value));
    let newer = Arc::new(newer).serve().await;
    let again = newer.post("/v1/sessions", json!({"key": "k"})).await.json(200);
    assert_eq!((&again["how"], &again["id"]), (&json!("restarted"), &json!(session.id)));
    assert!(again["warnings"].to_string().contains("plain directory"), "{again:#}");
    let session = Session::of(&newer, &session.id);
    assert_eq!(session.shell("cat kept").await["stdout"], "kept\n");
    session.stop().await;
    newer.terminate().await;

    // A strict server refuses it, because its limit is not enforced.
    let strict = own
        .iter()
        .fold(Installation::new(), |installation, (name, value)| installation.env(name, value));
    let strict = Arc::new(strict.env("BELLJAR_STRICT", "1")).serve().await;
    let refused = strict.post("/v1/sessions", json!({"key": "k"})).await;
    assert!(refused.error(409, "disk_not_enforced").contains("BELLJAR_STRICT"), "{refused}");
    strict.post("/v1/sessions", json!({"storage": "BIND"})).await.json(201);
    strict.terminate().await;
    assert!(files.join("kept").exists(), "and it is not lost");
    let soft = Installation::new().env("BELLJAR_STRICT", "1").env("SESSION_STORAGE", "BIND");
    let said = Arc::new(soft.env("BELLJAR_SESSION_FILES", "directory")).refusal().await;
    assert!(said.contains("not enforced") && said.contains("BELLJAR_STRICT"), "{said}");
    drop(installation);
}

#[tokio::test]
async fn old_sessions_are_removed_with_their_files_if_that_is_wanted() {
    let server = Server::with(&[("BELLJAR_SESSION_RETENTION", "2")]).await;
    let old = server.session_with(json!({"key": "old", "storage": "BIND"})).await;
    let alive = server.session_with(json!({"key": "alive", "storage": "BIND"})).await;
    alive.shell("echo kept > file").await;
    old.stop().await;
    let reply = old.show().await;
    assert!(text(&reply["kept_until"]) > text(&reply["ended"]), "{reply:#}");
    // A session that is used again is not old.
    server.post("/v1/sessions", json!({"key": "old"})).await.json(200);
    assert_eq!(old.show().await.get("kept_until"), None);
    old.stop().await;
    eventually("it is removed", async || !directory(&server, &old).exists()).await;
    eventually("it is forgotten", async || server.get(&old.path("")).await.status == 404).await;
    eventually("that is in the audit log", async || {
        server
            .installation
            .audit()
            .iter()
            .any(|entry| entry["action"] == "remove" && entry["session"] == old.id.as_str())
    })
    .await;
    assert_eq!(alive.shell("cat file").await["stdout"], "kept\n");
    let made = server.post("/v1/sessions", json!({"key": "old"})).await.json(201);
    assert_eq!(made["how"], "created");
}

#[tokio::test]
async fn a_size_of_files_in_memory_is_had_or_refused() {
    let server = Server::start().await;
    let made = server.post("/v1/sessions", json!({"limits": {"tmpfs": "1G"}})).await.json(201);
    let limits = &made["limits"];
    assert_eq!((&limits["tmpfs"], &limits["memory"]), (&json!(1 << 30), &json!(1366 << 20)));
    let session = Session::of(&server, text(&made["id"]));
    let size = session.shell("df -B1 --output=size /session | tail -1").await;
    assert_eq!(text(&size["stdout"]).trim(), (1 << 30).to_string());
    session.stop().await;
    let both = json!({"limits": {"tmpfs": "1G", "memory": "512M"}});
    for path in ["/v1/sessions", "/v1/run"] {
        let mut ask = both.clone();
        if path == "/v1/run" {
            ask["code"] = json!("1");
        }
        let message = server.post(path, ask).await.error(422, "invalid");
        assert!(message.contains("limits.tmpfs") && message.contains("1366 MiB"), "{message}");
    }
    server.terminate().await;
    let server = Server::with(&[("TMPFS_SIZE_MB", "1024")]).await;
    let run =
        json!({"code": "import os; s = os.statvfs('/session'); print(s.f_blocks * s.f_frsize)"});
    assert_eq!(server.post("/v1/run", run).await.json(200)["stdout"], format!("{}\n", 1 << 30));
    server.terminate().await;
    let small = Installation::new().env("TMPFS_SIZE_MB", "1024").env("BELLJAR_MEMORY", "512M");
    let said = Arc::new(small).refusal().await;
    assert!(said.contains("TMPFS_SIZE_MB=1024") && said.contains("1366 MiB"), "{said}");
}
