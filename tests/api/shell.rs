//! Commands in parallel to kernels, a shell that keeps its state, executions in the background, and
//! input. Behavior that all backends share is tested in `tests/contract/shell.rs`.

use serde_json::json;

use belljar_testkit::server::Server;
use belljar_testkit::values::text;

#[tokio::test]
async fn commands_run_beside_a_busy_kernel() {
    let server = Server::start().await;
    let session = server.session().await;
    let held = session.hold("held").await;
    let result = session.shell("echo out; echo err >&2; exit 3").await;
    assert_eq!((&result["stdout"], &result["stderr"]), (&json!("out\n"), &json!("err\n")));
    assert_eq!((&result["exit_code"], &result["status"]), (&json!(3), &json!("error")));
    let list = json!({"command": ["printf", "%s|", "a b", "$HOME", "*"]});
    assert_eq!(session.exec(list).await.json(200)["stdout"], "a b|$HOME|*|");
    let installation = json!({"command": "pwd", "cwd": "/tmp"});
    assert_eq!(session.exec(installation).await.json(200)["stdout"], "/tmp\n");
    session.shell("mkdir -p sub/dir").await;
    let installation = json!({"command": ["pwd"], "cwd": "sub/dir"});
    assert_eq!(session.exec(installation).await.json(200)["stdout"], "/session/sub/dir\n");
    assert_eq!(session.shell("pwd; echo $HOME").await["stdout"], "/session\n/session\n");
    let nowhere = session.exec(json!({"command": "pwd", "cwd": "/nowhere"})).await.json(200);
    assert_eq!(nowhere["status"], "error", "{nowhere:#}");
    assert!(nowhere.to_string().contains("/nowhere"), "{nowhere:#}");
    let nothing = session.exec(json!({"command": ["/no/such/program"]})).await.json(200);
    assert_eq!(nothing["exit_code"], 126, "{nothing:#}");
    assert!(text(&nothing["reason"]).contains("`/no/such/program`"), "{nothing:#}");
    assert_eq!(session.exec_info("held").await["state"], "running");
    session.release().await;
    assert_eq!(held.result().await["status"], "ok");
}

#[tokio::test]
async fn bash_remembers() {
    let server = Server::start().await;
    let session = server.session().await;
    let bash =
        async |code: &str| session.exec(json!({"language": "bash", "code": code})).await.json(200);
    bash("cd /tmp; colour=blue; export shade=dark; f() { echo $1-$colour; }").await;
    assert_eq!(
        bash("pwd; echo $colour; f very; env | grep shade").await["stdout"],
        "/tmp\nblue\nvery-blue\nshade=dark\n"
    );
    let failed = bash("echo before; false").await;
    assert_eq!((&failed["exit_code"], &failed["status"]), (&json!(1), &json!("error")));
    assert_eq!(failed["stdout"], "before\n");
    assert_eq!(bash("echo $?").await["stdout"], "1\n");
    let wrong = bash("if then").await;
    assert_eq!(wrong["status"], "error", "{wrong:#}");
    // bash and Python run in parallel.
    let held = session.hold("held").await;
    assert_eq!(bash("echo $colour").await["stdout"], "blue\n");
    session.release().await;
    held.result().await;
    let left = bash("exit 7").await;
    assert_eq!(
        (&left["exit_code"], &left["kernel_state"]),
        (&json!(7), &json!("lost")),
        "{left:#}"
    );
    assert_eq!(bash("echo \"[$colour]\"").await["stdout"], "[]\n");
    session.exec(json!({"language": "bash", "code": "a\0b"})).await.error(422, "invalid");
}

