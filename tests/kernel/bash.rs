//! Shell kernels, which keep their state between cells.

use belljar_proto::exec::{ExecSpec, KernelState, Language, Status};
use belljar_proto::guest::RefusalCode;
use belljar_runtime::Limits;

use crate::lab::{Lab, PATIENCE, Session, bash_cell, eventually, refused};

#[tokio::test]
async fn a_shell_remembers() {
    let session = Lab::cold().shell_session(Limits::default()).await;
    remembers(&session).await;
    takes_any_code(&session).await;
    has_no_input(&session).await;
    is_not_disturbed_by_what_cells_do_to_it(&session).await;
    says_nothing_by_itself(&session).await;
    keeps_what_it_is_given(&session).await;
    leaves_nothing_open_to_its_children(&session).await;
    session.sandbox.destroy().await;
}

async fn remembers(session: &Session) {
    let first = session.bash("x=20; cd /tmp; greet() { echo \"hello $1\"; }; echo set").await;
    assert_eq!((first.status, first.exit_code), (Status::Ok, 0), "{first:#?}");
    assert_eq!((first.execution_count, first.kernel_state), (1, KernelState::Kept));
    assert_eq!((first.stdout.as_str(), first.stderr.as_str()), ("set\n", ""));
    let second = session.bash("greet $((x + 1)); pwd").await;
    assert_eq!((second.stdout.as_str(), second.execution_count), ("hello 21\n/tmp\n", 2));
    let failure = session.bash("false").await;
    assert_eq!((failure.status, failure.exit_code), (Status::Error, 1));
    assert_eq!(session.bash_says("echo $?").await, ("1\n".into(), 0));
    assert_eq!(session.bash_says("return 7").await, (String::new(), 7));
    let syntax = session.bash("if true; then").await;
    assert_eq!((syntax.status, syntax.exit_code), (Status::Error, 2));
    assert!(syntax.stderr.contains("syntax error"), "{}", syntax.stderr);
    session.bash("sleep 1000 & background=$!").await;
    assert_eq!(session.bash_says("kill -0 $background && echo alive").await.0, "alive\n");
    assert_eq!(session.bash_says("kill $background; wait $background").await.1, 143);
}

async fn takes_any_code(session: &Session) {
    let quotes = r#"echo "a'b" 'c"d' $'e\'f' `echo g` \"h\" "$(echo 'i"j')""#;
    assert_eq!(session.bash_says(quotes).await.0, "a'b c\"d e'f g \"h\" i\"j\n");
    let heredoc = "cat <<EOF\nit's $x\nEOF\ncat <<'EOF'\n$x\nEOF";
    assert_eq!(session.bash_says(heredoc).await.0, "it's 20\n$x\n");
    let substitutions = "cat <(echo $(echo `echo $((6 * 7))`))";
    assert_eq!(session.bash_says(substitutions).await.0, "42\n");
    assert_eq!(session.bash_says("shopt -s extglob").await.1, 0);
    let extended = "case abc in !(x|$(echo y))) echo extended;; esac; echo ${__belljar_code-unset}";
    assert_eq!(session.bash_says(extended).await.0, "extended\nunset\n");
    takes_code_that_is_left_open(session).await;
    let long = format!("y='{}'\necho ${{#y}}", "z".repeat(1_000_000));
    assert_eq!(session.bash_says(&long).await.0, "1000000\n");
    assert_eq!(session.bash_says("").await, (String::new(), 0));
    session.bash("false").await;
    assert_eq!(session.bash_says("# nothing").await, (String::new(), 0), "nothing failed here");
    let bytes = session.try_begin_bytes(bash_cell("bytes"), b"printf '\xff\xfe' | od -An -tx1");
    assert_eq!(bytes.await.expect("free").finish().await.stdout, " ff fe\n");
    let nul = session.try_begin_bytes(bash_cell("nul"), b"echo \0").await;
    assert_eq!(refused(nul), RefusalCode::Invalid);
    let after =
        session.try_begin(bash_cell("nul"), "echo the id is free and so is the shell").await;
    assert_eq!(after.expect("free").finish().await.exit_code, 0);
}

