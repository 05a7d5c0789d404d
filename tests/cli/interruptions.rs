//! Runs that are ended from outside, and several runs at the same time.

use belljar_sys::process;
use insta::assert_snapshot;

use belljar_testkit::command::{TestContext, tree};
use belljar_testkit::scratch_host::ScratchHost;
use belljar_testkit::wait::eventually_blocking;

/// Prints a line, then runs for a long time.
const LONG: &str = "import time\nprint('started')\ntime.sleep(1000)";

/// The same, but ignores SIGINT.
const STUBBORN: &str = "\
import signal, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
print('started')
time.sleep(1000)";

#[test]
fn ctrl_c_interrupts_the_code_and_leaves_nothing_behind() {
    let scratch = ScratchHost::new();
    let context = TestContext::inside(&scratch);
    let mut running = context.start(["-c", LONG]);
    assert_eq!(running.line(), "started");
    assert!(!scratch.traces().is_empty(), "a sandbox that lives is seen");
    let processes = running.processes();
    running.press_ctrl_c();
    let finished = running.finish();
    assert_eq!(finished.code, Some(130), "{finished}");
    // The interrupted line differs from run to run.
    let stderr = finished.stderr();
    let (installation, words) = stderr.split_once("KeyboardInterrupt\n").expect("a traceback");
    assert!(
        installation.starts_with("Traceback (most recent call last):\n  File \"<cell 1>\""),
        "{installation}"
    );
    assert_eq!(words, "belljar: interrupted\n");
    assert_eq!(scratch.traces(), [""; 0]);
    eventually_blocking("the spawner ends", || processes.iter().all(|process| process.is_gone()));
}

#[test]
fn every_termination_signal_has_the_same_effect() {
    const SIGHUP: i32 = 1;
    const SIGTERM: i32 = 15;
    let scratch = ScratchHost::new();
    let context = TestContext::inside(&scratch);
    for signal in [SIGHUP, SIGTERM] {
        let mut running = context.start(["-c", LONG]);
        assert_eq!(running.line(), "started");
        process::signal(running.pid(), signal).expect("it runs");
        assert_eq!(running.finish().code, Some(130));
        assert_eq!(scratch.traces(), [""; 0]);
    }
}

#[test]
fn ctrl_c_ends_stubborn_code_too() {
    let scratch = ScratchHost::new();
    let context = TestContext::inside(&scratch);
    let mut running = context.start(["-c", STUBBORN]);
    assert_eq!(running.line(), "started");
    running.press_ctrl_c();
    assert_snapshot!(running.finish(), @r"
    exit 130
    --- stdout
    --- stderr
    belljar: interrupted: the kernel was killed by signal 9
    ");
    assert_eq!(scratch.traces(), [""; 0]);
}

#[test]
fn an_interrupted_run_still_has_its_json_and_its_artifacts() {
    let context = TestContext::new();
    let code = "\
import subprocess
print('started')
open('/work/artifacts/half.txt', 'w').write('half')
subprocess.run(['sleep', '1000'])";
    let running = context.start(["--json", "-c", code]);
    eventually_blocking("the code comes to its last line", || {
        running.processes().iter().any(|process| process.command().starts_with("sleep"))
    });
    running.press_ctrl_c();
    let finished = running.finish();
    assert_eq!(finished.code, Some(130), "{finished}");
    let result = finished.json();
    assert_eq!(result["status"], "interrupted");
    assert_eq!(result["stdout"], "started\n");
    assert_eq!(result["artifacts"][0]["path"], "/work/artifacts/half.txt", "{result:#}");
}

#[test]
fn a_killed_belljar_takes_its_sandbox_with_it_and_the_next_one_tidies_up() {
    let scratch = ScratchHost::new();
    let context = TestContext::inside(&scratch);
    for code in [LONG, STUBBORN] {
        let mut running = context.start(["-c", code]);
        assert_eq!(running.line(), "started");
        let processes = running.processes();
        assert!(processes.len() >= 4, "itself, spawner, guest and kernel: {processes:?}");
        running.kill();
        eventually_blocking("its processes end", || {
            processes.iter().all(|process| process.is_gone())
        });
        assert!(!scratch.traces().is_empty(), "nobody was left to remove its socket and cgroup");
        assert_eq!(context.run(["-c", "print('next')"]).stdout(), "next\n");
        // The machine's init reaps orphans with a delay.
        eventually_blocking("everything is tidied up", || scratch.traces().is_empty());
    }
}

#[test]
fn runs_at_the_same_time_do_not_meet() {
    let context = TestContext::new().file("data/README", "");
    let code = "\
import os, time
open('/work/artifacts/mine.txt', 'w').write(os.environ['NAME'])
print(os.environ['NAME'], len([name for name in os.listdir('/proc') if name.isdigit()]))
while not os.path.exists('/data/go'): time.sleep(0.01)
print(open('/work/artifacts/mine.txt').read())
";
    let mut runs: Vec<_> = ["ada", "bob", "eve"]
        .map(|name| {
            let env = format!("NAME={name}");
            (name, context.start(["--data", "data", "--env", &env, "-c", code]))
        })
        .into();
    for (name, running) in &mut runs {
        // Only the guest and the kernel run in the sandbox.
        assert_eq!(running.line(), format!("{name} 2"));
    }
    let context = context.file("data/go", "");
    for (name, running) in runs {
        let finished = running.finish();
        assert_eq!((finished.code, finished.stdout()), (Some(0), format!("{name}\n")));
    }
    let outputs = tree(&context.path("outputs"));
    assert_eq!(outputs.iter().filter(|path| *path == "run_[ID]/mine.txt").count(), 3);
}
