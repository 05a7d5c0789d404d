//! Volumes: shared by sessions, read-only or writable, bounded, and kept after sessions and servers end.

use std::fs;
use std::time::Duration;

use belljar_sys::privileges;
use serde_json::{Value, json};

use crate::backend::Backend;
use belljar_testkit::server::Server;
use belljar_testkit::session::Session;
use belljar_testkit::values::{names, text};
use belljar_testkit::wait::eventually;

async fn make(server: &Server, name: &str, size: &str) -> Value {
    server.post("/v1/volumes", json!({"name": name, "size": size})).await.json(201)
}

async fn using(server: &Server, volumes: Value) -> Session {
    server.session_with(json!({"volumes": volumes})).await
}

/// Code that tries something and prints `done`, or the name of the error.
fn attempt(code: &str) -> String {
    format!(
        "import errno, os\n\
         try:\n    {code}\n    print('done')\n\
         except OSError as e: print(errno.errorcode[e.errno])"
    )
}

pub(crate) async fn volumes_are_shared(on: Backend) {
    let site = on.site(&[]);
    let server = site.serve().await;
    make(&server, "shared", "8M").await;
    make(&server, "other", "8M").await;
    let one = using(&server, json!({"shared": "rw", "other": "rw"})).await;
    let two = using(&server, json!({"shared": "rw"})).await;
    let reader = using(&server, json!({"shared": "ro"})).await;
    assert_eq!(
        one.printed("import os; print(sorted(os.listdir('/volumes')))").await,
        "['other', 'shared']\n"
    );
    assert_eq!(two.printed("import os; print(os.listdir('/volumes'))").await, "['shared']\n");

    let code = "os.mkdir('/volumes/shared/d', 0o700)\n\
                open('/volumes/shared/d/a', 'w').write('one')\n\
                os.chmod('/volumes/shared/d/a', 0o600)";
    assert_eq!(one.printed(code).await, "");
    // Private files are open to all sessions of the volume, because all run as the same user.
    let code = "open('/volumes/shared/d/a', 'a').write(' two')\n\
                s = os.stat('/volumes/shared/d/a'); print(s.st_uid == os.getuid(), s.st_gid == os.getgid())";
    assert_eq!(two.printed(code).await, "True True\n");
    assert_eq!(one.printed("print(open('/volumes/shared/d/a').read())").await, "one two\n");
    assert_eq!(reader.printed("print(open('/volumes/shared/d/a').read())").await, "one two\n");
    let by_shell = two.shell("echo by shell > /volumes/shared/s; cat /volumes/shared/d/a").await;
    assert_eq!(text(&by_shell["stdout"]), "one two", "{by_shell:#}");

    for change in [
        "open('/volumes/shared/new', 'w')",
        "open('/volumes/shared/s', 'a')",
        "os.remove('/volumes/shared/s')",
        "os.rename('/volumes/shared/s', '/volumes/shared/t')",
        "os.chmod('/volumes/shared/s', 0o777)",
        "os.mkdir('/volumes/shared/e')",
    ] {
        let said = reader.printed(&attempt(change)).await;
        assert!(["EROFS\n", "EACCES\n"].contains(&said.as_str()), "{change}: {said}");
    }
    // Nothing can be created beside the volumes.
    for elsewhere in ["open('/volumes/file', 'w')", "os.mkdir('/volumes/more')"] {
        let said = one.printed(&attempt(elsewhere)).await;
        assert!(["EROFS\n", "EACCES\n"].contains(&said.as_str()), "{elsewhere}: {said}");
    }

    // The file API reads the volume too.
    let read = server.get(&one.path("/files//volumes/shared/d/a")).await;
    assert_eq!((read.status, read.text(200).as_str()), (200, "one two"));
    let reply = one.show().await;
    assert_eq!(reply["volumes"], json!({"shared": "rw", "other": "rw"}));
    for session in [one, two, reader] {
        session.stop().await;
    }
    for name in ["shared", "other"] {
        assert_eq!(server.delete(&format!("/v1/volumes/{name}")).await.status, 204);
    }
    server.terminate().await;
    site.has_no_traces().await;
}

