//! Commands beside the kernels, a shell that remembers, work in the background, and input.

use serde_json::json;

use crate::server::{Server, text};

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
    let place = json!({"command": "pwd", "cwd": "/tmp"});
    assert_eq!(session.exec(place).await.json(200)["stdout"], "/tmp\n");
    session.shell("mkdir -p sub/dir").await;
    let place = json!({"command": ["pwd"], "cwd": "sub/dir"});
    assert_eq!(session.exec(place).await.json(200)["stdout"], "/session/sub/dir\n");
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
    // It and Python run side by side.
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
    // One that takes longer to be started than to be done is done all the same.
    let ask = json!({"command": "echo quick", "background": true, "exec_id": "quick"});
    session.exec(ask.clone()).await.json(202);
    session.reaches("quick", "finished").await;
    assert_eq!(session.exec_info("quick").await["result"]["stdout"], "quick\n");
    // Asked again, it is not done again.
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
    // Python asks, and says what for.
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

    // Nobody waits for input that cannot come.
    let closed = session.python("input()").await;
    assert_eq!(closed["status"], "error", "{closed:#}");
    assert_eq!(session.shell("cat").await["stdout"], "");
    let over = feed("wc", json!({"data": "x"})).await.error(422, "invalid");
    assert_eq!(over, "execution `wc` is over");
    let held = session.hold("held").await;
    let deaf = feed("held", json!({"data": "x"})).await.error(422, "invalid");
    assert!(deaf.contains("takes no input"), "{deaf}");
    // Input for one that waits in the queue waits with it.
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
