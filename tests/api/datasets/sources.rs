//! Datasets that the server fetches itself.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::DatasetSession as _;
use super::origin::{self, Origin, Reply, ok};
use super::{cached, sha256, steady};
use belljar_testkit::server::Server;
use belljar_testkit::values::text;
use belljar_testkit::wait::eventually;

const TABLE: &str = "city,people\nBonn,3\nKiel,2\n";
const SECRET: &str = "hunter2-very-secret";

/// A server that may fetch `sales/...` and `one` from this origin.
async fn fetching_from(origin: &Origin) -> Server {
    let url = format!("http://{}/d/{{path}}", origin.address);
    let sources = json!({
        "sales/": {"url": url, "allow": ["127.0.0.1"],
                   "headers": {"Authorization": "Bearer ${SALES_TOKEN}"}},
        "small/": {"url": url, "allow": ["127.0.0.1"], "max_bytes": 10, "timeout_s": 1},
        "near/": url,
    });
    let sources = sources.to_string();
    super::serve(&[("BELLJAR_DATASET_SOURCES", &sources), ("SALES_TOKEN", SECRET)]).await
}

fn files_below(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).expect("a directory").flatten();
    entries
        .flat_map(|entry| match entry.file_type().expect("a type").is_dir() {
            true => files_below(&entry.path()),
            false => vec![entry.path()],
        })
        .collect()
}

#[tokio::test]
async fn a_dataset_is_fetched_once_under_any_name() {
    let origin = Origin::start(|head| match origin::path(head) {
        "/d/q1" => ok("Content-Type: text/csv; charset=utf-8\r\n", TABLE),
        "/d/q2" => ok("Content-Disposition: attachment; filename=\"../../q.csv\"\r\n", TABLE),
        "/d/named.txt" => ok("Content-Type: text/csv\r\n", TABLE),
        path => panic!("{path}"),
    })
    .await;
    let server = fetching_from(&origin).await;
    let session = server.session().await;
    let received = session.post_datasets(json!({"dataset": "sales/q1"})).await.json(200);
    assert_eq!(
        steady(received),
        json!({"name": "sales/q1.csv", "path": "/session/data/sales/q1.csv", "status": "LOADED",
               "source": "sales/q1", "size": TABLE.len(), "sha256": sha256(TABLE),
               "cached": false})
    );
    assert_eq!(session.shell("cat data/sales/q1.csv").await["stdout"], TABLE);
    let list = session.datasets().await;
    assert_eq!(list["datasets"].as_array().expect("a list").len(), 1, "{list:#}");
    assert_eq!(
        steady(session.dataset("sales/q1.csv").await),
        json!({"name": "sales/q1.csv", "path": "/session/data/sales/q1.csv", "status": "LOADED",
               "source": "sales/q1", "size": TABLE.len(), "sha256": sha256(TABLE),
               "format": "csv", "columns": ["city", "people"], "rows": 2})
    );
    assert_eq!(origin.asked(), 1);
    // Again: it is there, so the origin gets no request.
    let again = session.post_datasets(json!({"dataset": "sales/q1"})).await.json(200);
    assert_eq!((&again["status"], &again["cached"]), (&json!("LOADED"), &json!(true)));
    assert_eq!((&again["name"], origin.asked()), (&json!("sales/q1.csv"), 1));
    // Unless code has changed or removed it. Without an ETag the cached copy is fresh for a while.
    for spoil in [
        "rm data/sales/q1.csv",
        "echo x > data/sales/q1.csv",
        "sed -i s/Bonn/Rome/ data/sales/q1.csv",
    ] {
        session.shell(&format!("sleep 0.01; {spoil}")).await;
        let again = session.post_datasets(json!({"dataset": "sales/q1"})).await.json(200);
        assert_eq!((&again["cached"], origin.asked()), (&json!(true), 1), "{spoil}");
        assert_eq!(session.shell("cat data/sales/q1.csv").await["stdout"], TABLE, "{spoil}");
    }
    let other = server.session().await;
    let received = other.post_datasets(json!({"dataset": "sales/q1"})).await.json(200);
    assert_eq!((&received["cached"], origin.asked()), (&json!(true), 1));
    let ask = json!({"dataset": "sales/q1", "refresh": true});
    let received = other.post_datasets(ask).await.json(200);
    assert_eq!((&received["status"], origin.asked()), (&json!("LOADED"), 2));
    // The name of the dataset.
    for (dataset, name) in [("sales/q2", "sales/q2.csv"), ("sales/named.txt", "sales/named.txt")] {
        let received = session.post_datasets(json!({"dataset": dataset})).await.json(200);
        assert_eq!(received["name"], name);
        assert_eq!(session.status(name).await, "LOADED");
    }
}

