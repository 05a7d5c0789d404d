//! The three calls of the simple sandbox that agents already know, exactly as its manual describes
//! them.

use std::sync::Arc;

use serde_json::json;

use belljar_testkit::client::Client;
use belljar_testkit::installation::Installation;
use belljar_testkit::server::Server;
use belljar_testkit::values::text;

async fn execute(client: &Client, session: &str, command: &str) -> serde_json::Value {
    let ask = json!({"session_id": session, "command": command});
    client.post("/execute", ask).await.json(200)
}

#[tokio::test]
async fn create_execute_cleanup() {
    let server = Server::start().await;
    // `curl -X POST .../create_session`: no body, no content type.
    let made = server.send(server.request(hyper::Method::POST, "/create_session", "")).await;
    let made = made.json(200);
    let id = text(&made["session_id"]).to_owned();
    assert_eq!(made, json!({"session_id": id, "status": "created"}));
    let hello = execute(&server, &id, "echo Hello").await;
    assert_eq!(hello, json!({"exit_code": 0, "output": "Hello\n"}));

    // Directory, variables and files are kept.
    execute(&server, &id, "cd /tmp && colour=blue && echo data > file").await;
    assert_eq!(
        execute(&server, &id, "pwd; echo $colour; cat file").await["output"],
        "/tmp\nblue\ndata\n"
    );
    let failed = execute(&server, &id, "ls /nowhere").await;
    assert_eq!(failed["exit_code"], 2);
    assert!(text(&failed["output"]).contains("No such file"), "both streams: {failed:#}");
    assert_eq!(execute(&server, &id, "(exit 42)").await["exit_code"], 42);
    assert_eq!(execute(&server, &id, "python3 -c 'print(6 * 7)'").await["output"], "42\n");
    let ask = json!({"session_id": id, "command": "sleep 1000", "timeout": 0.3});
    let late = server.post("/execute", ask).await.json(200);
    assert_eq!(late["exit_code"], 124, "{late:#}");
    assert_eq!(execute(&server, &id, "echo $colour").await["output"], "blue\n");

    // Each session has its own state.
    let other = server.post("/create_session", json!({})).await.json(200);
    let other = text(&other["session_id"]);
    assert_eq!(execute(&server, other, "echo [$colour]; ls /tmp/file").await["exit_code"], 2);

    // The differences that docs/how-to/from-simple-sandbox.md lists.
    assert_eq!(
        execute(&server, other, "id -u; touch /usr/x || echo no").await["output"]
            .as_str()
            .map(|said| (said.starts_with("1000\n"), said.ends_with("no\n"))),
        Some((true, true))
    );

    for _ in 0..2 {
        let cleaned = server.post("/cleanup", json!({"session_id": id})).await.json(200);
        assert_eq!(cleaned, json!({"status": "cleaned up"}));
    }
    let gone = json!({"session_id": id, "command": "ls"});
    server.post("/execute", gone).await.error(410, "session_ended");
    let never = json!({"session_id": "never", "command": "ls"});
    server.post("/execute", never).await.error(404, "session_not_found");
    server.post("/cleanup", json!({"session_id": "never"})).await.error(404, "session_not_found");
    server.post("/execute", json!({"session_id": other})).await.error(422, "invalid");
    server.post("/execute", json!({"command": "ls"})).await.error(422, "invalid");
    server.post("/cleanup", json!({})).await.error(422, "invalid");
    let nul = json!({"session_id": other, "command": "a\0b"});
    server.post("/execute", nul).await.error(422, "invalid");
    // It is an ordinary session.
    assert_eq!(server.get(&format!("/v1/sessions/{other}")).await.json(200)["state"], "ready");
}

#[tokio::test]
async fn output_keeps_the_order_in_which_it_was_written() {
    let server = Server::start().await;
    let made = server.post("/create_session", json!({})).await.json(200);
    let id = text(&made["session_id"]);
    // Child processes, the shell itself, and code that fails.
    let command = "for i in 1 2 3 4 5; do echo out$i; echo err$i >&2; sh -c \"echo sub$i; echo bus$i >&2\"; done; \
                   ls /nowhere; echo after; nothing_of_this_name; echo last";
    let output = execute(&server, id, command).await["output"].clone();
    let lines: Vec<&str> = text(&output).lines().collect();
    let expected: Vec<String> = (1..=5)
        .flat_map(|i| ["out", "err", "sub", "bus"].map(|word| format!("{word}{i}")))
        .collect();
    assert_eq!(lines[..20], expected, "{output}");
    assert!(lines[20].contains("/nowhere"), "{output}");
    assert_eq!(lines[21], "after", "{output}");
    assert!(lines[22].contains("command not found"), "{output}");
    assert_eq!(lines[23..], ["last"], "{output}");
    // Faster than a reader could alternate between two pipes.
    let burst = "python3 -c 'import os; [os.write(1 + i % 2, b\"%d\\n\" % i) for i in range(300)]'";
    let numbers: String = (0..300).map(|i| format!("{i}\n")).collect();
    assert_eq!(execute(&server, id, burst).await["output"], numbers);
    // A command's redirections affect neither the next command nor other calls of the session.
    execute(&server, id, "false").await;
    assert_eq!(
        execute(&server, id, "echo $?; exec 2>/dev/null; ls /nowhere").await["output"],
        "1\n"
    );
    assert!(text(&execute(&server, id, "ls /nowhere").await["output"]).contains("/nowhere"));
    // Code that could leave a `$(` open is passed to the shell in another way.
    let open = execute(&server, id, "echo $(echo a; echo b >&2); echo c").await;
    assert_eq!(open["output"], "b\na\nc\n");
    let ask = json!({"language": "bash", "code": "echo out; echo err >&2"});
    let apart = server.post(&format!("/v1/sessions/{id}/exec"), ask).await.json(200);
    assert_eq!((&apart["stdout"], &apart["stderr"]), (&json!("out\n"), &json!("err\n")));
}

/// Headers that nginx sends with the manual's configuration.
#[tokio::test]
async fn behind_a_proxy_it_has_another_name() {
    let from_nginx = |client: &Client| {
        let mut request = client.request(hyper::Method::POST, "/create_session", "");
        let headers = request.headers_mut();
        headers.insert("host", "your-domain.com".parse().expect("a value"));
        headers.insert("x-real-ip", "203.0.113.9".parse().expect("a value"));
        request
    };
    let installation = Arc::new(Installation::new());
    let server = installation.serve().await;
    server.send(from_nginx(&server)).await.error(403, "wrong_host");
    server.terminate().await;
    let key = installation.key(&["--name", "nginx"]);
    let server = installation.serve().await;
    server.send(from_nginx(&server)).await.error(401, "unauthorized");
    let client = server.with_key(text(&key["secret"]));
    client.send(from_nginx(&client)).await.json(200);
}
