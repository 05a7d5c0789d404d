//! Attacks on what sessions share with the server: the connection over which a kernel is
//! snapshotted, terminals, volumes. Each attack affects only the attacker's own session.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::backend::{Backend, BackendSite};
use belljar_testkit::client::Client;
use belljar_testkit::session::Session;
use belljar_testkit::terminal::{self, TerminalClient};
use belljar_testkit::values::text;

/// The longest time that a request of another session may take during an attack.
const UNDISTURBED: Duration = Duration::from_secs(5);

/// False answers of a kernel to the request for a snapshot. Each replaces the kernel's function that answers the host.
const LIES: [(&str, &str); 7] = [
    ("nothing", "line.recv(65536)"),
    ("garbage", "line.recv(65536); line.send(bytes(range(256)) * 64)"),
    ("done, and wrote nothing", "line.recv(65536); line.send(b'{}')"),
    (
        "impossible sizes",
        "line.recv(65536); line.send(json.dumps({name: 2 ** 63 - 1 for name in \
         ('pages', 'bytes', 'written', 'size', 'layer', 'index', 'lost')}).encode())",
    ),
    (
        "nested",
        "line.recv(65536); line.send(b'{\"refused\": ' + b'[' * 30000 + b']' * 30000 + b'}')",
    ),
    (
        "descriptors",
        "line.recv(65536); socket.send_fds(line, [b'{}'], \
         [os.open('/dev/zero', os.O_RDONLY) for _ in range(60)] + list(os.pipe()))",
    ),
    (
        "junk in the files",
        "packet, fds, _, _ = socket.recv_fds(line, 65536, 64)\n    \
         for fd in fds:\n        \
         try: os.write(fd, b'junk' * 5000)\n        \
         except OSError: pass\n    \
         line.send(b'{}')",
    ),
];

pub(crate) async fn a_lying_kernel_deceives_no_other_session(on: Backend) {
    let site = on.site(&[]);
    let server = site.serve().await;
    let other = server.session().await;
    other.python("mine = 42").await;
    let hibernate =
        async |session: &Session| session.client.post(&session.path("/hibernate"), json!({})).await;
    let mut session = server.session().await;
    for (lie, reply) in LIES {
        let replace = format!(
            "import json, os, socket, belljar_kernel.snapshot as frozen\n\
             def talk(line, kernel):\n    {reply}\n    line.close()\n\
             frozen.talk = talk"
        );
        let replaced = session.python(&replace).await;
        assert_eq!(replaced["status"], "ok", "{lie}: {replaced:#}");
        let answer = hibernate(&session).await;
        // An invalid snapshot is detected now, or when the session wakes. In the second case the
        // session has a fresh kernel, and the result reports that.
        if answer.status == 200 {
            let woken = session.exec(json!({"code": "print(6 * 7)"})).await.json(200);
            assert_eq!(woken["kernel_state"], "lost", "{lie}: {woken:#}");
            assert!(text(&woken["reason"]).contains("could not be woken"), "{lie}: {woken:#}");
        } else {
            assert!((400..600).contains(&answer.status), "{lie}: {answer}");
        }
        let begun = Instant::now();
        assert_eq!(server.get("/healthz").await.status, 200);
        assert_eq!(other.printed("print(mine)").await, "42\n", "{lie}");
        assert!(begun.elapsed() < UNDISTURBED, "{lie}: {:?}", begun.elapsed());
        if session.show().await["state"] != "ready" {
            session.client.delete(&session.path("")).await;
            session = server.session().await;
        }
    }
    session.stop().await;
    // None of these snapshots is kept, and no other session is harmed.
    let slept = hibernate(&other).await;
    if on == Backend::Runsc {
        slept.error(501, "not_with_this_runtime");
    } else {
        slept.json(200);
        assert_eq!(site.installation.sleepers(), [other.id.as_str()]);
    }
    assert_eq!(other.printed("print(mine)").await, "42\n");
}

