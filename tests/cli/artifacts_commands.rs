//! `belljar artifacts`: files that sessions left, from the command line.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use insta::assert_snapshot;

use belljar_testkit::cli_server::CliServer;
use belljar_testkit::command::{Finished, TestContext, tree};
use belljar_testkit::wait::eventually_blocking;

/// Leaves a table, a text in a folder, and a link, which is refused.
const LEAVE_SOME: &str = "\
import os
os.makedirs('/session/artifacts/plots')
with open('/session/artifacts/table.csv', 'w') as f: f.write('a,b\\n1,2\\n')
with open('/session/artifacts/plots/one.txt', 'w') as f: f.write('one')
os.symlink('/etc/passwd', '/session/artifacts/link')
";

/// Eight megabytes in which every part differs from its neighbours.
const LEAVE_LARGE: &str = "\
with open('/session/artifacts/large.bin', 'wb') as f: f.write(bytes(range(251)) * 33420)
";

fn large() -> Vec<u8> {
    (0..251).collect::<Vec<u8>>().repeat(33420)
}

/// The output with placeholders for what differs between calls. Ids are replaced already.
fn steady(finished: &Finished) -> String {
    let text = finished.to_string();
    let words = text.split_inclusive([' ', '\n']).map(|word| {
        let end = if word.ends_with('\n') { "\n" } else { " " };
        match word.split_once("?token=") {
            Some((link, _)) => format!("[LINK]{}?token=[TOKEN]{end}", &link[link.len() - 19..]),
            None if word.starts_with("20") && word.contains('T') => format!("[TIME]{end}"),
            None if word.starts_with("\"20") => format!("[TIME]{end}"),
            None => word.to_owned(),
        }
    });
    let text: String = words.collect();
    // On a busy machine, time passes between two commands.
    (1..60).fold(text, |text, s| text.replace(&format!(" {s} s ago"), " 0 s ago"))
}

