//! Invalid requests are refused in JSON, with a status, a code and a sentence. No request prevents
//! the server from serving the next one.

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::{Method, Request, header};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use belljar_testkit::client::Client;
use belljar_testkit::server::Server;
use belljar_testkit::wait::PATIENCE;

fn with_type(client: &Client, path: &str, kind: Option<&str>, body: &str) -> Request<Full<Bytes>> {
    let mut request = client.request(Method::POST, path, body.to_owned());
    request.headers_mut().remove(header::CONTENT_TYPE);
    if let Some(kind) = kind {
        request.headers_mut().insert(header::CONTENT_TYPE, kind.parse().expect("a value"));
    }
    request
}

#[tokio::test]
async fn bodies_that_make_no_sense() {
    let server = Server::start().await;
    let session = server.session().await;
    let exec = session.path("/exec");
    let json = Some("application/json");
    for (body, status, code) in [
        ("{", 400, "malformed"),
        ("{\"code\": \"1\"} trailing", 400, "malformed"),
        ("{\"code\": 'x'}", 400, "malformed"),
        ("{\"code\": \"\u{1}\"}", 400, "malformed"),
        ("\u{feff}{}", 400, "malformed"),
        ("[]", 422, "invalid"),
        ("null", 422, "invalid"),
        ("\"code\"", 422, "invalid"),
        ("{\"code\": 1}", 422, "invalid"),
        ("{\"code\": [\"x\"]}", 422, "invalid"),
        ("{\"code\": \"1\", \"code\": \"2\"}", 422, "invalid"),
        ("{\"code\": \"1\", \"colour\": \"red\"}", 422, "invalid"),
        ("{\"code\": \"1\", \"background\": \"yes\"}", 422, "invalid"),
        ("{\"code\": \"1\", \"command\": \"ls\"}", 422, "invalid"),
        ("{\"code\": \"1\", \"language\": \"cobol\"}", 422, "invalid"),
        ("{\"code\": \"1\", \"cwd\": \"/tmp\"}", 422, "invalid"),
        ("{\"code\": \"1\", \"max_output\": \"lots\"}", 422, "invalid"),
        ("{\"code\": \"1\", \"max_output\": -1}", 422, "invalid"),
        ("{\"command\": \"\\u0000\"}", 422, "invalid"),
        ("{\"command\": []}", 422, "invalid"),
        ("{\"command\": [\"\"]}", 422, "invalid"),
        ("{\"command\": {\"a\": 1}}", 422, "invalid"),
        ("{\"command\": \"ls\", \"cwd\": \"\"}", 422, "invalid"),
        ("{}", 422, "invalid"),
        ("", 422, "invalid"),
    ] {
        let answer = server.send(with_type(&server, &exec, json, body)).await;
        assert_eq!(answer.status, status, "{body}: {answer}");
        answer.error(status, code);
    }
    // JSON5, deep nesting, and an incomplete UTF-8 character.
    let deep = format!("{{\"code\": {}{}}}", "[".repeat(100_000), "]".repeat(100_000));
    let answer = server.send(with_type(&server, &exec, json, &deep)).await;
    assert_eq!(answer.status, 422, "{answer}");
    let mut torn = server.request(Method::POST, &exec, &b"{\"code\": \"\xe2\x82\"}"[..]);
    torn.headers_mut().insert(header::CONTENT_TYPE, "application/json".parse().expect("a value"));
    server.send(torn).await.error(400, "malformed");

    for kind in [None, Some("text/plain"), Some("application/x-www-form-urlencoded"), Some("json")]
    {
        let answer = server.send(with_type(&server, &exec, kind, "{\"code\": \"1\"}")).await;
        answer.error(415, "unsupported_media_type");
    }
    for kind in ["application/json; charset=utf-8", "application/vnd.api+json"] {
        let answer = server.send(with_type(&server, &exec, Some(kind), "{\"code\": \"1\"}")).await;
        assert_eq!(answer.json(200)["status"], "ok", "{kind}");
    }
    assert_eq!(session.show().await["execs"], 2, "nothing else was executed");
}

