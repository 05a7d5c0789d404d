//! Usage, quotas, and the logs of actions and refusals.

use belljar_engine::audit;
use serde_json::{Value, json};

use belljar_testkit::installation::Installation;
use belljar_testkit::server::Server;
use belljar_testkit::values::text;
use belljar_testkit::wait::eventually;
use std::sync::Arc;

#[tokio::test]
async fn every_counter_moves() {
    let server = Server::with(&[("BELLJAR_POOL", "1"), ("BELLJAR_MAX_SESSIONS", "3")]).await;
    eventually("the pool is full", async || server.metric("belljar_pool_ready").await == 1.0).await;
    let pooled = server.session_with(json!({"key": "k"})).await;
    assert_eq!(server.metric("belljar_creates_total{how=\"pool\"}").await, 1.0);
    assert_eq!(server.metric("belljar_pool_taken_total{how=\"hit\"}").await, 1.0);
    let cold = server.session_with(json!({"limits": {"memory": "96M"}, "ttl": 1})).await;
    assert_eq!(server.metric("belljar_creates_total{how=\"cold\"}").await, 1.0);
    server.post("/v1/sessions", json!({"key": "k"})).await.json(200);
    assert_eq!(server.metric("belljar_creates_total{how=\"found\"}").await, 1.0);
    assert_eq!(server.metric("belljar_create_seconds_count").await, 2.0);

    cold.python("b = bytearray(500 << 20)").await;
    assert_eq!(server.metric("belljar_oom_total").await, 1.0);
    pooled.python("1").await;
    pooled.python("1 / 0").await;
    pooled.exec(json!({"code": "while True: pass", "timeout": 0.1})).await.json(200);
    pooled.exec(json!({"code": "print('x' * 100)", "max_output": 1})).await.json(200);
    pooled.python("import os; os._exit(1)").await;
    pooled.shell("true").await;
    pooled.exec(json!({"language": "bash", "code": "true"})).await.json(200);
    let held = pooled.hold("held").await;
    assert_eq!(server.metric("belljar_sessions{state=\"busy\"}").await, 1.0);
    server.post_path(&pooled, "/interrupt").await;
    held.result().await;
    for (name, value) in [
        ("execs_total{status=\"ok\"}", 4.0),
        ("execs_total{status=\"error\"}", 1.0),
        ("execs_total{status=\"timeout\"}", 1.0),
        ("execs_total{status=\"crashed\"}", 1.0),
        ("execs_total{status=\"interrupted\"}", 1.0),
        ("execs_total{status=\"oom\"}", 1.0),
        ("exec_seconds_count{language=\"python\"}", 7.0),
        ("exec_seconds_count{language=\"bash\"}", 1.0),
        ("exec_seconds_count{language=\"command\"}", 1.0),
        ("dropped_output_bytes_total", 100.0),
    ] {
        let name = format!("belljar_{name}");
        eventually(&format!("{name} is {value}"), async || server.metric(&name).await == value)
            .await;
    }
    server.post("/v1/run", json!({"code": "1"})).await.json(200);
    assert_eq!(server.metric("belljar_runs_total").await, 1.0);
    cold.becomes("stopped").await;
    assert_eq!(server.metric("belljar_sessions_expired_total").await, 1.0);
    server.session().await;
    server.session().await;
    server.post("/v1/sessions", json!({})).await.error(429, "no_room");
    assert_eq!(server.metric("belljar_creates_total{how=\"refused\"}").await, 1.0);
    assert_eq!(server.metric("belljar_sessions{state=\"ready\"}").await, 3.0);
    pooled.stop().await;
    assert_eq!(server.metric("belljar_sessions{state=\"ready\"}").await, 2.0);
    // In the format that Prometheus reads.
    let page = server.get("/metrics").await;
    let kind = page.headers["content-type"].to_str().expect("text").to_owned();
    assert!(kind.starts_with("application/openmetrics-text"), "{kind}");
    let page = page.text(200);
    assert!(page.ends_with("# EOF\n"));
    for line in page.lines().filter(|line| line.starts_with("# TYPE")) {
        let name = line.split_whitespace().nth(2).expect("a name");
        assert!(page.contains(&format!("# HELP {name} ")), "{line}");
    }
}

