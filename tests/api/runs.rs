//! `POST /v1/run`: one sandbox per call, removed afterwards.

use std::fs;

use serde_json::json;

use belljar_testkit::client::printed;
use belljar_testkit::server::Server;
use belljar_testkit::values::{names, text};
use belljar_testkit::wait::eventually;

#[tokio::test]
async fn a_run_leaves_its_result_and_its_artifacts_and_nothing_else() {
    let server = Server::start().await;
    let code = "import os, pathlib\n\
                pathlib.Path('/work/artifacts/sub').mkdir()\n\
                pathlib.Path('/work/artifacts/table.csv').write_text('a,b\\n')\n\
                pathlib.Path('/work/artifacts/sub/data.bin').write_bytes(bytes(range(256)))\n\
                os.symlink('/etc/passwd', '/work/artifacts/link')\n\
                print('made')\n6 * 7";
    let result = server.post("/v1/run", json!({"code": code})).await.json(200);
    assert_eq!((&result["status"], &result["stdout"]), (&json!("ok"), &json!("made\n")));
    assert_eq!(result["results"][0]["data"]["text/plain"], "42");
    let id = text(&result["exec_id"]);
    assert!(id.starts_with("run_"), "{result:#}");
    let outputs = server.path("outputs").join(id);
    assert_eq!(names(&outputs), ["sub", "table.csv"]);
    assert_eq!(fs::read_to_string(outputs.join("table.csv")).expect("a file"), "a,b\n");
    let whole: Vec<u8> = (0..=255).collect();
    assert_eq!(fs::read(outputs.join("sub/data.bin")).expect("a file"), whole);
    let host = outputs.join("table.csv").display().to_string();
    assert_eq!(result["artifact_map"]["/work/artifacts/table.csv"], host);
    assert_eq!(result["artifacts"].as_array().expect("a list").len(), 2, "{result:#}");
    assert!(result.to_string().contains("/work/artifacts/link"), "refused with a word: {result:#}");
    server.installation.has_no_traces().await;
    // The next run starts with an empty sandbox.
    let code = "import os; print(os.listdir('/work/artifacts'), 'pathlib' in globals())";
    let result = server.post("/v1/run", json!({"code": code})).await.json(200);
    assert_eq!(result["stdout"], "[] False\n");
    assert_eq!(server.get("/v1/sessions").await.json(200)["sessions"], json!([]));
    assert_eq!(server.metric("belljar_runs_total").await, 2.0);
}

#[tokio::test]
async fn runs_fail_as_code_does() {
    let server = Server::start().await;
    let run = async |ask| server.post("/v1/run", ask).await;
    let failed = run(json!({"code": "1 / 0"})).await.json(200);
    assert_eq!(
        (&failed["status"], &failed["error"]["name"]),
        (&json!("error"), &json!("ZeroDivisionError"))
    );
    let late = run(json!({"code": "while True: pass", "timeout": 0.3})).await.json(200);
    assert_eq!(late["status"], "timeout");
    let bash = json!({"language": "bash", "code": "echo $WHO; pwd; exit 4", "env": {"WHO": "me"}});
    let bash = run(bash).await.json(200);
    assert_eq!((&bash["stdout"], &bash["exit_code"]), (&json!("me\n/session\n"), &json!(4)));
    let env = json!({"code": "import os; print(os.environ['WHO'])", "env": {"WHO": "you"}});
    assert_eq!(run(env).await.json(200)["stdout"], "you\n");
    let eaten = json!({"code": "bytearray(500 << 20)", "limits": {"memory": "96M"}});
    assert_eq!(run(eaten).await.json(200)["status"], "oom");
    let loud = json!({"code": "print('x' * 5000)", "max_output": "1K"});
    assert_eq!(run(loud).await.json(200)["dropped"]["stdout_bytes"], 5001 - 1024);
    for wrong in [
        json!({}),
        json!({"code": "1", "key": "k"}),
        json!({"code": "1", "timeout": 0}),
        json!({"code": "1", "language": "cobol"}),
        json!({"code": "1", "image": "debian"}),
        json!({"code": "1", "limits": {"memory": 1}}),
        json!({"code": "1", "datasets": "LOCAL_RO"}),
        json!({"code": "a\0", "language": "bash"}),
        json!({"code": "1", "env": {"": ""}}),
    ] {
        run(wrong).await.error(422, "invalid");
    }
    server.installation.has_no_traces().await;
}

#[tokio::test]
async fn a_run_is_streamed_with_its_artifacts_last() {
    let server = Server::start().await;
    let code = "print('one', flush=True)\nopen('/work/artifacts/a.txt', 'w').write('x')\n1 + 1";
    let events = server.post_stream("/v1/run", json!({"code": code})).await.rest().await;
    let reply: Vec<&str> = events.iter().map(|event| event.name.as_str()).collect();
    assert_eq!(reply, ["exec", "stdout", "result", "artifacts", "done"]);
    assert_eq!(printed(&events, "stdout"), "one\n");
    let id = text(&events[0].data["exec_id"]);
    let (taken, done) = (&events[3].data, &events[4].data);
    assert_eq!((&done["status"], &done["exec_id"]), (&json!("ok"), &json!(id)));
    let host = server.path("outputs").join(id).join("a.txt");
    assert_eq!(taken["artifact_map"]["/work/artifacts/a.txt"], host.display().to_string());
    assert!(host.is_file());
    // An invalid request is refused before the stream begins.
    let mut request = server.request(hyper::Method::POST, "/v1/run", "{}");
    request.headers_mut().insert("accept", "text/event-stream".parse().expect("a value"));
    server.send(request).await.error(422, "invalid");
    // An error that only the engine detects is sent as an event, with the status that the response
    // would have had.
    let ask = json!({"code": "1", "image": "debian"});
    let events = server.post_stream("/v1/run", ask).await.rest().await;
    let failed = events.last().expect("an event");
    assert_eq!((failed.name.as_str(), &failed.data["status"]), ("failed", &json!(422)));
    assert_eq!(failed.data["error"]["code"], "invalid", "{failed:?}");
}

#[tokio::test]
async fn going_away_ends_a_run() {
    let server = Server::start().await;
    let code = "print('begun', flush=True)\nimport time; time.sleep(1000)";
    let mut events = server.post_stream("/v1/run", json!({"code": code})).await;
    assert_eq!(events.until("stdout").await.data["text"], "begun\n");
    assert_eq!(server.installation.pids_inside(1).len(), 1);
    drop(events);
    server.installation.has_no_traces().await;
    let client = server.client();
    let waiting = tokio::spawn(async move { client.post("/v1/run", json!({"code": code})).await });
    eventually("it runs", async || server.installation.pids_inside(1).len() == 1).await;
    waiting.abort();
    server.installation.has_no_traces().await;
    // Its place is free again, and its end is in the audit log.
    let runs = async || {
        let mut lines = server.installation.audit();
        lines.retain(|line| line["action"] == "run");
        lines.len() == 2
    };
    eventually("both are in the audit log", runs).await;
}