#[tokio::test]
async fn work_in_the_background_is_not_waited_for() {
    let server = Server::start().await;
    let session = server.session().await;
    let held = session.hold("held").await;
    let code = "import os, time\nprint('working', flush=True)\n\
                while not os.path.exists('/session/finish'): time.sleep(0.01)\nprint('worked')";
    let accepted = session.exec(json!({"code": code, "background": true})).await.json(202);
    assert_eq!(accepted["background"], true);
    assert!(accepted.get("result").is_none(), "{accepted:#}");
    let id = text(&accepted["exec_id"]);
    session.has_printed(id, "working").await;
    assert_eq!(session.exec_info(id).await["state"], "running");
    session.shell("touch finish").await;
    session.reaches(id, "finished").await;
    let result = &session.exec_info(id).await["result"];
    assert_eq!((&result["stdout"], &result["status"]), (&json!("working\nworked\n"), &json!("ok")));
    session.release().await;
    held.result().await;
    // A command that runs for less time than it takes to start still gets a result.
    let ask = json!({"command": "echo quick", "background": true, "exec_id": "quick"});
    session.exec(ask.clone()).await.json(202);
    session.reaches("quick", "finished").await;
    assert_eq!(session.exec_info("quick").await["result"]["stdout"], "quick\n");
    // A repeated request does not execute it again.
    // The answer is its state (202) while it is in memory, and its stored result (200) once it is in the database;
    // "finished" is visible before that.
    let again = session.exec(ask).await;
    assert!(again.status == 200 || again.status == 202, "{again}");
    assert_eq!(
        server.get(&session.path("/log")).await.json(200)["entries"]
            .as_array()
            .expect("a list")
            .iter()
            .filter(|entry| entry["exec_id"] == "quick")
            .count(),
        1
    );
    let where_ = json!({"code": "import os; print(os.getcwd())", "background": true, "cwd": "/tmp",
        "exec_id": "where"});
    session.exec(where_).await.json(202);
    session.reaches("where", "finished").await;
    assert_eq!(session.exec_info("where").await["result"]["stdout"], "/tmp\n");
}

#[tokio::test]
async fn input_is_fed_while_it_runs() {
    let server = Server::start().await;
    let session = server.session().await;
    let feed = async |exec: &str, body: serde_json::Value| {
        server.post(&session.path(&format!("/execs/{exec}/stdin")), body).await
    };
    // Python asks for input, and sends its prompt.
    let ask = json!({"code": "name = input('Name? ')\nprint('Hello', name)", "stdin": true});
    let asking = session.begin("asking", "running", ask).await;
    let mut events = server.follow(&session.path("/execs/asking/events")).await;
    let prompt = events.until("input").await;
    assert_eq!(prompt.data["prompt"], "Name? ", "{prompt:?}");
    assert_eq!(feed("asking", json!({"data": "Ada\n"})).await.status, 204);
    let result = asking.result().await;
    assert!(text(&result["stdout"]).ends_with("Hello Ada\n"), "{result:#}");
    assert_eq!(events.until("done").await.data["status"], "ok");

    // A command reads until its input is closed.
    let counting =
        session.begin("wc", "running", json!({"command": "wc -lc", "stdin": true})).await;
    assert_eq!(feed("wc", json!({"data": "one\n"})).await.status, 204);
    assert_eq!(feed("wc", json!({"data": "twö", "close": true})).await.status, 204);
    let result = counting.result().await;
    let words: Vec<&str> = text(&result["stdout"]).split_whitespace().collect();
    assert_eq!(words, ["1", "8"], "{result:#}");
    let cat = session.begin("cat", "running", json!({"command": ["cat"], "stdin": true})).await;
    assert_eq!(feed("cat", json!({"close": true})).await.status, 204);
    assert_eq!(cat.result().await["stdout"], "");

    // Without input, a read ends at once.
    let closed = session.python("input()").await;
    assert_eq!(closed["status"], "error", "{closed:#}");
    assert_eq!(session.shell("cat").await["stdout"], "");
    let over = feed("wc", json!({"data": "x"})).await.error(422, "invalid");
    assert_eq!(over, "execution `wc` has ended");
    let held = session.hold("held").await;
    let deaf = feed("held", json!({"data": "x"})).await.error(422, "invalid");
    assert!(deaf.contains("takes no input"), "{deaf}");
    // Input for a queued execution waits with it.
    let queued =
        session.begin("queued", "queued", json!({"code": "print(input())", "stdin": true})).await;
    let early = {
        let (client, path) = (server.client(), session.path("/execs/queued/stdin"));
        tokio::spawn(async move { client.post(&path, json!({"data": "early\n"})).await })
    };
    session.release().await;
    held.result().await;
    assert_eq!(early.await.expect("no panic").status, 204);
    assert_eq!(queued.result().await["stdout"], "early\n");
}

