//! One cluster, many gateways: the same sessions, keys, limits and streams through each.

use std::time::Duration;

use belljar_testkit::cluster::Cluster;
use belljar_testkit::session::Session;
use belljar_testkit::terminal::{TerminalClient, connect};
use belljar_testkit::values::text;
use hyper::Method;
use serde_json::json;

use crate::skip_without_cluster;

#[tokio::test]
async fn a_session_answers_through_every_gateway() {
    skip_without_cluster!();
    let cluster = Cluster::with(2, 2).await;
    let (first, second) = (cluster.client(0), cluster.client(1));
    let session = first.session_with(json!({"key": "a conversation"})).await;
    session.printed("x = 41").await;
    assert_eq!(Session::of(&second, &session.id).printed("print(x + 1)").await, "42\n");
    let found = second.post("/v1/sessions", json!({"key": "a conversation"})).await.json(200);
    assert_eq!(found["id"], session.id);
    for client in [&first, &second] {
        let listed = client.get("/v1/sessions").await.json(200);
        assert_eq!(listed["sessions"][0]["id"], session.id, "{listed:#}");
        let ran = client.post("/v1/run", json!({"code": "print(6 * 7)"})).await.json(200);
        assert_eq!(ran["stdout"], "42\n");
    }
    Session::of(&second, &session.id).stop().await;
    first.post(&session.path("/exec"), json!({"code": "1"})).await.error(410, "session_ended");
    first
        .get("/v1/sessions/ses_00000000000000000000000000000000")
        .await
        .error(404, "session_not_found");
}

#[tokio::test]
async fn streams_pass_through_a_gateway() {
    skip_without_cluster!();
    let cluster = Cluster::with(1, 1).await;
    let client = cluster.client(0);
    let session = client.session_with(json!({})).await;
    events_come_as_they_happen(&session).await;
    a_terminal_answers(&cluster, &session).await;
    files_come_and_go(&cluster, &session).await;
}

/// The first line is here before the code ends.
async fn events_come_as_they_happen(session: &Session) {
    let held = session.hold("held").await;
    session.release().await;
    let result = held.result().await;
    assert_eq!(result["stdout"], "holding\nreleased\n", "{result:#}");
}

async fn a_terminal_answers(cluster: &Cluster, session: &Session) {
    let key = format!("Bearer {}", cluster.key);
    let headers = [("authorization", key.as_str())];
    let socket = connect(&session.client, session, "rows=10&cols=70", &headers).await;
    let socket = socket.expect("a terminal");
    let (id, seen) = (String::new(), String::new());
    let mut terminal = TerminalClient { socket, id, position: 0, seen };
    assert_eq!(terminal.reply().await["type"], "attached");
    terminal.until("~ $ ").await;
    terminal.press("echo $((6 * 7))\n").await;
    terminal.until("42\r\n").await;
}

async fn files_come_and_go(cluster: &Cluster, session: &Session) {
    let content: String = (0..200_000).map(|n| format!("{n}\n")).collect();
    let client = &session.client;
    let put = client.request(Method::PUT, &session.path("/files/numbers"), content.clone());
    client.send(put).await.json(200);
    assert_eq!(client.get(&session.path("/files/numbers")).await.text(200), content);
    let result = session.shell("cp numbers artifacts/").await;
    let url = text(&result["artifacts"][0]["url"]);
    // Links lead to the gateway.
    let base = format!("http://{}", cluster.gateways[0].gateway_address());
    let link = url.strip_prefix(&base).unwrap_or_else(|| panic!("{url} is not below {base}"));
    assert_eq!(client.get(link).await.text(200), content);
}

#[tokio::test]
async fn gateways_share_quotas_and_rates() {
    skip_without_cluster!();
    let cluster = Cluster::with(2, 2).await;
    let key = cluster.make_key(&["--name", "few", "--tenant", "few", "--max-sessions", "2"]);
    // A running gateway uses a new key within a second.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let clients = [cluster.client(0).with_key(&key), cluster.client(1).with_key(&key)];
    let mut sessions = Vec::new();
    for client in &clients {
        sessions.push(client.session_with(json!({})).await);
    }
    for client in &clients {
        assert_eq!(client.post("/v1/sessions", json!({})).await.status, 429);
    }
    sessions[0].stop().await;
    clients[1].session_with(json!({})).await;
    let key =
        cluster.make_key(&["--name", "slow", "--tenant", "slow", "--requests-per-minute", "30"]);
    tokio::time::sleep(Duration::from_secs(2)).await;
    let clients = [cluster.client(0).with_key(&key), cluster.client(1).with_key(&key)];
    let mut accepted = 0;
    for n in 0..60 {
        let answer = clients[n % 2].get("/v1/sessions").await;
        accepted += u32::from(answer.status == 200);
        if answer.status != 200 {
            answer.error(429, "rate_limited");
            answer.retry_after();
        }
    }
    // A new minute may begin in between, and gateways take the requests of a key in chunks.
    assert!((30..=45).contains(&accepted), "{accepted} requests were accepted");
}

/// A volume is on one node. Requests that name it go there, and sessions and runs that use it, too.
#[tokio::test]
async fn a_volume_is_found_through_every_gateway() {
    skip_without_cluster!();
    let cluster = Cluster::with(3, 2).await;
    let (first, second) = (cluster.client(0), cluster.client(1));
    for name in ["one", "two", "three", "four", "five", "six"] {
        first.post("/v1/volumes", json!({"name": name, "size": "8M"})).await.json(201);
        let asked = json!({"volumes": {name: "rw"}});
        let sessions =
            [first.session_with(asked.clone()).await, second.session_with(asked.clone()).await];
        sessions[0].printed(&format!("open('/volumes/{name}/a', 'w').write('kept')")).await;
        let read = format!("print(open('/volumes/{name}/a').read())");
        assert_eq!(sessions[1].printed(&read).await, "kept\n");
        let run = json!({"code": read, "volumes": {name: "ro"}});
        assert_eq!(second.post("/v1/run", run).await.json(200)["stdout"], "kept\n");
        let path = format!("/v1/volumes/{name}");
        assert_eq!(second.get(&path).await.json(200)["files"], 1);
        second.delete(&path).await.error(409, "volume_in_use");
        for session in sessions {
            session.stop().await;
        }
    }
    let nodes = cluster.postgres.query("select name, node from volumes order by node");
    let mut nodes: Vec<(&str, &str)> =
        nodes.lines().map(|line| line.split_once('|').expect("two columns")).collect();
    nodes.dedup_by_key(|(_, node)| *node);
    if let [(one, _), (other, _), ..] = nodes[..] {
        let apart = json!({"volumes": {one: "ro", other: "ro"}});
        first.post("/v1/sessions", apart).await.error(409, "volumes_apart");
    }
    second.delete("/v1/volumes/one").await.text(204);
    first.get("/v1/volumes/one").await.error(404, "volume_not_found");
    let gone = json!({"volumes": {"one": "ro"}});
    first.post("/v1/sessions", gone).await.error(404, "volume_not_found");
}
