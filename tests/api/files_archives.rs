//! Directories as archives: download and upload.

use hyper::Method;
use serde_json::json;

use crate::files::{at, get, put};
use belljar_testkit::client::Answer;
use belljar_testkit::server::Server;
use belljar_testkit::session::Session;

/// Everything about a tree that an archive keeps.
const LOOK: &str =
    "find . -printf '%P %y %m %l ' -type f -exec md5sum {} \\; -o -printf '\\n' | sort";

async fn tree(session: &Session, path: &str) -> String {
    let seen = session.shell(&format!("cd {path} && {LOOK}")).await;
    assert_eq!(seen["exit_code"], 0, "{seen:#}");
    seen["stdout"].as_str().expect("text").replace(" ./", " ")
}

async fn unpack(server: &Server, session: &Session, path: &str, archive: Vec<u8>) -> Answer {
    put(server, session, path, archive).await
}

const MAKE: &str = "mkdir -p t/a/'b c'/gr\u{fc}n t/empty; cd t; seq 100000 > a/numbers; echo '#!/bin/sh' > run; \
    chmod 755 run; chmod 700 a; ln -s a/numbers link; ln -s /etc/passwd out; ln run hard; : > a/'b c'/none; \
    mkfifo pipe; n=$(printf 'x%.0s' $(seq 200)); mkdir $n; touch $n/$n";

#[tokio::test]
async fn a_directory_goes_out_and_comes_back() {
    let server = Server::start().await;
    let session = server.session().await;
    session.shell(MAKE).await;
    for format in ["tar", "tar.gz", "zip"] {
        let archive = get(&server, &session, &format!("t?archive={format}")).await;
        assert_eq!(archive.status, 200, "{archive}");
        let path = format!("back-{format}?archive={format}");
        let back = unpack(&server, &session, &path, archive.body.to_vec()).await.json(200);
        assert_eq!(
            (&back["skipped"], &back["path"]),
            (&json!(0), &json!(format!("back-{format}")))
        );
        session.shell("rm -f t/pipe").await;
        let seen = tree(&session, &format!("back-{format}")).await;
        assert_eq!(seen, tree(&session, "t").await, "{format}");
        session.shell("mkfifo t/pipe").await;
        // Other programs can read our archives, and we can read theirs.
        let other = match format {
            "zip" => {
                "python3 -m zipfile -e in.zip o-zip; cd t; python3 - <<'E'\nimport zipfile, os\nz = zipfile.ZipFile('/session/theirs.zip', 'w', zipfile.ZIP_DEFLATED)\nfor d, _, names in os.walk('.'):\n  for n in names:\n    if n != 'pipe' and not os.path.islink(os.path.join(d, n)): z.write(os.path.join(d, n))\nz.close()\nE"
            }
            "tar" => "mkdir o-tar; tar xf in.tar -C o-tar; tar cf theirs.tar -C t .",
            _ => "mkdir o-tar.gz; tar xzf in.tar.gz -C o-tar.gz; tar czf theirs.tar.gz -C t .",
        };
        put(&server, &session, &format!("in.{format}"), archive.body.clone()).await.json(200);
        assert_eq!(session.shell(other).await["exit_code"], 0, "{format}");
        assert_eq!(
            session.shell(&format!("cmp o-{format}/a/numbers t/a/numbers")).await["exit_code"],
            0
        );
        let theirs = get(&server, &session, &format!("theirs.{format}")).await.body.to_vec();
        let report =
            unpack(&server, &session, &format!("theirs-{format}?archive={format}"), theirs)
                .await
                .json(200);
        assert!(report["entries"].as_u64().expect("a number") >= 5, "{report:#}");
        assert_eq!(
            session.shell(&format!("cmp theirs-{format}/a/numbers t/a/numbers")).await["exit_code"],
            0
        );
    }
    // An empty directory is an archive too, and unpacking overwrites existing files.
    let empty = get(&server, &session, "t/empty?archive=tar").await.body.to_vec();
    assert_eq!(unpack(&server, &session, "e?archive=tar", empty).await.json(200)["entries"], 0);
    // Some programs pad the last block; unpacking does not wait for the padding.
    let mut padded = get(&server, &session, "t/a?archive=tar").await.body.to_vec();
    padded.resize(padded.len() + (4 << 20), 0);
    assert_eq!(unpack(&server, &session, "p?archive=tar", padded).await.json(200)["entries"], 4);
    let again = get(&server, &session, "t?archive=tar").await.body.to_vec();
    session.shell("echo other > back-tar/run; rm back-tar/link; echo mine > back-tar/link").await;
    unpack(&server, &session, "back-tar?archive=tar", again).await.json(200);
    assert_eq!(
        session.shell("cat back-tar/run; readlink back-tar/link").await["stdout"],
        "#!/bin/sh\na/numbers\n"
    );
    let left = session.shell("find /session /tmp -name '*.part' 2>/dev/null").await;
    assert_eq!(left["stdout"], "", "{left:#}");
}

