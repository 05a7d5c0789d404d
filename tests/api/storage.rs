//! Files: sessions on disk and the files next to them, datasets, and full disks.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Value, json};

use belljar_testkit::installation::Installation;
use belljar_testkit::server::Server;
use belljar_testkit::session::Session;
use belljar_testkit::values::{names, text};
use belljar_testkit::wait::eventually;

fn read_json(path: &Path) -> Value {
    let bytes = fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_slice(&bytes).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The lines of a session's log. Each line is JSON.
pub(crate) fn log(directory: &Path) -> Vec<Value> {
    let log = fs::read_to_string(directory.join("session.log")).unwrap_or_default();
    log.lines().map(|line| serde_json::from_str(line).expect("a whole line")).collect()
}

#[tokio::test]
async fn a_session_on_disk_can_be_read_by_people() {
    let server = Server::with(&[("BELLJAR_SESSION_FILES", "directory")]).await;
    let ask = json!({"storage": "BIND", "key": "thread", "metadata": {"user": 7}});
    let made = server.post("/v1/sessions", ask).await.json(201);
    let session = Session::of(&server, text(&made["id"]));
    let directory = PathBuf::from(text(&made["directory"]));
    assert_eq!(directory, server.path("sessions").join(&session.id));
    session.python("import math\nanswer = 42\nprint('hello')").await;
    let code = "import pathlib\npathlib.Path('/session/artifacts/plot.txt').write_text('plot')\n\
                pathlib.Path('notes.txt').write_text('notes')\n1 / 0";
    session.python(code).await;
    session.shell("echo from the shell; mkdir deep; echo x > deep/file").await;

    eventually("three entries are in the log", async || log(&directory).len() == 3).await;
    let entries = log(&directory);
    assert_eq!((&entries[0]["number"], &entries[0]["status"]), (&json!(1), &json!("ok")));
    assert_eq!(entries[0]["code"], "import math\nanswer = 42\nprint('hello')");
    assert_eq!(
        (&entries[0]["stdout"], &entries[0]["language"]),
        (&json!("hello\n"), &json!("python"))
    );
    assert!(entries[0]["duration_ms"].as_f64() > Some(0.0));
    assert!(text(&entries[0]["time"]).ends_with('Z'));
    assert_eq!(entries[1]["error"]["name"], "ZeroDivisionError");
    assert_eq!(entries[2]["command"][2], "echo from the shell; mkdir deep; echo x > deep/file");

    eventually("the metadata is up to date", async || {
        read_json(&directory.join("session_metadata.json"))["statistics"]["execs"] == 3
    })
    .await;
    let metadata = read_json(&directory.join("session_metadata.json"));
    assert_eq!((&metadata["session_id"], &metadata["key"]), (&json!(session.id), &json!("thread")));
    assert_eq!((&metadata["image"], &metadata["storage"]), (&json!("host"), &json!("BIND")));
    assert_eq!(metadata["metadata"], json!({"user": 7}));
    assert!(metadata["limits"]["memory"].is_u64(), "{metadata:#}");

    let state = directory.join("python_state.json");
    eventually("the variables are written down", async || {
        fs::read_to_string(&state).is_ok_and(|text| text.contains("answer"))
    })
    .await;
    let variables = read_json(&state);
    let variables = variables["variables"].as_array().expect("a list");
    let answer = variables.iter().find(|variable| variable["name"] == "answer").expect("it");
    assert_eq!((&answer["type"], &answer["preview"]), (&json!("int"), &json!("42")));
    let artifact = fs::read_to_string(directory.join("artifacts/plot.txt")).expect("an artifact");
    assert_eq!(artifact, "plot");
    let expected =
        ["artifacts", "files", "python_state.json", "session.log", "session_metadata.json"];
    assert_eq!(names(&directory), expected);

    session.stop().await;
    eventually("the metadata tells the end", async || {
        read_json(&directory.join("session_metadata.json"))["state"] == "stopped"
    })
    .await;
    assert_eq!(fs::read_to_string(directory.join("files/notes.txt")).expect("a file"), "notes");
    server.installation.has_no_traces().await;
}

#[tokio::test]
async fn the_state_of_a_session_on_disk_is_true_after_it_ran_out_of_memory() {
    let server = Server::start().await;
    let ask = json!({"storage": "BIND", "limits": {"memory": "96M", "tmpfs": "8M"}});
    let session = server.session_with(ask).await;
    let state = server.path("sessions").join(&session.id).join("python_state.json");
    let variables = || {
        let state =
            fs::read(&state).ok().and_then(|text| serde_json::from_slice::<Value>(&text).ok());
        let variables = state.and_then(|state| state["variables"].as_array().cloned());
        variables.map(|all| all.iter().map(|it| text(&it["name"]).to_owned()).collect::<Vec<_>>())
    };
    let are = |expected: &'static [&'static str]| {
        move |found: Option<Vec<String>>| found.is_some_and(|found| found == expected)
    };
    session.python("x = 1").await;
    eventually("x is there", async || are(&["x"])(variables())).await;
    let result = session.python("y = bytearray(1 << 30)").await;
    assert_eq!((&result["status"], &result["kernel_state"]), (&json!("oom"), &json!("lost")));
    eventually("nothing is there", async || are(&[])(variables())).await;
    session.python("z = 1").await;
    eventually("z is there", async || are(&["z"])(variables())).await;
    session.stop().await;
}

