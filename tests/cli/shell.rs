//! `belljar shell`, used at a real terminal, and by a program with pipes.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use belljar_sys::pty::{self, Pty};
use belljar_sys::{channel, process, tty};

use belljar_testkit::cli_server::CliServer;
use belljar_testkit::command::TestContext;
use belljar_testkit::installation::command_line;
use belljar_testkit::wait::{PATIENCE, eventually_blocking};

const SIGTERM: i32 = 15;

/// A user at a terminal who runs `belljar`.
pub(crate) struct Person {
    terminal: Pty,
    child: Child,
    seen: String,
}

impl Person {
    fn calls(served: &CliServer, args: &[&str]) -> Person {
        Person::starts(served.context(), &[&["shell"], args].concat())
    }

    pub(crate) fn starts(context: &TestContext, args: &[&str]) -> Person {
        let terminal = pty::open(12, 70).expect("a terminal");
        let end = || Stdio::from(terminal.slave.try_clone().expect("a descriptor"));
        // `setsid --ctty` makes this the controlling terminal of all these processes, as a login
        // does. `stty` runs before they exit, because the terminal ends with them.
        let script = "\"$@\"; status=$?; stty -a; echo status=$status=";
        let mut command = context.program("setsid");
        command.args(["--ctty", "--wait", "sh", "-c", script, "sh"]);
        command.arg(belljar_testkit::belljar()).args(args);
        command.env("TERM", "vt220").stdin(end()).stdout(end()).stderr(end());
        let child = command.spawn().expect("setsid starts");
        Person { terminal, child, seen: String::new() }
    }

    pub(crate) fn types(&self, keys: impl AsRef<[u8]>) {
        let keys = keys.as_ref();
        assert_eq!(pty::write_now(&self.terminal.master, keys).expect("room"), keys.len());
    }

    /// Waits until this text is on the screen, and returns the output up to it.
    #[track_caller]
    pub(crate) fn sees(&mut self, wanted: &str) -> String {
        let began = Instant::now();
        let mut buffer = [0; 4096];
        loop {
            if let Some(at) = self.seen.find(wanted) {
                let rest = self.seen.split_off(at + wanted.len());
                return std::mem::replace(&mut self.seen, rest);
            }
            assert!(began.elapsed() < PATIENCE, "no {wanted:?} in {:?}", self.seen);
            match channel::read_now(&self.terminal.master, &mut buffer) {
                Ok(n) => self.seen.push_str(&String::from_utf8_lossy(&buffer[..n])),
                Err(_) => std::thread::sleep(Duration::from_millis(5)),
            }
        }
    }

    /// Returns the exit status. The terminal must be in its original mode.
    #[track_caller]
    pub(crate) fn ends(&mut self) -> Option<i32> {
        let state = self.sees("status=");
        assert!(is_cooked(&state), "the terminal is still raw: {state}");
        let status = self.sees("=").trim_end_matches('=').parse().ok();
        self.child.wait().expect("a child");
        status
    }
}

/// Whether the terminal edits and echoes lines.
fn is_cooked(state: &str) -> bool {
    let modes: Vec<&str> = state.split_whitespace().collect();
    ["icanon", "echo", "isig", "opost"].iter().all(|mode| modes.contains(mode))
}

fn is_raw(terminal: &Pty) -> bool {
    let mut stty = std::process::Command::new("stty");
    stty.arg("-a").stdin(terminal.slave.try_clone().expect("a descriptor"));
    let said = String::from_utf8(stty.output().expect("stty").stdout).expect("text");
    ["-icanon", "-echo", "-isig"].iter().all(|mode| said.contains(mode))
}

/// Whether a process with this command line runs, in any sandbox.
fn is_running(command: &str) -> bool {
    let entries = std::fs::read_dir("/proc").expect("it is there").flatten();
    let mut pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.any(|pid| command_line(pid).trim_end() == command)
}