/// Each of these runs several times, because some of them can damage the state of bash 5.2.
async fn takes_code_that_is_left_open(session: &Session) {
    let open = [
        "echo 'open",
        "echo \"open",
        "echo $(open",
        "cat <(open",
        "x=$(cat <<E\nopen)",
        "cat <<EOF\nopen",
        "{",
        ")",
        "`",
        "${",
        "$((",
        "case x in",
        "[[ a",
        "y=(",
    ];
    let busy = "for i in {1..500}; do y[i]=$i$i$i$i; done; z=$(echo ${y[@]} | tr 1 2); unset y z";
    for code in open.iter().cycle().take(5 * open.len()) {
        let result = session.bash(code).await;
        assert_eq!(result.kernel_state, KernelState::Kept, "{code}: {result:#?}");
        assert_eq!(session.bash(busy).await.kernel_state, KernelState::Kept, "after {code}");
    }
}

#[tokio::test]
async fn a_full_disk_is_no_end() {
    let limits = Limits { tmpfs: 8 << 20, ..Limits::default() };
    let session = Lab::cold().shell_session(limits).await;
    let full = session.bash("head -c 16M /dev/zero > /tmp/filler").await;
    assert!(full.stderr.contains("No space left on device"), "{full:#?}");
    // The shell keeps long code in a file while the code runs.
    let long = session.bash(&format!(": {}\necho ran", "x".repeat(300_000))).await;
    assert_eq!((long.exit_code, long.kernel_state), (1, KernelState::Kept), "{long:#?}");
    assert!(long.stderr.contains("here-document"), "{long:#?}");
    assert_eq!(session.bash_says("rm /tmp/filler; echo ok").await.0, "ok\n");
}

async fn has_no_input(session: &Session) {
    let code = "cat; read line; echo \"$? [$line]\"; python3 -c 'input()' 2>&1 | tail -1";
    assert_eq!(session.bash_says(code).await.0, "1 []\nEOFError: EOF when reading a line\n");
    session.bash("exec </etc/passwd; read line").await;
    assert_eq!(session.bash_says("read line; echo \"[$line]\"").await.0, "[]\n");
}

async fn is_not_disturbed_by_what_cells_do_to_it(session: &Session) {
    for (code, printed) in [
        ("exec >/dev/null 2>&1; echo hidden", ""),
        ("exec >&- 2>&- <&-", ""),
        ("exec >/tmp/elsewhere; echo to a file", ""),
        ("alias printf=false eval=false exec=false trap=false; printf() { false; }", ""),
        ("unalias -a; unset -f printf; PS1='prompt> '; PROMPT_COMMAND='echo prompted'", ""),
        ("unset PROMPT_COMMAND; trap 'echo trapped' INT; set -m", ""),
        ("trap 'echo debugging' DEBUG; :", "debugging\n"),
        ("set -u; echo ${nothing-unset}", "unset\n"),
        ("ulimit -n 64", ""),
        ("set +u; cat /tmp/elsewhere", "to a file\n"),
    ] {
        assert_eq!(session.bash_says(code).await.0, printed, "{code}");
        assert_eq!(session.bash_says("echo still $x").await.0, "still 20\n", "after {code}");
    }
    let unset = session.bash("set -u; echo $nothing; echo not reached").await;
    assert_eq!((unset.exit_code, unset.stdout.as_str()), (1, ""));
    let failed = session.bash("set +u; exec /no/such/program").await;
    assert_eq!((failed.exit_code, failed.kernel_state), (127, KernelState::Kept), "{failed:#?}");
    let traced = session.bash("set -x; echo one").await;
    assert_eq!(traced.stderr, "++ echo one\n", "and none of ours");
    assert_eq!(session.bash("echo two").await.stderr, "++ echo two\n");
    assert_eq!(session.bash("set +x").await.stderr, "++ set +x\n");
}

/// An interactive shell prints messages of its own. The kernel must not show them.
async fn says_nothing_by_itself(session: &Session) {
    for code in ["sleep 0.01 & wait", "sh -c 'kill -9 $$'", "coproc cat; kill $COPROC_PID; wait"] {
        let result = session.bash(code).await;
        assert_eq!((result.stdout.as_str(), result.stderr.as_str()), ("", ""), "{code}");
    }
    assert_eq!(session.bash("history").await.stdout, "");
}