#[tokio::test]
async fn a_source_with_a_tag_is_asked_whether_it_has_changed() {
    let version = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(1));
    let now = std::sync::Arc::clone(&version);
    let origin = Origin::start(move |head| {
        let version = now.load(std::sync::atomic::Ordering::Relaxed);
        let etag = format!("\"v{version}\"");
        match origin::header(head, "if-none-match") {
            Some(known) if known == etag => Reply::Now("HTTP/1.1 304 Not Modified\r\n\r\n".into()),
            _ => ok(&format!("ETag: {etag}\r\n"), &format!("a\n{version}\n")),
        }
    })
    .await;
    let server = fetching_from(&origin).await;
    let ask = json!({"dataset": "sales/t.csv"});
    let first = server.session().await;
    assert_eq!(first.post_datasets(ask.clone()).await.json(200)["cached"], false);
    let second = server.session().await;
    assert_eq!(second.post_datasets(ask.clone()).await.json(200)["cached"], true);
    let heads = origin.heads();
    assert_eq!(heads.len(), 2);
    assert_eq!(origin::header(&heads[1], "if-none-match"), Some("\"v1\""));
    assert_eq!(second.shell("cat data/sales/t.csv").await["stdout"], "a\n1\n");

    version.store(2, std::sync::atomic::Ordering::Relaxed);
    let refresh = json!({"dataset": "sales/t.csv", "refresh": true});
    let received = second.post_datasets(refresh).await.json(200);
    assert_eq!((&received["cached"], origin.asked()), (&json!(false), 3));
    assert_eq!(second.shell("cat data/sales/t.csv").await["stdout"], "a\n2\n");
    assert_eq!(first.shell("cat data/sales/t.csv").await["stdout"], "a\n1\n", "it did not ask");

    // A damaged copy is not used: the content is fetched in full, and the cache is repaired.
    let path = cached(&server.installation, &sha256("a\n2\n")).expect("it is cached");
    fs::write(&path, "a\n3\n").expect("it is there");
    let third = server.session().await;
    let received = third.post_datasets(ask).await.json(200);
    assert_eq!((&received["status"], &received["cached"]), (&json!("LOADED"), &json!(false)));
    assert_eq!(third.shell("cat data/sales/t.csv").await["stdout"], "a\n2\n");
    assert_eq!(third.all_in("/session/data").await, ["sales", "sales/t.csv"]);
    assert_eq!(fs::read_to_string(&path).expect("it is there"), "a\n2\n");
}

#[tokio::test]
async fn a_fetch_in_the_background_reports_later() {
    let origin = Origin::start(|head| match origin::path(head) {
        "/d/good.csv" => match ok("", TABLE) {
            Reply::Now(reply) | Reply::Held(reply) => Reply::Held(reply),
        },
        _ => Reply::Held("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n".into()),
    })
    .await;
    let server = fetching_from(&origin).await;
    let session = server.session().await;
    let ask = |name: &str| json!({"dataset": name, "wait": false});
    for (name, end) in [("sales/bad.csv", "FAILED"), ("sales/good.csv", "LOADED")] {
        // The second request is pending again, whatever the state was before.
        for _ in 0..2 {
            let received = session.post_datasets(ask(name)).await;
            if end == "LOADED" && received.status == 200 {
                assert_eq!(received.json(200)["status"], "LOADED", "it was there already");
                continue;
            }
            let received = received.json(202);
            assert_eq!(
                (&received["status"], &received["source"]),
                (&json!("PENDING"), &json!(name))
            );
            assert_eq!(session.status(name).await, "PENDING");
            origin.release();
            eventually(end, async || session.status(name).await == end).await;
        }
    }
    assert_eq!(session.shell("cat data/sales/good.csv").await["stdout"], TABLE);
    // Errors that are known at once are returned at once.
    session.post_datasets(ask("unknown/x")).await.error(404, "no_source");
    session.post_datasets(ask("..")).await.error(422, "invalid");
    assert_eq!(origin.asked(), 3);
}