/// Attaches to a terminal with the client's key, or returns the refusal.
async fn sit(
    client: &Client,
    session: &Session,
    query: &str,
) -> Result<TerminalClient, (u16, String)> {
    let key = format!("Bearer {}", client.key.as_deref().expect("a key"));
    let connected = terminal::connect(client, session, query, &[("authorization", &key)]).await;
    let socket = connected.map_err(|refusal| {
        let body = refusal.body().clone().unwrap_or_default();
        (refusal.status().as_u16(), String::from_utf8_lossy(&body).into_owned())
    })?;
    let mut terminal =
        TerminalClient { socket, id: String::new(), position: 0, seen: String::new() };
    text(&terminal.reply().await["terminal"]).clone_into(&mut terminal.id);
    Ok(terminal)
}

async fn seated(client: &Client, session: &Session, query: &str) -> TerminalClient {
    sit(client, session, query).await.expect("a terminal")
}

/// Terminals of other tenants, injected keys, too many terminals, and endless output to a client that does not read.
pub(crate) async fn terminals_stay_within_their_session(on: Backend) {
    let installation = std::sync::Arc::new(on.installation());
    let keys =
        ["one", "two"].map(|tenant| installation.key(&["--name", tenant, "--tenant", tenant]));
    let site = BackendSite { backend: on, installation };
    let server = site.serve().await;
    let [one, two] = keys.map(|key| server.with_key(text(&key["secret"])));
    // gVisor has its own threads for every process, and ends a sandbox that has too many.
    let limits =
        if on == Backend::Runsc { json!({"memory": "1G", "pids": 1000}) } else { json!({}) };
    let session = one.session_with(json!({"limits": limits})).await;
    let victim = two.session_with(json!({})).await;

    // Terminals of another tenant cannot be seen, not even by their id.
    let mut terminal = seated(&two, &victim, "").await;
    terminal.until("$ ").await;
    let foreign = Session::of(&one, &victim.id);
    one.get(&foreign.path("/terminals")).await.error(404, "session_not_found");
    let by_name = format!("terminal={}", terminal.id);
    for (whose, code) in [(&foreign, "session_not_found"), (&session, "terminal_not_found")] {
        let (status, body) = sit(&one, whose, &by_name).await.err().expect("a refusal");
        assert!(status == 404 && body.contains(code), "{status} {body}");
    }
    for name in ["..%2F..%2Fetc", "%2e%2e", "%0a", "0%00"] {
        let answer = one.delete(&session.path(&format!("/terminals/{name}"))).await;
        assert!([400, 404, 422].contains(&answer.status), "{name}: {answer}");
    }

    // Code cannot inject keys that were not typed.
    let mut own = seated(&one, &session, "").await;
    own.until("$ ").await;
    own.press("tty\n").await;
    own.until("/dev/pts/").await;
    let number = own.until("\r\n").await;
    let inject = format!(
        "import fcntl, os, termios\n\
         fd = os.open('/dev/pts/{}', os.O_RDWR | os.O_NOCTTY)\n\
         def press(key):\n\
         \x20   try: fcntl.ioctl(fd, termios.TIOCSTI, key); return True\n\
         \x20   except OSError: return False\n\
         print([press(bytes([key])) for key in b'id\\n'])",
        number.trim()
    );
    assert_eq!(session.printed(&inject).await, "[False, False, False]\n");

    // The number of terminals is limited.
    let mut seats = vec![own];
    let (status, body) = loop {
        assert!(seats.len() <= 64, "there is no end of terminals");
        match sit(&one, &session, "").await {
            Ok(terminal) => seats.push(terminal),
            Err(refusal) => break refusal,
        }
    };
    assert!(status == 429 && body.contains("too_many_terminals"), "{status} {body}");
    for terminal in &seats {
        let path = session.path(&format!("/terminals/{}", terminal.id));
        assert_eq!(one.delete(&path).await.status, 204);
    }
    drop(seats);

    // Output that is not read is bounded, and other sessions are served.
    let before = server.rss();
    let flood = seated(&one, &session, "command=yes%20aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa").await;
    for round in 0..10 {
        let begun = Instant::now();
        assert_eq!(victim.printed("print(6 * 7)").await, "42\n");
        assert!(begun.elapsed() < UNDISTURBED, "{round}: {:?}", begun.elapsed());
        terminal.press(format!("echo ro''und {round}\n")).await;
        terminal.until(&format!("round {round}\r\n")).await;
    }
    let grown = server.rss().saturating_sub(before);
    assert!(grown < 64 << 20, "the server grew by {} MiB", grown >> 20);
    drop(flood);
}

