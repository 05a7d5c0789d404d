//! Every combination of the storage of files and the source of datasets.

use std::fs;
use std::sync::Arc;

use serde_json::{Value, json};

use super::DatasetSession as _;
use super::steady;
use belljar_testkit::installation::Installation;
use belljar_testkit::server::Server;
use belljar_testkit::session::Session;
use belljar_testkit::values::text;

const OWN: &str = "x,y\n1,2\n3,4\n";
const TABLE: &str = "city,people\nBonn,3\nKiel,2\nTrier,1\n";

#[tokio::test]
async fn all_six_modes_give_what_they_promise() {
    let installation = Installation::new();
    let data = installation.path("datasets");
    fs::create_dir_all(data.join("deep")).expect("a directory");
    fs::write(data.join("deep/table.csv"), TABLE).expect("a file");
    let installation = Arc::new(installation.env("DATASETS_HOST_RO", &data.display().to_string()));
    let server = installation.serve().await;
    for storage in ["TMPFS", "BIND"] {
        for access in ["NONE", "LOCAL_RO", "API"] {
            let ask = json!({"storage": storage, "datasets": access});
            let session = server.session_with(ask.clone()).await;
            println!("{ask}");
            code_sees_its_directories(&session, access).await;
            uploads_are_taken_or_refused(&session, access).await;
            the_list_tells(&session, access).await;
            artifacts_and_exports_work(&server, &session, storage).await;
            session.stop().await;
        }
    }
    assert_eq!(fs::read_to_string(data.join("deep/table.csv")).expect("a file"), TABLE);
    assert_eq!(belljar_testkit::values::names(&data), ["deep"]);
}

async fn code_sees_its_directories(session: &Session, access: &str) {
    let data = session.all_in("/data").await;
    match access {
        "LOCAL_RO" => assert_eq!(data, ["deep", "deep/table.csv"]),
        _ => assert!(data.is_empty(), "{data:?}"),
    }
    for write in ["echo x > /data/new", "mkdir /data/new", "rm -r /data/deep", "chmod 777 /data"] {
        assert_eq!(session.shell(write).await["status"], "error", "{write}");
    }
    assert_eq!(session.all_in("/session/data").await, Vec::<String>::new());
    let code = format!("open('/session/data/own.csv', 'w').write({OWN:?}); print('written')");
    assert_eq!(session.printed(&code).await, "written\n");
}

async fn uploads_are_taken_or_refused(session: &Session, access: &str) {
    let answer = session.put("staged.csv", TABLE).await;
    if access != "API" {
        assert!(answer.error(409, "no_staging").contains("API"), "{answer}");
        session.put(&format!("x?sha256={}", super::sha256("x")), "").await.error(409, "no_staging");
        session.post_datasets(json!({"dataset": "any"})).await.error(409, "no_staging");
        assert_eq!(session.all_in("/session/data").await, ["own.csv"]);
        return;
    }
    let staged = json!({
        "name": "staged.csv", "path": "/session/data/staged.csv", "status": "LOADED",
        "size": TABLE.len(), "sha256": super::sha256(TABLE), "cached": false,
    });
    // Content that was staged in one mode is cached for the other.
    let mut reply = steady(answer.json(200));
    reply["cached"] = false.into();
    assert_eq!(reply, staged);
    let read = "print(open('/session/data/staged.csv').read(), end='')";
    assert_eq!(session.printed(read).await, TABLE);
}

