//! Commands, and the shell that keeps its state.

use serde_json::json;

use crate::backend::Backend;
use belljar_testkit::values::text;

pub(crate) async fn heredocs_and_much_output_come_through(on: Backend) {
    let (_site, _server, session) = on.session(json!({})).await;
    let script = "cat <<'EOF' | tr a-z A-Z\none $HOME\n  two 'three' \"four\"\nEOF\ncat <<-END\n\tin $((1+1))\n\tEND";
    let expected = "ONE $HOME\n  TWO 'THREE' \"FOUR\"\nin 2\n";
    let lines = "seq -f '%09.0f' 1000000";
    assert_eq!(session.shell(script).await["stdout"], expected);
    let bash = json!({"language": "bash", "code": script});
    assert_eq!(session.exec(bash).await.json(200)["stdout"], expected);
    for mut ask in [json!({"command": lines}), json!({"language": "bash", "code": lines})] {
        ask["max_output"] = "16M".into();
        let result = session.exec(ask).await.json(200);
        let printed = text(&result["stdout"]);
        assert_eq!((printed.len(), &result["status"]), (10_000_000, &json!("ok")));
        let numbers = printed.lines().map(|line| line.parse::<u64>().expect("a number"));
        assert!(numbers.eq(1..=1_000_000), "something is missing");
        assert_eq!(result["dropped"]["stdout_bytes"], 0, "{:?}", result["dropped"]);
    }
    // With the default limit the output is cut, and the dropped bytes are counted.
    let cut = session.shell(lines).await;
    assert_eq!(cut["dropped"]["stdout_bytes"], 10_000_000 - (1 << 20));
}

pub(crate) async fn a_command_has_its_input_environment_and_user(on: Backend) {
    let (_site, _server, session) = on.session(json!({})).await;
    let exec = async |ask: serde_json::Value| session.exec(ask).await;
    let sorted = json!({"command": "sort; echo $COLOUR", "stdin": "b\nc\na\n",
        "env": {"COLOUR": "blue"}, "user": "belljar", "cwd": "/tmp"});
    assert_eq!(exec(sorted).await.json(200)["stdout"], "a\nb\nc\nblue\n");
    let large = "x".repeat(5_000_000);
    let counted = exec(json!({"command": ["wc", "-c"], "stdin": large, "user": 1000})).await;
    assert_eq!(counted.json(200)["stdout"], "5000000\n");
    // A command that does not read its input is not blocked by it.
    assert_eq!(exec(json!({"command": "true", "stdin": large})).await.json(200)["status"], "ok");
    let late = json!({"command": "sleep 5", "timeout": 0.3, "stdin": "x"});
    let late = exec(late).await.json(200);
    assert_eq!((&late["status"], &late["exit_code"]), (&json!("timeout"), &json!(124)));
    assert_eq!(
        exec(json!({"command": "cat", "stdin": "given"})).await.json(200)["stdout"],
        "given"
    );
    exec(json!({"command": "id", "user": "root"})).await.error(422, "invalid");
    assert_eq!(exec(json!({"command": "id -u"})).await.json(200)["stdout"], "1000\n");
}

pub(crate) async fn prompts_without_input_fail_at_once(on: Backend) {
    let (_site, _server, session) = on.session(json!({})).await;
    let prompts = [
        "read -p 'Name? ' name",
        "python3 -c 'input(\"Name? \")'",
        "python3 -c 'import getpass; getpass.getpass()'",
        "read name < /dev/tty",
        "bash -c 'select x in a b; do echo $x; done; [ -n \"$x\" ]'",
        "rm -i /session/none",
    ];
    for prompt in prompts {
        for mut ask in [json!({"command": prompt}), json!({"language": "bash", "code": prompt})] {
            ask["timeout"] = 15.into();
            let result = session.exec(ask).await.json(200);
            assert_eq!(result["status"], "error", "{prompt}: {result:#}");
        }
    }
    assert_eq!(session.shell("read x; echo \"[$x] $?\"").await["stdout"], "[] 1\n");
}

pub(crate) async fn output_of_background_jobs_comes_later(on: Backend) {
    let (_site, _server, session) = on.session(json!({})).await;
    let bash =
        async |code: &str| session.exec(json!({"language": "bash", "code": code})).await.json(200);
    let begun = bash("(while [ ! -e go ]; do sleep 0.02; done; echo later) & echo begun").await;
    assert_eq!(begun["stdout"], "begun\n");
    assert_eq!(bash("jobs -rp | wc -l").await["stdout"], "1\n");
    session.shell("touch go").await;
    assert_eq!(bash("wait %1; echo $?").await["stdout"], "later\n0\n");
    bash("rm -f go; (while [ ! -e go ]; do sleep 0.02; done; echo unasked; touch said) &").await;
    session.shell("touch go; until [ -e said ]; do sleep 0.02; done").await;
    assert_eq!(bash("echo next").await["stdout"], "unasked\nnext\n");
    let ask = json!({"command": "echo one; until [ -e finish ]; do sleep 0.02; done; echo two",
        "background": true, "exec_id": "behind"});
    session.exec(ask).await.json(202);
    session.has_printed("behind", "one").await;
    session.shell("touch finish").await;
    session.reaches("behind", "finished").await;
    assert_eq!(session.exec_info("behind").await["result"]["stdout"], "one\ntwo\n");
}

/// Daemons: some have their own session, one has forked twice, one ignores signals.
const FAMILIES: &str = "setsid sleep 7001 & (setsid sleep 7002 &) ; (trap '' INT TERM HUP; sleep 7003 &) ; \
    python3 -c 'import os, time\nif os.fork() == 0:\n os.setsid()\n if os.fork() == 0: os.execvp(\"sleep\", [\"sleep\", \"7004\"])\n os._exit(0)' ; \
    nohup sleep 7005 >/dev/null 2>&1 & disown; echo all; sleep 7006";

/// All processes that a command started end with it, even those that left its group, its session or its parents.
pub(crate) async fn stopped_by_its_id_a_command_takes_its_daemons_along(on: Backend) {
    // gVisor has its own threads for every process, and ends a sandbox that has too many.
    let limits = if on == Backend::Runsc { json!({"pids": 1000}) } else { json!({}) };
    let (_site, server, session) = on.session(json!({"limits": limits})).await;
    let count = async || {
        let look = "import glob\nn = 0\n\
            for path in glob.glob('/proc/[0-9]*/cmdline'):\n\
            \x20   try: n += open(path).read().startswith('sleep\\x00700')\n\
            \x20   except OSError: pass\n\
            print(n)";
        session.printed(look).await
    };
    for (id, ask) in [
        ("waited", json!({"command": FAMILIES})),
        ("behind", json!({"command": FAMILIES, "background": true})),
        ("script", json!({"language": "bash", "code": FAMILIES, "background": true})),
    ] {
        let running = session.begin(id, "running", ask).await;
        session.has_printed(id, "all").await;
        assert_ne!(count().await, "0\n");
        server.post_path(&session, &format!("/execs/{id}/interrupt")).await;
        session.reaches(id, "finished").await;
        assert_eq!(session.exec_info(id).await["result"]["status"], "interrupted");
        running.abandon();
        assert_eq!(count().await, "0\n", "of {id}");
    }
}
