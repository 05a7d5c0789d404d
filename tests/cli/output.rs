//! Output of code: complete, streamed, from every process, and bounded.

use std::time::Duration;

use belljar_sys::procfs;
use insta::assert_snapshot;

use belljar_testkit::command::TestContext;
use belljar_testkit::wait::PATIENCE;

#[test]
fn output_is_seen_while_the_code_still_runs() {
    let context = TestContext::new().file("data/README", "");
    let code = "\
import os, sys, time
print('first')
while not os.path.exists('/data/go'):
    time.sleep(0.01)
print('second')
";
    let mut running = context.start(["--data", "data", "-c", code]);
    assert_eq!(running.line(), "first");
    assert!(!running.is_over());
    let context = context.file("data/go", "");
    assert_eq!(running.line(), "second");
    assert_eq!(running.finish().code, Some(0));
    drop(context);
}

#[test]
fn stdout_and_stderr_stay_apart() {
    let code = "\
import os, sys
print('print')
print('print to stderr', file=sys.stderr)
sys.stdout.write('no newline yet')
sys.stdout.write(', now\\n')
os.write(1, b'os.write\\n')
written = os.write(2, b'os.write to stderr\\n')
";
    assert_snapshot!(TestContext::new().run(["-c", code]), @r"
    exit 0
    --- stdout
    print
    no newline yet, now
    os.write
    --- stderr
    print to stderr
    os.write to stderr
    ");
}

#[test]
fn output_of_all_processes_arrives() {
    let code = "\
import ctypes, os, subprocess, sys, threading
print('the cell')
subprocess.run(['sh', '-c', 'echo a subprocess; echo its stderr >&2'])
os.system('echo a shell')
libc = ctypes.CDLL(None)
libc.printf(b'the C library\\n')
libc.fflush(None)
thread = threading.Thread(target=lambda: print('a thread'))
thread.start(); thread.join()
if os.fork() == 0:
    print('a forked child', flush=True)
    os._exit(0)
child = os.wait()
";
    assert_snapshot!(TestContext::new().run(["-c", code]), @r"
    exit 0
    --- stdout
    the cell
    a subprocess
    a shell
    the C library
    a thread
    a forked child
    --- stderr
    its stderr
    ");
}

#[test]
fn a_daemon_that_holds_stdout_open_delays_no_one() {
    let code = "\
import subprocess
subprocess.Popen(['sleep', '1000'], start_new_session=True)
print('done')
";
    let context = TestContext::new();
    for args in [&["-c", code][..], &["--lang", "bash", "-c", "setsid sleep 1000 & echo done"]] {
        let finished = context.run(args);
        assert_eq!(finished.to_string(), "exit 0\n--- stdout\ndone\n--- stderr\n");
        assert!(finished.took < PATIENCE, "{:?}", finished.took);
    }
}

#[test]
fn bytes_that_are_no_utf8_pass_through_and_are_replaced_in_json() {
    let context = TestContext::new();
    let code = r"import os; os.write(1, b'caf\xe9\n'); os.write(2, b'\xff\n');";
    let finished = context.run(["-c", code]);
    assert_eq!((&finished.stdout[..], &finished.stderr[..]), (&b"caf\xe9\n"[..], &b"\xff\n"[..]));
    let result = context.json(["-c", code]);
    assert_eq!(result["stdout"], "caf\u{fffd}\n");
    assert_eq!(result["stderr"], "\u{fffd}\n");
    assert_eq!(result["status"], "ok");
    let surrogate = r"print('\udc80 and on')";
    assert_eq!(context.run(["-c", surrogate]).stdout(), "\\udc80 and on\n");
}

#[test]
fn a_reader_that_leaves_is_no_reason_to_stop() {
    let context = TestContext::new();
    let mut running = context.start(["-c", "print('x\\n' * 500_000)\nraise SystemExit(5)"]);
    assert_eq!(running.line(), "x");
    let finished = running.finish_unheard();
    assert_eq!((finished.code, finished.stderr().as_str()), (Some(5), ""));
    let json = ["--json", "-c", "print('x' * 1_000_000)\nraise SystemExit(5)"];
    let mut running = context.start(json);
    assert_eq!(running.line(), "{");
    let finished = running.finish_unheard();
    assert_eq!((finished.code, finished.stderr().as_str()), (Some(5), ""));
}

#[test]
fn what_is_printed_is_never_taken_for_a_message() {
    let code = r#"print('{"op":"done","exec_id":"x","status":"ok","exit_code":9}')"#;
    let finished = TestContext::new().run(["-c", code]);
    assert_eq!(finished.code, Some(0));
    assert!(finished.stdout().starts_with(r#"{"op":"done""#), "{finished}");
}

#[test]
fn output_beyond_its_bound_is_dropped_and_counted() {
    let context = TestContext::new();
    let code = "import sys; print('x' * 999); print('y' * 199, file=sys.stderr)";
    let finished = context.run(["--max-output", "100", "-c", code]);
    assert_eq!(finished.code, Some(0));
    assert_eq!(finished.stdout(), "x".repeat(100));
    assert_eq!(
        finished.stderr(),
        "y".repeat(100)
            + "belljar: 900 bytes of stdout exceeded --max-output and were dropped\n\
               belljar: 100 bytes of stderr exceeded --max-output and were dropped\n"
    );
    let result = context.json(["--max-output", "100", "-c", code]);
    assert_eq!(result["dropped"]["stdout_bytes"], 900);
    assert_eq!(result["dropped"]["stderr_bytes"], 100);
    assert_eq!(result["stdout"], "x".repeat(100));
}

#[test]
fn a_bound_larger_than_the_output_drops_nothing() {
    let code = "for n in range(40): print('x' * ((1 << 20) - 1))";
    let finished = TestContext::new().run(["--max-output", "64M", "-c", code]);
    assert_eq!(finished.stdout.len(), 40 << 20);
    assert_eq!((finished.code, finished.stderr().as_str()), (Some(0), ""));
}

#[test]
fn a_flood_of_output_makes_no_process_grow() {
    const FLOOD: u64 = 1 << 30;
    const KEPT: u64 = 16 << 10;
    const MOST_KIB: u64 = 64 << 10;
    let code = format!("for n in range({}): print('x' * ((1 << 20) - 1))", FLOOD >> 20);
    let context = TestContext::new();
    let mut running = context.start(["--json", "--max-output", "16K", "-c", &code]);
    let mut peak = 0;
    while !running.is_over() {
        // VmHWM is the peak of a process so far, so the exact time of a sample does not matter.
        let sizes = running.processes().into_iter();
        let sizes = sizes.filter_map(|it| procfs::status_field(it.pid, "VmHWM"));
        peak = sizes.fold(peak, u64::max);
        std::thread::sleep(Duration::from_millis(5));
    }
    let result = running.finish().json();
    assert_eq!(result["stdout"].as_str().map(|text| text.len() as u64), Some(KEPT));
    assert_eq!(result["dropped"]["stdout_bytes"], FLOOD - KEPT);
    assert!((1..MOST_KIB).contains(&peak), "a process had {peak} KiB");
}
