//! Kernels that die: the death is reported at once, and the next kernel works.

use std::time::Duration;

use belljar_engine::exec::collect;
use belljar_proto::exec::{KernelState, Language, Status};
use belljar_proto::guest::RefusalCode;
use belljar_runtime::{Limits, RuntimeError};
use belljar_sys::process;

use crate::lab::{Lab, Session, cell, eventually, of_both_kinds};

/// A death is reported within this time. On an idle machine it takes milliseconds.
const REPORTED: Duration = Duration::from_secs(2);

const SIGKILL: i32 = 9;

#[tokio::test]
async fn a_dead_kernel_is_reported_and_the_next_one_works() {
    let limits = Limits { memory: 256 << 20, ..Limits::default() };
    of_both_kinds(limits, |session| async move {
        for (code, status, exit_code, reason) in [
            ("os._exit(7)", Status::Crashed, 7, "the kernel exited with status 7"),
            (
                "import ctypes; ctypes.string_at(0)",
                Status::Crashed,
                139,
                "the kernel died of a segmentation fault (signal 11)",
            ),
            (
                "b'x' * (1 << 30)",
                Status::Oom,
                137,
                "the kernel was killed because the memory limit was reached",
            ),
        ] {
            session.run("x = 1").await;
            let death = session.run(&format!("import os\nprint('last words')\n{code}")).await;
            assert_eq!((death.status, death.exit_code), (status, exit_code), "{code}: {death:#?}");
            assert_eq!(death.reason.as_deref(), Some(reason));
            assert_eq!(death.kernel_state, KernelState::Lost);
            assert_eq!(death.stdout, "last words\n");
            // Filling the memory takes time. For all other deaths, only the report takes time.
            let in_time = death.duration_ms < REPORTED.as_secs_f64() * 1000.0;
            assert!(in_time || status == Status::Oom, "{code}: {death:#?}");
            lives_again(&session).await;
        }
        is_not_missed(&session).await;
        is_missed_after_a_restart(&session).await;
        takes_its_children_along(&session).await;
    })
    .await;
}

/// Code for a dead kernel is refused. The next kernel starts fresh and does not report the death
/// again.
async fn lives_again(session: &Session) {
    assert_eq!(session.refusal(cell("to the dead")).await, RefusalCode::NoKernel);
    session.sandbox.start_kernel(Language::Python).await.expect("another kernel");
    let fresh = session.run("'x' in globals()").await;
    assert_eq!(fresh.results[0].text(), Some("False"));
    assert_eq!(fresh.kernel_state, KernelState::Kept, "its death was told already");
    assert_eq!((fresh.execution_count, fresh.reason), (1, None));
}

/// If a kernel dies between executions, the next result reports it, and only that result.
async fn is_not_missed(session: &Session) {
    session.run("x = 1").await;
    for pid in session.processes() {
        process::signal(pid, SIGKILL).expect("it lives");
    }
    eventually("it is gone", || session.processes().is_empty()).await;
    session.sandbox.start_kernel(Language::Python).await.expect("another kernel");
    let next = session.run("1 + 1").await;
    assert_eq!((next.status, next.kernel_state), (Status::Ok, KernelState::Lost));
    assert_eq!(
        next.reason.as_deref(),
        Some("the kernel of earlier executions was killed by signal 9; their variables are gone")
    );
    let after = session.run("1 + 1").await;
    assert_eq!((after.kernel_state, after.reason), (KernelState::Kept, None));
}

/// If a live kernel is replaced, the next result reports that its variables are gone, once.
async fn is_missed_after_a_restart(session: &Session) {
    session.run("x = 1").await;
    session.sandbox.start_kernel(Language::Python).await.expect("another kernel");
    let next = session.run("'x' in globals()").await;
    assert_eq!(next.results[0].text(), Some("False"));
    assert_eq!((next.status, next.kernel_state), (Status::Ok, KernelState::Lost));
    assert_eq!(
        next.reason.as_deref(),
        Some("the kernel of earlier executions was replaced; their variables are gone")
    );
    assert_eq!(session.run("1").await.kernel_state, KernelState::Kept);
}

/// If a timeout has to kill the kernel, all its child processes end too, also detached ones.
async fn takes_its_children_along(session: &Session) {
    let code = "\
import os, signal, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
for detach in (False, True):
    if os.fork() == 0:
        if detach:
            os.setsid()
            if os.fork(): os._exit(0)
        time.sleep(1000)
time.sleep(1000)";
    let mut spec = cell("stubborn");
    (spec.timeout_ms, spec.grace_ms) = (300, 300);
    let result = session.try_begin(spec, code).await.expect("it is free").finish().await;
    assert_eq!((result.status, result.kernel_state), (Status::Timeout, KernelState::Lost));
    eventually("all of them are gone", || session.processes().is_empty()).await;
}

#[tokio::test]
async fn a_sandbox_that_dies_under_its_code_is_reported() {
    let session = Lab::cold().session().await;
    let mut running = session.begin("import time\nprint('on')\ntime.sleep(1000)").await;
    running.has_printed("on\n").await;
    process::signal(session.sandbox.pid(), SIGKILL).expect("it lives");
    let (result, lost) = collect(running.id, &mut running.following, 1 << 20, |_| {}).await;
    assert!(lost);
    assert_eq!((result.status, result.kernel_state), (Status::Crashed, KernelState::Lost));
    assert_eq!(result.reason.as_deref(), Some("the sandbox ended before the code did"));
    session.sandbox.ended().await;
    assert!(matches!(
        session.sandbox.start_kernel(Language::Python).await,
        Err(RuntimeError::Gone)
    ));
}