#[test]
fn a_person_at_a_terminal() {
    let served = CliServer::on_socket();
    let id = served.create(&["--key", "demo"]);
    let mut person = Person::calls(&served, &["demo"]);
    person.sees("~ $ ");
    person.types("tty; stty size; echo $TERM; x=kept\n");
    person.sees("/dev/pts/0\r\n12 70\r\nvt220\r\n");
    assert!(is_raw(&person.terminal), "keys are handed over one by one");
    // Ctrl-C, Ctrl-Z and Ctrl-\ go to the programs inside.
    person.types("sleep 98761; echo af''ter\n");
    eventually_blocking("the program runs", || is_running("sleep 98761"));
    person.types([3]);
    person.sees("^C");
    person.types("sleep 98762\n");
    eventually_blocking("the program runs", || is_running("sleep 98762"));
    person.types([26]);
    person.sees("Stopped");
    person.types("kill %1; trap 'echo now $(stty size)' WINCH; echo tra''pped\n");
    person.sees("trapped\r\n");
    pty::resize(&person.terminal.master, 40, 120).expect("another size");
    person.sees("now 40 120");
    // The user detaches, and attaches again.
    person.types([0x1d, b'd']);
    person.sees("detached; `");
    let command = person.sees("` attaches to it again");
    let terminal = command
        .split("--terminal ")
        .nth(1)
        .expect("an id")
        .trim_end_matches("` attaches to it again");
    assert!(command.starts_with(&format!("belljar shell {id} --terminal term_")), "{command}");
    assert_eq!(person.ends(), Some(0));
    let mut again = Person::calls(&served, &["demo", "--terminal", terminal]);
    again.sees("now 40 120");
    again.types("echo $x; exit 9\n");
    again.sees("kept\r\n");
    assert_eq!(again.ends(), Some(9));

    let mut command = Person::calls(&served, &["demo", "--", "echo", "it's", "$HOME"]);
    command.sees("it's $HOME\r\n");
    assert_eq!(command.ends(), Some(0));
    let mut command = Person::calls(&served, &["demo", "--", "exit 3"]);
    assert_eq!(command.ends(), Some(3));
}

#[test]
fn every_way_out_gives_the_terminal_back() {
    let mut served = CliServer::on_tcp();
    // A session of its own ends with the shell.
    let mut person = Person::calls(&served, &[]);
    person.sees("~ $ ");
    let list = served.ok(["list", "--json", "--state", "ready"]).json();
    assert_eq!(list["sessions"].as_array().map(Vec::len), Some(1), "{list}");
    person.types("exit\n");
    assert_eq!(person.ends(), Some(0));
    let list = served.ok(["list", "--json", "--state", "stopped"]).json();
    assert_eq!(list["sessions"].as_array().map(Vec::len), Some(1), "{list}");
    // The shell is ended by a signal. Then the session, made by `--create`, is stopped while the shell runs.
    let mut person = Person::calls(&served, &["made", "--create"]);
    person.sees("~ $ ");
    let inner = child_of(person.child.id());
    process::signal(inner, SIGTERM).expect("it lives");
    assert_eq!(person.ends(), Some(128 + SIGTERM));
    let mut person = Person::calls(&served, &["made", "--create"]);
    person.sees("~ $ ");
    served.ok(["stop", "made"]);
    person.sees("has ended: it was stopped");
    assert_eq!(person.ends(), Some(125));
    // Errors are reported, and the terminal does not stay raw.
    for (args, why) in [
        (&["nobody"][..], "there is no session with the id or key `nobody`"),
        (&["made"], "has ended"),
        (&["fresh", "--create", "--terminal", "term_none"], "there is no terminal `term_none`"),
        (&["--url", "http://127.0.0.1:1"], "nothing listens at http://127.0.0.1:1"),
    ] {
        let mut person = Person::calls(&served, args);
        person.sees(why);
        assert_eq!(person.ends(), Some(125), "{args:?}");
    }
    // The shell waits for a killed server to start again, and loses no output.
    let mut person = Person::calls(&served, &["fresh"]);
    person.sees("~ $ ");
    person.types("x=kept; for i in 1 2 3 4 5 6; do sleep 0.3; echo li''ne $i; done\n");
    person.sees("line 1");
    served.kill();
    person.sees("lost the server");
    served.start();
    person.sees("the server is back");
    person.sees("line 6");
    person.types("echo $x; exit 4\n");
    person.sees("kept\r\n");
    assert_eq!(person.ends(), Some(4));
}