async fn keeps_what_it_is_given(session: &Session) {
    let given = |name: &str, id: &str| ExecSpec {
        env: vec![(name.into(), "it's \"given\"".into())],
        ..bash_cell(id)
    };
    let cell = session.try_begin(given("GIVEN", "given"), "echo $GIVEN").await.expect("free");
    assert_eq!(cell.finish().await.stdout, "it's \"given\"\n");
    assert_eq!(session.bash_says("printenv GIVEN").await.0, "it's \"given\"\n");
    let refusal = refused(session.try_begin(given("NOT-A-NAME", "bad"), ":").await);
    assert_eq!(refusal, RefusalCode::Invalid);
}

async fn leaves_nothing_open_to_its_children(session: &Session) {
    assert_eq!(session.bash_says("ls /proc/self/fd").await.0, "0\n1\n2\n3\n");
}

#[tokio::test]
async fn a_shell_can_be_stopped_and_keeps_its_state() {
    let session = Lab::cold().shell_session(Limits::default()).await;
    session.bash("x=kept; f() { sleep 1000; echo not reached; }").await;
    for endless in [
        "while :; do :; done",
        "sleep 1000; echo not reached",
        "for n in 1 2 3; do sleep 1000; done",
        "sleep 1000 | cat",
        "(sleep 1000)",
        "y=$(sleep 1000)",
        "f",
        "read line < <(sleep 1000)",
        "sleep 1000 & wait",
        "exec >/dev/null; sleep 1000",
        "set -m; while :; do :; done",
    ] {
        let mut running = session.begin_bash(&format!("echo on\n{endless}")).await;
        running.has_printed("on\n").await;
        session.sandbox.interrupt(&running.id).await.expect("it runs");
        let result = running.finish().await;
        assert_eq!((result.status, result.exit_code), (Status::Interrupted, 130), "{endless}");
        assert_eq!(result.kernel_state, KernelState::Kept, "{endless}: {result:#?}");
        assert_eq!((result.stdout.as_str(), result.stderr.as_str()), ("", ""), "{endless}");
        let after = session.bash_says("echo $x $?").await;
        assert_eq!(after.0, "kept 130\n", "after {endless}");
    }
    stops_at_any_moment(&session).await;
    times_out(&session).await;
    is_killed_if_it_does_not_listen(&session).await;
}

/// An interrupt is harmless while the shell still reads the code, and after the code has just
/// ended.
async fn stops_at_any_moment(session: &Session) {
    let long = "z='it is long'; \n".repeat(20_000) + "rm -f /tmp/proof";
    session.bash("touch /tmp/proof").await;
    for n in 0..30 {
        let code = if n % 3 == 0 { format!("{long}\nsleep 1000") } else { ":".into() };
        let running = session.begin_bash(&code).await;
        tokio::time::sleep(std::time::Duration::from_micros(300 * n)).await;
        session.sandbox.interrupt(&running.id).await.expect("it is known");
        let result = running.finish().await;
        assert_eq!(result.kernel_state, KernelState::Kept, "{n}: {result:#?}");
        assert_eq!(session.bash_says("echo $x").await.0, "kept\n", "{n}");
        if n % 3 == 0 {
            session.bash("touch /tmp/proof").await;
        } else {
            assert_eq!(session.bash("test -e /tmp/proof").await.exit_code, 0, "{n}");
        }
    }
}

async fn times_out(session: &Session) {
    let spec = ExecSpec { timeout_ms: 200, ..bash_cell("slow") };
    let slow = session.try_begin(spec, "y=2; while :; do :; done").await.expect("free");
    let result = slow.finish().await;
    assert_eq!((result.status, result.exit_code), (Status::Timeout, 124));
    assert_eq!(result.kernel_state, KernelState::Kept);
    assert_eq!(session.bash_says("echo $y").await.0, "2\n");
}

async fn is_killed_if_it_does_not_listen(session: &Session) {
    let spec = ExecSpec { timeout_ms: 200, grace_ms: 300, ..bash_cell("stubborn") };
    let code = "trap '' INT; setsid sleep 1000 & while :; do :; done";
    let result = session.try_begin(spec, code).await.expect("free").finish().await;
    assert_eq!((result.status, result.kernel_state), (Status::Timeout, KernelState::Lost));
    eventually("all of it is gone", || session.processes().is_empty()).await;
    session.sandbox.start_kernel(Language::Bash).await.expect("another shell");
    assert_eq!(session.bash_says("echo \"[$x]\"").await.0, "[]\n");
}

