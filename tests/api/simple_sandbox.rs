//! The three calls of the simple sandbox that agents already know, exactly as its manual has them.

use serde_json::json;

use crate::client::Client;
use crate::server::{Server, text};

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

    // Directory, variables and files stay.
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

    // Each user has their own.
    let other = server.post("/create_session", json!({})).await.json(200);
    let other = text(&other["session_id"]);
    assert_eq!(execute(&server, other, "echo [$colour]; ls /tmp/file").await["exit_code"], 2);

    let cleaned = server.post("/cleanup", json!({"session_id": id})).await.json(200);
    assert!(cleaned["status"].is_string(), "{cleaned:#}");
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
    // It is a session like any other.
    assert_eq!(server.get(&format!("/v1/sessions/{other}")).await.json(200)["state"], "ready");
}