pub(crate) async fn a_full_volume_refuses(on: Backend) {
    let site = on.site(&[]);
    let server = site.serve().await;
    let made = make(&server, "small", "4M").await;
    if made["enforced"] != true {
        assert!(!privileges::is_root(), "{made:#}");
        return;
    }
    make(&server, "beside", "4M").await;
    let session = using(&server, json!({"small": "rw", "beside": "rw"})).await;
    let fill = attempt(
        "with open('/volumes/small/large', 'wb') as f:\n        \
         for n in range(64): f.write(bytes(1 << 20)); f.flush(); os.fsync(f.fileno())",
    );
    assert_eq!(session.printed(&fill).await, "ENOSPC\n");
    let size = session.printed("print(os.path.getsize('/volumes/small/large') >> 20)").await;
    assert!(["3\n", "4\n"].contains(&size.as_str()), "{size}");
    assert_eq!(
        session.printed(&attempt("open('/volumes/beside/x', 'wb').write(bytes(1 << 20))")).await,
        "done\n"
    );
    assert_eq!(
        session.printed(&attempt("open('/session/x', 'wb').write(bytes(1 << 20))")).await,
        "done\n"
    );
    let full = server.get("/v1/volumes/small").await.json(200);
    assert!(full["used"].as_u64().is_some_and(|used| used >= 3 << 20), "{full:#}");
    assert_eq!((&full["size"], &full["files"]), (&json!(4 << 20), &json!(1)));
    // The number of files is limited too, and removing a file makes room.
    let many = attempt("[open(f'/volumes/small/{n}', 'w').close() for n in range(100000)]");
    assert_eq!(session.printed(&many).await, "ENOSPC\n");
    assert_eq!(session.printed(&attempt("os.remove('/volumes/small/large')")).await, "done\n");
    assert_eq!(
        session.printed(&attempt("open('/volumes/small/x', 'wb').write(bytes(1 << 20))")).await,
        "done\n"
    );
}

pub(crate) async fn volumes_outlive_everything(on: Backend) {
    let site = on.site(&[]);
    let server = site.serve().await;
    make(&server, "kept", "8M").await;
    let first = using(&server, json!({"kept": "rw"})).await;
    first.python("open('/volumes/kept/a', 'w').write('kept')").await;
    first.stop().await;
    let second = using(&server, json!({"kept": "ro"})).await;
    assert_eq!(second.printed("print(open('/volumes/kept/a').read())").await, "kept\n");

    // A server that was killed and started again still knows which sessions use the volume.
    let installation = server.kill().await;
    let server = installation.serve().await;
    let reply = server.get("/v1/volumes/kept").await.json(200);
    assert_eq!(reply["used_by"], json!([{"id": second.id, "mode": "ro"}]));
    let refused = server.delete("/v1/volumes/kept").await.error(409, "volume_in_use");
    assert!(refused.contains(&second.id), "{refused}");
    let second = Session::of(&server.client(), &second.id);
    assert_eq!(second.printed("print(open('/volumes/kept/a').read())").await, "kept\n");
    // A new session uses the volume together with one of an earlier server, which still has it mounted.
    let third = using(&server, json!({"kept": "rw"})).await;
    third.python("open('/volumes/kept/b', 'w').write('third')").await;
    assert_eq!(second.printed("print(open('/volumes/kept/b').read())").await, "third\n");
    second.stop().await;
    third.stop().await;
    site.has_no_traces().await;

    // Files are kept when all sessions and the server have ended.
    server.terminate().await;
    let server = site.serve().await;
    let run = json!({"code": "print(open('/volumes/kept/b').read())", "volumes": {"kept": "ro"}});
    assert_eq!(server.post("/v1/run", run).await.json(200)["stdout"], "third\n");
    assert_eq!(server.delete("/v1/volumes/kept").await.status, 204);
    let directory = server.path("volumes").join(site_owner(&server));
    assert_eq!(names(&directory), Vec::<String>::new());
    server.get("/v1/volumes/kept").await.error(404, "volume_not_found");
    eventually("no device is left", async || {
        tokio::time::sleep(Duration::from_millis(20)).await;
        !shown_by_devices(&server.path("volumes").display().to_string())
    })
    .await;
}

fn site_owner(server: &Server) -> String {
    names(&server.path("volumes")).into_iter().next().expect("a directory of the server's own")
}

/// Whether a block device is backed by a file of this installation.
fn shown_by_devices(installation: &str) -> bool {
    let Ok(devices) = fs::read_dir("/sys/block") else { return false };
    devices.flatten().any(|device| {
        let shown = fs::read_to_string(device.path().join("loop/backing_file"));
        shown.is_ok_and(|file| file.starts_with(installation))
    })
}
