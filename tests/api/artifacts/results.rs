//! Where artifacts are reported: in the result, in the stream, in later requests, and in the log.

use serde_json::{Value, json};

use super::{link, list, only, reply};
use crate::storage::log;
use belljar_testkit::server::Server;
use belljar_testkit::values::text;
use belljar_testkit::wait::eventually;

/// An artifact without its link, which is new in each response.
fn lasting(artifact: &Value) -> Value {
    let mut artifact = artifact.clone();
    artifact.as_object_mut().expect("an object").remove("url");
    artifact
}

#[tokio::test]
async fn the_result_has_all_that_there_is_to_know() {
    let server = Server::start().await;
    let session = server.session_with(json!({"storage": "BIND"})).await;
    let code = "import hashlib, os\nos.mkdir('/session/artifacts/plots')\n\
                data = b'a,b\\n1,2\\n'\n\
                with open('/session/artifacts/plots/t.csv', 'wb') as f: f.write(data)\n\
                print(hashlib.sha256(data).hexdigest())";
    let mut events = server.post_stream(&session.path("/exec"), json!({"code": code})).await;
    let exec_id = text(&events.until("exec").await.data["exec_id"]).to_owned();
    let events = events.rest().await;
    let reply: Vec<&str> = events.iter().map(|event| event.name.as_str()).collect();
    assert_eq!(reply, ["stdout", "artifacts", "done"], "told before the end");
    let (stream, done) = (&events[1].data, &events[2].data);

    let artifact = only(stream);
    let path = "/session/artifacts/plots/t.csv";
    let host = server.path("sessions").join(&session.id).join("artifacts/plots/t.csv");
    assert!(text(&artifact["id"]).starts_with("art_"));
    assert_eq!(
        lasting(artifact),
        json!({
            "id": artifact["id"], "name": "t.csv", "path": path, "host_path": host,
            "size": 8, "mime": "text/csv; charset=utf-8",
            "sha256": text(&events[0].data["text"]).trim(),
        })
    );
    assert_eq!(stream["artifact_map"], json!({path: host}));
    assert_eq!(std::fs::read_to_string(&host).expect("a file"), "a,b\n1,2\n");
    assert_eq!(server.get(&link(artifact)).await.text(200), "a,b\n1,2\n");
    if let Some(artifacts) = done.get("artifacts") {
        assert_eq!(lasting(&artifacts[0]), lasting(artifact));
    }

    // Later requests return the same data.
    let info = session.exec_info(&exec_id).await;
    assert_eq!(lasting(only(&info["result"])), lasting(artifact));
    assert_eq!(info["result"]["artifact_map"], stream["artifact_map"]);
    assert_eq!(server.get(&link(only(&info["result"]))).await.status, 200);
    let follow = session.path(&format!("/execs/{exec_id}/events"));
    let again = server.follow(&follow).await.until("artifacts").await.data;
    assert_eq!(lasting(only(&again)), lasting(artifact));
    let directory = server.path("sessions").join(&session.id);
    eventually("it is in the log", async || log(&directory).len() == 1).await;
    let logged = &log(&directory)[0];
    assert_eq!(lasting(only(logged)), lasting(artifact));
    assert!(only(logged).get("url").is_none(), "no token in a log");
    let shown = server.get(&format!("/v1/artifacts/{}", text(&artifact["id"]))).await.json(200);
    for field in ["id", "name", "path", "size", "mime", "sha256"] {
        assert_eq!(shown[field], artifact[field], "{field}");
    }
    assert_eq!((&shown["session_id"], &shown["exec_id"]), (&json!(session.id), &json!(exec_id)));
    let said = server.terminate().await;
    assert!(!said.contains("token="), "{said}");
}

#[tokio::test]
async fn lists_are_paged_from_the_newest() {
    let server = Server::start().await;
    let (one, other) = (server.session().await, server.session().await);
    one.exec(json!({"command": "cd artifacts; touch a b c", "exec_id": "first"})).await.json(200);
    one.exec(json!({"command": "cd artifacts; touch d e", "exec_id": "second"})).await.json(200);
    other.shell("touch artifacts/f").await;
    let get = async |path: &str| server.get(path).await.json(200);
    assert_eq!(reply(&get("/v1/artifacts").await), ["f", "e", "d", "c", "b", "a"]);
    assert_eq!(reply(&get(&one.path("/artifacts")).await), ["e", "d", "c", "b", "a"]);
    assert_eq!(reply(&get(&one.path("/artifacts?exec=first")).await), ["c", "b", "a"]);
    let of_one = get(&format!("/v1/artifacts?session={}&exec=second", one.id)).await;
    assert_eq!(reply(&of_one), ["e", "d"]);
    let (mut seen, mut path) = (Vec::new(), "/v1/artifacts?limit=4".to_owned());
    loop {
        let page = get(&path).await;
        let artifacts = list(&page["artifacts"]);
        seen.extend(artifacts.iter().map(|artifact| text(&artifact["name"]).to_owned()));
        if page["more"] == false {
            break;
        }
        let last = text(&artifacts.last().expect("a page")["id"]);
        path = format!("/v1/artifacts?limit=4&before={last}");
    }
    assert_eq!(seen, ["f", "e", "d", "c", "b", "a"]);
    for wrong in ["limit=0", "limit=1001", "limit=x", "unknown=1"] {
        server.get(&format!("/v1/artifacts?{wrong}")).await.error(422, "invalid");
    }
    server.get("/v1/artifacts?before=art_nothing").await.error(404, "artifact_not_found");
    server.get("/v1/sessions/ses_nothing/artifacts").await.error(404, "session_not_found");
}