#[tokio::test]
async fn what_goes_wrong_at_a_source_is_said() {
    let origin = Origin::start(|head| match origin::path(head) {
        "/d/missing" => origin::status("404 Not Found", "no such table"),
        "/d/broken" => origin::status("500 Internal Server Error", "sorry"),
        "/d/large" => ok("", "12345678901"),
        "/d/vast" => Reply::Now(format!("HTTP/1.0 200 OK\r\n\r\n{}", "x".repeat(100_000))),
        "/d/cut" => Reply::Now("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc".into()),
        "/d/slow" => Reply::Held(String::new()),
        path => panic!("{path}"),
    })
    .await;
    let server = fetching_from(&origin).await;
    let session = server.session().await;
    for (dataset, status, code, said) in [
        ("sales/missing", 502, "source_status", "404: no such table"),
        ("sales/broken", 502, "source_status", "500: sorry"),
        ("sales/cut", 502, "source_cut_off", "3 of 10 bytes"),
        ("small/large", 413, "source_too_large", "it has 11"),
        ("small/vast", 413, "source_too_large", "max_bytes"),
        ("small/slow", 504, "source_timeout", "timeout_s"),
        ("near/x", 502, "source_refused_address", "loopback"),
    ] {
        let message = session.post_datasets(json!({"dataset": dataset})).await.error(status, code);
        assert!(message.contains(said), "{dataset}: {message}");
        let failed = session.dataset(dataset).await;
        assert_eq!((&failed["status"], &failed["source"]), (&json!("FAILED"), &json!(dataset)));
        assert!(text(&failed["reason"]).contains(said), "{failed:#}");
    }
    session.post_datasets(json!({"dataset": "unknown/x"})).await.error(404, "no_source");
    session.post_datasets(json!({"dataset": "sales"})).await.error(404, "no_source");
    session.post_datasets(json!({"dataset": "x", "what": 1})).await.error(422, "invalid");
    assert_eq!(session.dataset("unknown/x").await, Value::Null);
    assert!(!origin.heads().iter().any(|head| origin::path(head) == "/d/x"), "it was not asked");
    assert_eq!(session.all_in("/session/data").await, Vec::<String>::new());
    eventually("nothing is incoming", async || super::incoming(&server.installation).is_empty())
        .await;
}

#[tokio::test]
async fn credentials_of_a_source_go_to_no_other_host() {
    let origin = Origin::start(|head| match origin::path(head) {
        "/d/good.csv" => ok("", TABLE),
        // Some servers repeat request headers in the response.
        _ => origin::status(
            "401 Unauthorized",
            origin::header(head, "authorization").unwrap_or("nobody"),
        ),
    })
    .await;
    let server = fetching_from(&origin).await;
    let session = server.session().await;
    let good = session.post_datasets(json!({"dataset": "sales/good.csv"})).await;
    let bad = session.post_datasets(json!({"dataset": "sales/bad.csv"})).await;
    good.json(200);
    let message = bad.error(502, "source_status");
    assert!(message.contains("401"), "{message}");
    for head in origin.heads() {
        let sent = origin::header(&head, "authorization");
        assert_eq!(sent, Some(format!("Bearer {SECRET}").as_str()));
    }
    let list = session.datasets().await.to_string();
    let inside = session.shell("env; cat data/sales/*").await.to_string();
    let log = server.get(&session.path("/log")).await.text(200);
    let metrics = server.get("/metrics").await.text(200);
    let installation = std::sync::Arc::clone(&server.installation);
    let said = server.terminate().await;
    let audit = fs::read_to_string(installation.path("state/audit.log")).expect("an audit log");
    assert!(audit.contains("dataset.fetch"), "{audit}");
    let written: Vec<u8> = ["state", "cache"]
        .into_iter()
        .flat_map(|directory| files_below(&installation.path(directory)))
        .flat_map(|path| fs::read(path).expect("a file"))
        .collect();
    let written = String::from_utf8_lossy(&written).into_owned();
    assert!(written.contains("sales/good.csv"), "the database is among it");
    for (what, text) in [
        ("answer", good.to_string()),
        ("error", bad.to_string()),
        ("list", list),
        ("sandbox", inside),
        ("log", log),
        ("metrics", metrics),
        ("stderr", said),
        ("audit", audit),
        ("disk", written),
    ] {
        assert!(!text.contains(SECRET), "{what}: {text}");
    }
}