#[tokio::test]
async fn a_session_on_disk_is_found_by_its_key() {
    let server = Server::start().await;
    let link = server.path("sessions").join("by-key/team%2Fconv%3A7");
    let ask = json!({"storage": "BIND", "key": "team/conv:7"});
    let made = server.post("/v1/sessions", ask.clone()).await.json(201);
    let session = Session::of(&server, text(&made["id"]));
    session.python("open('/session/artifacts/output.txt', 'w').write('hello from sandbox')").await;
    eventually("there is a link", async || link.exists()).await;
    let found = fs::canonicalize(&link).expect("it leads somewhere");
    assert_eq!(found, fs::canonicalize(text(&made["directory"])).expect("a directory"));
    let artifact = fs::read_to_string(link.join("artifacts/output.txt")).expect("an artifact");
    assert_eq!(artifact, "hello from sandbox");
    // The link stays with the files, and leads to the session that has the key now.
    session.stop().await;
    assert_eq!(fs::canonicalize(&link).expect("it leads somewhere"), found);
    server.post("/v1/sessions", ask).await.json(200);
    assert_eq!(fs::canonicalize(&link).expect("it leads somewhere"), found);
    // Sessions in memory have no directory and no link.
    server.session_with(json!({"storage": "TMPFS", "key": "other"})).await;
    assert_eq!(names(link.parent().expect("a directory")), ["team%2Fconv%3A7"]);
}