async fn the_list_tells(session: &Session, access: &str) {
    let mut list = session.datasets().await;
    assert_eq!((&list["access"], &list["more"]), (&json!(access), &json!(0)));
    let entries: Vec<Value> = list["datasets"].as_array_mut().expect("a list").drain(..).collect();
    if access == "NONE" {
        assert!(entries.is_empty(), "{entries:?}");
        assert!(text(&list["message"]).contains("no datasets"), "{list:#}");
        return;
    }
    assert_eq!(list.get("message"), None, "{list:#}");
    let table = |name: &str, path: &str| {
        json!({"name": name, "path": path, "status": "LOADED", "size": TABLE.len(),
               "format": "csv", "columns": ["city", "people"], "rows": 3})
    };
    let path = text(&entries[entries.len() - 1]["path"]);
    let modified = session.shell(&format!("date -u -r {path} +%FT%H:%M:%S")).await;
    let modified = text(&modified["stdout"]).trim();
    let reply = text(&entries[entries.len() - 1]["modified"]);
    assert!(reply.starts_with(modified), "{reply} {modified}");
    let entries: Vec<Value> = entries.into_iter().map(steady).collect();
    if access == "LOCAL_RO" {
        assert_eq!(entries, [table("deep/table.csv", "/data/deep/table.csv")]);
        return;
    }
    let mut staged = table("staged.csv", "/session/data/staged.csv");
    staged["sha256"] = super::sha256(TABLE).into();
    let own = json!({"name": "own.csv", "path": "/session/data/own.csv", "status": "LOADED",
                     "size": OWN.len(), "format": "csv", "columns": ["x", "y"], "rows": 2});
    assert_eq!(entries, [own, staged]);
}

async fn artifacts_and_exports_work(server: &Server, session: &Session, storage: &str) {
    let code = format!("open('/session/artifacts/plot.txt', 'w').write('a plot of {storage}')");
    let result = session.python(&code).await;
    let artifact = &result["artifacts"][0];
    assert_eq!((&result["status"], &artifact["name"]), (&json!("ok"), &json!("plot.txt")));
    let host_path = text(&artifact["host_path"]);
    let content = fs::read_to_string(host_path).expect("an artifact");
    assert_eq!(content, format!("a plot of {storage}"));

    let exported = session.export(json!({"datasets": ["own.csv"]})).await;
    assert_eq!(exported["refused"], json!([]), "{exported:#}");
    let export = &exported["exports"][0];
    assert_eq!(export["dataset"], "own.csv");
    let host_path = text(&export["host_path"]);
    assert!(host_path.starts_with(&server.path("exports").display().to_string()), "{host_path}");
    assert_eq!(fs::read_to_string(host_path).expect("an export"), OWN);
    assert_eq!(session.shell("cat /session/data/own.csv").await["stdout"], OWN);
}

#[tokio::test]
async fn a_directory_of_datasets_that_is_none_is_refused_at_the_start() {
    let installation = Installation::new();
    fs::write(installation.path("file"), "").expect("a file");
    std::os::unix::fs::symlink("loop", installation.path("loop")).expect("a link");
    // Not even root can read the last one.
    for name in ["missing", "file", "loop"] {
        for access in ["LOCAL_RO", "NONE"] {
            let path = installation.path(name).display().to_string();
            let mut command = installation.belljar(&["serve"]);
            command.env("DATASET_ACCESS", access).env("DATASETS_HOST_RO", &path);
            let said = Arc::new(Installation::new()).refusal_by(command).await;
            assert!(said.contains("DATASETS_HOST_RO") && said.contains(&path), "{said}");
            assert!(!said.contains("panicked"), "{said}");
        }
    }
    let said = Arc::new(Installation::new().env("DATASET_ACCESS", "LOCAL_RO")).refusal().await;
    assert!(said.contains("set DATASETS_HOST_RO"), "{said}");
}

#[tokio::test]
async fn a_session_that_asks_for_datasets_where_there_are_none_is_refused() {
    let server = Server::start().await;
    let ask = json!({"datasets": "LOCAL_RO"});
    let message = server.post("/v1/sessions", ask).await.error(422, "invalid");
    assert!(message.contains("DATASETS_HOST_RO"), "{message}");
    let run = json!({"code": "1", "datasets": "LOCAL_RO"});
    let message = server.post("/v1/run", run).await.error(422, "invalid");
    assert!(message.contains("DATASETS_HOST_RO"), "{message}");
    server.installation.has_no_traces().await;
}
