//! Idle sessions: large values are spilled to disk, and loaded when they are used.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use belljar_testkit::installation::Installation;
use belljar_testkit::server::Server;
use belljar_testkit::session::Session;
use belljar_testkit::values::text;
use belljar_testkit::wait::eventually;

const FRAME: &str = "import numpy as np, pandas as pd\n\
                     df = pd.DataFrame({'a': np.arange(200_000), 'b': np.zeros(200_000)})\n\
                     x = np.arange(400_000.0)\ny = x\nn = 1\n\
                     def use(): return int(df.a.sum()), y is x";

/// A server whose sessions are idle after one second.
async fn impatient() -> Server {
    let installation = Installation::new()
        .env("IDLE_HIBERNATE_SEC", "1")
        // The test looks at the spilled files from outside.
        .env("BELLJAR_SESSION_FILES", "directory")
        .env("BELLJAR_PRELOAD", "numpy pandas pyarrow pyarrow.parquet");
    Arc::new(installation).serve().await
}

async fn variables(session: &Session) -> Vec<(String, bool)> {
    let state = session.client.get(&session.path("/state")).await.json(200);
    let variables = state["variables"].as_array().expect("variables").clone();
    let on_disk = |it: &Value| (text(&it["name"]).to_owned(), it["on_disk"] == true);
    variables.iter().map(on_disk).collect()
}

async fn on_disk(session: &Session) -> Vec<String> {
    variables(session).await.into_iter().filter(|(_, away)| *away).map(|(name, _)| name).collect()
}

#[tokio::test]
async fn large_values_of_an_idle_session_are_on_disk_until_they_are_used() {
    let server = impatient().await;
    let made = server.post("/v1/sessions", json!({"storage": "BIND"})).await.json(201);
    let session = Session::of(&server, text(&made["id"]));
    let directory = PathBuf::from(text(&made["directory"])).join("files/data/.spilled");
    let first = session.python(FRAME).await;
    assert!(first["memory_bytes"].as_u64() > Some(1 << 20), "{first:#}");
    eventually("they went", async || on_disk(&session).await == ["df", "x", "y"]).await;
    let mut files: Vec<_> = std::fs::read_dir(&directory)
        .expect("a directory")
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("text"))
        .collect();
    files.sort();
    assert_eq!(files, ["df.parquet", "x.npy"]);
    let state = session.client.get(&session.path("/state")).await.json(200);
    let frame = state["variables"].as_array().expect("variables").iter();
    let frame = frame.clone().find(|it| it["name"] == "df").expect("it is told");
    assert_eq!(
        (&frame["type"], &frame["shape"]),
        (&json!("pandas.DataFrame"), &json!([200_000, 2]))
    );

    let used = session.python("use()").await;
    assert_eq!(used["results"][0]["data"]["text/plain"], "(19999900000, True)", "{used:#}");
    assert_eq!(std::fs::read_dir(&directory).expect("a directory").count(), 0);
    eventually("they went again", async || on_disk(&session).await.len() == 3).await;
}

#[tokio::test]
async fn a_session_at_work_is_not_idle() {
    let server = impatient().await;
    let made = server.post("/v1/sessions", json!({"storage": "BIND"})).await.json(201);
    let session = Session::of(&server, text(&made["id"]));
    session.python(FRAME).await;
    session.python("import threading; stop = threading.Event(); t = threading.Thread(target=stop.wait); t.start()").await;
    // Long enough for a spill.
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(on_disk(&session).await, [""; 0], "a thread of its own is at work");
    session.python("stop.set(); t.join()").await;
    let ask = json!({"command": ["sleep", "4"], "background": true});
    session.exec(ask).await;
    // Also long enough, but shorter than the command.
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(on_disk(&session).await, [""; 0], "a command in the background is at work");
    eventually("they went", async || on_disk(&session).await.len() == 3).await;
}

#[tokio::test]
async fn a_restarted_server_finds_the_values() {
    let server = impatient().await;
    let session = server.session_with(json!({"storage": "BIND"})).await;
    session.python(FRAME).await;
    eventually("they went", async || on_disk(&session).await == ["df", "x", "y"]).await;
    let id = session.id.clone();
    let installation = server.kill().await;
    let server = installation.serve().await;
    let session = Session::of(&server, &id);
    assert_eq!(on_disk(&session).await, ["df", "x", "y"]);
    let used = session.python("use()").await;
    assert_eq!(used["results"][0]["data"]["text/plain"], "(19999900000, True)", "{used:#}");
}

/// With storage TMPFS a file is memory too. Values stay where they are, and the session does not grow.
#[tokio::test]
async fn a_session_whose_files_are_memory_does_not_grow_when_it_is_idle() {
    let server = impatient().await;
    let session = server.session_with(json!({"storage": "TMPFS"})).await;
    let noise = "import numpy as np, pandas as pd\n\
                 df = pd.DataFrame(np.random.default_rng(1).random((2_000_000, 2)))";
    session.python(noise).await;
    let memory = async || session.show().await["memory_used"].as_u64().expect("a number");
    let before = memory().await;
    // This session is made later, and its value is spilled. By then the server has long since asked
    // the first session to spill, if it asks at all.
    let other = server.session_with(json!({"storage": "BIND"})).await;
    other.python(noise).await;
    let mut most = before;
    eventually("the other one went", async || {
        most = most.max(memory().await);
        on_disk(&other).await == ["df"]
    })
    .await;
    let listed = session.client.get(&session.path("/files/data?list")).await.json(200);
    assert!(!listed.to_string().contains(".spilled"), "{listed:#}");
    assert_eq!(on_disk(&session).await, [""; 0]);
    // It grows neither meanwhile nor afterwards. An idle kernel frees a little memory.
    let most = most.max(memory().await);
    assert!(most < before + before / 10, "{before} bytes before, {most} at most");
}
