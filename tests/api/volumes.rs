//! Volumes over HTTP: creation, refusals with their reasons, and separation by tenant.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::keys::{secret, with_keys};
use belljar_testkit::installation::Installation;
use belljar_testkit::server::Server;
use belljar_testkit::session::Session;
use belljar_testkit::values::{names, text};
use belljar_testkit::wait::eventually;

async fn make(server: &Server, name: &str) -> Value {
    server.post("/v1/volumes", json!({"name": name, "size": "4M"})).await.json(201)
}

/// The files of the only volume, which is a directory on the host.
fn files_of_only(server: &Server) -> PathBuf {
    let owner = server.path("volumes").join(&names(&server.path("volumes"))[0]);
    owner.join(&names(&owner)[0]).join("files")
}

#[tokio::test]
async fn volumes_are_created_listed_and_removed() {
    let server = Server::start().await;
    assert_eq!(server.get("/v1/volumes").await.json(200), json!({"volumes": []}));
    let made = make(&server, "models").await;
    assert_eq!((text(&made["name"]), &made["size"]), ("models", &json!(4 << 20)));
    assert_eq!(made["used_by"], json!([]));
    make(&server, "Cache_1.x-y").await;
    let listed = server.get("/v1/volumes").await.json(200);
    let all = listed["volumes"].as_array().expect("a list");
    let listed: Vec<&str> = all.iter().map(|volume| text(&volume["name"])).collect();
    assert_eq!(listed, ["Cache_1.x-y", "models"]);
    assert!(all.iter().all(|volume| volume.get("used").is_none()), "{all:#?}");
    let shown = server.get("/v1/volumes/models").await.json(200);
    assert!(shown["used"].as_u64().is_some_and(|used| used < 1 << 20), "{shown:#}");
    assert_eq!((&shown["files"], shown.get("partial")), (&json!(0), None));

    assert_eq!(server.delete("/v1/volumes/models").await.status, 204);
    server.delete("/v1/volumes/models").await.error(404, "volume_not_found");
    server.get("/v1/volumes/models").await.error(404, "volume_not_found");
    // Its name is free, and a new volume of this name is empty.
    make(&server, "models").await;
    let notes = server.installation.audit();
    let noted: Vec<(&str, &str, &str)> = notes
        .iter()
        .filter(|note| text(&note["action"]).starts_with("volume_"))
        .map(|note| (text(&note["action"]), text(&note["detail"]), text(&note["outcome"])))
        .collect();
    assert_eq!(noted[0], ("volume_create", "models", "created"));
    assert_eq!(noted[2], ("volume_remove", "models", "removed"));
    assert_eq!(noted[3], ("volume_remove", "models", "there is no volume `models`"));
}

