//! Input for executions that are already running.

use belljar_proto::exec::{ExecSpec, InputRequest, Status, What};
use belljar_proto::guest::RefusalCode;
use belljar_runtime::Limits;

use crate::lab::{Cell, Lab, Session, bash_cell, cell, of_both_kinds, refused};

const MIB: usize = 1024 * 1024;

async fn feed(session: &Session, cell: &Cell, text: &str, close: bool) {
    session.sandbox.stdin(&cell.id, text.as_bytes(), close).await.expect("it takes input");
}

fn with_input(spec: ExecSpec) -> ExecSpec {
    ExecSpec { stdin: true, ..spec }
}

#[tokio::test]
async fn python_asks_and_is_answered() {
    of_both_kinds(Limits::default(), |session| async move {
        asks(&session).await;
        sees_the_end(&session).await;
        is_fed_ahead(&session).await;
        stops_while_it_waits(&session).await;
        does_not_ask_otherwise(&session).await;
    })
    .await;
}

async fn begin(session: &Session, code: &str) -> Cell {
    session.try_begin(with_input(cell(&session.fresh_id())), code).await.expect("free")
}

async fn asks(session: &Session) {
    let code = "import getpass\nname = input('Name? ')\nsecret = getpass.getpass()\n[name, secret]";
    let mut asking = begin(session, code).await;
    let question = InputRequest { prompt: "Name? ".into(), password: false };
    assert_eq!(asking.has_asked().await, question);
    feed(session, &asking, "Ada\n", false).await;
    let question = InputRequest { prompt: "Password: ".into(), password: true };
    assert_eq!(asking.has_asked().await, question);
    feed(session, &asking, "engine\n", false).await;
    let result = asking.finish().await;
    assert_eq!(result.results[0].text(), Some("['Ada', 'engine']"), "{result:#?}");
}

async fn sees_the_end(session: &Session) {
    let asking = begin(session, "import sys\nlines = list(sys.stdin)\nlines").await;
    feed(session, &asking, "one\ntwo\nth", false).await;
    feed(session, &asking, "ree", true).await;
    let late = session.sandbox.stdin(&asking.id, b"late", false).await;
    assert_eq!(refused(late), RefusalCode::Invalid, "its end was announced");
    let id = asking.id.clone();
    let result = asking.finish().await;
    assert_eq!(result.results[0].text(), Some("['one\\n', 'two\\n', 'three']"), "{result:#?}");
    assert_eq!(refused(session.sandbox.stdin(&id, b"x", false).await), RefusalCode::Invalid);
    let mut asking = begin(session, "input('more? ')").await;
    asking.has_asked().await;
    feed(session, &asking, "", true).await;
    assert_eq!(asking.finish().await.error.expect("a report").name, "EOFError");
}

/// Input that arrives before the code asks for it is kept. Input that a cell does not read is not
/// passed on to the next cell.
async fn is_fed_ahead(session: &Session) {
    let ahead = begin(session, "import os, time\nwhile not os.path.exists('/tmp/fed'): time.sleep(0.005)\nos.remove('/tmp/fed')\ninput()").await;
    feed(session, &ahead, "first\nleft over\n", false).await;
    session.shell("touch /tmp/fed").await;
    assert_eq!(ahead.finish().await.results[0].text(), Some("'first'"));
    let mut next = begin(session, "input()").await;
    next.has_asked().await;
    feed(session, &next, "mine\n", false).await;
    assert_eq!(next.finish().await.results[0].text(), Some("'mine'"));
}

async fn stops_while_it_waits(session: &Session) {
    session.run("x = 'kept'").await;
    let mut asking = begin(session, "input('never ')").await;
    asking.has_asked().await;
    session.sandbox.interrupt(&asking.id).await.expect("it runs");
    let result = asking.finish().await;
    assert_eq!((result.status, result.exit_code), (Status::Interrupted, 130));
    let spec = ExecSpec { timeout_ms: 200, ..with_input(cell("slow answer")) };
    let slow = session.try_begin(spec, "input('never ')").await.expect("free").finish().await;
    assert_eq!((slow.status, slow.exit_code), (Status::Timeout, 124));
    assert_eq!(session.value("x").await, "'kept'");
}

async fn does_not_ask_otherwise(session: &Session) {
    let result = session.run("input('name? ')").await;
    assert_eq!(result.error.expect("a report").name, "EOFError");
    let deaf = session.begin("import time; time.sleep(1000)").await;
    assert_eq!(refused(session.sandbox.stdin(&deaf.id, b"x\n", false).await), RefusalCode::Invalid);
    session.sandbox.interrupt(&deaf.id).await.expect("it runs");
    deaf.finish().await;
    assert_eq!(
        refused(session.sandbox.stdin("never heard of", b"x", false).await),
        RefusalCode::UnknownExec
    );
}

#[tokio::test]
async fn commands_and_shells_are_fed_through_a_pipe() {
    let session = Lab::cold().shell_session(Limits::default()).await;
    a_command_is_fed(&session).await;
    a_command_that_does_not_read_is_fed_within_bounds(&session).await;
    a_command_that_closes_its_input(&session).await;
    a_cell_of_a_shell_is_fed(&session).await;
    what_a_cell_leaves_is_gone(&session).await;
}

