//! `doctor`, `setup`, help, and the binary itself.

use std::fs;
use std::process::Command;

use insta::assert_snapshot;

use belljar_testkit::cli_server::CliServer;
use belljar_testkit::command::{Finished, TestContext};
use belljar_testkit::scratch_host::ScratchHost;

#[test]
fn strict_runs_where_every_limit_holds() {
    belljar_testkit::skip_unless_root!("this needs root");
    let context = TestContext::new().env("BELLJAR_STRICT", "1");
    assert_eq!(context.run(["-c", "print(1)"]).to_string(), "exit 0\n--- stdout\n1\n--- stderr\n");
}

#[test]
fn doctor_finds_this_machine_usable() {
    belljar_testkit::skip_unless_root!("this needs root");
    let scratch = ScratchHost::new();
    let finished = TestContext::inside(&scratch).call(["doctor", "--json"]);
    assert_eq!(finished.code, Some(0), "{finished}");
    let diagnosis = finished.json();
    assert_eq!(diagnosis["usable"], true, "{diagnosis:#}");
    let findings = diagnosis["findings"].as_array().expect("a list");
    // These features depend on the machine. Doctor only has to report them.
    let optional = ["landlock", "docker", "chromium", "node"];
    let not_ok: Vec<_> = findings
        .iter()
        .filter(|it| it["state"] != "ok" && !optional.iter().any(|name| it["feature"] == *name))
        .collect();
    assert!(not_ok.is_empty(), "{not_ok:#?}");
    let features: Vec<_> = findings.iter().filter_map(|it| it["feature"].as_str()).collect();
    assert_snapshot!(features.join("\n"), @r"
    kernel
    seccomp
    landlock
    volumes
    session files
    python
    user ids
    cgroups
    namespaces
    no network
    cpu limit
    memory limit
    process limit
    docker
    chromium
    node
    ");
    assert_eq!(scratch.traces(), [""; 0]);
}

/// Without cgroups, processor time is not limited. On a busy machine a sandbox still gets little of
/// it, which does not prove that there is a limit.
#[test]
fn a_processor_limit_that_is_not_there_is_not_believed_in_on_a_busy_machine() {
    belljar_testkit::skip_unless_root!("this needs root");
    let scratch = ScratchHost::new();
    let context = TestContext::inside(&scratch).env("BELLJAR_CGROUP_PARENT", "no-such/parent");
    // Each burner has its own session (setsid): Linux divides processor time among sessions.
    let burners = 3 * std::thread::available_parallelism().map_or(2, usize::from);
    let burn = |_| context.program("setsid").args(["sh", "-c", "while :; do :; done"]).spawn();
    let mut burners: Vec<_> = (0..burners).map(burn).map(|it| it.expect("it starts")).collect();
    let finished = context.call(["doctor", "--json"]);
    burners.iter_mut().for_each(|it| it.kill().expect("it burns"));
    burners.iter_mut().for_each(|it| drop(it.wait()));
    let diagnosis = finished.json();
    let findings = diagnosis["findings"].as_array().expect("a list");
    for limit in ["cpu limit", "memory limit", "process limit"] {
        let finding = findings.iter().find(|it| it["feature"] == limit).expect("it was tried");
        assert_eq!(finding["state"], "weak", "{finding:#}");
    }
}

/// The warnings appear over HTTP, which Python uses too, and on the command line.
#[test]
fn limits_that_are_not_enforced_are_warned_of_everywhere() {
    belljar_testkit::skip_unless_root!("this needs root");
    let served = CliServer::on_tcp_with(&[("BELLJAR_CGROUP_PARENT", "no-such/parent")]);
    let void = ["cpu limit", "memory limit", "process limit"];
    let created = served.ok(["create", "--json"]);
    let expected = void.map(|limit| {
        format!("not enforced on the server's machine: {limit}; `belljar doctor` says why")
    });
    assert_eq!(created.json()["warnings"], serde_json::json!(expected), "{created}");
    let id = created.json()["id"].as_str().expect("an id").to_owned();
    for warning in &expected {
        assert!(created.stderr().contains(&format!("belljar: warning: {warning}\n")), "{created}");
        assert!(served.ok(["show", &id]).stdout().contains(warning));
    }
    assert_eq!(
        served.ok(["list", "--json"]).json()["sessions"][0]["warnings"],
        serde_json::json!(expected)
    );
    let run = |accept: &str| {
        let mut curl = served.context().program("curl");
        curl.args(["-sS", "-H", "content-type: application/json", "-H", accept]);
        curl.args(["-d", r#"{"code": "1"}"#, &format!("{}/v1/run", served.url())]);
        served.context().finish(&mut curl)
    };
    assert_eq!(run("accept: application/json").json()["warnings"], serde_json::json!(expected));
    let streamed = run("accept: text/event-stream").stdout();
    assert!(streamed.contains(&expected[0]), "{streamed}");
    let status = served.context().call(["status"]);
    let void =
        "limits      NOT enforced: cpu limit, memory limit, process limit; see `belljar doctor`\n";
    assert!(status.stdout().contains(void), "{status}");
    let stopped = served.ok(["stop", "--json", &id]);
    assert!(stopped.json()["sessions"][0].get("warnings").is_none(), "{stopped}");
}

/// A package that can be installed without network.
fn wheel(context: &TestContext, name: &str) -> String {
    let path = context.path(&format!("{name}-1.0-py3-none-any.whl")).display().to_string();
    let script = "
import sys, zipfile
path, name = sys.argv[1:]
info = f'{name}-1.0.dist-info/'
with zipfile.ZipFile(path, 'w') as wheel:
    wheel.writestr(f'{name}.py', f'NAME = {name!r}')
    wheel.writestr(info + 'METADATA', f'Metadata-Version: 2.1\\nName: {name}\\nVersion: 1.0\\n')
    wheel.writestr(info + 'WHEEL', 'Wheel-Version: 1.0\\nGenerator: test\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n')
    wheel.writestr(info + 'entry_points.txt', f'[console_scripts]\\n{name}-tool = {name}:NAME.upper\\n')
    wheel.writestr(info + 'RECORD', '')
";
    let made = context.finish(context.program("python3").args(["-c", script, &path, name]));
    assert_eq!(made.code, Some(0), "{made}");
    path
}

#[test]
fn a_setup_that_fails_leaves_the_environment_that_was_there() {
    let home = tempfile::tempdir().expect("a directory");
    let mut context = TestContext::new().env("BELLJAR_HOME", &home.path().display().to_string());
    let (first, second) = (wheel(&context, "first"), wheel(&context, "second"));
    context.set_env("BELLJAR_PACKAGES", &first);
    let made = context.call(["setup"]);
    assert_eq!(made.code, Some(0), "{made}");
    let code = "import first; first.NAME";
    assert_eq!(context.run(["-c", code]).stdout(), "'first'\n");

    let failed = context.call(["setup", "--with", "this is bad!!"]);
    assert_eq!(failed.code, Some(125), "{failed}");
    assert!(failed.stderr().contains("python` was not changed: "), "{failed}");
    let run = context.run(["-c", code]);
    assert_eq!(run.to_string(), "exit 0\n--- stdout\n'first'\n--- stderr\n");

    // `--chem` adds one package, which pip finds by its name.
    wheel(&context, "rdkit");
    context.set_env("PIP_NO_INDEX", "1");
    let found = context.path("").display().to_string();
    context.set_env("PIP_FIND_LINKS", &found);
    let grown = context.call(["setup", "--chem", "--with", &second]);
    assert_eq!(grown.code, Some(0), "{grown}");
    let code = "import first, second, rdkit, subprocess; print(first.NAME, second.NAME)
print(subprocess.run(['second-tool'], capture_output=True).stderr)";
    assert_eq!(context.run(["-c", code]).stdout(), "first second\nb'SECOND\\n'\n");
    let left: Vec<String> = fs::read_dir(home.path())
        .expect("a directory")
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| name.starts_with("python"))
        .collect();
    assert_eq!(left, ["python"], "what was made on the way is gone");
    let python = home.path().join("python/bin/python").display().to_string();
    for script in ["first-tool", "second-tool"] {
        let text =
            fs::read_to_string(home.path().join("python/bin").join(script)).expect("a script");
        assert!(text.starts_with(&format!("#!{python}\n")), "{text}");
    }
}

#[test]
fn doctor_prints_a_table() {
    let finished = TestContext::new().call(["doctor"]);
    let table = finished.stdout();
    assert_eq!(finished.code, Some(0), "{finished}");
    assert!(table.starts_with("feature"), "{table}");
    assert!(table.contains("Sandboxes can run"), "{table}");
    assert!(table.lines().all(|line| line.chars().count() <= 100), "{table}");
    assert!(!table.contains('\u{1b}'), "no colours in a file: {table}");
}

#[test]
fn doctor_is_coloured_at_a_terminal_unless_that_is_not_wanted() {
    let context = TestContext::new().env("TERM", "xterm");
    let at_a_terminal = |no_colour: &str| {
        let mut script = context.program("script");
        let doctor = format!("{} doctor", belljar_testkit::belljar());
        script.args(["-qec", &doctor, "/dev/null"]).env("NO_COLOR", no_colour);
        context.finish(&mut script).stdout()
    };
    assert!(at_a_terminal("").contains("\u{1b}[32mok"));
    let plain = at_a_terminal("1");
    assert!(plain.contains("Sandboxes can run") && !plain.contains('\u{1b}'), "{plain}");
}

#[test]
fn setup_names_an_interpreter_it_cannot_use() {
    let home = tempfile::tempdir().expect("a directory");
    let context = TestContext::new()
        .env("BELLJAR_HOME", &home.path().display().to_string())
        .file("python", "#!/bin/sh\necho I am no Python\n");
    assert_snapshot!(context.call(["setup", "--python", "/nowhere/python3"]), @r"
    exit 125
    --- stdout
    --- stderr
    belljar: failed to start `/nowhere/python3`; install Python 3.10 or newer, or name one with --python: No such file or directory (os error 2)
    ");
    assert_snapshot!(context.call(["setup", "--python", "/bin/false"]), @r"
    exit 125
    --- stdout
    --- stderr
    belljar: `/bin/false` does not work (); install Python 3.10 or newer, or name one with --python
    ");
    assert_snapshot!(context.call(["setup", "--python", "/bin/echo"]), @r"
    exit 125
    --- stdout
    --- stderr
    belljar: `/bin/echo` is not a Python; install Python 3.10 or newer, or name one with --python: invalid number at line 1 column 2
    ");
    assert!(!context.path(".env").exists(), "a setup that failed leaves no .env");
}

#[test]
fn every_command_explains_itself() {
    let context = TestContext::new();
    let overview = context.call(["--help"]);
    assert_snapshot!(overview, @r"
    exit 0
    --- stdout
    Sealed computers for AI agents, on your own machine

    Usage: belljar <COMMAND>

    Commands:
      run          Run code once in a new sandbox, which is removed afterwards
      serve        Run the server: sessions over HTTP
      node         Run a node of a cluster: sessions that gateways send to this machine
      gateway      Run a gateway of a cluster: it forwards the requests of clients to nodes
      cluster      Clusters: make the authority for TLS between nodes and gateways
      init         PID 1 of a container or pod: start the server, and start it again when it dies
      session      Sessions of a server: create, list, use and stop them
      status       Show whether a server runs, its sessions and their use, and the directories
      shell        Open a terminal in a session, or a shell on standard input and output
      artifacts    Artifacts of sessions: list, download, link, remove and verify them
      volume       Volumes, whose files outlive sessions: create, list and remove them
      key          API keys and their limits: create, list and revoke them
      usage        Show the usage of tenants per day
      image        Images of sandboxes: build, pull, import, list and remove them
      view         Show the executions, variables and artifacts of a session on disk, also while it runs
      setup        Prepare this machine: the Python environment of sandboxes, and a commented .env
      doctor       Check what this machine can enforce, and what to do where it cannot
      bench        Measure latency, memory and density, compared with docker and python3
      completions  Print completions of commands and flags for your shell
      migrate      Move the records of this machine from SQLite files to a Postgres database
      uninstall    Remove everything that Belljar stores on this machine
      help         Print this message or the help of the given subcommand(s)

    Options:
      -h, --help     Print help
      -V, --version  Print version
    --- stderr
    ");
    assert_subcommands_explain_themselves(&context, &[], &overview);
}

fn assert_subcommands_explain_themselves(context: &TestContext, command: &[&str], help: &Finished) {
    let text = help.stdout();
    let names = text.lines().skip_while(|line| *line != "Commands:").skip(1);
    let names = names.take_while(|line| !line.is_empty());
    for name in names.filter_map(|line| line.split_whitespace().next()) {
        let command = [command, &[name]].concat();
        let help = context.call([&["help"], &command[..]].concat());
        assert_eq!(help.code, Some(0), "{help}");
        assert!(help.stdout().contains("Usage: belljar"), "{help}");
        if name != "help" {
            let by_flag = context.call([&command[..], &["--help"]].concat());
            assert_eq!(by_flag.stdout(), help.stdout());
            assert!(flags_without_help(&help).is_empty(), "{:?}", flags_without_help(&help));
            assert_subcommands_explain_themselves(context, &command, &help);
        }
    }
}

/// Lines of a help text that name a flag without a description.
fn flags_without_help(help: &Finished) -> Vec<String> {
    let text = help.stdout();
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let explained = |line: &str, next: Option<&&str>| {
        line.split_once("  ").is_some()
            || next.is_some_and(|next| !next.is_empty() && !next.starts_with('-'))
    };
    lines
        .iter()
        .enumerate()
        .filter(|(at, line)| line.starts_with('-') && !explained(line, lines.get(at + 1)))
        .map(|(_, line)| (*line).to_owned())
        .collect()
}

#[test]
fn without_a_command_the_overview_is_shown() {
    let finished = TestContext::new().call([""; 0]);
    assert_eq!(finished.code, Some(2));
    assert!(finished.stderr().contains("Commands:"), "{finished}");
}

#[test]
fn the_binary_runs_in_an_empty_root() {
    belljar_testkit::skip_unless_root!("this needs root");
    let root = tempfile::tempdir().expect("a directory");
    fs::copy(belljar_testkit::belljar(), root.path().join("belljar")).expect("a copy");
    let output = Command::new("chroot").arg(root.path()).args(["/belljar", "--version"]).output();
    let output = output.expect("chroot starts");
    let version = format!("belljar {}\n", env!("CARGO_PKG_VERSION"));
    assert_eq!(String::from_utf8_lossy(&output.stdout), version, "{output:?}");
}
