//! What hostile kernels can do with their own snapshots, and how many snapshots a tenant can have.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::keys::{secret, with_keys};
use belljar_testkit::installation::Installation;
use belljar_testkit::server::Server;
use belljar_testkit::session::Session;
use belljar_testkit::values::{names, text};

/// Ignores the host's request, keeps all descriptors that came with it, and sends a chosen answer.
const KEEP_AND_ANSWER: &str = r#"
import os, json, socket, belljar_kernel.snapshot as frozen
kept, answer, keep_pipes = [], b"", True
def talk(line, kernel):
    with line:
        _, fds, _, _ = socket.recv_fds(line, 1 << 17, 64)
        for fd in fds:
            if keep_pipes or os.path.isfile(f"/proc/self/fd/{fd}"):
                kept.append(os.dup(fd))
            os.close(fd)
        if answer:
            line.send(answer)
frozen.talk = talk
"#;

/// Tries every way to fill the kept descriptors, and prints how much disk space that takes.
const FILL: &str = r#"
import ctypes, errno, signal, stat
libc = ctypes.CDLL(None, use_errno=True)
signal.signal(signal.SIGPIPE, signal.SIG_IGN)
MORE = 32 << 20
def tried(fd):
    os.set_blocking(fd, False)
    for act in (lambda: os.pwrite(fd, bytes(MORE), 0), lambda: os.write(fd, bytes(MORE)),
                lambda: os.truncate(fd, MORE), lambda: os.posix_fallocate(fd, 0, MORE)):
        try: act()
        except OSError: pass
    KEEP_SIZE = 1
    libc.fallocate(fd, KEEP_SIZE, ctypes.c_long(0), ctypes.c_long(MORE))
def again(fd):
    try: return [os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_NONBLOCK)]
    except OSError: return []
files = [fd for fd in kept if stat.S_ISREG(os.fstat(fd).st_mode)]
for fd in list(kept) + [new for fd in kept for new in again(fd)]: tried(fd)
taken = {os.fstat(fd).st_ino: os.fstat(fd).st_blocks * 512 for fd in files}
print(sum(taken.values()) - common)
"#;

async fn hibernate(session: &Session, force: bool) -> belljar_testkit::client::Answer {
    session.client.post(&session.path("/hibernate"), json!({"force": force})).await
}

/// Disk space of the sessions' snapshots. Each file counts once; layers common to all sessions do
/// not count.
fn on_disk(frozen: &Path) -> u64 {
    const COMMON: u64 = 1 << 62;
    let mut files = HashMap::new();
    for snapshots in names(frozen).iter().filter(|name| *name != "commons") {
        for name in names(&frozen.join(snapshots)) {
            let id: u64 = name.split('.').next().and_then(|id| id.parse().ok()).expect("a number");
            let metadata = std::fs::metadata(frozen.join(snapshots).join(&name)).expect("a file");
            if id & COMMON == 0 {
                files.insert(metadata.ino(), metadata.blocks() * 512);
            }
        }
    }
    files.values().sum()
}