#[test]
fn an_exec_tells_how_its_files_can_be_had() {
    let served = CliServer::on_socket();
    let id = served.create(&[]);
    assert_snapshot!(served.call(["exec", &id, "-c", LEAVE_SOME]), @r"
    exit 0
    --- stdout
    --- stderr
    belljar: /session/artifacts/plots/one.txt (3 B) -> `belljar artifacts get art_[ID]`
    belljar: /session/artifacts/table.csv (8 B) -> `belljar artifacts get art_[ID]`
    belljar: not taken: /session/artifacts/link (a symbolic link)
    ");
    let many = "for n in range(25): open(f'/session/artifacts/{n:02}', 'w').close()";
    let many = served.ok(["exec", &id, "-c", many]);
    assert_eq!(many.stderr().lines().count(), 21, "{many}");
    assert_snapshot!(many.to_string().lines().last().expect("a line"), @"belljar: 5 more files; `belljar artifacts list --session ses_[ID] --exec exec_[ID]` shows them");

    let served = CliServer::on_tcp();
    let id = served.create(&[]);
    assert_snapshot!(steady(&served.call(["exec", &id, "-c", LEAVE_SOME])), @r"
    exit 0
    --- stdout
    --- stderr
    belljar: /session/artifacts/plots/one.txt (3 B) -> [LINK]/artifacts/art_[ID]?token=[TOKEN]
    belljar: /session/artifacts/table.csv (8 B) -> [LINK]/artifacts/art_[ID]?token=[TOKEN]
    belljar: not taken: /session/artifacts/link (a symbolic link)
    ");
}

#[test]
fn artifacts_are_listed_and_shown() {
    let served = CliServer::on_tcp();
    assert_eq!(served.artifacts(["list"]).stderr(), "There are no artifacts.\n");
    let (a, b) = (served.create(&["--key", "a b"]), served.create(&[]));
    let ids = served.leave(&a, LEAVE_SOME);
    let evil = "open('/session/artifacts/\\x1b[31m\\n.txt', 'w').close()";
    let evil = &served.leave(&b, evil)[0];

    let table = served.artifacts(["list"]);
    let rows: Vec<Vec<String>> = table
        .stdout()
        .lines()
        .map(|line| line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()))
        .map(|cells| cells.map(str::to_owned).collect())
        .collect();
    assert_eq!(rows[0], ["id", "name", "size", "type", "session", "created"]);
    assert_eq!((&rows[2][0], &rows[2][4]), (evil, &b), "the newest first: {table}");
    assert!(rows[2][5].ends_with(" ago") && rows.len() == 5, "{table}");
    assert!(!table.stdout().contains('\u{1b}'), "{table}");
    let listed = |args: &[&str]| -> Vec<String> {
        let list = served.artifacts([&["list", "--json"], args].concat()).json();
        let artifacts = list["artifacts"].as_array().expect("a list").iter();
        artifacts.map(|artifact| artifact["id"].as_str().expect("an id").to_owned()).collect()
    };
    let mut of_a = listed(&["--session", "a b"]);
    of_a.sort();
    let mut expected = ids.clone();
    expected.sort();
    assert_eq!(of_a, expected);
    let exec = served.artifacts(["show", evil, "--json"]).json()["exec_id"].clone();
    assert_eq!(listed(&["--exec", exec.as_str().expect("an id")]), [evil.as_str()]);
    let first = served.artifacts(["list", "--limit", "1"]);
    assert_eq!(first.stderr(), "belljar: these are the newest 1; --limit shows more\n");
    assert_eq!(served.artifacts(["list", "--limit", "1", "--json"]).json()["more"], true);
    assert_snapshot!(served.artifacts(["list", "--session", "nobody"]), @r"
    exit 125
    --- stdout
    --- stderr
    belljar: there is no session with the id or key `nobody`; `belljar session list` shows all
    ");

    let shown = served.artifacts(["show", &ids[1]]);
    assert_snapshot!(steady(&shown), @r"
    exit 0
    --- stdout
    id          art_[ID]
    name        table.csv
    path        /session/artifacts/table.csv
    size        8 B (8 bytes)
    type        text/csv; charset=utf-8
    sha256      492d5ea496056f1a6a6592241032fab764c321596317930b4fa0e1e8bc3b7470
    created     [TIME] 0 s ago
    session     ses_[ID]
    exec        exec_[ID]
    link        [LINK]/artifacts/art_[ID]?token=[TOKEN]
    --- stderr
    ");
    assert_snapshot!(steady(&served.artifacts(["show", &ids[1], "--json"])), @r#"
    exit 0
    --- stdout
    {
      "created": [TIME]
      "exec_id": "exec_[ID]",
      "host_path": "[CWD]/blobs/t37a8eec1ce19687d/49/492d5ea496056f1a6a6592241032fab764c321596317930b4fa0e1e8bc3b7470",
      "id": "art_[ID]",
      "mime": "text/csv; charset=utf-8",
      "name": "table.csv",
      "path": "/session/artifacts/table.csv",
      "session_id": "ses_[ID]",
      "sha256": "492d5ea496056f1a6a6592241032fab764c321596317930b4fa0e1e8bc3b7470",
      "size": 8,
      "url": [LINK]/artifacts/art_[ID]?token=[TOKEN]
    }
    --- stderr
    "#);
    assert_snapshot!(served.artifacts(["show", "art_none"]), @r"
    exit 125
    --- stdout
    --- stderr
    belljar: there is no artifact `art_none`; `belljar artifacts list` shows all
    ");
    assert_snapshot!(served.artifacts(["remove", &ids[0], "art_none", &ids[1]]), @r"
    exit 125
    --- stdout
    art_[ID] removed
    art_[ID] removed
    --- stderr
    belljar: there is no artifact `art_none`; `belljar artifacts list` shows all
    ");
    assert_snapshot!(served.artifacts(["remove", evil, "--json"]), @r#"
    exit 0
    --- stdout
    {
      "removed": [
        "art_[ID]"
      ]
    }
    --- stderr
    "#);
    assert_eq!(listed(&[]), [""; 0]);
    // The session is known, but has no artifacts.
    assert_eq!(
        served.artifacts(["list", "--session", &a]).stderr(),
        "There are no artifacts like that.\n"
    );
}

#[test]
fn links_are_fresh_and_complete_where_they_can_be() {
    let served = CliServer::on_tcp();
    let id = served.create(&[]);
    let ids = served.leave(&id, LEAVE_SOME);
    let link = served.artifacts(["url", &ids[1]]);
    assert!(link.stderr().starts_with("belljar: valid until 20"), "{link}");
    // The server counts whole seconds, so up to one second is missing.
    let left = |finished: &Finished| finished.stderr().replace(" 9 min", " 10 min");
    assert!(left(&link).ends_with(", for 10 min\n"), "{link}");
    let address = link.stdout();
    let (host, path) = address["http://".len()..].trim().split_once('/').expect("a link");
    let ask = |method: &str, path: &str| {
        let mut stream = TcpStream::connect(host).expect("a server");
        let ask = format!("{method} /{path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
        stream.write_all(ask.as_bytes()).expect("it listens");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        answer
    };
    let answer = ask("GET", path);
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("a,b\n1,2\n"), "{answer}");
    let head = served.artifacts(["url", &ids[1], "--head"]);
    assert!(left(&head).ends_with(", for 10 min, and for HEAD only\n"), "{head}");
    let head = head.stdout().trim().to_owned();
    let path = head.split_once(host).expect("the same server").1.trim_start_matches('/');
    assert!(ask("HEAD", path).starts_with("HTTP/1.1 200"));
    assert!(ask("GET", path).starts_with("HTTP/1.1 403"));

    let served = CliServer::on_socket();
    let id = served.create(&[]);
    let ids = served.leave(&id, LEAVE_SOME);
    let link = served.artifacts(["url", &ids[1]]);
    assert!(link.stdout().starts_with(&format!("/artifacts/{}?token=", ids[1])), "{link}");
    let advice = link.stderr().lines().nth(1).expect("a second line").to_owned();
    assert!(
        advice.ends_with(&format!("`belljar artifacts get {}` downloads it", ids[1])),
        "{link}"
    );
    let json = served.artifacts(["url", &ids[1], "--json"]).json();
    assert!(json["url"].is_string() && json["expires"].is_string(), "{json}");
}

#[test]
fn a_download_is_whole_or_not_there() {
    let served = CliServer::on_socket();
    let context = served.context();
    let id = served.create(&[]);
    let ids = served.leave(&id, LEAVE_SOME);
    assert_snapshot!(served.artifacts(["get", &ids[1]]), @r"
    exit 0
    --- stdout
    table.csv
    --- stderr
    ");
    assert_eq!(fs::read(context.path("table.csv")).expect("a file"), b"a,b\n1,2\n");
    fs::write(context.path("table.csv"), "mine").expect("a file");
    assert_snapshot!(served.artifacts(["get", &ids[1]]), @r"
    exit 125
    --- stdout
    --- stderr
    belljar: `table.csv` is there already; --force overwrites it, -o names another file
    ");
    assert_eq!(fs::read(context.path("table.csv")).expect("a file"), b"mine");
    assert_eq!(served.artifacts(["get", &ids[1], "--force"]).code, Some(0));
    assert_eq!(fs::read(context.path("table.csv")).expect("a file"), b"a,b\n1,2\n");
    fs::create_dir(context.path("into")).expect("a directory");
    let json = served.artifacts(["get", &ids[0], "-o", "into", "--json"]);
    assert_snapshot!(json, @r#"
    exit 0
    --- stdout
    {
      "file": "into/one.txt",
      "id": "art_[ID]",
      "name": "one.txt",
      "resumed_at": 0,
      "sha256": "7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed",
      "size": 3
    }
    --- stderr
    "#);
    assert_eq!(tree(&context.path("into")), ["one.txt"]);
    assert_eq!(served.artifacts(["get", &ids[0], "-o", "-"]).stdout(), "one");

    // Targets that cannot be written, an artifact that does not exist, and conflicting flags.
    assert_snapshot!(served.artifacts(["get", &ids[0], "-o", "/dev/null", "--force"]), @r"
    exit 125
    --- stdout
    --- stderr
    belljar: `/dev/null` is not a plain file; `-o - >FILE` writes to anything
    ");
    assert_snapshot!(served.artifacts(["get", &ids[0], "-o", "/proc/one.txt"]), @r"
    exit 125
    --- stdout
    --- stderr
    belljar: failed to write `/proc/art_[ID].part`: No such file or directory (os error 2)
    ");
    assert_snapshot!(served.artifacts(["get", &ids[0], "-o", "nowhere/one.txt"]), @r"
    exit 125
    --- stdout
    --- stderr
    belljar: failed to write `nowhere/art_[ID].part`: No such file or directory (os error 2)
    ");
    assert_snapshot!(served.artifacts(["get", "art_none"]), @r"
    exit 125
    --- stdout
    --- stderr
    belljar: there is no artifact `art_none`; `belljar artifacts list` shows all
    ");
    assert_snapshot!(served.artifacts(["get", &ids[0], "-o", "-", "--json"]), @r"
    exit 125
    --- stdout
    --- stderr
    belljar: --json and -o - both use standard output; leave one of them out
    ");

    // A partial file of an earlier download is resumed, if it is a part of this artifact.
    let part = |content: &str| {
        fs::write(context.path(&format!("{}.part", ids[1])), content).expect("a file");
        served.artifacts(["get", &ids[1], "-o", "again.csv", "--json"])
    };
    assert_eq!(part("a,b\n").json()["resumed_at"], 4);
    assert_eq!(fs::read(context.path("again.csv")).expect("a file"), b"a,b\n1,2\n");
    fs::remove_file(context.path("again.csv")).expect("a file");
    let wrong = part("x,y\n");
    assert_eq!(wrong.code, Some(125), "{wrong}");
    assert!(wrong.stderr().contains("does not match the hash"), "{wrong}");
    assert_eq!(part("longer than all of it").json()["resumed_at"], 0);
    let left: Vec<_> =
        tree(&context.path(".")).into_iter().filter(|name| name.ends_with(".part")).collect();
    assert_eq!(left, [""; 0]);
}

#[test]
fn who_reads_only_the_beginning_has_what_they_wanted() {
    let served = CliServer::on_tcp();
    let id = served.create(&[]);
    let ids = served.leave(&id, LEAVE_LARGE);
    for args in [&["get", &ids[0], "-o", "-"][..], &["list"], &["show", &ids[0], "--json"]] {
        let mut command = served.context().belljar([&["artifacts"], args].concat());
        let mut child =
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("belljar starts");
        let mut first = [0];
        child.stdout.take().expect("it was piped").read_exact(&mut first).expect("a byte");
        let ended = child.wait_with_output().expect("belljar ends");
        let stderr = String::from_utf8_lossy(&ended.stderr);
        assert_eq!((ended.status.code(), &*stderr), (Some(0), ""), "{args:?}");
    }
}

#[test]
fn a_download_to_a_file_survives_a_killed_server() {
    let mut served = CliServer::on_tcp();
    let id = served.create(&[]);
    let ids = served.leave(&id, LEAVE_LARGE);
    let url = served.artifacts(["url", &ids[0]]).stdout();
    let address = url["http://".len()..].split('/').next().expect("an address").to_owned();
    let narrow = Narrow::in_front_of(address);
    let context = served.context();
    let mut command = context.belljar(["artifacts", "--url", &narrow.url, "get", &ids[0]]);
    let mut running = context.leave_running(&mut command);
    let part = context.path(&format!("{}.part", ids[0]));
    eventually_blocking("a part is there", || {
        fs::metadata(&part).is_ok_and(|part| part.len() > 1 << 20)
    });
    assert!(!context.path("large.bin").exists());
    let second = served.artifacts(["get", &ids[0]]);
    assert!(second.stderr().contains("another download writes to"), "{second}");
    served.kill();
    narrow.widen();
    // Long enough for the client to give up, if it did not wait.
    thread::sleep(Duration::from_millis(500));
    assert!(!running.is_over(), "it waits");
    served.start();
    let finished = running.finish();
    assert_snapshot!(finished, @r"
    exit 0
    --- stdout
    large.bin
    --- stderr
    belljar: lost the server; waiting for it for 60 seconds
    belljar: the server is back
    ");
    assert!(fs::read(served.context().path("large.bin")).expect("a file") == large());
    assert!(!part.exists());
}

#[test]
fn a_download_to_a_pipe_survives_a_killed_server() {
    let mut served = CliServer::on_socket();
    let id = served.create(&[]);
    let ids = served.leave(&id, LEAVE_LARGE);
    let mut command = served.context().belljar(["artifacts", "get", &ids[0], "-o", "-"]);
    let mut child =
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("belljar starts");
    let mut stdout = child.stdout.take().expect("it was piped");
    // The rest is not read yet, so the server is in the middle of sending it.
    let mut bytes = vec![0; 1 << 20];
    stdout.read_exact(&mut bytes).expect("the first megabyte");
    served.kill();
    let reading = thread::spawn(move || {
        stdout.read_to_end(&mut bytes).expect("the rest");
        bytes
    });
    // Long enough for the client to try to reach the server and fail.
    thread::sleep(Duration::from_millis(500));
    served.start();
    let ended = child.wait_with_output().expect("belljar ends");
    assert!(reading.join().expect("no panic") == large());
    assert_eq!(ended.status.code(), Some(0));
    assert_eq!(
        String::from_utf8_lossy(&ended.stderr),
        "belljar: lost the server; waiting for it for 60 seconds\nbelljar: the server is back\n"
    );
}

#[test]
fn ctrl_c_leaves_a_part_that_the_next_download_goes_on_with() {
    let served = CliServer::on_tcp();
    let id = served.create(&[]);
    let ids = served.leave(&id, LEAVE_LARGE);
    let url = served.artifacts(["url", &ids[0]]).stdout();
    let narrow = Narrow::in_front_of(url["http://".len()..].split('/').next().expect("one").into());
    let context = served.context();
    let mut command = context.belljar(["artifacts", "--url", &narrow.url, "get", &ids[0]]);
    let running = context.leave_running(&mut command);
    let part = context.path(&format!("{}.part", ids[0]));
    eventually_blocking("a part is there", || {
        fs::metadata(&part).is_ok_and(|part| part.len() > 1 << 20)
    });
    running.press_ctrl_c();
    assert_snapshot!(running.finish(), @r"
    exit 130
    --- stdout
    --- stderr
    belljar: the first part is in `art_[ID].part`; the same command continues the download
    ");
    let had = fs::metadata(&part).expect("it is kept").len();
    let again = served.artifacts(["get", &ids[0], "--json"]).json();
    assert_eq!(again["resumed_at"], had);
    assert!(fs::read(context.path("large.bin")).expect("a file") == large());
}

#[test]
fn artifacts_of_another_tenant_are_not_there() {
    let served = CliServer::on_tcp();
    let key = |tenant: &str| {
        let created =
            served.context().call(["key", "create", "--name", tenant, "--tenant", tenant]);
        created.stdout().trim().to_owned()
    };
    let (ours, theirs) = (key("ours"), key("theirs"));
    eventually_blocking("the server notices", || served.call(["list"]).code != Some(0));
    let with_key = |key: &str, args: &[&str]| {
        served.context().finish(served.context().belljar(args).env("BELLJAR_API_KEY", key))
    };
    let session = with_key(&ours, &["session", "create"]).stdout().trim().to_owned();
    let code = "open('/session/artifacts/x', 'w').close()";
    let left = with_key(&ours, &["session", "exec", &session, "--json", "-c", code]).json();
    let id = left["artifacts"][0]["id"].as_str().expect("an id");
    for verb in ["show", "get", "url", "remove"] {
        let refused = with_key(&theirs, &["artifacts", verb, id]);
        let expected =
            format!("belljar: there is no artifact `{id}`; `belljar artifacts list` shows all\n");
        assert_eq!((refused.code, refused.stderr()), (Some(125), expected), "{verb}");
    }
    assert_eq!(with_key(&theirs, &["artifacts", "list"]).stderr(), "There are no artifacts.\n");
    let list = with_key(&theirs, &["artifacts", "list", "--session", &session]);
    assert!(list.stderr().starts_with("belljar: there is no session"), "{list}");
    assert_eq!(with_key(&ours, &["artifacts", "get", id]).code, Some(0));
}

#[test]
fn verify_finds_what_is_lost() {
    let mut served = CliServer::on_socket();
    let id = served.create(&[]);
    let ids = served.leave(&id, LEAVE_SOME);
    let more = "open('/session/artifacts/two.txt', 'w').write('two'); None";
    let two = &served.leave(&id, more)[0];
    // While the server runs.
    assert_snapshot!(served.artifacts(["verify"]), @r"
    exit 0
    --- stdout
    3 contents intact, 14 B; 0 unused; nothing is lost
    --- stderr
    ");
    let blob = |id: &str| {
        let shown = served.artifacts(["show", id, "--json"]).json();
        let sha256 = shown["sha256"].as_str().expect("text").to_owned();
        let blobs = served.context().path("blobs");
        let found = tree(&blobs).into_iter().find(|path| path.ends_with(&sha256));
        blobs.join(found.expect("its content"))
    };
    let (missing, damaged) = (blob(&ids[0]), blob(two));
    fs::remove_file(missing).expect("it is there");
    fs::remove_file(&damaged).expect("it is there");
    fs::write(&damaged, "owt").expect("a file");
    served.kill();
    // And without a server.
    assert_snapshot!(served.artifacts(["verify"]), @r"
    exit 1
    --- stdout
    lost                                  name     session                               reason
    ------------------------------------  -------  ------------------------------------  -----------------------------------
    art_[ID]  one.txt  ses_[ID]  its content is missing
    art_[ID]  two.txt  ses_[ID]  its content does not match its hash

    1 content intact, 8 B; 0 unused; 2 artifacts are lost
    --- stderr
    ");
    let found = served.artifacts(["verify", "--json"]);
    assert_eq!(found.code, Some(1), "{found}");
    let found = found.json();
    assert_eq!(
        (&found["intact"], &found["bytes"], &found["unused"]),
        (&1.into(), &8.into(), &0.into())
    );
    let reasons: Vec<_> = found["lost"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|lost| (&lost["id"], &lost["reason"]))
        .collect();
    assert_eq!(
        reasons,
        [
            (&ids[0].clone().into(), &"its content is missing".into()),
            (&two.clone().into(), &"its content does not match its hash".into()),
        ]
    );
    served.start();
    let damaged = served.artifacts(["get", two]);
    assert_eq!(damaged.code, Some(125), "{damaged}");
    assert!(!served.context().path("two.txt").exists());
    assert!(!served.context().path(&format!("{two}.part")).exists(), "nothing has come");
}

#[test]
fn verify_without_anything_to_look_at_says_so() {
    let context = TestContext::new();
    let state = context.path("state").display().to_string();
    let context = context.env("BELLJAR_STATE_DIR", &state);
    assert_snapshot!(context.call(["artifacts", "verify"]), @r"
    exit 0
    --- stdout
    0 contents intact, 0 B; 0 unused; nothing is lost
    --- stderr
    belljar: there is no database of artifacts at `[CWD]/state/artifacts.db`; ARTIFACTS_DB says where it is
    ");
    assert!(!context.path("state").exists(), "who only looks makes nothing");
    let broken = context.file("artifacts.db", "not a database").env("ARTIFACTS_DB", "artifacts.db");
    let broken = broken.call(["artifacts", "verify"]);
    assert_eq!(broken.code, Some(125), "{broken}");
}

/// A proxy that passes only three megabytes of each answer. `widen` makes it close the connections
/// that hang and pass later answers completely.
struct Narrow {
    url: String,
    wide: Arc<AtomicBool>,
}

impl Narrow {
    fn in_front_of(address: String) -> Narrow {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let wide = Arc::new(AtomicBool::new(false));
        let for_thread = Arc::clone(&wide);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                // If the server does not run, the client's connection is closed.
                let Ok(server) = TcpStream::connect(&address) else { continue };
                let wide = Arc::clone(&for_thread);
                let (up, down) = (
                    (client.try_clone().expect("a copy"), server.try_clone().expect("a copy")),
                    (server, client),
                );
                thread::spawn(move || pass(up, &AtomicBool::new(true)));
                thread::spawn(move || pass(down, &wide));
            }
        });
        Narrow { url, wide }
    }

    fn widen(&self) {
        self.wide.store(true, Ordering::Relaxed);
    }
}

fn pass((mut from, mut to): (TcpStream, TcpStream), wide: &AtomicBool) {
    if wide.load(Ordering::Relaxed) {
        let _ = io::copy(&mut from, &mut to);
    } else {
        let _ = io::copy(&mut (&mut from).take(3 << 20), &mut to);
        while !wide.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(5));
        }
    }
    // Data still in flight from a killed server is lost.
    let _ = to.shutdown(Shutdown::Both);
}
