//! `belljar session`: sessions that keep their state, from the command line.

use insta::assert_snapshot;

use belljar_testkit::cli_server::CliServer;
use belljar_testkit::command::Finished;
use belljar_testkit::wait::eventually_blocking;

#[test]
fn a_session_remembers_and_is_found_by_its_key() {
    let served = CliServer::on_socket();
    let id = served.create(&["--key", "demo", "--env", "COLOUR=red"]);
    assert_snapshot!(served.call(["create", "--key", "demo"]), @r"
    exit 0
    --- stdout
    ses_[ID]
    --- stderr
    belljar: the session existed already
    ");
    assert_eq!(served.create(&["--key", "demo"]), id);
    served.ok(["exec", "demo", "-c", "import os; x = 6 * 7"]);
    assert_snapshot!(served.call(["exec", &id, "-c", "print(os.environ['COLOUR'])\nx"]), @r"
    exit 0
    --- stdout
    red
    42
    --- stderr
    ");
    assert_snapshot!(served.call(["stop", "demo"]), @r"
    exit 0
    --- stdout
    ses_[ID] stopped: it was stopped
    --- stderr
    ");
    assert_snapshot!(served.call(["exec", "demo", "-c", "x"]), @r"
    exit 125
    --- stdout
    --- stderr
    belljar: session `ses_[ID]` has ended: it was stopped; create a new one; a session with storage BIND can be started again with POST /v1/sessions/{id}/start
    ");
    assert_snapshot!(served.call(["create", "--key", "demo"]), @r"
    exit 0
    --- stdout
    ses_[ID]
    --- stderr
    belljar: the session ses_[ID] had this key and was removed with everything in it: it was stopped
    ");
    let error = served.call(["exec", "demo", "-c", "x"]);
    assert_eq!(error.code, Some(1), "{error}");
    assert!(error.stderr().ends_with("NameError: name 'x' is not defined\n"), "{error}");
}

#[test]
fn a_pool_that_cannot_be_filled_is_said_once_and_filled_when_it_can() {
    let served = CliServer::on_tcp_with(&[("SESSION_STORAGE", "BIND")]);
    let sessions = served.context().path("sessions");
    let aside = served.context().path("aside");
    let ready = || {
        let mut curl = served.context().program("curl");
        let metrics =
            served.context().finish(curl.args(["-s", &format!("{}/metrics", served.url())]));
        metrics.stdout().contains("pool_ready 1\n")
    };
    eventually_blocking("the pool is filled", ready);
    std::fs::rename(&sessions, &aside).expect("it can be moved");
    std::fs::write(&sessions, "no directory").expect("a file");
    let _ = served.call(["create"]);
    let failures = || served.log().matches("failed to fill the pool").count();
    eventually_blocking("that it fails is said", || failures() > 0);
    // Without a longer delay between attempts there would be four more failures by then.
    std::thread::sleep(std::time::Duration::from_millis(2200));
    assert_eq!(failures(), 1, "{}", served.log());
    std::fs::remove_file(&sessions).expect("it is ours");
    std::fs::rename(&aside, &sessions).expect("it can be moved");
    eventually_blocking("it is filled again", || {
        served.log().contains("the pool is being filled again")
    });
    assert_eq!(failures(), 1, "{}", served.log());
}

#[test]
fn a_session_with_files_goes_on_with_other_options_and_can_be_removed() {
    let served = CliServer::on_socket();
    let id = served.create(&["--key", "bk", "--storage", "BIND"]);
    served.ok(["exec", "bk", "--lang", "bash", "-c", "echo kept > /session/file"]);
    served.ok(["stop", "bk"]);
    let again = ["create", "--key", "bk", "--storage", "BIND", "--memory", "1G"];
    assert_eq!(served.ok(again).stdout().trim(), id);
    let shown = served.ok(["show", "bk"]);
    assert!(shown.stdout().contains("memory 1.00 GiB"), "{shown}");
    let read = served.ok(["exec", "bk", "--lang", "bash", "-c", "cat /session/file"]);
    assert_eq!(read.stdout(), "kept\n");
    // A running session, an ended one, and one that does not exist.
    let ended = served.create(&["--key", "ended", "--storage", "BIND"]);
    served.ok(["stop", "ended"]);
    let removed = served.call(["remove", "bk", "none", &ended]);
    assert_snapshot!(removed, @r"
    exit 125
    --- stdout
    ses_[ID] removed
    ses_[ID] removed
    --- stderr
    belljar: there is no session with the id or key `none`; `belljar session list` shows all
    ");
    assert_eq!(served.ok(["list", "--json"]).stdout().matches("ses_").count(), 0);
    assert_ne!(served.create(&["--key", "bk", "--storage", "BIND"]), id);
    let files = served.call(["exec", "bk", "--lang", "bash", "-c", "cat /session/file"]);
    assert_eq!(files.code, Some(1), "{files}");
    let as_json = served.ok(["remove", "--json", "bk"]);
    assert!(as_json.stdout().contains("\"removed\""), "{as_json}");
}

#[test]
fn sessions_are_listed_and_shown() {
    let served = CliServer::on_socket();
    assert_snapshot!(served.call(["list"]), @r"
    exit 0
    --- stdout
    --- stderr
    There are no sessions.
    ");
    let old = served.create(&["--ttl", "7300"]);
    let new = served.create(&["--key", "a b/ü?", "--memory", "256M", "--storage", "bind"]);
    served.ok(["exec", &new, "-c", "1"]);
    served.ok(["stop", &old]);
    let table = served.ok(["list"]).stdout();
    let rows: Vec<Vec<&str>> = table
        .lines()
        .map(|line| line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect())
        .collect();
    assert_eq!(rows[0], ["id", "key", "state", "storage", "created", "expires", "execs", "memory"]);
    assert_eq!(rows[2][..4], [new.as_str(), "a b/ü?", "ready", "BIND"]);
    // On a busy machine, time passes between the two commands.
    assert!(matches!(rows[2][5..7], ["in 60 min" | "in 59 min", "1"]), "{table}");
    assert_eq!(rows[3][..4], [old.as_str(), "-", "stopped", "TMPFS"]);
    assert_eq!(rows[3][5..], ["-", "0", "-"]);

    let ids = |finished: &Finished| -> Vec<String> {
        let json = finished.json();
        let sessions = json["sessions"].as_array().expect("a list").iter();
        sessions.map(|session| session["id"].as_str().expect("an id").to_owned()).collect()
    };
    assert_eq!(ids(&served.ok(["list", "--json", "--state", "stopped"])), [old.as_str()]);
    assert_eq!(ids(&served.ok(["list", "--json", "--key", "a b/ü?"])), [new.as_str()]);
    let first = served.ok(["list", "--json", "--limit", "1"]);
    assert_eq!(ids(&first), [new.as_str()]);
    assert_eq!(first.stderr(), "belljar: these are the newest 1; --limit shows more\n");
    assert_eq!(served.ok(["list", "--key", "none"]).stderr(), "There are no sessions like that.\n");
    let wrong = served.call(["list", "--state", "asleep"]);
    assert_eq!(wrong.code, Some(125));
    assert!(wrong.stderr().contains("state: expected one of creating, ready"), "{wrong}");

    let shown = served.ok(["show", "a b/ü?", "--json"]).json();
    assert_eq!((&shown["id"], &shown["limits"]["memory"]), (&new.into(), &(256 << 20).into()));
    let shown = served.ok(["show", &old]).stdout();
    assert!(shown.contains("\nstate       stopped\n"), "{shown}");
    assert!(shown.contains(": it was stopped\n"), "{shown}");
    assert_snapshot!(served.call(["show", "nobody"]), @r"
    exit 125
    --- stdout
    --- stderr
    belljar: there is no session with the id or key `nobody`; `belljar session list` shows all
    ");
}

#[test]
fn what_others_chose_is_not_obeyed_by_a_terminal() {
    let served = CliServer::on_socket();
    // The server's error repeats the requested id.
    let hostile = "ses_\u{1b}]0;owned\u{7}\u{1b}[2J\u{9b}31m\u{202e}";
    for args in [&["show", hostile][..], &["exec", hostile, "-c", "1"], &["stop", hostile]] {
        let refused = served.call(args);
        assert_eq!(refused.code, Some(125), "{refused}");
        let said = refused.stderr();
        assert!(said.contains("ses_\\u{1b}]0;owned"), "{said}");
        let obeyed = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
        assert!(!said.contains(obeyed) && !refused.stdout().contains(obeyed), "{said:?}");
    }
}

#[test]
fn several_are_stopped_and_one_that_is_not_there_saves_none() {
    let served = CliServer::on_socket();
    let (a, b) = (served.create(&["--key", "a"]), served.create(&[]));
    let stopped = served.call(["stop", "a", "nobody", &b]);
    assert_eq!(stopped.code, Some(125), "{stopped}");
    assert_eq!(
        stopped.stdout(),
        format!("{a} stopped: it was stopped\n{b} stopped: it was stopped\n")
    );
    assert!(stopped.stderr().contains("`nobody`"), "{stopped}");
    let again = served.ok(["stop", "--json", &b]).json();
    assert_eq!(again["sessions"][0]["state"], "stopped");
}

#[test]
fn an_exec_ends_as_its_code_does() {
    let served = CliServer::on_socket();
    let id = served.create(&[]);
    let exec = |args: &[&str]| served.call([&["exec", &id], args].concat());
    assert_snapshot!(exec(&["-c", "import sys; print('out'); sys.exit(3)"]), @r"
    exit 3
    --- stdout
    out
    --- stderr
    ");
    assert_snapshot!(exec(&["-c", "1 / 0"]), @r#"
    exit 1
    --- stdout
    --- stderr
    Traceback (most recent call last):
      File "<cell 2>", line 1, in <module>
        1 / 0
        ~~^~~
    ZeroDivisionError: division by zero
    "#);
    let late = exec(&["--timeout", "0.2", "-c", "while True: pass"]);
    assert_eq!(late.code, Some(124), "{late}");
    assert!(late.stderr().ends_with("KeyboardInterrupt\nbelljar: timed out\n"), "{late}");
    assert_snapshot!(exec(&["-c", "import os; os._exit(9)"]), @r"
    exit 9
    --- stdout
    --- stderr
    belljar: crashed: the kernel exited with status 9
    belljar: the variables of the session are lost
    ");
    assert_snapshot!(exec(&["--max-output", "3", "-c", "print('abcdef')"]), @r"
    exit 0
    --- stdout
    abc[no newline]
    --- stderr
    belljar: 4 bytes of stdout exceeded --max-output and were dropped
    ");
    let result = exec(&["--json", "-c", "print('out')\n'é'"]).json();
    assert_eq!((&result["stdout"], &result["status"]), (&"out\n".into(), &"ok".into()));
    assert_eq!(result["results"][0]["data"]["text/plain"], "'é'");
}

#[test]
fn shells_and_commands_have_their_place() {
    let served = CliServer::on_socket();
    let id = served.create(&[]);
    let exec = |args: &[&str]| served.call([&["exec", &id], args].concat());
    assert_eq!(exec(&["--lang", "bash", "-c", "cd /tmp; A=7"]).code, Some(0));
    assert_eq!(exec(&["--lang", "bash", "-c", "echo $A; pwd"]).stdout(), "7\n/tmp\n");
    assert_eq!(exec(&["--env", "A=8", "--command", "echo $A | tr 8 9; exit 4"]).stdout(), "9\n");
    assert_eq!(exec(&["--command", "exit 4"]).code, Some(4));
    // With several words, the first is a program, which is searched in PATH.
    assert_eq!(exec(&["--command", "echo", "-c", "$A", "a  b"]).stdout(), "-c $A a  b\n");
    assert_eq!(exec(&["--command", "no-such-program", "-x"]).code, Some(127));
    assert_eq!(exec(&["--command", "/no/such/program", "-x"]).code, Some(126));
    assert_eq!(exec(&["-c", "'the kernel is well'"]).stdout(), "'the kernel is well'\n");
}

#[test]
fn code_comes_from_files_and_from_standard_input() {
    let served = CliServer::on_socket();
    let id = served.create(&[]);
    std::fs::write(served.context().path("a.sh"), "echo ${BASH_VERSION:+bash}").expect("a file");
    assert_eq!(served.ok(["exec", &id, "a.sh"]).stdout(), "bash\n");
    std::fs::write(served.context().path("latin.py"), b"'\xe9'").expect("a file");
    let latin = served.call(["exec", &id, "latin.py"]);
    assert_eq!(latin.stderr(), "belljar: the code must be text in UTF-8\n");
    let missing = served.call(["exec", &id, "missing.py"]);
    assert!(missing.stderr().starts_with("belljar: failed to read `missing.py`"), "{missing}");
    assert_eq!(served.ok(["exec", &id, "-"]).stdout(), "", "there is nothing to execute");
}

#[test]
fn work_in_the_background_is_joined_from_its_beginning() {
    let served = CliServer::on_socket();
    let id = served.create(&["--key", "worker"]);
    let code = "import time\nprint('begun')\nwhile not __import__('os').path.exists('go'): \
                time.sleep(0.01)\nprint('went')\nraise SystemExit(5)";
    let begun = served.ok(["exec", "worker", "--background", "-c", code]);
    let exec = begun.stdout().trim().to_owned();
    assert_eq!(
        begun.stderr(),
        format!(
            "belljar: it runs in the background; `belljar session exec {id} --join {exec}` shows its output\n"
        )
    );
    let mut joined = served.start_exec([&id, "--join", &exec]);
    assert_eq!(joined.line(), "begun");
    served.ok(["exec", "worker", "-c", "file = open('/session/go', 'w').close()"]);
    let joined = joined.finish();
    assert_eq!((joined.code, joined.stdout().as_str()), (Some(5), "went\n"), "{joined}");
    let again = served.call(["exec", &id, "--join", &exec, "--json"]);
    assert_eq!((again.code, &again.json()["stdout"]), (Some(5), &"begun\nwent\n".into()));
    let nothing = served.call(["exec", &id, "--join", "exec_none"]);
    assert_eq!(nothing.stderr(), "belljar: there is no execution `exec_none` in this session\n");
}

#[test]
fn ctrl_c_interrupts_the_code_and_the_session_goes_on() {
    let served = CliServer::on_socket();
    let id = served.create(&[]);
    let mut running =
        served.start_exec([&id, "-c", "import time\nx = 1\nprint('started')\ntime.sleep(1000)"]);
    assert_eq!(running.line(), "started");
    running.press_ctrl_c();
    let finished = running.finish();
    assert_eq!(finished.code, Some(130), "{finished}");
    assert!(finished.stderr().ends_with("KeyboardInterrupt\nbelljar: interrupted\n"), "{finished}");
    assert_eq!(served.ok(["exec", &id, "-c", "x"]).stdout(), "1\n");
}

#[test]
fn a_second_ctrl_c_leaves_it_running() {
    let served = CliServer::on_socket();
    let id = served.create(&[]);
    let stubborn = "\
import os, signal, time
# Not print: the signal may come while the other one is in the middle of its own.
ignored = signal.signal(signal.SIGINT, lambda *_: os.write(1, b'heard\\n'))
print('started')
end = time.monotonic() + 1.5
while time.monotonic() < end: time.sleep(0.01)
print('went on')";
    let mut running = served.start_exec([&id, "-c", stubborn]);
    assert_eq!(running.line(), "started");
    running.press_ctrl_c();
    assert_eq!(running.line(), "heard");
    running.press_ctrl_c();
    let left = running.finish();
    assert_eq!(left.code, Some(130), "{left}");
    let stderr = left.stderr();
    let exec = stderr.split(" --join ").nth(1).and_then(|rest| rest.split('`').next());
    let exec = exec.expect("how to join").to_owned();
    assert_eq!(
        stderr,
        format!(
            "belljar: left running; `belljar session exec {id} --join {exec}` shows its output\n"
        )
    );
    let joined = served.call(["exec", &id, "--join", &exec]);
    let stdout = joined.stdout();
    assert!(stdout.starts_with("started\nheard\n") && stdout.ends_with("went on\n"), "{joined}");
}

/// A line every 50 ms for about four seconds.
const TICKING: &str = "\
import time
for n in range(80):
    print('line', n)
    time.sleep(0.05)
";

fn lines() -> String {
    (0..80).map(|n| format!("line {n}\n")).collect()
}

/// The server is killed in mid-stream and starts again later: every line is printed exactly once.
#[track_caller]
fn survives_a_kill(mut served: CliServer) {
    let id = served.create(&[]);
    let mut running = served.start_exec([&id, "-c", TICKING]);
    let mut stdout = String::new();
    while stdout.lines().count() < 20 {
        stdout += &(running.line() + "\n");
    }
    served.kill();
    // Long enough for the client to give up, if it did not wait.
    std::thread::sleep(std::time::Duration::from_millis(500));
    assert!(!running.is_over(), "it waits");
    served.start();
    let finished = running.finish();
    assert_eq!(finished.code, Some(0), "{finished}");
    assert_eq!(stdout + &finished.stdout(), lines());
    assert_eq!(
        finished.stderr(),
        "belljar: lost the server; waiting for it for 60 seconds\nbelljar: the server is back\n"
    );
}

#[test]
fn a_client_on_tcp_survives_a_killed_server() {
    survives_a_kill(CliServer::on_tcp());
}

#[test]
fn a_client_on_a_socket_survives_a_killed_server() {
    survives_a_kill(CliServer::on_socket());
}

#[test]
fn an_execution_that_ended_without_a_server_is_reported_in_full() {
    let mut served = CliServer::on_tcp();
    let id = served.create(&[]);
    let code = "import time\nprint('begun')\ntime.sleep(1)\nprint('ended')\nraise SystemExit(7)";
    let mut running = served.start_exec([&id, "-c", code]);
    assert_eq!(running.line(), "begun");
    served.kill();
    // Longer than the code runs.
    std::thread::sleep(std::time::Duration::from_millis(2000));
    served.start();
    let finished = running.finish();
    assert_eq!((finished.code, finished.stdout().as_str()), (Some(7), "ended\n"), "{finished}");
}

#[test]
fn ctrl_c_without_a_server_reaches_the_next_one() {
    let mut served = CliServer::on_tcp();
    let id = served.create(&[]);
    let mut running =
        served.start_exec([&id, "-c", "import time\nprint('started')\ntime.sleep(1000)"]);
    assert_eq!(running.line(), "started");
    served.kill();
    running.press_ctrl_c();
    assert!(!running.is_over());
    served.start();
    let finished = running.finish();
    assert_eq!(finished.code, Some(130), "{finished}");
    assert!(finished.stderr().ends_with("belljar: interrupted\n"), "{finished}");
}

#[test]
fn a_session_that_is_stopped_under_an_exec_ends_it_with_a_word() {
    let served = CliServer::on_socket();
    let id = served.create(&[]);
    let mut running =
        served.start_exec([&id, "-c", "import time\nprint('started')\ntime.sleep(1000)"]);
    assert_eq!(running.line(), "started");
    eventually_blocking("it is busy", || served.ok(["show", &id]).stdout().contains("busy"));
    served.ok(["stop", &id]);
    assert_snapshot!(running.finish(), @r"
    exit 130
    --- stdout
    --- stderr
    belljar: interrupted: the session was ended: it was stopped
    belljar: the variables of the session are lost
    ");
}

#[test]
fn a_session_sleeps_branches_and_goes_back() {
    let served = CliServer::on_socket();
    let id = served.create(&["--key", "demo", "--checkpoints"]);
    served.ok(["exec", "demo", "-c", "x = 1"]);
    served.ok(["exec", "demo", "-c", "x = 2"]);
    let points = served.ok(["restore", "demo"]).stdout();
    let first = points.lines().next().and_then(|line| line.split(' ').next()).expect("a point");
    assert_eq!(points.lines().count(), 2, "{points}");
    assert_eq!(
        served.ok(["hibernate", "demo"]).stdout(),
        format!("{id} hibernates; it wakes when it is used\n")
    );
    let forks = served.ok(["fork", "demo", "-n", "2"]).stdout();
    for fork in forks.lines() {
        assert_eq!(served.ok(["exec", fork, "-c", "x"]).stdout(), "2\n");
    }
    served.ok(["restore", "demo", first]);
    assert_eq!(served.ok(["exec", "demo", "-c", "x"]).stdout(), "1\n");
    let unknown = served.call(["restore", "demo", "nothing"]);
    assert_eq!(unknown.code, Some(125), "{unknown}");
    assert!(unknown.stderr().contains("no checkpoint of execution `nothing`"), "{unknown}");
    // What a snapshot cannot keep is named in the error. With --force it is listed as lost, and the rest is kept.
    let thread = "import threading, time; \
                  threading.Thread(target=time.sleep, args=(99,), name='clock\\x1b[31m').start()";
    served.ok(["exec", "demo", "-c", thread]);
    let refused = served.call(["hibernate", "demo"]);
    assert!(refused.code == Some(125) && refused.stderr().contains("clock"), "{refused}");
    let lost = "lost: thread `clock\\u{1b}[31m` is alive\n";
    assert_eq!(served.ok(["fork", "demo", "-n", "2", "--force"]).stderr(), lost);
    let slept = served.ok(["hibernate", "demo", "--force"]);
    assert_eq!(slept.stdout(), format!("{id} hibernates; it wakes when it is used\n"));
    assert_eq!(slept.stderr(), lost);
    assert_eq!(served.ok(["exec", "demo", "-c", "x"]).stdout(), "1\n");
}

#[test]
fn tasks_go_on_between_executions_and_hold_off_sleep() {
    let served = CliServer::on_socket();
    served.create(&["--key", "demo"]);
    let code = "\
import asyncio
ticks = []
async def tick():
    while True:
        ticks.append(1)
        await asyncio.sleep(0.005)
task = asyncio.create_task(tick(), name='ticker')";
    served.ok(["exec", "demo", "-c", code]);
    let ticks = || served.ok(["exec", "demo", "-c", "len(ticks)"]).stdout().trim().parse::<u32>();
    eventually_blocking("the task goes on by itself", || ticks().expect("a number") > 5);
    for what in ["hibernate", "fork"] {
        let refused = served.call([what, "demo"]);
        assert_ne!(refused.code, Some(0), "{refused}");
        assert!(refused.stderr().contains("asyncio task `ticker` (tick) is pending"), "{refused}");
    }
    // With --force the session hibernates with its tasks, which continue when it wakes.
    served.ok(["hibernate", "demo", "--force"]);
    let awake = ticks().expect("a number");
    eventually_blocking("the task goes on after a sleep", || {
        ticks().expect("a number") > awake + 5
    });
    served.ok(["exec", "demo", "-c", "task.cancel(); await asyncio.wait([task]);"]);
    served.ok(["hibernate", "demo"]);
    assert_eq!(served.ok(["exec", "demo", "-c", "task.cancelled()"]).stdout(), "True\n");
}
