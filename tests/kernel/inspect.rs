//! Inspecting the variables of a kernel.

use belljar_proto::exec::{Language, Status};
use belljar_proto::guest::{KernelVariables, RefusalCode, Variable};
use belljar_runtime::Limits;

use crate::lab::{Lab, Session, of_both_kinds, refused};

async fn state(session: &Session, language: Language) -> KernelVariables {
    session.sandbox.kernel_state(language).await.expect("an idle kernel tells")
}

fn find<'a>(snapshot: &'a KernelVariables, name: &str) -> &'a Variable {
    let found = snapshot.variables.iter().find(|variable| variable.name == name);
    found.unwrap_or_else(|| panic!("no {name}: {snapshot:#?}"))
}

#[tokio::test]
async fn python_tells_its_variables() {
    // Executed kernels import what forked kernels have already. That takes memory.
    let limits = Limits { memory: 1 << 30, ..Limits::default() };
    of_both_kinds(limits, |session| async move {
        let fresh = state(&session, Language::Python).await;
        assert_eq!(
            (fresh.variables, fresh.imports, fresh.cwd.as_str()),
            (vec![], vec![], "/session")
        );
        tells(&session).await;
        is_not_a_cell(&session).await;
        is_refused_while_a_cell_runs(&session).await;
        takes_turns_with_cells(&session).await;
        is_stopped_if_it_takes_long(&session).await;
    })
    .await;
    let empty = Lab::cold().session_without_kernel().await;
    let refusal = refused(empty.sandbox.kernel_state(Language::Python).await);
    assert_eq!(refusal, RefusalCode::NoKernel);
}

async fn tells(session: &Session) {
    let code = "\
import pandas as pd
frame = pd.DataFrame({'a': range(100), 'b': 'x'})
word = 'hello'
def double(n, times=2): return n * times
_private = 1
import os; os.chdir('/tmp')";
    session.run(code).await;
    let reply = state(session, Language::Python).await;
    let names: Vec<_> = reply.variables.iter().map(|variable| variable.name.as_str()).collect();
    assert_eq!(names, ["frame", "word", "double"]);
    let frame = find(&reply, "frame");
    assert_eq!((frame.type_name.as_str(), &frame.shape), ("pandas.DataFrame", &Some(vec![100, 2])));
    assert!(frame.size > Some(800) && frame.preview.starts_with("   a  b\n0  0  x"), "{frame:?}");
    assert_eq!(find(&reply, "word").preview, "'hello'");
    assert_eq!(find(&reply, "double").preview, "double(n, times=2)");
    let imports: Vec<_> =
        reply.imports.iter().map(|i| (i.name.as_str(), i.module.as_str())).collect();
    assert_eq!((imports, reply.cwd.as_str()), (vec![("pd", "pandas"), ("os", "os")], "/tmp"));
}

async fn is_not_a_cell(session: &Session) {
    let before = session.run("'value'").await;
    state(session, Language::Python).await;
    let after = session.run("_").await;
    assert_eq!(after.execution_count, before.execution_count + 1);
    assert_eq!(after.results[0].text(), Some("'value'"));
}

async fn is_refused_while_a_cell_runs(session: &Session) {
    let mut running = session.begin("print('on')\nimport time; time.sleep(1000)").await;
    running.has_printed("on\n").await;
    let refusal = refused(session.sandbox.kernel_state(Language::Python).await);
    assert_eq!(refusal, RefusalCode::Busy);
    session.sandbox.interrupt(&running.id).await.expect("it runs");
    running.finish().await;
}

/// Inspecting variables does not disturb cells that run at the same time.
async fn takes_turns_with_cells(session: &Session) {
    for n in 0..20 {
        let (reply, value) =
            tokio::join!(session.sandbox.kernel_state(Language::Python), session.value("1 + 1"),);
        assert_eq!(value, "2");
        if let Err(error) = reply {
            assert_eq!(refused::<()>(Err(error)), RefusalCode::Busy, "{n}");
        }
    }
}

async fn is_stopped_if_it_takes_long(session: &Session) {
    let code = "\
import time
def slow(*_, **__):
    while True:
        try: time.sleep(1000)
        except KeyboardInterrupt: raise
        except BaseException: pass
pd.DataFrame.to_string = slow";
    session.run(code).await;
    let refusal = refused(session.sandbox.kernel_state(Language::Python).await);
    assert_eq!(refusal, RefusalCode::Failed);
    assert_eq!(session.value("word").await, "'hello'", "the kernel lives on");
    assert_eq!(session.run("del pd.DataFrame.to_string; del frame").await.status, Status::Ok);
    find(&state(session, Language::Python).await, "word");
}

#[tokio::test]
async fn a_shell_tells_its_variables() {
    let session = Lab::cold().shell_session(Limits::default()).await;
    assert_eq!(state(&session, Language::Bash).await.variables, []);
    let code = "\
word='two words'; declare -i number=42; list=(a b c); declare -A map=([k]=v); export GIVEN=out
greet() { :; }; cd /tmp; text=$'two\\nlines'; declare -a empty=(); long=$(printf 'x%.0s' {1..5000})
alias printf=false; declare() { :; }; set -eu; IFS=:; false || :";
    assert_eq!(session.bash(code).await.exit_code, 0);
    let reply = state(&session, Language::Bash).await;
    let seen: Vec<_> = reply
        .variables
        .iter()
        .filter(|variable| variable.name != "long")
        .map(|v| (v.name.as_str(), v.type_name.as_str(), v.size, v.preview.as_str()))
        .collect();
    assert_eq!(
        seen,
        [
            ("GIVEN", "string", Some(3), "\"out\""),
            ("declare", "function", None, "declare ()"),
            ("empty", "array", Some(0), "()"),
            ("greet", "function", None, "greet ()"),
            ("list", "array", Some(3), "([0]=\"a\" [1]=\"b\" [2]=\"c\")"),
            ("map", "associative array", Some(1), "([k]=\"v\" )"),
            ("number", "integer", Some(2), "\"42\""),
            ("text", "string", Some(9), "$'two\\nlines'"),
            ("word", "string", Some(9), "\"two words\""),
        ]
    );
    let long = find(&reply, "long");
    assert_eq!((long.size, long.preview.chars().count()), (Some(5000), 200));
    assert_eq!((reply.cwd.as_str(), reply.truncated), ("/tmp", 0));
    assert_eq!(session.bash_says("echo $word $- | tr -dc 'a-z ' ").await.0, "two words ehius");
    // With `set -e` bash may end when it is interrupted.
    let running = session.begin_bash("set +e; sleep 1000").await;
    assert_eq!(refused(session.sandbox.kernel_state(Language::Bash).await), RefusalCode::Busy);
    session.sandbox.interrupt(&running.id).await.expect("it runs");
    running.finish().await;
    assert_eq!(find(&state(&session, Language::Bash).await, "number").preview, "\"42\"");
}