#[tokio::test]
async fn archives_that_lead_out_or_are_none_are_refused() {
    let server = Server::start().await;
    let session = server.session().await;
    let hostile = r#"
import tarfile, zipfile, io, os
os.makedirs('/session/in', exist_ok=True); os.makedirs('/session/safe', exist_ok=True)
def tar(name, *members):
    with tarfile.open(f'/session/in/{name}.tar', 'w') as t:
        for kind, path, target in members:
            m = tarfile.TarInfo(path); m.type = kind; m.linkname = target or ''
            data = b'evil'
            if kind == tarfile.REGTYPE: m.size = len(data); t.addfile(m, io.BytesIO(data))
            else: t.addfile(m)
R, S, L, D = tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE
tar('dots', (R, '../escaped', None))
tar('absolute', (R, '/session/escaped', None))
tar('deep', (R, 'a/../../escaped', None))
tar('through', (S, 'way', '/session'), (R, 'way/escaped', None))
tar('throughdir', (S, 'way', '/session'), (D, 'way/escaped', None))
tar('hard', (L, 'mine', '../safe/kept'), (R, 'mine', None))
tar('hardlink', (S, 'way', '/session/safe'), (L, 'mine', 'way/kept'))
tar('device', (tarfile.CHRTYPE, 'null', None), (tarfile.FIFOTYPE, 'fifo', None), (R, 'fine', None))
for name, path in [('zdots', '../escaped'), ('zabs', '/session/escaped'), ('zdeep', 'a/../../escaped')]:
    with zipfile.ZipFile(f'/session/in/{name}.zip', 'w') as z: z.writestr('first', 'x'); z.writestr(path, 'evil')
with zipfile.ZipFile('/session/in/zlink.zip', 'w') as z:
    i = zipfile.ZipInfo('way'); i.external_attr = 0o120777 << 16; i.create_system = 3; z.writestr(i, '/session'); z.writestr('way/escaped', 'evil')
open('/session/safe/kept', 'w').write('kept')
"#;
    let made = session.python(hostile).await;
    assert_eq!(made["status"], "ok", "{made:#}");
    let fetch =
        async |name: &str| get(&server, &session, &format!("in/{name}")).await.body.to_vec();
    for name in ["dots", "absolute", "deep", "hard"] {
        let archive = fetch(&format!("{name}.tar")).await;
        let why = unpack(&server, &session, "out?archive=tar", archive).await.error(422, "invalid");
        assert!(why.contains("leads out of the directory"), "{name}: {why}");
    }
    for name in ["through", "throughdir", "hardlink"] {
        let archive = fetch(&format!("{name}.tar")).await;
        unpack(&server, &session, "out?archive=tar", archive).await.error(409, "not_a_directory");
        session.shell("rm -rf out").await;
    }
    for name in ["zdots", "zabs", "zdeep"] {
        let archive = fetch(&format!("{name}.zip")).await;
        let why =
            unpack(&server, &session, "zout?archive=zip", archive).await.error(422, "invalid");
        assert!(why.contains("leads out of the directory"), "{name}: {why}");
    }
    assert_eq!(session.shell("ls -A zout").await["stdout"], "", "nothing was made");
    let archive = fetch("zlink.zip").await;
    unpack(&server, &session, "zout?archive=zip", archive).await.error(409, "not_a_directory");
    let devices =
        unpack(&server, &session, "dev?archive=tar", fetch("device.tar").await).await.json(200);
    assert_eq!((&devices["entries"], &devices["skipped"]), (&json!(1), &json!(2)));
    assert_eq!(session.shell("ls -d escaped; cat safe/kept").await["stdout"], "kept");

    // Invalid and truncated archives are reported.
    let whole = get(&server, &session, "in?archive=tar.gz").await.body.to_vec();
    for (format, archive) in [
        ("tar", b"nonsense that is no archive at all, whatever it may be".to_vec()),
        ("tar.gz", b"nonsense".to_vec()),
        ("tar.gz", whole[..whole.len() / 2].to_vec()),
        ("zip", b"nonsense".to_vec()),
        ("zip", Vec::new()),
    ] {
        let path = format!("broken?archive={format}");
        unpack(&server, &session, &path, archive).await.error(422, "invalid");
    }
    get(&server, &session, "none?archive=tar").await.error(404, "file_not_found");
    get(&server, &session, "safe/kept?archive=tar").await.error(409, "not_a_directory");
    get(&server, &session, "safe?archive=rar").await.error(422, "invalid");
    get(&server, &session, "/proc?archive=tar").await.error(409, "not_permitted_inside");
    unpack(&server, &session, "safe/kept?archive=tar", Vec::new()).await.error(409, "exists");
    unpack(&server, &session, "/usr/x?archive=tar", Vec::new())
        .await
        .error(409, "not_permitted_inside");
    session.shell("mkdir closed; touch closed/x; chmod 0 closed/x").await;
    get(&server, &session, "closed?archive=tar").await.error(409, "not_permitted_inside");
    // An archive that does not fit is an error, and the session survives it.
    let small = server.session_with(json!({"limits": {"tmpfs": "8M"}})).await;
    let bomb = "import tarfile, io\nm = tarfile.TarInfo('big'); m.size = 64 << 20\nwith tarfile.open('/tmp/b.tgz', 'w:gz') as t: t.addfile(m, io.BytesIO(bytes(m.size)))";
    small.python(bomb).await;
    let bomb = get(&server, &small, "/tmp/b.tgz").await.body.to_vec();
    unpack(&server, &small, "x?archive=tar.gz", bomb).await.error(507, "no_room_inside");
    assert_eq!(small.printed("print('alive')").await, "alive\n");
}

#[tokio::test]
async fn archives_of_any_size_take_no_memory() {
    let server = Server::start().await;
    let session = server.session().await;
    session.shell("mkdir big; truncate -s 256M big/zeros").await;
    let mut wire = server.connect().await;
    let before = server.rss();
    let answer = tokio::time::timeout(
        std::time::Duration::from_secs(60),
        wire.send(server.request(Method::GET, &at(&session, "big?archive=tar.gz"), "")),
    );
    let packed = answer.await.expect("in time");
    assert_eq!(packed.status, 200);
    assert!(server.rss().saturating_sub(before) < 32 << 20);
    let session = server.session_with(json!({"storage": "BIND"})).await;
    let before = server.rss();
    let answer = unpack(&server, &session, "back?archive=tar.gz", packed.body.to_vec()).await;
    assert_eq!(answer.json(200)["bytes"], 256 << 20);
    assert!(server.rss().saturating_sub(before) < 32 << 20);
}