/// The child that a process waits for.
fn child_of(pid: u32) -> u32 {
    let path = format!("/proc/{pid}/task/{pid}/children");
    let children = std::fs::read_to_string(path).expect("children");
    children.split_whitespace().next().expect("a child").parse().expect("a number")
}

#[test]
fn without_a_terminal_there_is_none() {
    let served = CliServer::on_socket();
    let refused = served.context().call(["shell", "demo"]);
    assert_eq!(refused.code, Some(125));
    assert!(refused.stderr().contains("standard input is not a terminal"), "{refused}");
    let terminal = pty::open(5, 5).expect("a terminal");
    assert_eq!(tty::size(&terminal.slave), Some((5, 5)));
    let mut command = served.context().belljar(["shell"]);
    command.stdin(terminal.slave.as_fd().try_clone_to_owned().expect("a descriptor"));
    let refused = served.context().finish(&mut command);
    assert!(refused.stderr().contains("standard output is not a terminal"), "{refused}");
    let list = served.ok(["list", "--json"]).json();
    assert_eq!(list["sessions"].as_array().map(Vec::len), Some(0), "nothing was made");
}

#[test]
fn a_shell_over_pipes() {
    let served = CliServer::on_socket();
    let id = served.create(&["--key", "demo"]);
    let start = |args: &[&str]| {
        let mut command = served.context().belljar(["shell", "--stdio"]);
        command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().expect("belljar starts")
    };
    // State is kept, and answers arrive while the input is open.
    let mut shell = start(&["demo", "--env", "COLOUR=blue"]);
    let mut stdin = shell.stdin.take().expect("piped");
    let mut stdout = BufReader::new(shell.stdout.take().expect("piped")).lines();
    let mut line = || stdout.next().expect("a line").expect("text");
    stdin
        .write_all("cd /tmp; x='\u{e4}\u{20ac}'\npwd; echo $x $COLOUR\n".as_bytes())
        .expect("room");
    assert_eq!((line(), line()), ("/tmp".to_owned(), "\u{e4}\u{20ac} blue".to_owned()));
    stdin.write_all(b"cat <<EOF\nhere\n$x\nEOF\necho err >&2; exit 5\n").expect("room");
    assert_eq!((line(), line()), ("here".to_owned(), "\u{e4}\u{20ac}".to_owned()));
    let mut errors = String::new();
    shell.stderr.take().expect("piped").read_to_string(&mut errors).expect("text");
    assert_eq!(errors, "err\n");
    assert_eq!(shell.wait().expect("it ends").code(), Some(5));
    // The end of the input ends the shell. Large input arrives complete.
    let mut shell = start(&[&id, "--", "wc", "-c"]);
    let mut stdin = shell.stdin.take().expect("piped");
    stdin.write_all(&vec![b'x'; 3_000_000]).expect("room");
    drop(stdin);
    let output = shell.wait_with_output().expect("it ends");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "3000000\n");
    assert_eq!(output.status.code(), Some(0));
    // If the client is killed, the shell and the processes that it started end too.
    let mut shell = start(&["demo"]);
    let mut stdin = shell.stdin.take().expect("piped");
    stdin.write_all(b"sleep 4321 & echo started; wait\n").expect("room");
    let mut line = String::new();
    BufReader::new(shell.stdout.as_mut().expect("piped")).read_line(&mut line).expect("text");
    assert_eq!(line, "started\n");
    let count = || {
        let looked = ["exec", "demo", "--command", "pgrep -cf 'slee[p] 4321'; true"];
        served.ok(looked).stdout().trim().to_owned()
    };
    assert_eq!(count(), "1");
    shell.kill().and_then(|()| shell.wait()).expect("it can be killed");
    eventually_blocking("it is gone", || count() == "0");
    // Without a session argument, the shell gets a session of its own, which ends with it.
    let mut shell = start(&[]);
    shell.stdin.take().expect("piped").write_all(b"echo own\n").expect("room");
    let output = shell.wait_with_output().expect("it ends");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "own\n");
    eventually_blocking("its session ends", || {
        let list = served.ok(["list", "--json", "--state", "stopped"]).json();
        list["sessions"].as_array().map(Vec::len) == Some(1)
    });
}