#[tokio::test]
async fn usage_adds_up() {
    let server = Server::start().await;
    let first = server.session().await;
    let second = server.session().await;
    for code in ["print('12345678')", "1 / 0"] {
        first.python(code).await;
    }
    second.shell("echo 1234567; echo 12 >&2").await;
    let burn =
        "import time\nend = time.process_time() + 0.2\nwhile time.process_time() < end: pass";
    second.python(burn).await;
    server.post("/v1/run", json!({"code": "print(1)"})).await.json(200);
    first.stop().await;
    second.stop().await;
    let usage = server.get("/v1/usage").await.json(200);
    let [day] = &usage["usage"].as_array().expect("a list")[..] else {
        panic!("one day: {usage:#}")
    };
    assert_eq!((&day["sessions"], &day["runs"]), (&json!(2), &json!(1)));
    assert_eq!(day["tenant"], "default");
    let execs =
        json!({"ok": 4, "error": 1, "timeout": 0, "interrupted": 0, "crashed": 0, "oom": 0});
    assert_eq!(day["execs"], execs);
    let sent = "print('12345678')".len() + "1 / 0".len() + burn.len() + "print(1)".len();
    assert_eq!((&day["bytes_in"], &day["bytes_out"]), (&json!(sent), &json!(9 + 8 + 3 + 2)));
    let cpu = day["cpu_seconds"].as_f64().expect("a number");
    assert!((0.2..20.0).contains(&cpu), "{day:#}");
    // The command line reports the same.
    let command =
        server.installation.belljar(&["usage", "--json"]).output().expect("belljar starts");
    let command: Value = serde_json::from_slice(&command.stdout).expect("JSON");
    assert_eq!(command["usage"], usage["usage"]);
    let none = server.get("/v1/usage?since=2999-01-01").await.json(200);
    assert_eq!(none["usage"], json!([]));
}

#[tokio::test]
async fn every_action_is_in_the_audit_log() {
    let installation = Arc::new(Installation::new());
    let key = installation.key(&["--name", "ci", "--tenant", "acme"]);
    let server = installation.serve().await;
    let acme = server.with_key(text(&key["secret"]));
    server.get("/v1/sessions").await.error(401, "unauthorized");
    let ask = json!({"env": {"TOKEN": "hunter2"}, "metadata": {"note": "private"}});
    let session = acme.session_with(ask).await;
    let code = "password = 'swordfish'";
    session.exec(json!({"code": code, "exec_id": "e"})).await.json(200);
    let input = json!({"command": "cat", "stdin": true, "env": {"PIN": "1234567"}});
    let fed = session.begin("fed", "running", input).await;
    let feed = json!({"data": "opensesame", "close": true});
    acme.post(&session.path("/execs/fed/stdin"), feed).await;
    fed.result().await;
    acme.post("/v1/run", json!({"code": code})).await.json(200);
    session.stop().await;
    session.exec(json!({"code": code})).await.error(410, "session_ended");
    eventually("everything is written", async || installation.audit().len() == 7).await;
    let mut lines = installation.audit();
    // Refusals of requests whose tenant is not known yet are in a separate log.
    lines.splice(1..1, installation.refusals());
    let actions: Vec<&str> = lines.iter().map(|line| text(&line["action"])).collect();
    let expected = ["key_create", "deny", "create", "exec", "exec", "run", "stop", "exec"];
    assert_eq!(actions, expected);
    for line in &lines {
        assert!(text(&line["time"]).ends_with('Z'), "{line}");
    }
    assert_eq!(lines[1]["tenant"], "-");
    assert!(text(&lines[1]["detail"]).starts_with("GET /v1/sessions"), "{}", lines[1]);
    for line in &lines[2..] {
        assert_eq!((&line["tenant"], &line["key"]), (&json!("acme"), &key["id"]), "{line}");
    }
    assert_eq!(lines[2]["session"], session.id);
    assert_eq!((&lines[3]["exec"], &lines[3]["outcome"]), (&json!("e"), &json!("accepted")));
    assert_eq!(lines[3]["code_sha256"], audit::hash(code.as_bytes()));
    assert_eq!(lines[5]["code_sha256"], audit::hash(code.as_bytes()));
    assert!(text(&lines[7]["outcome"]).contains("has ended"), "{}", lines[7]);
    // No secret and no code, neither here nor in the server's log.
    let log = format!("{lines:?}{}", server.said());
    for secret in [text(&key["secret"]), "hunter2", "swordfish", "1234567", "opensesame", "private"]
    {
        assert!(!log.contains(secret), "{secret}: {log}");
    }
}

#[tokio::test]
async fn code_is_in_the_audit_log_only_if_configured() {
    let server = Server::with(&[("BELLJAR_AUDIT_CODE", "1"), ("BELLJAR_LOG_FORMAT", "json")]).await;
    let session = server.session().await;
    session.python("print('auditable')").await;
    eventually("it is written", async || {
        let lines = server.installation.audit();
        lines.iter().any(|line| line["code"] == "print('auditable')")
    })
    .await;
    session.stop().await;
    // The server's log can be searched by session.
    eventually("the end is logged", async || {
        server
            .said()
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok())
            .any(|line| line.to_string().contains(&format!("\"session.id\":\"{}\"", session.id)))
    })
    .await;
    assert!(!server.said().contains("auditable"), "{}", server.said());
}