#[tokio::test]
async fn what_makes_no_sense_is_refused_and_makes_nothing() {
    let server = Server::with(&[
        ("BELLJAR_TENANT_VOLUMES", "2"),
        ("BELLJAR_TENANT_VOLUME_BYTES", "20M"),
        ("BELLJAR_VOLUME_SIZE", "5M"),
    ])
    .await;
    let ask = async |body: Value| server.post("/v1/volumes", body).await;
    let long = "x".repeat(65);
    for name in ["", ".", "..", "a/b", ".a", "-a", "a b", "ä", "a\0", long.as_str()] {
        let refused = ask(json!({"name": name})).await.error(422, "invalid");
        assert!(refused.starts_with("name: "), "{refused}");
    }
    for size in [json!(0), json!(1 << 20), json!("1K"), json!(1u64 << 50), json!("much"), json!(-1)]
    {
        ask(json!({"name": "a", "size": size})).await.error(422, "invalid");
    }
    for body in [json!({}), json!({"name": "a", "colour": "red"}), json!({"name": 7})] {
        ask(body).await.error(422, "invalid");
    }
    for path in ["/v1/volumes/..%2fstate", "/v1/volumes/a%00b"] {
        server.get(path).await.error(422, "invalid");
        server.delete(path).await.error(422, "invalid");
    }
    let too_large = ask(json!({"name": "a", "size": "21M"})).await.error(409, "volume_quota");
    assert!(too_large.contains("20971520"), "{too_large}");
    let default = ask(json!({"name": "a"})).await.json(201);
    assert_eq!(default["size"], 5 << 20);
    ask(json!({"name": "a"})).await.error(409, "volume_exists");
    ask(json!({"name": "b", "size": "16M"})).await.error(409, "volume_quota");
    ask(json!({"name": "b", "size": "15M"})).await.json(201);
    ask(json!({"name": "c", "size": "4M"})).await.error(409, "volume_quota");
    assert_eq!(server.delete("/v1/volumes/b").await.status, 204);
    ask(json!({"name": "c", "size": "4M"})).await.json(201);

    let session =
        async |volumes: Value| server.post("/v1/sessions", json!({"volumes": volumes})).await;
    let unknown = session(json!({"a": "rw", "nowhere": "ro"})).await;
    assert!(unknown.error(404, "volume_not_found").contains("`nowhere`"));
    session(json!({"../a": "rw"})).await.error(422, "invalid");
    session(json!({"a": "rwx"})).await.error(422, "invalid");
    session(json!(["a"])).await.error(422, "invalid");
    let many: serde_json::Map<String, Value> =
        (0..17).map(|n| (format!("v{n}"), json!("ro"))).collect();
    session(many.into()).await.error(422, "invalid");
    let run = json!({"code": "1", "volumes": {"nowhere": "ro"}});
    server.post("/v1/run", run).await.error(404, "volume_not_found");
    let sessions = server.get("/v1/sessions").await.json(200);
    assert_eq!(sessions["sessions"], json!([]), "nothing was begun");
}

#[tokio::test]
async fn a_volume_in_use_stays() {
    let server = Server::start().await;
    make(&server, "used").await;
    let writer = server.session_with(json!({"key": "w", "volumes": {"used": "rw"}})).await;
    let reader = server.session_with(json!({"volumes": {"used": "ro"}})).await;
    let refused = server.delete("/v1/volumes/used").await.error(409, "volume_in_use");
    assert!(refused.contains(&writer.id) && refused.contains(&reader.id), "{refused}");
    let reply = server.get("/v1/volumes").await.json(200);
    let used_by = reply["volumes"][0]["used_by"].as_array().expect("a list").clone();
    assert_eq!(used_by.len(), 2);
    assert!(used_by.contains(&json!({"id": writer.id, "mode": "rw"})), "{used_by:?}");
    // The same key with other volumes is a conflict.
    let differs = json!({"key": "w", "volumes": {"used": "ro"}});
    let differs = server.post("/v1/sessions", differs).await.error(409, "session_differs");
    assert!(differs.contains("volumes"), "{differs}");
    let same = json!({"key": "w", "volumes": {"used": "rw"}});
    assert_eq!(server.post("/v1/sessions", same).await.json(200)["id"], writer.id.as_str());
    writer.stop().await;
    server.delete("/v1/volumes/used").await.error(409, "volume_in_use");
    reader.stop().await;
    assert_eq!(server.delete("/v1/volumes/used").await.status, 204);
}

