//! The flags of `run`, and the errors for wrong ones.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use insta::assert_snapshot;

use belljar_testkit::command::TestContext;

#[test]
fn a_wrong_flag_is_named() {
    let context = TestContext::new();
    for (args, named) in [
        (&["--timeout", "soon"][..], "invalid value 'soon' for '--timeout <SECONDS>'"),
        (&["--timeout", "0"], "invalid value '0' for '--timeout <SECONDS>'"),
        (&["--memory", "lots"], "invalid value 'lots' for '--memory <SIZE>'"),
        (&["--cpus", "0"], "invalid value '0' for '--cpus <N>'"),
        (&["--pids", "1"], "invalid value '1' for '--pids <N>'"),
        (&["--env", "NOVALUE"], "invalid value 'NOVALUE' for '--env <KEY=VALUE>'"),
        (&["--max-output", "-1"], "unexpected argument '-1'"),
        (&["--max-output", "x"], "invalid value 'x' for '--max-output <SIZE>'"),
        (&["--lang", "cobol"], "invalid value 'cobol' for '--lang <LANG>'"),
        (&["--bogus"], "unexpected argument '--bogus'"),
        (&["code.py"], "the argument '[FILE]' cannot be used with '--code <CODE>'"),
    ] {
        let finished = context.run([args, &["-c", "1"]].concat());
        assert_eq!(finished.code, Some(2), "{args:?}: {finished}");
        assert!(finished.stderr().contains(named), "{args:?}: {finished}");
    }
    assert_snapshot!(context.run(["--timeout", "soon", "-c", "1"]), @r"
    exit 2
    --- stdout
    --- stderr
    error: invalid value 'soon' for '--timeout <SECONDS>': expected a number of seconds

    For more information, try '--help'.
    ");
    assert_eq!(context.call(["frobnicate"]).code, Some(2));
    let nothing = context.call(["run"]);
    assert_eq!(nothing.code, Some(2));
    assert!(nothing.stderr().contains("<FILE>"), "{nothing}");
}

#[test]
fn a_sandbox_too_small_to_start_is_refused() {
    assert_snapshot!(TestContext::new().run(["--memory", "1M", "-c", "1"]), @r"
    exit 125
    --- stdout
    --- stderr
    belljar: --memory: a sandbox needs at least 16 MiB
    ");
}

#[test]
fn env_reaches_the_code_and_nothing_else_of_ours_does() {
    let context = TestContext::new().env("SECRET", "of the caller");
    let show = "import os; print(os.environ['A'], os.environ['B'], os.environ.get('SECRET'))";
    let flags = ["--env", "A=1", "--env", "B=two words = 2"];
    let finished = context.run([&flags[..], &["-c", show]].concat());
    assert_eq!(finished.stdout(), "1 two words = 2 None\n", "{finished}");
    let bash = [&flags[..], &["--lang", "bash", "-c", "echo $A $B $SECRET"]].concat();
    assert_eq!(context.run(bash).stdout(), "1 two words = 2\n");
    let path =
        context.run(["--env", "PATH=/nowhere", "-c", "import os; print(os.environ['PATH'])"]);
    assert_eq!(path.stdout(), "/nowhere\n", "ours give way");
}

#[test]
fn data_is_there_and_read_only() {
    let context = TestContext::new().file("sets/a/numbers.csv", "1\n2\n").file("sets/b.txt", "b");
    for open_to_all in ["sets", "sets/b.txt"] {
        let everybody = fs::Permissions::from_mode(0o777);
        fs::set_permissions(context.path(open_to_all), everybody).expect("they are ours");
    }
    let code = "\
import errno, os
print(sorted(os.listdir('/data')), open('/data/a/numbers.csv').read().split())
for attempt in (
    lambda: open('/data/new', 'w'),
    lambda: open('/data/b.txt', 'a'),
    lambda: os.remove('/data/b.txt'),
    lambda: os.chmod('/data/b.txt', 0o777),
    lambda: os.rename('/data/b.txt', '/data/c.txt'),
):
    try: attempt()
    except OSError as error: print(errno.errorcode[error.errno])
";
    let finished = context.run(["--data", "sets", "-c", code]);
    assert_snapshot!(finished, @r"
    exit 0
    --- stdout
    ['a', 'b.txt'] ['1', '2']
    EROFS
    EROFS
    EROFS
    EROFS
    EROFS
    --- stderr
    ");
    let absolute = context.path("sets").display().to_string();
    let by_bash = context.run(["--data", &absolute, "--lang", "bash", "-c", "cat /data/b.txt"]);
    assert_eq!(by_bash.stdout(), "b");
    assert_eq!(context.run(["-c", "import os; print(os.listdir('/data'))"]).stdout(), "[]\n");
}

#[test]
fn data_that_is_no_directory_is_trouble() {
    let context = TestContext::new().file("file", "");
    assert_snapshot!(context.run(["--data", "missing", "-c", "1"]), @r"
    exit 125
    --- stdout
    --- stderr
    belljar: --data `missing`: No such file or directory (os error 2)
    ");
    assert_snapshot!(context.run(["--data", "file", "-c", "1"]), @r"
    exit 125
    --- stdout
    --- stderr
    belljar: --data `file` is not a directory
    ");
}

#[test]
fn limits_can_be_set() {
    let context = TestContext::new();
    let threads = "\
import threading, time
try:
    for started in range(1000): threading.Thread(target=time.sleep, args=(30,), daemon=True).start()
except RuntimeError: pass
print(started)
";
    let few: u32 =
        context.run(["--pids", "16", "-c", threads]).stdout().trim().parse().expect("a number");
    assert!(few < 16, "{few} threads under a limit of 16");
    let busy = "\
import time
start, used = time.monotonic(), time.process_time()
while time.monotonic() - start < 1: pass
print(time.process_time() - used)
";
    let used: f64 =
        context.run(["--cpus", "0.1", "-c", busy]).stdout().trim().parse().expect("a number");
    assert!(used < 0.4, "{used} s of processor time in a second under a limit of 0.1");
}
