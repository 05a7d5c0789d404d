//! API keys: access, separation of tenants, and limits.

use hyper::Method;
use serde_json::{Value, json};

use belljar_testkit::client::Client;
use belljar_testkit::installation::Installation;
use belljar_testkit::server::Server;
use belljar_testkit::session::Session;
use belljar_testkit::values::text;
use belljar_testkit::wait::eventually;
use std::sync::Arc;

pub(crate) fn secret(key: &Value) -> &str {
    text(&key["secret"])
}

pub(crate) async fn with_keys(keys: &[&[&str]]) -> (Server, Vec<Value>) {
    let installation = Arc::new(Installation::new());
    let keys = keys.iter().map(|args| installation.key(args)).collect();
    (installation.serve().await, keys)
}

#[tokio::test]
async fn requests_without_a_key_are_refused() {
    let (server, keys) = with_keys(&[&["--name", "ci"]]).await;
    for path in ["/v1/sessions", "/metrics", "/v1/usage", "/nowhere", "/v1/sessions/ses_1/log"] {
        let answer = server.get(path).await;
        answer.error(401, "unauthorized");
        assert_eq!(answer.headers["www-authenticate"], "Bearer", "{path}");
    }
    for path in ["/create_session", "/v1/run", "/v1/sessions"] {
        server.post(path, json!({"code": "1"})).await.error(401, "unauthorized");
    }
    for path in ["/healthz", "/readyz", "/openapi.json"] {
        server.get(path).await.json(200);
    }
    let key = secret(&keys[0]);
    for wrong in ["", "bjk_", "bjk_wrong", &key[..key.len() - 1], &key.to_uppercase()] {
        server.with_key(wrong).get("/v1/sessions").await.error(401, "unauthorized");
    }
    let as_header = |name: &'static str, value: &str| {
        let mut request = server.request(Method::GET, "/v1/sessions", "");
        request.headers_mut().insert(name, value.parse().expect("a value"));
        server.send(request)
    };
    as_header("authorization", &format!("Bearer {key}")).await.json(200);
    as_header("authorization", &format!("bearer {key}")).await.json(200);
    as_header("x-api-key", key).await.json(200);
    as_header("authorization", key).await.error(401, "unauthorized");
    as_header("authorization", &format!("Basic {key}")).await.error(401, "unauthorized");
    as_header("cookie", &format!("key={key}")).await.error(401, "unauthorized");
    server.get(&format!("/v1/sessions?api_key={key}")).await.error(401, "unauthorized");
    // A server with keys accepts any host name.
    let mut request = server.with_key(key).request(Method::GET, "/v1/sessions", "");
    request.headers_mut().insert("host", "jar.example".parse().expect("a value"));
    server.send(request).await.json(200);
    assert!(!server.said().contains(key), "{}", server.said());
}

#[tokio::test]
async fn what_tells_of_all_tenants_is_for_the_operator() {
    let (server, keys) =
        with_keys(&[&["--name", "a", "--tenant", "acme"], &["--name", "ops", "--operator"]]).await;
    let [acme, operator] = [0, 1].map(|n: usize| server.with_key(secret(&keys[n])));
    let session = acme.session_with(json!({})).await;
    assert_eq!(keys[1]["limits"]["operator"], true, "{:#}", keys[1]);

    server.get("/metrics").await.error(401, "unauthorized");
    acme.get("/metrics").await.error(403, "operators_only");
    let metrics = operator.get("/metrics").await.text(200);
    assert!(metrics.contains("belljar_sessions{state=\"ready\"} 1"), "{metrics}");
    // Monitoring systems have this key: it is valid for nothing else.
    operator.get("/v1/sessions").await.error(403, "operators_key");
    operator.post("/v1/run", json!({"code": "1"})).await.error(403, "operators_key");
    operator.get(&session.path("")).await.error(403, "operators_key");

    assert_eq!(server.get("/healthz").await.json(200), json!({"status": "ok"}));
    assert_eq!(server.with_key("wrong").get("/healthz").await.json(200), json!({"status": "ok"}));
    let health = acme.get("/healthz").await.json(200);
    assert!(health["version"].is_string() && health["zygote"].is_string(), "{health}");
    assert_eq!(health.get("sessions"), None, "{health}");
    assert_eq!(operator.get("/healthz").await.json(200)["sessions"], 1);
    eventually("every refusal is written down", async || {
        let lines = server.installation.refusals();
        let known = lines.iter().filter(|line| line["key"] == keys[0]["id"]);
        known.map(|line| line["outcome"].clone()).eq([json!("operators_only")])
    })
    .await;
}

#[tokio::test]
async fn a_key_comes_and_goes_while_the_server_runs() {
    let server = Server::start().await;
    server.get("/v1/sessions").await.json(200);
    // From the first key on, every request needs one.
    let first = server.installation.key(&["--name", "first"]);
    eventually("a key is wanted", async || server.get("/v1/sessions").await.status == 401).await;
    let second = server.installation.key(&["--name", "second"]);
    let (first, id) = (server.with_key(secret(&first)), text(&first["id"]).to_owned());
    let second = server.with_key(secret(&second));
    first.get("/v1/sessions").await.json(200);
    second.get("/v1/sessions").await.json(200);
    let revoked =
        server.installation.belljar(&["key", "revoke", &id]).output().expect("belljar starts");
    assert!(revoked.status.success());
    let began = std::time::Instant::now();
    eventually("it is refused", async || first.get("/v1/sessions").await.status == 401).await;
    assert!(began.elapsed().as_secs() < 5, "{:?}", began.elapsed());
    first.post("/v1/run", json!({"code": "1"})).await.error(401, "unauthorized");
    second.get("/v1/sessions").await.json(200);
}