#[tokio::test]
async fn a_session_goes_on_with_its_files() {
    let server = Server::with(&[("SESSION_STORAGE", "BIND"), ("BELLJAR_POOL", "1")]).await;
    let first = server.session_with(json!({"key": "k"})).await;
    first
        .shell("echo one > kept; mkdir sub; echo x > sub/file; chmod 700 sub; ln -s kept link")
        .await;
    first.python("x = 1").await;
    first.stop().await;
    // Another session takes the block of ids that it had.
    let other = server.session().await;

    let again = server.post("/v1/sessions", json!({"key": "k"})).await.json(200);
    assert_eq!((&again["how"], &again["id"]), (&json!("restarted"), &json!(first.id)));
    assert_eq!((&again["state"], again.get("ended")), (&json!("ready"), None), "{again:#}");
    assert_eq!(first.python("x").await["error"]["name"], "NameError", "only files stay");
    let look =
        "cat kept link sub/file; echo two >> kept; echo y > sub/other; stat -c %U kept; id -un";
    let looked = first.shell(look).await;
    let lines: Vec<&str> = text(&looked["stdout"]).lines().collect();
    assert_eq!((&lines[..3], lines[3]), (&["one", "one", "x"][..], lines[4]), "{looked:#}");
    assert_eq!(first.show().await["execs"], 4, "they are counted on");

    // It can be started by its id too, but only after it has ended, and only by one caller at a
    // time.
    server.post(&first.path("/start"), json!({})).await.error(409, "session_alive");
    first.stop().await;
    let starting: Vec<_> = (0..5)
        .map(|_| {
            let (client, path) = (server.client(), first.path("/start"));
            tokio::spawn(async move { client.post(&path, json!({})).await })
        })
        .collect();
    let mut started = 0;
    for start in starting {
        let answer = start.await.expect("no panic");
        match answer.status {
            200 => started += 1,
            _ => drop(answer.error(409, "session_alive")),
        }
    }
    assert_eq!(started, 1);
    assert_eq!(first.shell("cat kept").await["stdout"], "one\ntwo\n");
    // The same for a session without a key.
    other.shell("echo other > file").await;
    other.stop().await;
    let (one, two) =
        tokio::join!(server.post_answer(&other, "/start"), server.post_answer(&other, "/start"));
    let mut statuses = [one.status, two.status];
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 409], "{one}\n{two}");
    assert_eq!(other.shell("cat file").await["stdout"], "other\n");
    let log = server.get(&first.path("/log")).await.json(200);
    let numbers: Vec<&Value> =
        log["entries"].as_array().expect("a list").iter().map(|entry| &entry["number"]).collect();
    assert_eq!(numbers, [1, 2, 3, 4, 5]);
    assert_eq!(server.metric("belljar_creates_total{how=\"restarted\"}").await, 3.0);

    // A key that another session got meanwhile is not taken back.
    first.stop().await;
    let memory = json!({"key": "k", "storage": "TMPFS"});
    let replacing = server.post("/v1/sessions", memory).await.json(201);
    assert_eq!(replacing["replaced"]["id"], first.id);
    server.post(&first.path("/start"), json!({})).await.error(409, "key_taken");
    let changed = json!({"key": "k", "limits": {"memory": "64M"}});
    server.post("/v1/sessions", changed).await.error(409, "session_differs");

    // Directories of prepared sessions that no caller requested are removed with the server.
    let installation = Arc::clone(&server.installation);
    server.terminate().await;
    let mut expected = ["by-key".to_owned(), first.id, other.id];
    expected.sort();
    assert_eq!(names(&installation.path("sessions")), expected);
}

#[tokio::test]
async fn nothing_outside_is_reached_through_a_session_on_disk() {
    let server = Server::start().await;
    let session = server.session_with(json!({"storage": "BIND"})).await;
    // The host must not follow links that the code puts into its directory.
    fs::write(server.path("precious"), "precious").expect("a file");
    let target = server.path("precious").display().to_string();
    session.shell(&format!("rm -rf artifacts; ln -s {target} artifacts; ln -s /etc etc")).await;
    session.python("1").await;
    session.stop().await;
    server.post(&session.path("/start"), json!({})).await.json(200);
    session.stop().await;
    let metadata = fs::metadata(server.path("precious")).expect("it is there");
    let etc = fs::metadata("/etc").expect("it is there");
    use std::os::unix::fs::MetadataExt as _;
    assert_eq!((metadata.uid(), etc.uid()), (fs::metadata("/").expect("root").uid(), 0));
    assert_eq!(metadata.permissions().mode() & 0o777, 0o644);
    assert_eq!(fs::read_to_string(server.path("precious")).expect("a file"), "precious");
}