#[tokio::test]
async fn sessions_that_cannot_be() {
    let server = Server::with(&[("BELLJAR_MAX_TTL", "7200")]).await;
    for (ask, named) in [
        (json!({"key": ""}), "key"),
        (json!({"key": "a\0b"}), "key"),
        (json!({"key": "k".repeat(513)}), "key"),
        (json!({"image": "debian"}), "debian"),
        (json!({"storage": "CLOUD"}), "CLOUD"),
        (json!({"datasets": "ALL"}), "ALL"),
        (json!({"datasets": "LOCAL_RO"}), "DATASETS_HOST_RO"),
        (json!({"network": "full"}), "network"),
        (json!({"ttl": 0}), "ttl"),
        (json!({"ttl": 7201}), "ttl"),
        (json!({"ttl": "long"}), "ttl"),
        (json!({"idle_timeout": 0}), "idle_timeout"),
        (json!({"limits": {"memory": "1M"}}), "limits.memory"),
        (json!({"limits": {"memory": "much"}}), "limits.memory: `much`"),
        (json!({"limits": {"memory": true}}), "limits.memory: expected a number of bytes"),
        (json!({"limits": {"memory": -1}}), "limits.memory"),
        (json!({"limits": []}), "limits"),
        (json!({"limits": {"cpus": "2"}}), "limits.cpus"),
        (json!({"env": {"A": 1}}), "env.A"),
        (json!({"checkpoints": {"max": "x"}}), "checkpoints: expected true or false"),
        (json!({"volumes": {"models": "wr"}}), "volumes.models"),
        (json!(["key"]), "not an object"),
        (json!({"limits": {"cpus": 0}}), "limits.cpus"),
        (json!({"limits": {"pids": 1}}), "limits.pids"),
        (json!({"limits": {"tmpfs": 1}}), "limits.tmpfs"),
        (json!({"limits": {"gpus": 1}}), "gpus"),
        (json!({"env": {"A=B": "c"}}), "env"),
        (json!({"metadata": "x"}), "metadata"),
        (json!({"name": "x"}), "name"),
    ] {
        let answer = server.post("/v1/sessions", ask.clone()).await;
        assert_eq!(answer.status, 422, "{ask}: {answer}");
        let message = answer.error(422, "invalid");
        assert!(message.contains(named), "{ask}: {message}");
        for ours in ["struct", "enum", "u64", "f64", " at line "] {
            assert!(!message.contains(ours), "{ask}: {message}");
        }
    }
    assert_eq!(server.get("/v1/sessions").await.json(200)["sessions"], json!([]));
    server.installation.has_no_traces().await;
    // Limits beyond what the machine has are accepted, or refused with a reason.
    for limits in [json!({"memory": u64::MAX}), json!({"tmpfs": u64::MAX}), json!({"cpus": 1024})] {
        let answer = server.post("/v1/sessions", json!({"limits": limits})).await;
        match answer.status {
            201 => drop(server.delete(&format!("/v1/sessions/{}", id(&answer.json(201)))).await),
            status => assert_eq!(status, 422, "{limits}: {answer}"),
        }
    }
    server.installation.has_no_traces().await;
}

fn id(made: &Value) -> &str {
    made["id"].as_str().expect("an id")
}

#[tokio::test]
async fn paths_and_methods_that_are_not_there() {
    let server = Server::start().await;
    for path in
        ["/", "/v1", "/v1/", "/v2/sessions", "/v1/sessions/", "/v1/sessions/a/b/c/d", "/%2e%2e"]
    {
        server.get(path).await.error(404, "not_found");
    }
    for (method, path) in [
        (Method::PUT, "/v1/sessions"),
        (Method::POST, "/v1/sessions/x"),
        (Method::GET, "/v1/run"),
        (Method::DELETE, "/healthz"),
        (Method::OPTIONS, "/v1/sessions"),
        (Method::GET, "/execute"),
    ] {
        let answer = server.send(server.request(method, path, "")).await;
        answer.error(405, "method_not_allowed");
        assert!(answer.headers.contains_key(header::ALLOW), "{path}");
    }
    server.get("/v1/sessions/%ff").await.error(400, "malformed");
    server.get("/v1/sessions/ses_1/execs/%ff%00").await.error(400, "malformed");
    for path in ["/v1/sessions/%00", "/v1/sessions/..%2f..%2fetc", "/v1/sessions/'%20OR%201=1"] {
        server.get(path).await.error(404, "session_not_found");
    }
    server.get("/v1/sessions?limit=1&limit=2").await.error(422, "invalid");
    server.get("/v1/usage?since=yesterday").await.error(422, "invalid");
}

#[tokio::test]
async fn a_body_that_is_too_large() {
    let server = Server::start().await;
    let session = server.session().await;
    let before = server.rss();
    let long = format!("{{\"code\": \"{}\"}}", "#".repeat(100 << 20));
    let request = server.request(Method::POST, &session.path("/exec"), long);
    server.send(request).await.error(413, "too_large");
    // Also when the length is not declared.
    let mut wire = server.dial().await;
    let head = format!(
        "POST {} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n\
         Transfer-Encoding: chunked\r\n\r\n",
        session.path("/exec")
    );
    wire.write_all(head.as_bytes()).await.expect("it listens");
    let chunk = [b"100000\r\n", &vec![b' '; 1 << 20][..], b"\r\n"].concat();
    let mut sent = 0;
    // The server may close the connection once the limit is exceeded.
    while sent < 100 && wire.write_all(&chunk).await.is_ok() {
        sent += 1;
    }
    let mut answer = vec![0; 12];
    let read = tokio::time::timeout(PATIENCE, wire.read_exact(&mut answer)).await;
    if read.expect("an end").is_ok() {
        assert_eq!(String::from_utf8_lossy(&answer), "HTTP/1.1 413");
    }
    assert_eq!(session.printed("print('alive')").await, "alive\n");
    drop(wire);
    belljar_testkit::wait::eventually("memory is given back", async || {
        server.rss() < before + (150 << 20)
    })
    .await;
}