#[tokio::test]
async fn a_kernel_that_lies_keeps_nothing_of_the_disk() {
    let server = Server::start().await;
    let session = server.session().await;
    // All kernels may read the common layers. This fork creates them.
    session.client.post(&session.path("/fork"), json!({})).await.json(201);
    session.python(KEEP_AND_ANSWER).await;
    let before = on_disk(&server.installation.frozen());
    let answers = [
        (r#"b'{"refused": ["no"]}'"#, "True", "not_quiescent"),
        (r#"b'{"bytes": 1, "layers": [1]}'"#, "False", "not_kept"),
        (r#"b'nonsense'"#, "True", "not_kept"),
        (r#"b''"#, "True", "not_kept"),
    ];
    for (answer, keep_pipes, code) in answers {
        session.python(&format!("answer, keep_pipes = {answer}, {keep_pipes}")).await;
        hibernate(&session, false).await.error(409, code);
    }
    let common =
        "common = sum({os.fstat(fd).st_ino: os.fstat(fd).st_blocks * 512 for fd in kept}.values())";
    session.python(common).await;
    assert_eq!(session.printed(FILL).await, "0\n", "bytes of the disk that it has taken");
    // The kernel still holds files open for reading. They are empty, and still listed.
    let left = names(&server.installation.frozen().join(&session.id));
    assert!(left.iter().filter(|name| name.ends_with(".pages")).count() > 1, "{left:?}");
    assert!(on_disk(&server.installation.frozen()) <= before + (64 << 10), "{left:?}");
    session.stop().await;
}

#[tokio::test]
async fn layers_that_a_kernel_does_not_let_go_of_count_for_its_tenant() {
    let installation = Arc::new(Installation::new().env("BELLJAR_TENANT_SNAPSHOT_SIZE", "40M"));
    let (mine, other) = (
        installation.key(&["--name", "a", "--tenant", "a"]),
        installation.key(&["--name", "b", "--tenant", "b"]),
    );
    let server = installation.serve().await;
    let session = server.with_key(secret(&mine)).session_with(json!({})).await;
    // The kernel obeys, but keeps a descriptor of the layer.
    session
        .python(
            "import os, belljar_kernel.snapshot as frozen\nkept, really = [], frozen._freeze\n\
             def freeze(request, fds, kernel, line):\n    kept.append(os.dup(fds[1]))\n    \
             return really(request, fds, kernel, line)\nfrozen._freeze = freeze",
        )
        .await;
    let mut forks = 0;
    let refused = loop {
        session.python("x = os.urandom(8 << 20)").await;
        let forked = session.client.post(&session.path("/fork"), json!({})).await;
        if forked.status != 201 {
            break forked;
        }
        let fork = forked.json(201)["sessions"][0]["id"].clone();
        Session::of(&session.client, text(&fork)).stop().await;
        forks += 1;
        assert!(forks < 8, "8 MiB each are within 40 MiB");
    };
    assert!(forks >= 2, "only {forks} forks");
    let message = refused.error(507, "snapshots_full");
    let on_disk = on_disk(&installation.frozen());
    assert!(on_disk < (40 << 20) + (64 << 10), "{on_disk} bytes on the disk");
    assert!(message.contains("this tenant's limit of 41943040 bytes"), "{message}");
    let held =
        "print(sum({os.fstat(fd).st_ino: os.fstat(fd).st_blocks * 512 for fd in kept}.values()))";
    let held: u64 = session.printed(held).await.trim().parse().expect("a number");
    assert!(held <= on_disk, "{held} bytes are held, of which {on_disk} are to be seen");

    // Other tenants are not affected.
    let theirs = server.with_key(secret(&other)).session_with(json!({})).await;
    theirs.python("x = 7").await;
    hibernate(&theirs, false).await.json(200);
    // When the session ends, its layers are freed, and its tenant has space again.
    session.stop().await;
    let again = server.with_key(secret(&mine)).session_with(json!({})).await;
    again.python("y = 1").await;
    hibernate(&again, false).await.json(200);
    assert_eq!(again.printed("print(y)").await, "1\n");
    assert_eq!(theirs.printed("print(x)").await, "7\n");
}

#[tokio::test]
async fn a_snapshot_never_takes_more_than_there_is_and_says_whose_limit_it_was() {
    let env = [("BELLJAR_TENANT_SNAPSHOT_SIZE", "24M"), ("BELLJAR_SNAPSHOT_SIZE", "300M")];
    let server = Server::with(&env).await;
    let session = server.session().await;
    session.python("import os; x = os.urandom(40 << 20)").await;
    let message = hibernate(&session, false).await.error(507, "snapshots_full");
    assert!(message.contains("limit of 25165824 bytes"), "{message}");
    assert!(on_disk(&server.installation.frozen()) <= 24 << 20);
    // The session continues unchanged.
    assert_eq!(session.printed("print(len(x))").await, "41943040\n");
    session.python("del x").await;
    hibernate(&session, false).await.json(200);
    let figures: Value = session.client.get("/v1/sessions").await.json(200);
    assert!(!figures.to_string().contains("25165824"));
}

#[tokio::test]
async fn sleeping_sessions_have_a_limit_that_a_restart_remembers() {
    let (server, keys) = with_keys(&[
        &["--name", "one", "--tenant", "a", "--max-sessions", "1"],
        &["--name", "two", "--tenant", "b", "--max-sessions", "1", "--max-sleeping", "2"],
    ])
    .await;
    let put_to_sleep = async |client: &belljar_testkit::client::Client, count: usize| {
        for _ in 0..count {
            let session = client.session_with(json!({})).await;
            hibernate(&session, true).await.json(200);
        }
        let last = client.session_with(json!({})).await;
        let message = hibernate(&last, true).await.error(429, "no_room");
        let expected =
            format!("this tenant's limit of {count} sleeping sessions is reached ({count} in use)");
        assert!(message.contains(&expected), "{message}");
        assert_eq!(last.show().await["state"], "ready");
        last
    };
    put_to_sleep(&server.with_key(secret(&keys[0])), 1).await.stop().await;
    put_to_sleep(&server.with_key(secret(&keys[1])), 2).await.stop().await;
    let server = server.kill().await.serve().await;
    let client = server.with_key(secret(&keys[0]));
    let session = client.session_with(json!({})).await;
    hibernate(&session, true).await.error(429, "no_room");
    // A session that wakes or ends makes room.
    session.stop().await;
    let list = client.get("/v1/sessions").await.json(200);
    let all = list["sessions"].as_array().expect("a list").iter();
    let asleep = all.filter(|it| it["state"] == "hibernated").map(|it| text(&it["id"]));
    for id in asleep {
        Session::of(&client, id).stop().await;
    }
    let session = client.session_with(json!({})).await;
    hibernate(&session, true).await.json(200);
}

#[tokio::test]
async fn a_kernel_names_only_layers_that_it_was_given() {
    let server = Server::start().await;
    let session = server.session().await;
    session
        .python(
            "import belljar_kernel.snapshot as frozen\nx, really = 5, frozen._write\n\
             def write(*args):\n    done = really(*args)\n    \
             if done: done['layers'] = claimed(done['layers'])\n    return done\n\
             frozen._write = write\nclaimed = lambda layers: layers * 3000",
        )
        .await;
    hibernate(&session, false).await.json(200);
    let snapshots = server.installation.frozen().join(&session.id);
    let manifest = names(&snapshots).into_iter().find(|name| name.ends_with(".json")).expect("one");
    let manifest: Value =
        serde_json::from_slice(&std::fs::read(snapshots.join(manifest)).expect("a file"))
            .expect("JSON");
    let layers = manifest["layers"].as_array().map(Vec::len);
    assert!(layers.is_some_and(|count| count <= 2), "{manifest:#}");
    assert_eq!(session.printed("print(x)").await, "5\n");
    session.python("claimed = lambda layers: list(range(7000))").await;
    let message = hibernate(&session, false).await.error(409, "not_kept");
    assert!(message.contains("layers that it was not given"), "{message}");
    assert_eq!(session.printed("print(x)").await, "5\n");
}

#[tokio::test]
async fn one_that_cannot_be_woken_is_its_owners_affair() {
    let server = Server::start().await;
    let session = server.session().await;
    session.python("x = 1").await;
    hibernate(&session, false).await.json(200);
    let snapshots = server.installation.frozen().join(&session.id);
    for name in names(&snapshots).iter().filter(|name| name.ends_with(".index")) {
        std::fs::write(snapshots.join(name), "nonsense").expect("a file");
    }
    let fork = session.client.post(&session.path("/fork"), json!({})).await;
    let message = fork.error(409, "not_woken");
    assert!(message.contains("failed to restore the kernel"), "{message}");
    assert_eq!(session.show().await["state"], "hibernated");
}