#[tokio::test]
async fn datasets_are_shown_and_not_written() {
    let installation = Installation::new();
    let data = installation.path("datasets");
    fs::create_dir(&data).expect("a directory");
    fs::write(data.join("table.csv"), "a,b\n1,2\n").expect("a file");
    let installation = Arc::new(installation.env("DATASETS_HOST_RO", &data.display().to_string()));
    let server = installation.serve().await;
    let session = server.session_with(json!({"datasets": "LOCAL_RO"})).await;
    assert_eq!(session.printed("print(open('/data/table.csv').read())").await, "a,b\n1,2\n\n");
    for write in
        ["echo x > /data/new", "echo x >> /data/table.csv", "rm /data/table.csv", "chmod 777 /data"]
    {
        let result = session.shell(write).await;
        assert_eq!(result["status"], "error", "{write}: {result:#}");
    }
    assert_eq!(names(&data), ["table.csv"]);
    let run = json!({"code": "import os; print(os.listdir('/data'))", "datasets": "LOCAL_RO"});
    assert_eq!(server.post("/v1/run", run).await.json(200)["stdout"], "['table.csv']\n");
    // A session that did not ask for datasets does not see them.
    let without = server.session().await;
    let listed = without.shell("ls -A /data").await;
    assert_eq!(listed["stdout"], "", "{listed:#}");
    // A missing directory fails with a clear error, and only as long as it is missing.
    fs::rename(&data, installation.path("moved")).expect("moved");
    let failed = server.post("/v1/sessions", json!({"datasets": "LOCAL_RO"})).await;
    let message = failed.error(500, "internal");
    assert!(message.contains("datasets"), "{message}");
    fs::rename(installation.path("moved"), &data).expect("moved back");
    server.session_with(json!({"datasets": "LOCAL_RO"})).await;
}

/// `mkdtemp`, `/root` and private homes have such modes.
#[tokio::test]
async fn a_private_directory_can_be_data() {
    use std::os::unix::fs::{DirBuilderExt as _, chown};
    let installation = Installation::new();
    let data = installation.path("datasets");
    fs::DirBuilder::new().mode(0o700).create(&data).expect("a directory");
    fs::write(data.join("table.csv"), "a,b\n1,2\n").expect("a file");
    fs::create_dir(data.join("closed")).expect("a directory");
    fs::write(data.join("closed/of_another"), "x").expect("a file");
    let private = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("its mode");
    };
    private(&data.join("table.csv"), 0o600);
    private(&data.join("closed"), 0o700);
    // A directory that is private to another user stays private.
    chown(data.join("closed"), Some(4321), Some(4321)).expect("given away");
    let installation = Arc::new(installation.env("DATASETS_HOST_RO", &data.display().to_string()));
    let server = installation.serve().await;
    for owner in [0, 1234] {
        for path in [data.clone(), data.join("table.csv")] {
            chown(path, Some(owner), Some(owner)).expect("given away");
        }
        let session = server.session_with(json!({"datasets": "LOCAL_RO"})).await;
        let look = "cat /data/table.csv; stat -c %U /data; id -un; ls /data/closed; true";
        let looked = session.shell(look).await;
        let lines: Vec<&str> = text(&looked["stdout"]).lines().collect();
        assert_eq!((&lines[..2], lines[2]), (&["a,b", "1,2"][..], lines[3]), "{looked:#}");
        assert!(text(&looked["stderr"]).contains("Permission denied"), "{looked:#}");
        for write in ["echo x > /data/new", "chmod 777 /data", "rm /data/table.csv"] {
            assert_eq!(session.shell(write).await["status"], "error", "{write}");
        }
        let listed = server.get(&session.path("/datasets")).await.json(200);
        let names: Vec<&str> = listed["datasets"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|dataset| text(&dataset["name"]))
            .collect();
        assert_eq!(names, ["table.csv"], "{listed:#}");
        // The sandbox loses access while the directory is mounted: a conflict (409), not an
        // internal error.
        private(&data, 0o000);
        let answer = server.get(&session.path("/datasets")).await;
        assert_eq!(answer.status, 409, "{answer}");
        private(&data, 0o700);
        session.stop().await;
    }
    let run = json!({"code": "print(open('/data/table.csv').read())", "datasets": "LOCAL_RO"});
    assert_eq!(server.post("/v1/run", run).await.json(200)["stdout"], "a,b\n1,2\n\n");
}