#[tokio::test]
async fn a_run_uses_volumes_for_as_long_as_it_lasts() {
    let server = Server::start().await;
    make(&server, "results").await;
    let wait = "import os, time\nopen('/volumes/results/begun', 'w')\n\
                while not os.path.exists('/volumes/results/go'): time.sleep(0.01)\nprint('went')";
    let client = server.client();
    let run = json!({"code": wait, "volumes": {"results": "rw"}});
    let running = tokio::spawn(async move { client.post("/v1/run", run).await });
    let session = server.session_with(json!({"volumes": {"results": "rw"}})).await;
    eventually("it runs", async || {
        session.printed("import os; print(os.path.exists('/volumes/results/begun'))").await
            == "True\n"
    })
    .await;
    let id = session.id.clone();
    session.python("open('/volumes/results/go', 'w')").await;
    assert_eq!(running.await.expect("no panic").json(200)["stdout"], "went\n");
    session.python("os.remove('/volumes/results/go')").await;
    session.stop().await;
    assert!(Session::of(&server.client(), &id).show().await["volumes"].is_object());

    // A run whose client disconnects releases its volumes.
    let mut events =
        server.post_stream("/v1/run", json!({"code": wait, "volumes": {"results": "rw"}})).await;
    let first = events.until("exec").await;
    let in_use = || server.delete("/v1/volumes/results");
    eventually("it is used", async || in_use().await.status == 409).await;
    let refused = in_use().await.error(409, "volume_in_use");
    assert!(refused.contains("run_"), "{refused} {first:?}");
    drop(events);
    eventually("it can go", async || in_use().await.status == 204).await;
}

#[tokio::test]
async fn a_volume_is_its_tenants() {
    let (server, keys) =
        with_keys(&[&["--name", "a", "--tenant", "one"], &["--name", "b", "--tenant", "two"]])
            .await;
    let [one, two] = [0, 1].map(|n| server.with_key(secret(&keys[n])));
    let body = json!({"name": "mine", "size": "4M"});
    one.post("/v1/volumes", body.clone()).await.json(201);
    assert_eq!(two.get("/v1/volumes").await.json(200), json!({"volumes": []}));
    two.get("/v1/volumes/mine").await.error(404, "volume_not_found");
    two.delete("/v1/volumes/mine").await.error(404, "volume_not_found");
    let ask = json!({"volumes": {"mine": "ro"}});
    two.post("/v1/sessions", ask.clone()).await.error(404, "volume_not_found");
    // The same name of another tenant is another volume.
    two.post("/v1/volumes", body).await.json(201);
    let of_one = one.session_with(json!({"volumes": {"mine": "rw"}})).await;
    of_one.python("open('/volumes/mine/a', 'w').write('of one')").await;
    let of_two = two.session_with(ask).await;
    assert_eq!(of_two.printed("import os; print(os.listdir('/volumes/mine'))").await, "[]\n");
    of_two.stop().await;
    assert_eq!(two.delete("/v1/volumes/mine").await.status, 204);
    assert_eq!(of_one.printed("print(open('/volumes/mine/a').read())").await, "of one\n");
}

#[tokio::test]
async fn a_session_on_disk_that_starts_again_needs_its_volumes() {
    let server = Server::with(&[("BELLJAR_POOL", "1")]).await;
    make(&server, "data").await;
    let ask = json!({"storage": "BIND", "volumes": {"data": "rw"}});
    let session = server.session_with(ask).await;
    session.python("open('/volumes/data/a', 'w').write('x')").await;
    session.stop().await;
    let again = server.post(&session.path("/start"), json!({})).await.json(200);
    assert_eq!(again["volumes"], json!({"data": "rw"}));
    assert_eq!(session.printed("print(open('/volumes/data/a').read())").await, "x\n");
    session.stop().await;
    assert_eq!(server.delete("/v1/volumes/data").await.status, 204);
    server.post(&session.path("/start"), json!({})).await.error(404, "volume_not_found");
    assert_eq!(session.show().await["state"], "stopped");
}

#[tokio::test]
async fn a_session_with_volumes_is_not_from_the_pool() {
    let server = Server::with(&[("BELLJAR_POOL", "1")]).await;
    eventually("the pool is full", async || server.metric("belljar_pool_ready").await == 1.0).await;
    make(&server, "data").await;
    let session = server.session_with(json!({"volumes": {"data": "rw"}})).await;
    assert_eq!(session.printed("open('/volumes/data/a', 'w').write('x'); print(1)").await, "1\n");
    assert_eq!(server.metric("belljar_creates_total{how=\"pool\"}").await, 0.0);
    let plain = server.session().await;
    assert_eq!(server.metric("belljar_creates_total{how=\"pool\"}").await, 1.0);
    let code = "import os; print(os.path.isdir('/volumes') and os.listdir('/volumes'))";
    assert_eq!(plain.printed(code).await, "[]\n");
}

