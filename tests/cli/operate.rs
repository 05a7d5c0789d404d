//! Commands for operators of a server: status, log, installation and removal.

use std::fs;
use std::path::Path;

use insta::assert_snapshot;
use serde_json::Value;

use belljar_testkit::cli_server::CliServer;
use belljar_testkit::command::{TestContext, tree};
use belljar_testkit::port::free_address;
use belljar_testkit::scratch_host::ScratchHost;
use belljar_testkit::wait::eventually_blocking;

#[test]
fn status_tells_of_the_server_its_sessions_and_where_they_are() {
    let served = CliServer::on_tcp();
    let context = served.context();
    let status = || {
        let reply = context.call(["status", "--json"]);
        assert_eq!(reply.code, Some(0), "{reply}");
        reply.json()
    };
    let empty = status();
    assert_eq!(empty["running"], true);
    assert_eq!(empty["sessions"], serde_json::json!({}));
    assert_eq!(empty["directories"]["state"], context.path("state").display().to_string());
    assert_eq!(empty["pid"], served.pid());
    let (first, _) = (served.create(&[]), served.create(&["--storage", "BIND"]));
    served.ok(["hibernate", &first]);
    let reply = status();
    assert_eq!(reply["sessions"], serde_json::json!({ "hibernated": 1, "ready": 1 }));
    assert!(reply["memory"]["server"].as_u64() > Some(1 << 20), "{reply:#}");
    assert!(reply["memory"]["sessions"].as_u64() > Some(1 << 16), "{reply:#}");
    eventually_blocking("the limits are tested", || status()["enforced"].is_object());
    let words = context.call(["status"]).stdout();
    assert!(words.starts_with(&format!("server      belljar 0.1.0 at {}, process", served.url())));
    assert!(words.contains("sessions    2: 1 hibernated, 1 ready\n"), "{words}");
    let sessions = context.path("sessions").display().to_string();
    assert!(words.contains(&format!("files       {sessions}\n")), "{words}");

    // With keys, a client without a key gets no information.
    let key = context.call(["key", "create", "--name", "a"]).stdout();
    eventually_blocking("keys are wanted", || context.call(["status"]).code == Some(125));
    let mut command = context.belljar(["status", "--json"]);
    let reply = context.finish(command.env("BELLJAR_API_KEY", key.trim())).json();
    assert_eq!(reply["running"], true, "{reply:#}");
    assert_eq!(reply["directories"], Value::Null, "tenants are not told of the machine");
}

#[test]
fn status_without_a_server_says_so() {
    let address = free_address();
    let context = TestContext::new();
    let state = context.path("state").display().to_string();
    let context = context.env("BELLJAR_STATE_DIR", &state);
    let url = format!("http://{address}");
    let reply = context.call(["status", "--url", &url]);
    assert_eq!(reply.code, Some(1), "{reply}");
    assert!(reply.stdout().starts_with("server      none\n"), "{reply}");
    assert!(reply.stdout().contains("`belljar serve`"), "{reply}");
    let reply = context.call(["status", "--json", "--url", &url]);
    assert_eq!((reply.code, &reply.json()["running"]), (Some(1), &Value::Bool(false)), "{reply}");
    assert_eq!(reply.json()["directories"]["state"], state);
    assert!(!Path::new(&state).exists(), "who only looks makes nothing");
}

