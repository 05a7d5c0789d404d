//! `belljar view`: what a session has done, from its directory alone, while it runs and afterwards.

use insta::assert_snapshot;
use serde_json::Value;

use belljar_testkit::cli_server::CliServer;
use belljar_testkit::command::TestContext;
use belljar_testkit::wait::eventually_blocking;

/// A session on disk and its directory.
fn on_disk(served: &CliServer) -> (String, String) {
    let id = served.create(&["--storage", "BIND"]);
    let shown = served.ok(["show", &id, "--json"]).json();
    (id, shown["directory"].as_str().expect("it has one").to_owned())
}

fn state_is_written(directory: &str) {
    eventually_blocking("its variables are written down", || {
        std::path::Path::new(directory).join("python_state.json").exists()
    });
}

#[test]
fn a_session_is_seen_while_it_runs_and_when_it_is_over() {
    let mut served = CliServer::on_socket();
    let (id, directory) = on_disk(&served);
    served.ok(["exec", &id, "-c", "import math\nx = 6 * 7  # the answer\nprint('hello')\nx"]);
    served.call([
        "exec",
        &id,
        "-c",
        "open('/session/artifacts/plot.txt', 'w').write('plot')\n1 / 0",
    ]);
    served.ok(["exec", &id, "--lang", "bash", "-c", "echo \"from $0\" | cut -c1-4"]);
    state_is_written(&directory);
    let view = |args: &[&str]| {
        served.context().call(["view", &directory].into_iter().chain(args.iter().copied()))
    };
    eventually_blocking("three executions are written down", || {
        view(&[]).stdout().contains("[3] ")
    });
    let page = view(&[]).stdout();
    assert!(!page.contains('\x1b'), "nobody looks on who could see colours: {page}");
    for part in [
        "Session\n",
        &format!("id          {id}\n"),
        "state       ready\n",
        "limits      memory 512.00 MiB, cpus 1, pids 256\n",
        "\n[1] ok python, 2",
        " ms, ",
        " in memory\n    import math\n    x = 6 * 7  # the answer\n    print('hello')\n    x\n",
        "  stdout\n    hello\n",
        "  result\n    42\n",
        "[2] error python",
        "    ZeroDivisionError: division by zero\n",
        "  artifact\n    /session/artifacts/plot.txt (4 B)\n",
        "[3] ok bash",
        "    from\n",
        "NAME  TYPE  SHAPE  SIZE",
        "\nx     int",
        "imports: math\n",
        "Artifacts\n",
        "plot.txt  4 B\n",
    ] {
        assert!(page.contains(part), "{part:?} is missing in:\n{page}");
    }
    let last = view(&["--limit", "1", "--no-state", "--no-artifacts"]).stdout();
    assert!(last.contains("(2 earlier are not shown; --limit 0 shows all)\n\n[3] "), "{last}");
    assert!(
        !last.contains("Variables") && !last.contains("Artifacts") && !last.contains("[2]"),
        "{last}"
    );
    let json = view(&["--json", "--limit", "2"]).json();
    assert_eq!(
        (&json["metadata"]["session_id"], &json["earlier_execs"]),
        (&Value::from(id.as_str()), &Value::from(1))
    );
    assert_eq!(json["execs"][0]["error"]["name"], "ZeroDivisionError");
    assert!(json["execs"][1]["memory_bytes"].as_u64() > Some(1 << 20), "{json:#}");
    assert_eq!(
        (&json["state"]["variables"][0]["name"], &json["artifacts"][0]["name"]),
        (&Value::from("x"), &Value::from("plot.txt"))
    );

    served.ok(["stop", &id]);
    eventually_blocking("its end is written down", || {
        served
            .context()
            .call(["view", &directory])
            .stdout()
            .contains("because     it was stopped\n")
    });
    served.kill();
    assert!(
        served.context().call(["view", &directory]).stdout().contains("[3] ok bash"),
        "no server is needed"
    );
}

#[test]
fn followed_it_shows_what_comes_until_the_end() {
    let served = CliServer::on_socket();
    let (id, directory) = on_disk(&served);
    served.ok(["exec", &id, "-c", "print('one')"]);
    let context = served.context();
    let mut lines =
        context.leave_running(&mut context.belljar(["view", &directory, "--follow", "--json"]));
    let number = |line: &str| serde_json::from_str::<Value>(line).expect("JSON")["number"].clone();
    assert_eq!(number(&lines.line()), 1);
    served.ok(["exec", &id, "-c", "print('two')"]);
    assert_eq!(number(&lines.line()), 2);
    let page = context
        .leave_running(&mut context.belljar(["view", &directory, "--follow", "--limit", "1"]));
    served.ok(["exec", &id, "-c", "print('three')"]);
    served.ok(["stop", &id]);
    assert_eq!(number(&lines.line()), 3);
    assert_eq!(lines.finish().code, Some(0));
    let page = page.finish().stdout();
    assert!(
        page.contains("[2] ok") && page.contains("    three\n") && page.contains("Variables\n"),
        "{page}"
    );
}

#[test]
fn what_is_no_session_is_said() {
    let context = TestContext::new().file("empty/x", "").file("broken/session_metadata.json", "{");
    assert_snapshot!(context.call(["view", "none"]), @r"
    exit 125
    --- stdout
    --- stderr
    belljar: `none` is no directory
    ");
    assert_snapshot!(context.call(["view", "empty"]), @r"
    exit 125
    --- stdout
    --- stderr
    belljar: `empty` is not the directory of a session: neither session_metadata.json nor session.log is there. Sessions with storage BIND have one each, below SESSIONS_ROOT
    ");
    assert_snapshot!(context.call(["view", "broken"]), @r"
    exit 125
    --- stdout
    --- stderr
    belljar: broken/session_metadata.json is not what a server writes: EOF while parsing an object at line 1 column 1
    ");
}

#[test]
fn colours_are_for_terminals_that_want_them() {
    let log = r#"{"number":1,"status":"ok","language":"python","code":"def f(): return 'x'","stdout":"\u001b[31mred","stderr":""}"#;
    let context = TestContext::new().file("s/session.log", format!("{log}\n"));
    let on_a_terminal = |setting: &str| {
        let binary = belljar_testkit::belljar();
        let mut script = context.program("script");
        script.env("TERM", "xterm").args([
            "-qec",
            &format!("{setting} {binary} view s"),
            "/dev/null",
        ]);
        context.finish(&mut script).stdout()
    };
    let coloured = on_a_terminal("env");
    assert!(
        coloured.contains("\x1b[35mdef\x1b[0m f(): \x1b[35mreturn\x1b[0m \x1b[32m'x'\x1b[0m"),
        "{coloured}"
    );
    assert!(
        coloured.contains("\\u{1b}[31mred"),
        "what code printed is shown, not obeyed: {coloured}"
    );
    assert!(!on_a_terminal("NO_COLOR=1").contains('\x1b'));
}