#[tokio::test]
async fn a_directory_is_honest_about_its_size() {
    let server = Server::with(&[("BELLJAR_VOLUME_STORAGE", "directory")]).await;
    let made = make(&server, "soft").await;
    assert_eq!((&made["enforced"], text(&made["storage"])), (&json!(false), "directory"));
    let writer = server.session_with(json!({"volumes": {"soft": "rw"}})).await;
    let warnings = writer.show().await["warnings"].clone();
    assert!(text(&warnings[0]).contains("`soft` is not enforced"), "{warnings}");
    let second = server.session_with(json!({"volumes": {"soft": "rw"}})).await;
    // Like any other volume, it is shared between sessions with different blocks of ids.
    let code = "import os; os.mkdir('/volumes/soft/d', 0o700); os.chmod('/volumes/soft/d', 0o700)";
    writer.python(code).await;
    second.python("open('/volumes/soft/d/large', 'wb').write(bytes(5 << 20))").await;
    assert_eq!(
        writer.printed("print(os.path.getsize('/volumes/soft/d/large') >> 20)").await,
        "5\n"
    );
    let shown = server.get("/v1/volumes/soft").await.json(200);
    assert!(shown["used"].as_u64().is_some_and(|used| used >= 5 << 20), "{shown:#}");
    // Over its size, it can only be mounted read-only.
    let ask = |mode: &str| json!({"volumes": {"soft": mode}});
    server.post("/v1/sessions", ask("rw")).await.error(507, "volume_full");
    let reader = server.session_with(ask("ro")).await;
    assert!(reader.show().await.get("warnings").is_none());
    writer.python("os.remove('/volumes/soft/d/large')").await;
    server.session_with(ask("rw")).await;
}

#[tokio::test]
async fn hostile_content_is_removed_and_leads_nowhere() {
    let server = Server::with(&[("BELLJAR_VOLUME_STORAGE", "directory")]).await;
    make(&server, "hostile").await;
    let session = server.session_with(json!({"volumes": {"hostile": "rw"}})).await;
    let code = "import os, socket\n\
        os.chdir('/volumes/hostile')\n\
        for _ in range(2000):\n    os.mkdir('d'); os.chdir('d')\n\
        os.chdir('/volumes/hostile')\n\
        for target in ['/etc', '/', '../../..', '/volumes/hostile']:\n    \
            os.symlink(target, 'link' + str(len(os.listdir('.'))))\n\
        os.mkfifo('pipe'); socket.socket(socket.AF_UNIX).bind('socket')\n\
        os.mkdir('closed'); open('closed/x', 'w'); os.chmod('closed', 0)\n\
        open('\\n \\x1b[31m', 'w')\n\
        os.chdir('/session'); print('made')";
    assert_eq!(session.printed(code).await, "made\n");
    session.stop().await;
    let outside = server.path("outside");
    fs::create_dir(&outside).expect("a directory");
    fs::write(outside.join("file"), "x").expect("a file");
    symlink(&outside, files_of_only(&server).join("to-outside")).expect("a link");
    let shown = server.get("/v1/volumes/hostile").await.json(200);
    assert_eq!(shown["partial"], true, "deeper than anybody looks: {shown:#}");
    assert_eq!(server.delete("/v1/volumes/hostile").await.status, 204);
    assert!(outside.join("file").exists());
    assert_eq!(names(&server.path("volumes")).len(), 1);
    let owner = server.path("volumes").join(&names(&server.path("volumes"))[0]);
    assert_eq!(names(&owner), Vec::<String>::new());
}

