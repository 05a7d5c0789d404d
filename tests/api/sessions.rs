//! Sessions: created, found again, listed, extended, stopped.

use std::collections::HashSet;

use serde_json::{Value, json};

use belljar_testkit::server::Server;
use belljar_testkit::session::Session;
use belljar_testkit::values::text;

fn ids(page: &Value) -> Vec<&str> {
    page["sessions"].as_array().expect("a list").iter().map(|s| text(&s["id"])).collect()
}

#[tokio::test]
async fn a_session_is_what_was_asked_for() {
    let server = Server::start().await;
    let made = server
        .post(
            "/v1/sessions",
            json!({
                "key": "thread-1",
                "limits": {"memory": "128M", "cpus": 0.5, "pids": 64, "tmpfs": 16 << 20},
                "ttl": 600,
                "idle_timeout": 300,
                "env": {"GREETING": "hello"},
                "metadata": {"user": 7, "tags": ["a", "b"]},
            }),
        )
        .await
        .json(201);
    assert_eq!(made["how"], "created");
    assert_eq!((&made["key"], &made["state"]), (&json!("thread-1"), &json!("ready")));
    let limits = json!({"memory": 128 << 20, "cpus": 0.5, "pids": 64, "tmpfs": 16 << 20});
    assert_eq!(made["limits"], limits);
    assert_eq!((&made["ttl"], &made["idle_timeout"]), (&json!(600), &json!(300)));
    assert_eq!(made["metadata"], json!({"user": 7, "tags": ["a", "b"]}));
    assert_eq!(made["network"], "none");
    assert_eq!(made["enforced"]["memory limit"], true);
    assert!(made.get("replaced").is_none(), "{made:#}");

    let session = Session::of(&server, text(&made["id"]));
    assert_eq!(session.printed("import os; print(os.environ['GREETING'])").await, "hello\n");
    let shell =
        session.shell("echo $GREETING; df -B1 --output=size /session | tail -1 | tr -d ' '").await;
    assert_eq!(shell["stdout"], format!("hello\n{}\n", 16 << 20));
    let shown = session.show().await;
    assert_eq!((&shown["id"], &shown["execs"]), (&made["id"], &json!(2)));
    assert!(shown["memory_used"].as_u64() > Some(0), "{shown:#}");
}

#[tokio::test]
async fn one_key_is_one_session() {
    let server = Server::start().await;
    let ask = json!({"key": "k", "limits": {"memory": "128M"}});
    // Twenty requests at once.
    let asking: Vec<_> = (0..20)
        .map(|_| {
            let (client, ask) = (server.client(), ask.clone());
            tokio::spawn(async move { client.post("/v1/sessions", ask).await })
        })
        .collect();
    let mut found = HashSet::new();
    let mut made = 0;
    for asked in asking {
        let answer = asked.await.expect("no panic");
        made += usize::from(answer.status == 201);
        let body = answer.json(answer.status);
        assert_eq!(body["how"], if answer.status == 201 { "created" } else { "found" });
        found.insert(text(&body["id"]).to_owned());
    }
    assert_eq!((found.len(), made), (1, 1));
    let session = Session::of(&server, &found.into_iter().next().expect("one"));
    session.python("x = 41").await;

    // Options that a request omits do not count as different.
    let again = server.post("/v1/sessions", json!({"key": "k"})).await.json(200);
    assert_eq!((&again["id"], &again["how"]), (&json!(session.id), &json!("found")));
    assert_eq!(session.python("x + 1").await["results"][0]["data"]["text/plain"], "42");

    let other = server
        .post(
            "/v1/sessions",
            json!({"key": "k", "limits": {"memory": "256M", "pids": 5}, "env": {"A": "b"}}),
        )
        .await;
    let message = other.error(409, "session_differs");
    for field in ["limits.memory", "limits.pids", "env"] {
        assert!(message.contains(field), "{message}");
    }
    assert!(!message.contains("cpus"), "{message}");

    // Another key is another session.
    let other = server.session_with(json!({"key": "K"})).await;
    assert_ne!(other.id, session.id);
}

