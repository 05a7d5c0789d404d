//! One cell at a time, and how to stop it.

use belljar_proto::exec::{KernelState, Status};
use belljar_proto::guest::RefusalCode;
use belljar_runtime::Limits;

use crate::lab::{PATIENCE, Session, cell, of_both_kinds, refused};

#[tokio::test]
async fn a_running_cell_can_be_stopped_and_the_kernel_keeps_its_state() {
    of_both_kinds(Limits::default(), |session| async move {
        session.run("x = 1").await;
        runs_one_cell_at_a_time(&session).await;
        interrupts(&session).await;
        times_out(&session).await;
        interrupts_commands(&session).await;
        interrupts_only_what_was_meant(&session).await;
        assert_eq!(session.value("x").await, "1", "after all of this");
    })
    .await;
}

async fn runs_one_cell_at_a_time(session: &Session) {
    let mut running = session.begin("import time\nprint('on')\ntime.sleep(1000)").await;
    running.has_printed("on\n").await;
    assert_eq!(session.refusal(cell("second")).await, RefusalCode::Busy);
    assert_eq!(session.refusal(cell(&running.id)).await, RefusalCode::DuplicateExec);
    session.sandbox.interrupt(&running.id).await.expect("it runs");
    assert_eq!(running.finish().await.status, Status::Interrupted);
    // The id of a refused cell is still free; the id of a cell that ran is not.
    let second = session.try_begin(cell("second"), "2").await.expect("free again").finish().await;
    assert_eq!(second.status, Status::Ok);
    assert_eq!(session.refusal(cell("second")).await, RefusalCode::DuplicateExec);
    assert_eq!(session.value("3").await, "3", "a refused id does not keep the kernel busy");
}

async fn interrupts(session: &Session) {
    for endless in
        ["while True: pass", "time.sleep(1000)", "import asyncio; await asyncio.sleep(1000)"]
    {
        let mut running = session.begin(&format!("import time\nprint('on')\n{endless}")).await;
        running.has_printed("on\n").await;
        session.sandbox.interrupt(&running.id).await.expect("it runs");
        let result = running.finish().await;
        assert_eq!((result.status, result.exit_code), (Status::Interrupted, 130), "{endless}");
        assert_eq!(result.error.expect("a report").name, "KeyboardInterrupt");
        assert_eq!(result.kernel_state, KernelState::Kept);
    }
}

async fn times_out(session: &Session) {
    let mut spec = cell("slow");
    spec.timeout_ms = 200;
    let slow = session.try_begin(spec, "y = 2\nwhile True: pass").await.expect("it is free");
    let result = slow.finish().await;
    assert_eq!((result.status, result.exit_code), (Status::Timeout, 124));
    assert_eq!(result.kernel_state, KernelState::Kept);
    assert!((200.0..PATIENCE.as_secs_f64() * 1000.0).contains(&result.duration_ms), "{result:#?}");
    assert_eq!(session.value("y").await, "2");
}

/// Commands beside the kernel are stopped in the same way.
async fn interrupts_commands(session: &Session) {
    let mut command = session.begin_shell("echo on; sleep 1000").await;
    command.has_printed("on\n").await;
    session.sandbox.interrupt(&command.id).await.expect("it runs");
    let result = command.finish().await;
    assert_eq!((result.status, result.exit_code), (Status::Interrupted, 130));
}

/// A request to stop a cell that has ended already does not reach the next one.
async fn interrupts_only_what_was_meant(session: &Session) {
    assert_eq!(
        refused(session.sandbox.interrupt("never heard of").await),
        RefusalCode::UnknownExec
    );
    session.try_begin(cell("early"), "1").await.expect("it is free").finish().await;
    let code = "import os\nprint('on')\nwhile not os.path.exists('/tmp/go'): time.sleep(0.01)";
    let mut running = session.begin(code).await;
    running.has_printed("on\n").await;
    session.sandbox.interrupt("early").await.expect("it is remembered");
    session.shell("touch /tmp/go").await;
    assert_eq!(running.finish().await.status, Status::Ok);
}