#[tokio::test]
async fn a_private_directory_whose_ids_cannot_be_translated_is_refused() {
    let installation = Installation::new();
    let data = installation.path("datasets");
    fs::create_dir(&data).expect("a directory");
    let installation = Arc::new(installation.env("DATASETS_HOST_RO", &data.display().to_string()));
    // ramfs does not support translated ids.
    let script = format!(
        "mount -t ramfs ramfs '{0}' && echo x > '{0}/file' && chmod 700 '{0}' && exec '{1}' serve",
        data.display(),
        belljar_testkit::belljar()
    );
    let server =
        installation.serve_by(installation.command("unshare", &["-m", "sh", "-c", &script])).await;
    let refused = server.post("/v1/sessions", json!({"datasets": "LOCAL_RO"})).await;
    let message = refused.error(409, "data_not_readable");
    let path = data.display().to_string();
    for part in [path.as_str(), "mode 0700", "chmod -R o+rX", "idmapped"] {
        assert!(message.contains(part), "{message}");
    }
    let inside = format!("/proc/{}/root{path}", server.pid());
    fs::set_permissions(&inside, fs::Permissions::from_mode(0o755)).expect("its mode");
    let session = server.session_with(json!({"datasets": "LOCAL_RO"})).await;
    assert_eq!(session.shell("cat /data/file").await["stdout"], "x\n");
}

/// A server with one directory on a separate small disk, in its own mount namespace.
pub(crate) async fn on_a_small_disk(directory: &str, options: &str) -> Server {
    // A session's own file system image would not fit on such a disk.
    let installation = Arc::new(Installation::new().env("BELLJAR_SESSION_FILES", "directory"));
    let root = installation.path(directory);
    fs::create_dir(&root).expect("a directory");
    let script = format!(
        "mount -t tmpfs -o {options} tmpfs '{}' && exec '{}' serve",
        root.display(),
        belljar_testkit::belljar()
    );
    let command = installation.command("unshare", &["-m", "sh", "-c", &script]);
    installation.serve_by(command).await
}

#[tokio::test]
async fn a_full_disk_is_said_and_survived() {
    let server = on_a_small_disk("sessions", "size=1m").await;
    let session = server.session_with(json!({"storage": "BIND", "key": "k"})).await;
    let directory = PathBuf::from(format!(
        "/proc/{}/root{}",
        server.pid(),
        server.path("sessions").join(&session.id).display()
    ));
    session.python("print('before')").await;
    eventually("it is in the log", async || log(&directory).len() == 1).await;
    let filled = session.shell("cat /dev/zero > filler; sync; true").await;
    assert!(text(&filled["stderr"]).contains("No space left"), "{filled:#}");
    // The session continues, and warns about what could not be written.
    let long = format!("print('during')\n# {}", "x".repeat(10_000));
    assert_eq!(session.python(&long).await["stdout"], "during\n");
    eventually("there is a warning", async || {
        session.show().await["warnings"].to_string().contains("session.log")
    })
    .await;
    let entries = server.get(&session.path("/log")).await.json(200);
    assert_eq!(entries["entries"].as_array().expect("a list").len(), 3, "the database has all");
    // New sessions are made with a warning, or refused; they never hang.
    let other = server.post("/v1/sessions", json!({"storage": "BIND"})).await;
    match other.status {
        201 => drop(Session::of(&server, text(&other.json(201)["id"])).stop().await),
        _ => drop(other.error(507, "out_of_space")),
    }
    let memory = server.session().await;
    assert_eq!(memory.printed("print('in memory')").await, "in memory\n");
    // After space is freed, everything works again, and no log line is incomplete.
    session.shell("rm filler").await;
    session.python("print('after')").await;
    eventually("it is in the log", async || {
        log(&directory).last().is_some_and(|entry| entry["stdout"] == "after\n")
    })
    .await;
    session.stop().await;
    let again = server.post("/v1/sessions", json!({"key": "k"})).await.json(200);
    assert_eq!(again["how"], "restarted");
    read_json(&directory.join("session_metadata.json"));
}