#[tokio::test]
async fn a_key_whose_session_is_gone_says_what_was_lost() {
    let server = Server::start().await;
    let first = server.session_with(json!({"key": "k"})).await;
    first.python("x = 1").await;
    first.stop().await;
    let second = server.post("/v1/sessions", json!({"key": "k"})).await.json(201);
    assert_ne!(second["id"], first.id);
    assert_eq!(second["replaced"], json!({"id": first.id, "because": "it was stopped"}));
    let second = Session::of(&server, text(&second["id"]));
    assert_eq!(second.python("x").await["error"]["name"], "NameError");

    // A request during the stop gets the old session or a new one.
    let (stopping, asked) =
        tokio::join!(second.stop(), server.post("/v1/sessions", json!({"key": "k"})),);
    assert_eq!(stopping["state"], "stopped");
    if asked.status == 201 {
        let body = asked.json(201);
        assert_eq!(body["replaced"], json!({"id": second.id, "because": "it was stopped"}));
        let third = Session::of(&server, text(&body["id"]));
        assert_eq!(third.printed("print(1)").await, "1\n");
    } else {
        assert_eq!(asked.json(200)["id"], second.id);
    }
}

#[tokio::test]
async fn sessions_are_listed_newest_first_in_pages() {
    let server = Server::start().await;
    let mut made = Vec::new();
    for number in 0..5 {
        made.push(server.session_with(json!({"key": format!("key {number}")})).await);
    }
    let newest_first: Vec<&str> = made.iter().rev().map(|session| session.id.as_str()).collect();
    let all = server.get("/v1/sessions").await.json(200);
    assert_eq!(ids(&all), newest_first);
    assert!(all.get("next").is_none());

    let mut pages = Vec::new();
    let mut path = "/v1/sessions?limit=2".to_owned();
    loop {
        let page = server.get(&path).await.json(200);
        pages.push(ids(&page).len());
        let Some(next) = page["next"].as_str() else { break };
        path = format!("/v1/sessions?limit=2&before={next}");
    }
    assert_eq!(pages, [2, 2, 1]);

    let by_key = server.get("/v1/sessions?key=key%203").await.json(200);
    assert_eq!(ids(&by_key), [made[3].id.as_str()]);
    made[1].stop().await;
    let stopped = server.get("/v1/sessions?state=stopped").await.json(200);
    assert_eq!(ids(&stopped), [made[1].id.as_str()]);
    assert_eq!(stopped["sessions"][0]["ended_because"], "it was stopped");

    // Pages of a state that only the running server knows are as full as others.
    let held = made[0].hold("held").await;
    let busy = server.get("/v1/sessions?state=busy&limit=1").await.json(200);
    assert_eq!(ids(&busy), [made[0].id.as_str()]);
    let mut ready = Vec::new();
    let mut path = "/v1/sessions?state=ready&limit=1".to_owned();
    for _ in 0..10 {
        let page = server.get(&path).await.json(200);
        ready.extend(ids(&page).iter().map(|id| (*id).to_owned()));
        let Some(next) = page["next"].as_str() else { break };
        path = format!("/v1/sessions?state=ready&limit=1&before={next}");
    }
    assert_eq!(ready, [&made[4], &made[3], &made[2]].map(|session| session.id.clone()));
    made[0].release().await;
    held.result().await;

    for wrong in ["state=happy", "limit=0", "limit=1001", "limit=x", "colour=red"] {
        server.get(&format!("/v1/sessions?{wrong}")).await.error(422, "invalid");
    }
}

#[tokio::test]
async fn a_life_is_prolonged_and_never_shortened() {
    let server = Server::with(&[("BELLJAR_MAX_TTL", "7200")]).await;
    let session = server.session_with(json!({"ttl": 600})).await;
    let before = session.show().await;
    let longer = server.patch(&session.path(""), json!({"ttl": 3600})).await.json(200);
    assert!(text(&longer["expires"]) > text(&before["expires"]), "{longer:#}");
    let shorter = server.patch(&session.path(""), json!({"ttl": 1})).await.json(200);
    let lost = minutes_between(text(&shorter["expires"]), text(&longer["expires"]));
    assert_eq!(lost, 0, "{longer:#}\n{shorter:#}");
    // Nor does finding it again or using it shorten its life.
    server.post("/v1/sessions", json!({"ttl": 1})).await.json(201);
    session.python("1").await;
    let used = session.show().await;
    assert_eq!(minutes_between(text(&used["expires"]), text(&longer["expires"])), 0);
    for wrong in [json!({"ttl": 0}), json!({"ttl": 7201}), json!({}), json!({"ttl": -1})] {
        server.patch(&session.path(""), wrong).await.error(422, "invalid");
    }
    session.stop().await;
    server.patch(&session.path(""), json!({"ttl": 60})).await.error(410, "session_ended");
}