#[tokio::test]
async fn arguments_and_environments_have_the_size_the_machine_allows() {
    let server = Server::start().await;
    let session = server.session().await;
    let long = "x".repeat(100_000);
    let many = |count| -> Vec<&str> {
        std::iter::once("printf")
            .chain(["%.1s"])
            .chain(std::iter::repeat_n(&*long, count))
            .collect()
    };
    let fits = session.exec(json!({"command": many(9)})).await.json(200);
    assert_eq!(fits["stdout"], "x".repeat(9), "{fits:#}");
    let much = session.exec(json!({"command": many(60)})).await.json(200);
    assert_eq!(much["status"], "error", "{:?}", much["reason"]);
    assert!(text(&much["reason"]).contains("too large for a sandbox"), "{:?}", much["reason"]);
    let longer = "x".repeat(200_000);
    session.exec(json!({"command": ["echo", longer]})).await.error(422, "invalid");
    // A variable that is too long for a process is refused; a shorter one is passed on.
    let look = json!({"command": "echo ${#LONG}", "env": {"LONG": long}});
    assert_eq!(session.exec(look).await.json(200)["stdout"], "100000\n");
    let look = json!({"code": "import os; print(len(os.environ['LONG']))", "env": {"LONG": long}});
    assert_eq!(session.exec(look).await.json(200)["stdout"], "100000\n");
    let wide = server.session_with(json!({"env": {"LONG": long, "ALSO": long}})).await;
    assert_eq!(wide.printed("import os; print(len(os.environ['LONG']))").await, "100000\n");
    assert_eq!(wide.shell("echo ${#ALSO}").await["stdout"], "100000\n");
    for ask in [json!({"env": {"LONG": longer}}), json!({"env": {longer.clone(): "x"}})] {
        server.post("/v1/sessions", ask.clone()).await.error(422, "invalid");
        let mut exec = ask;
        exec["command"] = "true".into();
        session.exec(exec).await.error(422, "invalid");
    }
    let crowd: serde_json::Map<String, serde_json::Value> =
        (0..50).map(|n| (format!("V{n}"), json!(long))).collect();
    server.post("/v1/sessions", json!({"env": crowd})).await.error(422, "invalid");
    server.post("/v1/run", json!({"code": "1", "env": crowd})).await.error(422, "invalid");
}

#[tokio::test]
async fn unread_input_is_bounded() {
    let server = Server::start().await;
    let session = server.session().await;
    let ask = json!({"command": "echo begun; sleep 1000", "stdin": true});
    let deaf = session.begin("deaf", "running", ask).await;
    session.has_printed("deaf", "begun").await;
    let path = session.path("/execs/deaf/stdin");
    let much = json!({"data": "x".repeat(8 << 20)});
    server.post(&path, much).await.error(422, "invalid");
    // Buffered input is bounded; the pipe holds a little more.
    let data = json!({"data": "x".repeat(512 << 10)});
    let mut refused = None;
    for _ in 0..8 {
        let answer = server.post(&path, data.clone()).await;
        if answer.status != 204 {
            refused = Some(answer);
            break;
        }
    }
    refused.expect("4 MiB went somewhere").error(409, "busy");
    assert_eq!(session.shell("echo alive").await["stdout"], "alive\n");
    assert_eq!(session.printed("print('alive')").await, "alive\n");
    server.post_path(&session, "/execs/deaf/interrupt").await;
    assert_eq!(deaf.result().await["status"], "interrupted");
    assert_eq!(session.show().await["state"], "ready");
}

#[tokio::test]
async fn as_many_commands_run_beside_each_other_as_may_wait() {
    const MOST: usize = 64;
    let server = Server::start().await;
    let session = server.session().await;
    for number in 0..MOST {
        let ask =
            json!({"command": "sleep 1000", "background": true, "exec_id": format!("e{number}")});
        session.exec(ask).await.json(202);
    }
    let refused = session.exec(json!({"command": "true"})).await;
    refused.error(429, "queue_full");
    assert_eq!(session.show().await["running"], MOST);
    assert_eq!(session.printed("print('free')").await, "free\n");
    assert_eq!(server.post_path(&session, "/interrupt").await["interrupted"], MOST);
    session.becomes("ready").await;
    assert_eq!(session.shell("echo room").await["stdout"], "room\n");
}

#[tokio::test]
async fn input_and_users_that_cannot_be_are_refused() {
    let server = Server::start().await;
    let session = server.session().await;
    let exec = async |ask: serde_json::Value| session.exec(ask).await;
    let sorted = json!({"command": "sort", "stdin": "b\nä\na\n"});
    assert_eq!(exec(sorted).await.json(200)["stdout"], "a\nb\nä\n");
    for wrong in [
        json!({"command": "id", "user": "root"}),
        json!({"command": "id", "user": 0}),
        json!({"command": "id", "user": true}),
        json!({"command": "id", "stdin": 3}),
        json!({"code": "1", "stdin": "text"}),
    ] {
        exec(wrong).await.error(422, "invalid");
    }
}