#[tokio::test]
async fn a_disk_without_room_for_a_directory_refuses_a_session() {
    let server = on_a_small_disk("sessions", "size=1m,nr_inodes=20").await;
    let session = server.session_with(json!({"storage": "BIND"})).await;
    session.shell("for n in $(seq 30); do : > $n; done").await;
    let refused = server.post("/v1/sessions", json!({"storage": "BIND", "key": "k"})).await;
    let message = refused.error(507, "out_of_space");
    assert!(message.contains("sessions"), "{message}");
    let root = format!("/proc/{}/root{}", server.pid(), server.path("sessions").display());
    assert_eq!(names(Path::new(&root)), [session.id.as_str()], "nothing half-made is left");
    assert_eq!(server.installation.pids_inside(1).len(), 1);
    assert_eq!(server.metric("belljar_creates_total{how=\"failed\"}").await, 1.0);
    // After space is freed, the same key works.
    session.shell("rm [0-9]*").await;
    let made = server.post("/v1/sessions", json!({"storage": "BIND", "key": "k"})).await;
    made.json(200);
}

#[tokio::test]
async fn a_database_without_room_loses_nothing() {
    let server = on_a_small_disk("state", "size=2m").await;
    let session = server.session().await;
    let held = session.hold("held").await;
    let state = server.path("state").display().to_string();
    let filler = PathBuf::from(format!("/proc/{}/root{state}/filler", server.pid()));
    // Fills the disk.
    let _ = fs::write(&filler, vec![0; 4 << 20]);
    // An execution that cannot be stored is not started.
    let code = format!("# {}", "x".repeat(100_000));
    session.exec(json!({"code": code})).await.error(507, "out_of_space");
    let command = json!({"command": format!("true {}", "x".repeat(100_000))});
    session.exec(command).await.error(507, "out_of_space");
    // An execution that had started ends, and its result is stored.
    server.post(&session.path("/execs/held/interrupt"), json!({})).await.json(200);
    assert_eq!(held.result().await["status"], "interrupted");
    let known = session.exec_info("held").await;
    assert_eq!(
        (&known["state"], &known["result"]["stdout"]),
        (&json!("finished"), &json!("holding\n"))
    );
    fs::remove_file(&filler).expect("it was there");
    assert_eq!(session.printed("print('room')").await, "room\n");
    eventually("its end is written down", async || {
        let log = server.get(&session.path("/log")).await.json(200);
        log["entries"].as_array().expect("a list").len() == 2
    })
    .await;
    assert_eq!(server.get("/healthz").await.status, 200);
}

#[tokio::test]
async fn files_are_private_and_no_start_removes_them() {
    for kind in ["directory", "image"] {
        files_of_this_kind_are_private_and_no_start_removes_them(kind).await;
    }
}

async fn files_of_this_kind_are_private_and_no_start_removes_them(kind: &str) {
    let installation = Installation::new().env("SESSION_STORAGE", "BIND").env("BELLJAR_POOL", "1");
    let installation = Arc::new(installation.env("BELLJAR_SESSION_FILES", kind));
    let server = installation.serve().await;
    let session = server.session_with(json!({"key": "k"})).await;
    session.python("open('/session/precious', 'w').write('x')").await;
    session.stop().await;
    let directory = server.path("sessions").join(&session.id);
    let mode = fs::metadata(&directory).expect("it is there").permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
    // Even when the metadata next to them is missing.
    fs::remove_file(directory.join("session_metadata.json")).expect("it is there");
    server.terminate().await;
    let server = installation.serve().await;
    eventually("it is ready", async || server.get("/readyz").await.status == 200).await;
    let kept = if kind == "image" { "files.ext4" } else { "files/precious" };
    assert!(directory.join(kept).exists());
    let again = server.post("/v1/sessions", json!({"key": "k"})).await.json(200);
    assert_eq!(again["how"], "restarted");
    let session = Session::of(&server, &session.id);
    assert_eq!(session.shell("cat precious").await["stdout"], "x");
}