#[tokio::test]
async fn one_tenant_never_sees_another() {
    let (server, keys) = with_keys(&[
        &["--name", "a", "--tenant", "acme"],
        &["--name", "b", "--tenant", "bell"],
        &["--name", "c", "--tenant", "acme"],
    ])
    .await;
    let [acme, bell, also_acme] = [0, 1, 2].map(|n: usize| server.with_key(secret(&keys[n])));
    let session = acme.session_with(json!({"key": "thread", "storage": "BIND"})).await;
    session.exec(json!({"code": "secret = 1", "exec_id": "e"})).await.json(200);
    // The same session key of another tenant is another session.
    let own = bell.post("/v1/sessions", json!({"key": "thread"})).await.json(201);
    assert_eq!((&own["how"], own.get("replaced")), (&json!("created"), None));
    assert_ne!(own["id"], session.id);

    let stranger = Session::of(&bell, &session.id);
    let not_found = async |client: &Client, method: Method, path: &str, body: Value| {
        let path = stranger.path(path);
        let body = if method == Method::GET { String::new() } else { body.to_string() };
        let answer = client.send(client.request(method, &path, body)).await;
        assert_eq!(answer.status, 404, "{path}: {answer}");
        assert_eq!(
            answer.error(404, "session_not_found"),
            format!("there is no session `{}`", stranger.id)
        );
    };
    for path in ["", "/state", "/log", "/execs", "/execs/e", "/execs/e/events"] {
        not_found(&bell, Method::GET, path, Value::Null).await;
    }
    for (path, body) in [
        ("/exec", json!({"code": "print(secret)"})),
        ("/exec", json!({"code": "print(secret)", "exec_id": "e"})),
        ("/execs/e/stdin", json!({"data": "x"})),
        ("/execs/e/interrupt", json!({})),
        ("/interrupt", json!({})),
        ("/start", json!({})),
    ] {
        not_found(&bell, Method::POST, path, body).await;
    }
    not_found(&bell, Method::PATCH, "", json!({"ttl": 60})).await;
    not_found(&bell, Method::DELETE, "", json!({})).await;
    let execute = json!({"session_id": session.id, "command": "ls"});
    bell.post("/execute", execute).await.error(404, "session_not_found");
    let cleanup = json!({"session_id": session.id});
    bell.post("/cleanup", cleanup).await.error(404, "session_not_found");
    let list = bell.get("/v1/sessions").await.json(200);
    assert_eq!(list["sessions"].as_array().expect("a list").len(), 1);
    assert_eq!(list["sessions"][0]["id"], own["id"]);
    // Nor by paging from another tenant's session.
    let page = bell.get(&format!("/v1/sessions?before={}", session.id)).await.json(200);
    assert!(!page.to_string().contains(&session.id));

    // Keys of one tenant share its sessions.
    assert_eq!(also_acme.get(&session.path("")).await.json(200)["state"], "ready");
    let usage = also_acme.get("/v1/usage").await.json(200);
    assert_eq!(usage["usage"][0]["execs"]["ok"], 1, "{usage:#}");
    let usage = bell.get("/v1/usage").await.json(200);
    assert_eq!(
        (&usage["usage"][0]["sessions"], &usage["usage"][0]["execs"]["ok"]),
        (&json!(1), &json!(0))
    );
    // Nor a session that has ended.
    session.stop().await;
    not_found(&bell, Method::GET, "", Value::Null).await;
    not_found(&bell, Method::GET, "/log", Value::Null).await;
    not_found(&bell, Method::POST, "/start", json!({})).await;
}

#[tokio::test]
async fn keys_have_their_limits() {
    let (server, keys) = with_keys(&[
        &["--name", "often", "--tenant", "t", "--requests-per-minute", "3"],
        &["--name", "much", "--tenant", "u", "--max-sessions", "2"],
        &["--name", "big", "--tenant", "v", "--max-memory", "256M", "--max-pids", "300"],
    ])
    .await;
    let often = server.with_key(secret(&keys[0]));
    for _ in 0..3 {
        often.get("/v1/sessions").await.json(200);
    }
    let refused = often.get("/v1/sessions").await;
    assert_eq!(refused.error(429, "rate_limited"), "more than 3 requests per minute");
    assert!((1..=60).contains(&refused.retry_after()), "{}", refused.retry_after());

    let much = server.with_key(secret(&keys[1]));
    let first = much.session_with(json!({})).await;
    much.session_with(json!({})).await;
    let refused = much.post("/v1/sessions", json!({})).await;
    let message = refused.error(429, "no_room");
    assert!(message.contains("this tenant's limit of 2 sessions"), "{message}");
    assert!(refused.retry_after() > 0);
    much.post("/v1/run", json!({"code": "1"})).await.error(429, "no_room");
    much.post("/create_session", json!({})).await.error(429, "no_room");
    first.stop().await;
    much.session_with(json!({})).await;

    let big = server.with_key(secret(&keys[2]));
    let ask = |memory: &str, pids: u64| json!({"limits": {"memory": memory, "pids": pids}});
    let refused = big.post("/v1/sessions", ask("257M", 10)).await.error(429, "no_room");
    assert!(refused.contains("memory"), "{refused}");
    let refused = big.post("/v1/sessions", ask("64M", 301)).await.error(429, "no_room");
    assert!(refused.contains("processes"), "{refused}");
    big.session_with(ask("200M", 100)).await;
    big.post("/v1/sessions", ask("57M", 10)).await.error(429, "no_room");
    big.session_with(ask("56M", 200)).await;
}