/// Minutes between two times of day.
fn minutes_between(earlier: &str, later: &str) -> i64 {
    let minutes = |time: &str| {
        let (hours, minutes) = (&time[11..13], &time[14..16]);
        hours.parse::<i64>().expect("hours") * 60 + minutes.parse::<i64>().expect("minutes")
    };
    (minutes(later) - minutes(earlier)).rem_euclid(24 * 60)
}

#[tokio::test]
async fn a_stopped_session_stays_stopped_and_says_so() {
    let server = Server::start().await;
    let session = server.session().await;
    session.python("print('kept')").await;
    let stopped = session.stop().await;
    assert_eq!(stopped["state"], "stopped");
    assert_eq!(stopped["ended_because"], "it was stopped");
    assert!(stopped["ended"].is_string());
    server.installation.has_no_traces().await;
    assert_eq!(session.stop().await["ended"], stopped["ended"], "stopped once");
    let refused = session.exec(json!({"code": "1"})).await.error(410, "session_ended");
    assert!(refused.ends_with("has ended: it was stopped"), "{refused}");
    let start = server.post(&session.path("/start"), json!({})).await.error(422, "invalid");
    assert!(start.contains("BIND"), "{start}");
    server.get(&session.path("/state")).await.error(410, "session_ended");
    server.post(&session.path("/interrupt"), json!({})).await.error(410, "session_ended");
    // Its log and executions can still be read.
    let log = server.get(&session.path("/log")).await.json(200);
    assert_eq!(log["entries"][0]["stdout"], "kept\n");
    let execs = server.get(&session.path("/execs")).await.json(200);
    assert_eq!(execs["execs"][0]["result"]["stdout"], "kept\n");
}

#[tokio::test]
async fn everything_about_an_unknown_session_is_not_found() {
    let server = Server::start().await;
    for path in ["", "/state", "/log", "/execs", "/execs/e", "/execs/e/events"] {
        let answer = server.get(&format!("/v1/sessions/ses_0{path}")).await;
        let message = answer.error(404, "session_not_found");
        assert_eq!(message, "there is no session `ses_0`");
    }
    for (path, body) in [
        ("/exec", json!({"code": "1"})),
        ("/execs/e/stdin", json!({"data": "x"})),
        ("/execs/e/interrupt", json!({})),
        ("/interrupt", json!({})),
        ("/start", json!({})),
    ] {
        let answer = server.post(&format!("/v1/sessions/ses_0{path}"), body).await;
        answer.error(404, "session_not_found");
    }
    server.delete("/v1/sessions/ses_0").await.error(404, "session_not_found");
    server.patch("/v1/sessions/ses_0", json!({"ttl": 9})).await.error(404, "session_not_found");
    let session = server.session().await;
    for path in ["/execs/e", "/execs/e/events"] {
        server.get(&session.path(path)).await.error(404, "exec_not_found");
    }
    for (path, body) in [("stdin", json!({"data": "x"})), ("interrupt", json!({}))] {
        let path = session.path(&format!("/execs/e/{path}"));
        server.post(&path, body).await.error(404, "exec_not_found");
    }
}

#[tokio::test]
async fn what_runs_is_ended_with_the_session_and_says_so() {
    let server = Server::start().await;
    let session = server.session().await;
    let running = session.hold("running").await;
    let queued = session.begin("queued", "queued", json!({"code": "1"})).await;
    let command = session.begin("command", "running", json!({"command": "sleep 1000"})).await;
    let ask = json!({"command": "sleep 1000", "background": true, "exec_id": "behind"});
    session.exec(ask).await.json(202);
    session.stop().await;
    for pending in [running, queued, command] {
        let result = pending.result().await;
        assert_eq!(result["status"], "interrupted", "{result:#}");
        assert_eq!(result["reason"], "the session was ended: it was stopped");
    }
    let behind = session.exec_info("behind").await;
    assert_eq!(behind["state"], "finished");
    assert_eq!(behind["result"]["reason"], "the session was ended: it was stopped");
    server.installation.has_no_traces().await;
}

#[tokio::test]
async fn invalid_requests_are_refused_and_do_no_harm() {
    let server = Server::start().await;
    for (ask, named) in [
        (json!({"idle_timeout": u64::MAX}), "idle_timeout"),
        (json!({"ttl": u64::MAX}), "ttl"),
        (json!({"key": "\u{1b}[31m"}), "key"),
        (json!({"limits": {"memory": u64::MAX}}), "limits"),
        (json!({"metadata": {"x": "y".repeat(20_000)}}), "metadata"),
    ] {
        let refused = server.post("/v1/sessions", ask).await.error(422, "invalid");
        assert!(refused.contains(named), "{refused}");
    }
}
