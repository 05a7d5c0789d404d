//! Limits on concurrent sandboxes; a refusal says when to retry.

use serde_json::json;

use belljar_testkit::server::Server;
use belljar_testkit::session::Session;
use belljar_testkit::values::text;

#[tokio::test]
async fn a_thousand_at_once_for_three_places() {
    let server = Server::with(&[("BELLJAR_MAX_SESSIONS", "3"), ("BELLJAR_POOL", "1")]).await;
    let asking: Vec<_> = (0..1000)
        .map(|number| {
            let client = server.client();
            let ask = match number % 3 {
                0 => json!({}),
                1 => json!({"key": format!("k{number}")}),
                _ => json!({"limits": {"memory": "64M"}}),
            };
            tokio::spawn(async move { client.post("/v1/sessions", ask).await })
        })
        .collect();
    let mut made = Vec::new();
    for asked in asking {
        let answer = asked.await.expect("no panic");
        if answer.status == 201 {
            made.push(text(&answer.json(201)["id"]).to_owned());
            continue;
        }
        let message = answer.error(429, "no_room");
        assert!(message.contains("this server's limit of 3 sessions is reached"), "{message}");
        assert!(answer.retry_after() > 0);
    }
    assert_eq!(made.len(), 3);
    assert_eq!(server.metric("belljar_creates_total{how=\"refused\"}").await, 997.0);
    let listed = server.get("/v1/sessions").await.json(200);
    assert_eq!(listed["sessions"].as_array().expect("a list").len(), 3, "nothing is half-made");
    for id in &made {
        let session = Session::of(&server, id);
        assert_eq!(session.printed("print('alive')").await, "alive\n");
        session.stop().await;
    }
    // The three sandboxes are gone; the pool keeps one.
    belljar_testkit::wait::eventually("only the pool is left", async || {
        server.installation.pids_inside(1).len() == 1
    })
    .await;
}

#[tokio::test]
async fn room_comes_back_with_the_answer() {
    let server = Server::with(&[("BELLJAR_MAX_SESSIONS", "1"), ("BELLJAR_THREADS", "4")]).await;
    for _ in 0..30 {
        let session = server.session_with(json!({"key": "k"})).await;
        server.post("/v1/sessions", json!({})).await.error(429, "no_room");
        server.post("/v1/run", json!({"code": "1"})).await.error(429, "no_room");
        session.stop().await;
    }
    for _ in 0..10 {
        server.post("/v1/run", json!({"code": "1"})).await.json(200);
    }
    server.session().await;
}

#[tokio::test]
async fn memory_and_processes_are_counted_too() {
    let server = Server::with(&[
        ("BELLJAR_MAX_MEMORY", "300M"),
        ("BELLJAR_MAX_PIDS", "100"),
        ("BELLJAR_MEMORY", "100M"),
        ("BELLJAR_PIDS", "20"),
    ])
    .await;
    let ask = |memory: &str, pids: u64| json!({"limits": {"memory": memory, "pids": pids}});
    let first = server.session().await;
    let refused = server.post("/v1/sessions", ask("201M", 20)).await.error(429, "no_room");
    assert!(refused.contains("bytes of memory"), "{refused}");
    let refused = server.post("/v1/sessions", ask("100M", 81)).await.error(429, "no_room");
    assert!(refused.contains("processes"), "{refused}");
    server.session_with(ask("200M", 80)).await;
    server.post("/v1/sessions", ask("16M", 4)).await.error(429, "no_room");
    first.stop().await;
    server.session().await;
}

#[tokio::test]
async fn a_caller_who_goes_away_leaves_nothing_undone() {
    let server = Server::with(&[("BELLJAR_MAX_SESSIONS", "50")]).await;
    // Disconnects at every moment of a create.
    for pause in 0..40 {
        let client = server.client();
        let ask = json!({"key": format!("k{pause}")});
        let asked = tokio::spawn(async move { client.post("/v1/sessions", ask).await });
        tokio::time::sleep(std::time::Duration::from_micros(pause * 700)).await;
        asked.abort();
    }
    // Under each key the session is found and usable, or is made anew.
    for pause in 0..40 {
        let ask = json!({"key": format!("k{pause}")});
        let answer = server.post("/v1/sessions", ask).await;
        // Which of the two depends on how far the first request got.
        assert!(answer.status == 200 || answer.status == 201, "k{pause}: {answer}");
        let session = Session::of(&server, text(&answer.json(answer.status)["id"]));
        assert_eq!(session.printed("print(1)").await, "1\n");
        session.stop().await;
    }
    let ready = server.get("/v1/sessions?state=ready").await.json(200);
    assert_eq!(ready["sessions"], json!([]));
    server.installation.has_no_traces().await;
}
