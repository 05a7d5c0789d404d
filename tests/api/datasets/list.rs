//! The list of a session's datasets.

use std::fs;
use std::sync::Arc;

use serde_json::{Value, json};

use super::DatasetSession as _;
use super::serve;
use belljar_testkit::installation::Installation;
use belljar_testkit::values::text;

#[tokio::test]
async fn the_list_is_bounded_and_says_so() {
    let server = serve(&[]).await;
    let session = server.session().await;
    session.put("aaa.csv", "a\n1\n").await.json(200);
    let code = "import os\nos.mkdir('/session/data/many')\n\
                for n in range(1499): open(f'/session/data/many/{n}.csv', 'w').write('a\\n')";
    session.printed(code).await;
    let list = session.datasets().await;
    let listed = list["datasets"].as_array().expect("a list");
    assert_eq!((listed.len(), &list["more"]), (1000, &json!(500)));
    // Just over the bound, the rest is counted too.
    session.printed("for n in range(469): os.unlink(f'/session/data/many/{n}.csv')").await;
    let list = session.datasets().await;
    assert_eq!(
        (list["datasets"].as_array().expect("a list").len(), &list["more"]),
        (1000, &json!(31))
    );
    session.printed("for n in range(469, 500): os.unlink(f'/session/data/many/{n}.csv')").await;
    let list = session.datasets().await;
    let listed = list["datasets"].as_array().expect("a list");
    assert_eq!(
        (listed.len(), &list["more"], &listed[0]["name"]),
        (1000, &json!(0), &json!("aaa.csv"))
    );
}

#[tokio::test]
async fn datasets_that_code_made_or_removed_are_listed_as_they_are() {
    let server = serve(&[]).await;
    let session = server.session().await;
    for name in ["kept.csv", "changed.csv", "same_size.csv", "removed.csv"] {
        session.put(name, "a,b\n1,2\n").await.json(200);
    }
    let code = "import os\nroot = '/session/data/'\n\
                os.unlink(root + 'removed.csv')\n\
                open(root + 'changed.csv', 'a').write('3,4\\n')\n\
                open(root + 'same_size.csv', 'w').write('x,y\\n9,9\\n')\n\
                os.makedirs(root + 'deep/er')\n\
                open(root + 'deep/er/saved.json', 'w').write('{}')\n\
                open(root + 'named.txt', 'w').write('text')\n\
                open(os.fsencode(root) + b'bytes-\\xff.csv', 'w').write('a\\n1\\n')\n\
                open(root + 'new\\nline.csv', 'w').write('a\\n1\\n')\n\
                os.symlink('/etc/passwd', root + 'link')\n\
                os.mkfifo(root + 'pipe')";
    session.shell("sleep 0.01").await;
    session.printed(code).await;
    let list = session.datasets().await;
    let listed: Vec<(&str, &str, &Value)> = list["datasets"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|entry| (text(&entry["name"]), text(&entry["format"]), &entry["rows"]))
        .collect();
    let (none, one) = (Value::Null, json!(1));
    assert_eq!(
        listed,
        [
            ("bytes-\u{fffd}.csv", "csv", &one),
            ("changed.csv", "csv", &json!(2)),
            ("deep/er/saved.json", "json", &none),
            ("kept.csv", "csv", &one),
            ("named.txt", "text", &none),
            ("new\nline.csv", "csv", &one),
            ("same_size.csv", "csv", &one),
        ]
    );
    assert!(list["datasets"].as_array().expect("a list").iter().all(|it| it["status"] == "LOADED"));
    assert_eq!(list["more"], 2, "a link and a pipe are no datasets, but they are there");
    // A hash is listed only for a dataset that is unchanged since it was staged.
    assert_eq!(session.dataset("kept.csv").await["sha256"], super::sha256("a,b\n1,2\n"));
    for name in ["changed.csv", "same_size.csv", "named.txt"] {
        assert_eq!(session.dataset(name).await.get("sha256"), None, "{name}");
    }
}

#[tokio::test]
async fn what_has_failed_does_not_drown_the_rest() {
    let server = serve(&[]).await;
    let session = server.session_with(json!({"limits": {"tmpfs": "1M"}})).await;
    session.shell("chmod 555 data").await;
    for turn in 0..20 {
        let name = format!("failed{turn:02}");
        session.put(&name, "x").await.error(409, "not_permitted_inside");
    }
    let code = "import os\nos.chmod('/session/data', 0o755)\n\
                for n in range(990): open(f'/session/data/{n}', 'w')";
    session.printed(code).await;
    let list = session.datasets().await;
    let listed = list["datasets"].as_array().expect("a list");
    let failed = listed.iter().filter(|entry| entry["status"] == "FAILED").count();
    assert_eq!((listed.len(), failed, &list["more"]), (1000, 10, &json!(10)));
    assert_eq!(session.status("failed19").await, "FAILED", "the latest are told of");
}

#[tokio::test]
async fn a_directory_of_the_host_is_listed_as_the_session_sees_it() {
    let installation = Installation::new();
    let data = installation.path("datasets");
    fs::create_dir_all(data.join("2024")).expect("a directory");
    fs::write(data.join("2024/t.parquet"), super::parquet(5)).expect("a file");
    fs::write(installation.path("outside.csv"), "a\nprivate\n").expect("a file");
    std::os::unix::fs::symlink(installation.path("outside.csv"), data.join("link.csv"))
        .expect("a link");
    let installation = Arc::new(
        installation
            .env("DATASETS_HOST_RO", &data.display().to_string())
            .env("DATASET_ACCESS", "LOCAL_RO"),
    );
    let server = installation.serve().await;
    let session = server.session().await;
    let list = session.datasets().await;
    let listed = list["datasets"].as_array().expect("a list");
    assert_eq!(listed.len(), 1, "{list:#}");
    assert_eq!(listed[0]["path"], "/data/2024/t.parquet");
    assert_eq!((&listed[0]["columns"], &listed[0]["rows"]), (&json!(["a", "b"]), &json!(5)));
    assert_eq!(session.shell("cat /data/link.csv").await["status"], "error");
    // Files that the host adds are listed at once.
    fs::write(data.join("new.csv"), "a\n").expect("a file");
    assert_eq!(session.status("new.csv").await, "LOADED");
    fs::remove_file(data.join("new.csv")).expect("it is there");
    fs::remove_dir_all(data.join("2024")).expect("it is there");
    fs::remove_file(data.join("link.csv")).expect("it is there");
    let list = session.datasets().await;
    assert!(text(&list["message"]).contains("no datasets"), "{list:#}");
}
