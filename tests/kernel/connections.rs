//! Several connections to one guest: each that joins an execution gets all of its events, once.

use belljar_proto::exec::Event;
use belljar_proto::guest::{Call, RefusalCode};
use belljar_runtime::RuntimeError;
use belljar_runtime::link::{Following, Link};

use crate::lab::{Lab, PATIENCE, Session, cell, refused};

#[tokio::test]
async fn an_execution_can_be_left_and_joined_again() {
    let lab = Lab::cold();
    let session = lab.session().await;
    a_second_connection_sees_it_all(&session).await;
    nothing_is_seen_twice(&session).await;
    a_follower_is_not_robbed(&session).await;
    what_is_over_is_remembered_until_it_is_forgotten(&session).await;
    only_the_host_is_welcome(&lab, &session).await;
    messages_of_the_code_itself_change_nothing(&session).await;
    session.sandbox.destroy().await;
}

/// Prints a line each time the test creates a file in the sandbox.
const TALK: &str = "\
import os, sys, time
print('started', flush=True)
for n in range(3):
    while not os.path.exists(f'/tmp/go{n}'): time.sleep(0.005)
    print(f'line {n}')
    print(f'error {n}', file=sys.stderr)
for n in range(3): os.remove(f'/tmp/go{n}')";

async fn go(session: &Session, n: u32) {
    session.shell(&format!("touch /tmp/go{n}")).await;
}

/// Reads all events to the end; returns the text of stdout and of stderr.
async fn rest(mut following: Following) -> (String, String) {
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    while let Some(event) = following.next().await {
        match event.event {
            Event::Stdout => stdout.extend(event.body),
            Event::Stderr => stderr.extend(event.body),
            Event::Done(_) => break,
            Event::Display | Event::Result | Event::Error | Event::Input | Event::Artifacts => {}
        }
    }
    let text = |bytes| String::from_utf8(bytes).expect("text");
    (text(stdout), text(stderr))
}

async fn a_second_connection_sees_it_all(session: &Session) {
    let mut first = session.begin(TALK).await;
    first.has_printed("started\n").await;
    go(session, 0).await;
    let second = session.connect().await;
    let joined = second.join(&first.id, 0, 0).await.expect("it runs");
    go(session, 1).await;
    go(session, 2).await;
    let (stdout, stderr) = rest(joined).await;
    assert_eq!(stdout, "started\nline 0\nline 1\nline 2\n");
    assert_eq!(stderr, "error 0\nerror 1\nerror 2\n");
    let result = first.finish().await;
    assert_eq!(result.stdout, "line 0\nline 1\nline 2\n", "the first goes on undisturbed");
}

async fn nothing_is_seen_twice(session: &Session) {
    let mut first = session.begin(TALK).await;
    let (seq, offset) = first.has_printed("started\n").await;
    let id = first.id.clone();
    // As if the server had died: its connection no longer follows the execution.
    drop(first);
    go(session, 0).await;
    go(session, 1).await;
    let successor = session.connect().await;
    let joined = successor.join(&id, seq, offset).await.expect("it runs");
    go(session, 2).await;
    let (stdout, stderr) = rest(joined).await;
    assert_eq!(stdout, "line 0\nline 1\nline 2\n");
    assert_eq!(stderr, "error 0\nerror 1\nerror 2\n");
}

/// A second request for the same execution on the same connection takes no events from the first
/// follower.
async fn a_follower_is_not_robbed(session: &Session) {
    let code = "for n in range(500): print(n); time.sleep(0.001)";
    let running = session.try_begin(cell("mine"), code).await.expect("free");
    for _ in 0..50 {
        refused(session.try_begin(cell("mine"), code).await);
        refused(session.sandbox.link().join("mine", 0, 0).await);
    }
    let result = tokio::time::timeout(PATIENCE, running.finish()).await.expect("its end arrives");
    let all: String = (0..500).map(|n| format!("{n}\n")).collect();
    assert_eq!(result.stdout, all);
}

async fn what_is_over_is_remembered_until_it_is_forgotten(session: &Session) {
    let link = session.connect().await;
    session.try_begin(cell("over"), "print('all of it')").await.expect("free").finish().await;
    let again = rest(link.join("over", 0, 0).await.expect("it is remembered")).await;
    assert_eq!(again.0, "all of it\n");
    let forget = Call::Forget { exec_ids: vec!["over".into()] };
    link.call(forget, &[]).await.expect("it is over");
    assert_eq!(refused(link.join("over", 0, 0).await), RefusalCode::UnknownExec);
    assert_eq!(refused(link.join("never", 0, 0).await), RefusalCode::UnknownExec);
}

async fn only_the_host_is_welcome(lab: &Lab, session: &Session) {
    let _ = lab;
    let settings = belljar::settings::Settings::load().expect("settings");
    let socket = settings.run_dir.join(format!("{}.sock", session.sandbox.name()));
    match Link::connect(&socket, "a guess").await {
        Err(RuntimeError::Refused(refusal)) => assert_eq!(refusal.code, RefusalCode::NotWelcome),
        other => panic!("a stranger got in: {other:?}"),
    }
    assert_eq!(session.value("1").await, "1", "and nobody else is disturbed");
}

/// User code shares its process with the kernel and can write to the kernel's socket. It can send
/// false messages about its own execution. It can neither end other executions nor add output to
/// them.
async fn messages_of_the_code_itself_change_nothing(session: &Session) {
    let forge = r#"
import json, os, stat, struct, threading, time
links = [f'/proc/self/fd/{fd}' for fd in os.listdir('/proc/self/fd')]
control = [int(os.path.basename(link)) for link in links
           if os.path.exists(link) and stat.S_ISSOCK(os.stat(link).st_mode)]
def forge(head, body=b''):
    head = json.dumps(head).encode()
    for fd in control:
        os.write(fd, struct.pack('<II', len(head), len(body)) + head + body)
assert control
forge({'op': 'done', 'exec_id': 'next', 'status': 'ok', 'exit_code': 9, 'execution_count': 1})
forge({'op': 'hello', 'protocol': 1, 'language': 'x', 'language_version': 'x', 'pid': 1})
def late():
    time.sleep(0.05)
    forge({'op': 'display', 'kind': 'result'}, b'{"data": {"text/plain": "forged"}}')
    forge({'op': 'done', 'exec_id': 'forger', 'status': 'ok', 'exit_code': 9, 'execution_count': 1})
    open('/tmp/forged', 'w').close()
threading.Thread(target=late).start()"#;
    let forger = session.try_begin(cell("forger"), forge).await.expect("free").finish().await;
    assert_eq!(forger.exit_code, 0, "{forger:#?}");
    // A message that arrives while nothing runs belongs to no execution.
    session.shell("until [ -e /tmp/forged ]; do sleep 0.01; done").await;
    let next = session.try_begin(cell("next"), "print('mine')").await.expect("free").finish().await;
    assert_eq!((next.exit_code, next.stdout.as_str(), next.results.len()), (0, "mine\n", 0));
}