async fn command(session: &Session, script: &str, body: &str, stdin: bool) -> Cell {
    let argv = ["/bin/sh", "-c", script].map(str::to_owned).to_vec();
    let what = What::Command { argv, cwd: "/tmp".into() };
    let env = session.sandbox.environment();
    let spec = ExecSpec { what, env, stdin, ..cell(&session.fresh_id()) };
    session.try_begin(spec, body).await.expect("commands need no kernel")
}

async fn a_command_is_fed(session: &Session) {
    let mut cat = command(session, "cat; echo end", "first ", true).await;
    cat.has_printed("first ").await;
    feed(session, &cat, "second ", false).await;
    cat.has_printed("second ").await;
    feed(session, &cat, "third ", true).await;
    let result = cat.finish().await;
    assert_eq!((result.stdout.as_str(), result.exit_code), ("third end\n", 0));
    let fixed = command(session, "cat; echo end", "all ", false).await;
    assert_eq!(fixed.finish().await.stdout, "all end\n");
    let deaf = command(session, "sleep 1000", "", false).await;
    assert_eq!(refused(session.sandbox.stdin(&deaf.id, b"x", false).await), RefusalCode::Invalid);
    session.sandbox.interrupt(&deaf.id).await.expect("it runs");
    assert_eq!(deaf.finish().await.status, Status::Interrupted);
}

async fn a_command_that_does_not_read_is_fed_within_bounds(session: &Session) {
    let code = "while [ ! -e /tmp/read ]; do sleep 0.01; done; wc -c";
    let slow = command(session, code, "", true).await;
    let too_much = vec![b'x'; MIB + 1];
    let link = &session.sandbox;
    assert_eq!(refused(link.stdin(&slow.id, &too_much, false).await), RefusalCode::Invalid);
    // Part of the input is in the pipe. How much depends on the pipe.
    let mut fed = 0;
    let refusal = loop {
        match link.stdin(&slow.id, &too_much[..64 * 1024], false).await {
            Ok(()) => fed += 64 * 1024,
            other => break refused(other),
        }
        assert!(fed <= 2 * MIB, "there is a bound");
    };
    assert_eq!(refusal, RefusalCode::Busy);
    assert!(fed >= MIB);
    feed(session, &slow, "", true).await;
    session.shell("touch /tmp/read").await;
    assert_eq!(slow.finish().await.stdout.trim(), fed.to_string(), "all of it arrives");
}

async fn a_command_that_closes_its_input(session: &Session) {
    let mut closed = command(session, "exec <&-; echo closed; sleep 1000", "", true).await;
    closed.has_printed("closed\n").await;
    // The first input may still be accepted: only writing it shows that the pipe is closed.
    let mut refusal = None;
    for _ in 0..100 {
        if let Err(error) = session.sandbox.stdin(&closed.id, b"x", false).await {
            refusal = Some(refused::<()>(Err(error)));
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    assert_eq!(refusal, Some(RefusalCode::Invalid));
    session.sandbox.interrupt(&closed.id).await.expect("it runs");
    closed.finish().await;
}

async fn begin_fed(session: &Session, code: &str) -> Cell {
    session.try_begin(with_input(bash_cell(&session.fresh_id())), code).await.expect("free")
}

async fn a_cell_of_a_shell_is_fed(session: &Session) {
    let mut asking = begin_fed(session, "echo on; read name; echo \"hello $name\"; cat").await;
    asking.has_printed("on\n").await;
    feed(session, &asking, "Ada\n", false).await;
    asking.has_printed("hello Ada\n").await;
    feed(session, &asking, "the rest", true).await;
    assert_eq!(asking.finish().await.stdout, "the rest");
    assert_eq!(session.bash_says("echo $name").await.0, "Ada\n");
    // The input is closed before the cell has begun.
    let early = begin_fed(session, "cat; echo end").await;
    feed(session, &early, "early ", true).await;
    assert_eq!(early.finish().await.stdout, "early end\n");
    let waiting = begin_fed(session, "read line").await;
    session.sandbox.interrupt(&waiting.id).await.expect("it runs");
    assert_eq!(waiting.finish().await.status, Status::Interrupted);
    assert_eq!(session.bash_says("echo $name; ls -A /tmp | grep belljar").await.0, "Ada\n");
}

async fn what_a_cell_leaves_is_gone(session: &Session) {
    let mut asking = begin_fed(session, "read one; echo \"$one\"").await;
    feed(session, &asking, "first\nsecond\n", false).await;
    asking.has_printed("first\n").await;
    asking.finish().await;
    let next = begin_fed(session, "read one; echo \"[$one]\"").await;
    feed(session, &next, "mine\n", true).await;
    assert_eq!(next.finish().await.stdout, "[mine]\n");
    assert_eq!(session.bash_says("read one; echo \"[$one]\"").await.0, "[]\n");
}