#[tokio::test]
async fn a_shell_that_ends_is_reported_as_what_it_is() {
    let limits = Limits { memory: 128 << 20, ..Limits::default() };
    let session = Lab::cold().shell_session(limits).await;
    let exited = |code: i32| {
        format!("the shell exited with status {code}; its variables and working directory are gone")
    };
    for (code, status, exit_code, reason) in [
        ("exit 3", Status::Error, 3, exited(3)),
        ("exit", Status::Ok, 0, exited(0)),
        ("set -e; false; echo not reached", Status::Error, 1, exited(1)),
        ("sleep 1000 & exit 4", Status::Error, 4, exited(4)),
        ("exec sh -c 'exit 5'", Status::Error, 5, exited(5)),
        ("kill -9 $$", Status::Crashed, 137, "the kernel was killed by signal 9".into()),
        (
            "x=$(head -c 1G /dev/zero | tr '\\0' x)",
            Status::Oom,
            137,
            "the kernel was killed because the memory limit was reached".into(),
        ),
    ] {
        let result = session.bash(&format!("echo last words\n{code}")).await;
        assert_eq!((result.status, result.exit_code), (status, exit_code), "{code}: {result:#?}");
        assert_eq!(result.reason, Some(reason), "{code}");
        assert_eq!(result.kernel_state, KernelState::Lost);
        assert_eq!(
            (result.stdout.as_str(), result.stderr.as_str()),
            ("last words\n", ""),
            "{code}"
        );
        assert_eq!(refused(session.try_begin(bash_cell("dead"), ":").await), RefusalCode::NoKernel);
        session.sandbox.start_kernel(Language::Bash).await.expect("another shell");
        let fresh = session.bash("echo fresh").await;
        assert_eq!(
            (fresh.kernel_state, fresh.reason, fresh.execution_count),
            (KernelState::Kept, None, 1)
        );
    }
    daemons_delay_no_one(&session).await;
    a_child_that_is_killed_for_memory_is_mentioned(&session).await;
}

async fn daemons_delay_no_one(session: &Session) {
    let start = std::time::Instant::now();
    let result = session.bash("(setsid sleep 1000 &) ; sleep 1000 & echo started; exit 6").await;
    assert_eq!((result.exit_code, result.stdout.as_str()), (6, "started\n"));
    assert!(start.elapsed() < PATIENCE);
    session.sandbox.start_kernel(Language::Bash).await.expect("another shell");
}

async fn a_child_that_is_killed_for_memory_is_mentioned(session: &Session) {
    let result = session.bash("x=1; python3 -c 'b\"x\" * (1 << 30)'").await;
    assert_eq!((result.status, result.exit_code), (Status::Error, 137), "{result:#?}");
    assert!(result.reason.expect("a reason").contains("killed for memory"));
    assert_eq!(session.bash_says("echo $x").await.0, "1\n");
}

#[tokio::test]
async fn a_shell_and_a_python_live_side_by_side() {
    let session = Lab::cold().session().await;
    session.sandbox.start_kernel(Language::Bash).await.expect("a shell");
    let mut python = session.begin("print('on')\nimport time; time.sleep(1000)").await;
    python.has_printed("on\n").await;
    assert_eq!(session.bash_says("x=1; echo beside").await.0, "beside\n");
    let busy = session.begin_bash("sleep 1000").await;
    assert_eq!(refused(session.try_begin(bash_cell("second"), ":").await), RefusalCode::Busy);
    session.sandbox.interrupt(&python.id).await.expect("it runs");
    assert_eq!(python.finish().await.status, Status::Interrupted);
    session.sandbox.interrupt(&busy.id).await.expect("it runs");
    assert_eq!(busy.finish().await.status, Status::Interrupted);
    let restarted = session.sandbox.start_kernel(Language::Bash).await;
    restarted.expect("another shell");
    let next = session.bash("echo \"[$x]\"").await;
    assert_eq!((next.stdout.as_str(), next.kernel_state), ("[]\n", KernelState::Lost));
    assert!(next.reason.expect("a reason").contains("was replaced"));
}