#[tokio::test]
async fn strictness_forbids_sizes_that_are_not_enforced() {
    let installation = Installation::new().env("BELLJAR_VOLUME_STORAGE", "directory");
    let installation = Arc::new(installation.env("BELLJAR_STRICT", "1"));
    let server = installation.serve().await;
    let ask = json!({"name": "soft", "size": "4M"});
    let refused = server.post("/v1/volumes", ask).await.error(409, "volume_not_enforced");
    assert!(refused.contains("BELLJAR_STRICT"), "{refused}");
    assert_eq!(server.get("/v1/volumes").await.json(200), json!({"volumes": []}));
}

#[tokio::test]
async fn bits_and_devices_in_a_volume_mean_nothing() {
    let server = Server::start().await;
    make(&server, "odd").await;
    let session = server.session_with(json!({"volumes": {"odd": "rw"}})).await;
    let code = "import os, shutil, subprocess\n\
        shutil.copy('/usr/bin/id', '/volumes/odd/id'); os.chmod('/volumes/odd/id', 0o6755)\n\
        print(subprocess.run(['/volumes/odd/id', '-u'], capture_output=True, text=True).stdout, end='')\n\
        line = [l for l in open('/proc/self/mountinfo') if ' /volumes/odd ' in l][0]\n\
        print('nosuid' in line, 'nodev' in line)\n\
        try: os.mknod('/volumes/odd/n', 0o020666, os.makedev(1, 3))\n\
        except OSError: print('refused')";
    assert_eq!(session.printed(code).await, "1000\nTrue True\nrefused\n");
}

#[tokio::test]
async fn many_at_once_share_one_file_system() {
    let server = Server::start().await;
    let ask = json!({"name": "shared", "size": "8M"});
    let making = (0..6).map(|_| {
        let (client, ask) = (server.client(), ask.clone());
        tokio::spawn(async move { client.post("/v1/volumes", ask).await.status })
    });
    let making: Vec<_> = making.collect();
    let mut statuses = Vec::new();
    for one in making {
        statuses.push(one.await.expect("no panic"));
    }
    statuses.sort_unstable();
    assert_eq!(statuses, [201, 409, 409, 409, 409, 409]);

    let opening = (0..8).map(|_| {
        let client = server.client();
        tokio::spawn(async move { client.session_with(json!({"volumes": {"shared": "rw"}})).await })
    });
    let opening: Vec<_> = opening.collect();
    let mut sessions = Vec::new();
    for one in opening {
        sessions.push(one.await.expect("no panic"));
    }
    for (n, session) in sessions.iter().enumerate() {
        session.python(&format!("open('/volumes/shared/{n}', 'w').write('{n}')")).await;
    }
    for session in &sessions {
        let code = "import os; print(sorted(os.listdir('/volumes/shared')))";
        let all: Vec<String> = (0..8).map(|n| format!("'{n}'")).collect();
        assert_eq!(session.printed(code).await, format!("[{}]\n", all.join(", ")));
        let device = "print(os.stat('/volumes/shared').st_dev)";
        assert_eq!(session.printed(device).await, sessions[0].printed(device).await);
    }
}

#[tokio::test]
async fn of_using_and_removing_at_the_same_time_one_comes_first() {
    let server = Server::start().await;
    let (mut used, mut removed) = (0, 0);
    for turn in 0..12u64 {
        make(&server, "contested").await;
        let client = server.client();
        let using = tokio::spawn(async move {
            client.post("/v1/sessions", json!({"volumes": {"contested": "rw"}})).await
        });
        tokio::time::sleep(std::time::Duration::from_millis(turn * 3)).await;
        let removing = server.delete("/v1/volumes/contested").await;
        let using = using.await.expect("no panic");
        match (using.status, removing.status) {
            // The session that got the volume can use all of it.
            (201, 409) => {
                used += 1;
                let session = Session::of(&server.client(), text(&using.json(201)["id"]));
                session.python("open('/volumes/contested/a', 'w').write('x')").await;
                session.stop().await;
                assert_eq!(server.delete("/v1/volumes/contested").await.status, 204);
            }
            (404, 204) => removed += 1,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(used + removed, 12);
}
