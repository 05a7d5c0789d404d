//! Time limits, against code that does not end by itself.
//!
//! When the time is up, the code is interrupted. If it still runs after the grace period, it is
//! killed with all processes that it started.

use std::time::Duration;

use serde_json::Value;

use belljar_testkit::command::TestContext;

/// `--timeout 1`, the grace period of 2 s, and a margin for a busy machine.
const LATEST: Duration = Duration::from_secs(1 + 2 + 9);

/// Runs endless code until its time limit.
#[track_caller]
fn time_out(args: &[&str]) -> Value {
    let context = TestContext::new();
    let finished = context.call([&["run", "--json", "--timeout", "1"], args].concat());
    assert!(finished.took < LATEST, "it took {:?}", finished.took);
    assert_eq!(finished.code, Some(124), "{finished}");
    let result = finished.json();
    assert_eq!((&result["status"], &result["exit_code"]), (&"timeout".into(), &124.into()));
    assert_eq!(result["stdout"], "started\n", "what was printed before is kept");
    result
}

#[track_caller]
fn times_out(code: &str) -> Value {
    time_out(&["-c", &format!("print('started', flush=True)\nimport os, signal, time\n{code}")])
}

/// Asserts that an interrupt ends the code.
#[track_caller]
fn gives_in(code: &str) {
    let result = times_out(code);
    assert_eq!(result["kernel_state"], "kept", "{result:#}");
    assert_eq!(result["error"]["name"], "KeyboardInterrupt", "{result:#}");
}

/// Asserts that the code has to be killed.
#[track_caller]
fn is_killed(code: &str) {
    let result = times_out(code);
    assert_eq!(result["kernel_state"], "lost", "{result:#}");
    assert_eq!(result["reason"], "the kernel was killed by signal 9", "{result:#}");
}

#[test]
fn a_timeout_is_explained() {
    let finished = TestContext::new().run(["--timeout", "1", "-c", "print('x')\nwhile True: pass"]);
    insta::assert_snapshot!(finished, @r#"
    exit 124
    --- stdout
    x
    --- stderr
    Traceback (most recent call last):
      File "<cell 1>", line 2, in <module>
        while True: pass
    KeyboardInterrupt
    belljar: timed out
    "#);
}

#[test]
fn a_sleep() {
    gives_in("time.sleep(1000)");
}

#[test]
fn a_busy_loop() {
    gives_in("while True: pass");
}

#[test]
fn a_shell_command() {
    // system() ignores SIGINT while the command runs. The line after it does not.
    gives_in("os.system('sleep 1000')\ntime.sleep(1000)");
}

#[test]
fn shell_commands_without_end() {
    is_killed("while True: os.system('sleep 1000')");
}

#[test]
fn a_coroutine() {
    gives_in("import asyncio\nawait asyncio.sleep(1000)");
}

#[test]
fn threads_that_go_on() {
    gives_in(
        "
import threading
threading.Thread(target=time.sleep, args=(1000,)).start()
time.sleep(1000)",
    );
}

#[test]
fn an_ignored_sigint() {
    is_killed("signal.signal(signal.SIGINT, signal.SIG_IGN)\ntime.sleep(1000)");
}

#[test]
fn a_blocked_sigint() {
    is_killed("signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])\ntime.sleep(1000)");
}

#[test]
fn an_except_that_catches_everything() {
    is_killed("while True:\n    try: time.sleep(1000)\n    except BaseException: pass");
}

#[test]
fn a_stopped_process() {
    is_killed("os.kill(os.getpid(), signal.SIGSTOP)");
}

#[test]
fn a_sleep_inside_c() {
    gives_in("import ctypes; ctypes.CDLL(None).sleep(1000)");
}

#[test]
fn a_deadlock_inside_c() {
    // Waiting for a lock continues after a signal, and Python's handler only runs once C returns.
    is_killed(
        "
import ctypes
lock, mutex = ctypes.CDLL(None).pthread_mutex_lock, ctypes.create_string_buffer(64)
lock(mutex); lock(mutex)",
    );
}

#[test]
fn forked_children() {
    is_killed(
        "
signal.signal(signal.SIGINT, signal.SIG_IGN)
for _ in range(20):
    if os.fork() == 0: time.sleep(1000)
time.sleep(1000)",
    );
}

#[test]
fn daemons_in_sessions_of_their_own() {
    is_killed(
        "
signal.signal(signal.SIGINT, signal.SIG_IGN)
for _ in range(5):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0: time.sleep(1000)
        os._exit(0)
time.sleep(1000)",
    );
}

#[test]
fn a_bash_script() {
    time_out(&["--lang", "bash", "-c", "echo started; sleep 1000"]);
}

#[test]
fn a_stubborn_bash_script() {
    time_out(&["--lang", "bash", "-c", "echo started; trap '' INT; while :; do sleep 1000; done"]);
}