#[test]
fn all_sessions_are_stopped_at_once() {
    let served = CliServer::on_socket();
    assert_snapshot!(served.call(["stop", "--all"]), @r"
    exit 0
    --- stdout
    --- stderr
    There are no sessions to stop.
    ");
    let asleep = served.create(&["--key", "a"]);
    served.create(&["--key", "b"]);
    served.ok(["hibernate", &asleep]);
    served.ok(["exec", "b", "--background", "-c", "import time; time.sleep(1000)"]);
    assert_snapshot!(served.call(["stop", "--all"]), @r"
    exit 0
    --- stdout
    ses_[ID] stopped: it was stopped
    ses_[ID] stopped: it was stopped
    --- stderr
    ");
    let left = served.ok(["list", "--json"]).json();
    assert!(left["sessions"].as_array().expect("a list").iter().all(|it| it["state"] == "stopped"));
    let nothing = served.call(["stop", "--all", "--json"]);
    assert_eq!(nothing.json(), serde_json::json!({ "sessions": [] }));
    let both = served.call(["stop", "--all", "a"]);
    assert_eq!(both.code, Some(2), "{both}");
    assert_eq!(served.call(["stop"]).code, Some(2));
}

#[test]
fn every_line_of_a_log_in_json_is_json() {
    // Limits that are not enforced are logged as warnings.
    let mut served = CliServer::on_tcp_with(&[
        ("BELLJAR_LOG_FORMAT", "json"),
        ("BELLJAR_CGROUP_PARENT", "no-such/parent"),
    ]);
    served.create(&[]);
    served.stop();
    let log = served.log();
    let lines: Vec<Value> = log
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect();
    let said = |level: &str, text: &str| {
        lines.iter().any(|line| {
            let message = line["fields"]["message"].as_str().expect("a message");
            line["level"] == level && message.contains(text) && line["timestamp"].is_string()
        })
    };
    assert!(said("WARN", "not enforced on this machine"), "{log}");
    assert!(said("INFO", "listens on http://"), "{log}");
    assert!(said("INFO", "stopped, with 1 session(s)"), "{log}");

    let context = served.context();
    for args in [&["serve", "--unix", "/proc/none/socket"][..], &["serve", "--listen", "box"]] {
        let failed = context.call(args);
        let line: Value = serde_json::from_str(&failed.stderr()).expect("one line of JSON");
        assert_eq!(line["level"], "ERROR", "{failed}");
    }
    // The setting is for the log of a server. Errors of other commands stay plain text.
    assert!(
        context.call(["session", "list", "--url", "box"]).stderr().starts_with("belljar: --url")
    );
}

#[test]
fn copies_say_how_far_they_are_at_a_terminal_only() {
    let served = CliServer::on_socket();
    let context = served.context();
    let id = served.create(&[]);
    fs::create_dir(context.path("directory")).expect("a directory");
    fs::write(context.path("directory/file"), vec![1; 3 << 20]).expect("a file");
    let at_a_terminal = |from: &str, to: &str| {
        let copy = format!("{} session cp {from} {to}", belljar_testkit::belljar());
        let mut script = context.program("script");
        let finished =
            context.finish(script.args(["-qec", &copy, "/dev/null"]).env("TERM", "xterm"));
        assert_eq!(finished.code, Some(0), "{finished}");
        finished.stdout()
    };
    let inside = |path: &str| format!("{id}:{path}");
    for (from, to, to_again) in [
        ("directory/file".to_owned(), inside("file"), inside("file2")),
        ("directory".to_owned(), inside("directory"), inside("again")),
        (inside("file"), "copy".to_owned(), "copy2".to_owned()),
        (inside("directory"), "outside".to_owned(), "outside2".to_owned()),
    ] {
        let said = at_a_terminal(&from, &to);
        assert!(said.contains(": 3.0") && said.contains(" MiB in "), "{from} -> {to}: {said}");
        let again = served.ok(["cp", &from, &to_again]);
        assert_eq!((again.stdout(), again.stderr()), (String::new(), String::new()));
    }
    assert_eq!(fs::read(context.path("copy")).expect("it came").len(), 3 << 20);
}

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

#[test]
fn an_installation_has_everything_in_its_place_and_can_be_removed() {
    let context = TestContext::new();
    let staged = context.path("staged");
    let make = |target: &str| {
        let mut make = context.program("make");
        make.args(["-C", ROOT, "--no-print-directory", target, "PREFIX=/opt/jar"]);
        make.arg(format!("DESTDIR={}", staged.display()));
        make.arg(format!("BELLJAR={}", belljar_testkit::belljar()));
        let finished = context.finish(&mut make);
        assert_eq!(finished.code, Some(0), "{finished}");
    };
    make("install-files");
    let installed = staged.join("opt/jar");
    let files = tree(&installed);
    for file in [
        "bin/belljar",
        "share/man/man1/belljar.1",
        "share/man/man1/belljar-session-cp.1",
        "share/bash-completion/completions/belljar",
        "share/zsh/site-functions/_belljar",
        "share/fish/vendor_completions.d/belljar.fish",
        "lib/systemd/system/belljar.service",
    ] {
        assert!(files.iter().any(|found| found == file), "{file} is not in {files:?}");
    }
    let binary = installed.join("bin/belljar").display().to_string();
    let version = context.finish(context.program(&binary).arg("--version"));
    assert_eq!(version.stdout(), concat!("belljar ", env!("CARGO_PKG_VERSION"), "\n"));
    let unit = fs::read_to_string(installed.join("lib/systemd/system/belljar.service"));
    let unit = unit.expect("a unit");
    assert!(
        unit.contains("ExecStart=/opt/jar/bin/belljar serve\n") && !unit.contains('@'),
        "{unit}"
    );
    // The completions that bash offers after `belljar session st`.
    let completions = installed.join("share/bash-completion/completions/belljar");
    let script = format!(
        "source {}; COMP_WORDS=(belljar session st); COMP_CWORD=2; \
         _belljar belljar st session; echo ${{COMPREPLY[@]}}",
        completions.display()
    );
    let offered = context.finish(context.program("bash").args(["-c", &script]));
    let mut offered: Vec<String> = offered.stdout().split_whitespace().map(str::to_owned).collect();
    offered.sort();
    assert_eq!(offered, ["stage", "stop"]);
    let page = fs::read_to_string(installed.join("share/man/man1/belljar-run.1")).expect("a page");
    assert!(page.starts_with(".") && page.contains("Seconds the code may run"), "{page}");
    make("uninstall");
    let left = tree(&staged);
    assert!(left.iter().all(|path| !path.contains("belljar")), "{left:?}");
}

#[test]
fn uninstalling_removes_what_is_ours_and_nothing_else() {
    belljar_testkit::skip_unless_root!("this needs root");
    let scratch = ScratchHost::new();
    let context = TestContext::inside(&scratch);
    let installation = |name: &str| context.path(name).display().to_string();
    let (home, user, socket) = (installation("home"), installation("user"), installation("socket"));
    let context = context
        .env("BELLJAR_HOME", &home)
        // Servers that Python starts keep their files below HOME.
        .env("HOME", &user)
        .env("BELLJAR_UNIX", &socket)
        .env("BELLJAR_URL", &format!("unix:{socket}"))
        .env("BELLJAR_POOL", "1")
        .env("BELLJAR_PRELOAD", "json")
        .env("BELLJAR_ALONE", "60")
        .file("home/notes.txt", "mine")
        .file("user/.local/share/belljar/local/server.log", "theirs")
        .file("outputs/plot.png", "mine");
    let server = context.leave_running(&mut context.belljar(["serve"]));
    eventually_blocking("the server answers", || context.call(["session", "list"]).code == Some(0));
    for storage in ["TMPFS", "BIND"] {
        let made = context.call(["session", "create", "--storage", storage]);
        assert_eq!(made.code, Some(0), "{made}");
    }
    let refused = context.call(["uninstall", "--yes"]);
    assert_eq!(refused.code, Some(125), "{refused}");
    assert!(refused.stderr().contains("stop the server first"), "{refused}");
    assert_eq!(context.call(["session", "list", "--json"]).json()["sessions"][1]["state"], "ready");

    // Sandboxes continue without the server.
    server.kill();
    assert!(!scratch.processes().is_empty());
    let unasked = context.call(["uninstall"]);
    assert_eq!(unasked.code, Some(125), "{unasked}");
    assert!(unasked.stderr().contains("--yes removes without asking"), "{unasked}");
    let listed = context.call(["uninstall", "--dry-run"]);
    assert_eq!(listed.code, Some(0), "{listed}");
    for line in
        ["control groups  /sys/fs/cgroup/", &format!("{home}/sessions"), "/state/belljar.db\n"]
    {
        assert!(listed.stdout().contains(line), "{line}: {listed}");
    }
    assert!(!scratch.processes().is_empty() && Path::new(&home).join("state").exists());

    let removed = context.call(["uninstall", "--yes"]);
    assert_eq!(removed.code, Some(0), "{removed}");
    assert!(removed.stderr().contains("/outputs` is left"), "{removed}");
    eventually_blocking("no process is left", || scratch.processes().is_empty());
    assert!(!Path::new("/sys/fs/cgroup").join(scratch.cgroup_parent()).exists());
    assert_eq!(tree(Path::new(&home)), ["notes.txt"]);
    assert_eq!(tree(&context.path("outputs")), ["plot.png"]);
    assert_eq!(tree(&context.path("user")), [".local", ".local/share"]);
    assert!(!scratch.run_dir().exists() || tree(scratch.run_dir()).is_empty());
    let again = context.call(["uninstall", "--yes"]);
    assert!(again.stdout().starts_with("There is nothing to remove."), "{again}");
}