/// The writer of a volume decides what others find in it, but not what they can do.
pub(crate) async fn what_lies_in_a_volume_gives_no_rights(on: Backend) {
    let installation = std::sync::Arc::new(on.installation());
    let keys =
        ["one", "two"].map(|tenant| installation.key(&["--name", tenant, "--tenant", tenant]));
    let site = BackendSite { backend: on, installation };
    let server = site.serve().await;
    let [one, two] = keys.map(|key| server.with_key(text(&key["secret"])));
    let canary = server.path("canary");
    std::fs::write(&canary, "c4nary").expect("a file");
    one.post("/v1/volumes", json!({"name": "shared", "size": "32M"})).await.json(201);
    let using = async |mode: &str| one.session_with(json!({"volumes": {"shared": mode}})).await;
    let (writer, reader) = (using("rw").await, using("ro").await);
    // Another tenant cannot use, see or remove the volume.
    let stolen = two.post("/v1/sessions", json!({"volumes": {"shared": "ro"}})).await;
    stolen.error(404, "volume_not_found");
    two.get("/v1/volumes/shared").await.error(404, "volume_not_found");
    assert_eq!(two.delete("/v1/volumes/shared").await.status, 404);

    let plant = format!(
        "import os, shutil, socket, stat\n\
         os.chdir('/volumes/shared')\n\
         shutil.copy(shutil.which('id'), 'id'); os.chmod('id', 0o6755)\n\
         os.symlink('{canary}', 'canary'); os.symlink('/proc/1/root', 'root'); os.symlink('/etc', 'etc')\n\
         os.symlink('../../../../../../../../{canary}', 'up'); os.symlink('loop', 'loop')\n\
         os.mkfifo('pipe'); open('new\\nline', 'w').close()\n\
         deep = '/'.join(['d' * 50] * 40); os.makedirs(deep)\n\
         for name, kind in (('null', (1, 3)), ('mem', (1, 1)), ('disk', (8, 0))):\n\
         \x20   try: os.mknod(name, stat.S_IFCHR | 0o666 if name != 'disk' else stat.S_IFBLK | 0o666, os.makedev(*kind))\n\
         \x20   except OSError: pass\n\
         for name in ('/etc/passwd', '/proc/self/exe'):\n\
         \x20   try: os.link(name, 'hard'); print('linked', name)\n\
         \x20   except OSError: pass\n\
         open('data', 'w').write('as it was')",
        canary = canary.display()
    );
    assert_eq!(writer.printed(&plant).await, "");
    let look = "import os, stat, subprocess\n\
         os.chdir('/volumes/shared')\n\
         def attempt(act):\n\
         \x20   try: return act()\n\
         \x20   except OSError: return None\n\
         print(attempt(lambda: open('canary').read()), attempt(lambda: open('up').read()), attempt(lambda: open('loop').read()))\n\
         print([name for name in ('null', 'mem', 'disk') if attempt(lambda: os.open(name, os.O_RDONLY | os.O_NONBLOCK)) is not None])\n\
         print(subprocess.run(['./id', '-u'], capture_output=True, text=True).stdout.strip() in ('1000', ''))\n\
         held = os.open('data', os.O_RDONLY)\n\
         print(attempt(lambda: os.open(f'/proc/self/fd/{held}', os.O_WRONLY)), attempt(lambda: os.ftruncate(held, 0)))\n\
         print(attempt(lambda: os.fchmod(held, 0o777)), attempt(lambda: os.utime('data')), attempt(lambda: os.unlink('data')))\n\
         print(open('data').read())";
    let expected = "None None None\n[]\nTrue\nNone None\nNone None None\nas it was\n";
    assert_eq!(reader.printed(look).await, expected);
    // The server does not follow these links either, neither to read nor to remove.
    let through_root = format!("root{}", canary.display());
    for name in ["canary", "up", &through_root, "pipe"] {
        let read = one.get(&reader.path(&format!("/files//volumes/shared/{name}"))).await;
        assert!((400..500).contains(&read.status), "{name}: {read}");
    }
    assert_eq!(writer.printed("print(open('data').read())").await, "as it was\n");
    for session in [writer, reader] {
        session.stop().await;
    }
    assert_eq!(one.delete("/v1/volumes/shared").await.status, 204);
    assert_eq!(std::fs::read_to_string(canary).expect("it is there"), "c4nary");
    site.has_no_traces().await;
}