#[tokio::test]
async fn connections_that_make_no_sense() {
    let server = Server::start().await;
    for nonsense in [
        "GET\r\n\r\n".to_owned(),
        "\0\0\0\0\r\n\r\n".to_owned(),
        "GET / HTTP/9.9\r\n\r\n".to_owned(),
        format!("GET /{} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", "x".repeat(1 << 20)),
        format!("GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: {}\r\n\r\n", "x".repeat(1 << 20)),
        "POST /v1/run HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: abc\r\n\r\n".to_owned(),
        "POST /v1/run HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 5\r\n\
         Content-Length: 6\r\n\r\n{}"
            .to_owned(),
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned(),
    ] {
        let mut wire = server.dial().await;
        let _ = wire.write_all(nonsense.as_bytes()).await;
        let _ = wire.shutdown().await;
        let mut answer = Vec::new();
        let read = tokio::time::timeout(PATIENCE, wire.read_to_end(&mut answer)).await;
        let _ = read.expect("it hangs up");
        let answer = String::from_utf8_lossy(&answer);
        let shown: String = nonsense.chars().take(40).collect();
        // The HTTP library answers or hangs up, depending on how far it has read.
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{shown:?}: {answer}");
    }
    // Idle connections do not affect other clients.
    let _silent = server.dial().await;
    let mut half = server.dial().await;
    half.write_all(b"POST /v1/run HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Le").await.expect("sent");
    // Two requests on one connection, the first of which is refused.
    let mut connection = server.connect().await;
    let wrong = connection.send(server.request(Method::POST, "/v1/run", "{")).await;
    wrong.error(400, "malformed");
    let right = json!({"code": "40 + 2"}).to_string();
    let right = connection.send(server.request(Method::POST, "/v1/run", right)).await.json(200);
    assert_eq!(right["results"][0]["data"]["text/plain"], "42");
}

#[tokio::test]
async fn executions_in_a_session_that_is_being_stopped() {
    let server = Server::with(&[("BELLJAR_THREADS", "4")]).await;
    for _ in 0..5 {
        let session = server.session().await;
        let asking: Vec<_> = (0..40)
            .map(|number| {
                let session = session.clone();
                let ask = if number % 2 == 0 {
                    json!({"code": "print(1)"})
                } else {
                    json!({"command": "echo 1"})
                };
                tokio::spawn(async move { session.exec(ask).await })
            })
            .collect();
        let stopped = session.stop().await;
        assert_eq!((&stopped["state"], &stopped["running"]), (&json!("stopped"), &json!(0)));
        for asked in asking {
            let answer = asked.await.expect("no panic");
            match answer.status {
                200 => {
                    let result = answer.json(200);
                    let fine = result["status"] == "ok"
                        || result["reason"] == "the session was ended: it was stopped";
                    assert!(fine, "{result:#}");
                }
                409 => drop(answer.error(409, "session_ending")),
                410 => drop(answer.error(410, "session_ended")),
                _ => panic!("{answer}"),
            }
        }
        // Every accepted execution has finished.
        let execs = server.get(&session.path("/execs")).await.json(200);
        for exec in execs["execs"].as_array().expect("a list") {
            assert_eq!(exec["state"], "finished", "{exec:#}");
        }
    }
    server.installation.has_no_traces().await;
}

#[tokio::test]
async fn code_that_is_larger_than_a_sandbox_takes() {
    let server = Server::with(&[("BELLJAR_MAX_BODY", "128M")]).await;
    let session = server.session().await;
    // Accepted by the server, but larger than one message to the guest may be.
    let long = format!("{{\"code\": \"{}\"}}", "#".repeat(65 << 20));
    let request = server.request(Method::POST, &session.path("/exec"), long);
    let result = server.send(request).await.json(200);
    assert_eq!(result["status"], "error", "{:?}", result["reason"]);
    assert!(result["reason"].to_string().contains("too large for a sandbox"), "{result:#}");
    assert_eq!(session.printed("print('alive')").await, "alive\n");
}
