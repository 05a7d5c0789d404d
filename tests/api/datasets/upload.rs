//! Datasets that callers upload.

use std::sync::Arc;

use serde_json::{Value, json};

use super::DatasetSession as _;
use super::{numbered, parquet, serve, sha256, steady};
use belljar_testkit::installation::Installation;
use belljar_testkit::server::Server;
use belljar_testkit::values::text;
use belljar_testkit::wait::eventually;

#[tokio::test]
async fn any_format_arrives_as_it_is() {
    let server = serve(&[]).await;
    let session = server.session().await;
    let binary: Vec<u8> = (0..=255).cycle().take(100_000).collect();
    let csv = "id;name\r\n1;\"a;b\"\r\n2;\"two\nlines\"\r\n".as_bytes().to_vec();
    for (name, content, about) in [
        ("t.csv", csv, json!({"format": "csv", "columns": ["id", "name"], "rows": 2})),
        ("t.parquet", parquet(3), json!({"format": "parquet", "columns": ["a", "b"], "rows": 3})),
        ("raw.bin", binary, json!({"format": "binary"})),
        ("empty.csv", Vec::new(), json!({"format": "csv", "columns": [], "rows": 0})),
        ("empty", Vec::new(), json!({"format": "text"})),
    ] {
        let size = content.len();
        let hash = sha256(&content);
        let reply = session.put(name, content).await.json(200);
        assert_eq!((&reply["status"], &reply["size"]), (&json!("LOADED"), &json!(size)));
        let code = format!(
            "import hashlib\nprint(hashlib.sha256(open('/session/data/{name}', 'rb').read()).hexdigest())"
        );
        assert_eq!(session.printed(&code).await.trim(), hash);
        let mut expected = json!({"name": name, "path": format!("/session/data/{name}"),
                                  "status": "LOADED", "size": size, "sha256": hash});
        let about = about.as_object().expect("an object").clone();
        expected.as_object_mut().expect("an object").extend(about);
        assert_eq!(steady(session.dataset(name).await), expected);
    }
    // Code may change, move and remove its datasets.
    let owned = session.shell("cd data && echo 3 >> t.csv && mv raw.bin r && rm empty").await;
    assert_eq!(owned["status"], "ok", "{owned:#}");
    let changed = session.dataset("t.csv").await;
    assert_eq!((&changed["status"], changed.get("sha256")), (&json!("LOADED"), None));
    assert_eq!(session.dataset("empty").await, Value::Null, "it was removed");
    assert_eq!(session.status("r").await, "LOADED");
}

#[tokio::test]
async fn a_large_one_passes_through_little_memory() {
    let server = serve(&[]).await;
    let session = server.session_with(json!({"limits": {"tmpfs": "128M"}})).await;
    session.put("small", "x").await.json(200);
    let before = server.rss();
    let content = numbered(1, 50 << 20);
    let client = server.client();
    let (session_of_it, sent) = (session.clone(), content.clone());
    let sending = tokio::spawn(async move { session_of_it.put("large", sent).await });
    let mut most = before;
    while !sending.is_finished() {
        most = most.max(server.rss());
        assert_eq!(client.get("/healthz").await.status, 200, "others are served meanwhile");
    }
    let reply = sending.await.expect("no panic").json(200);
    assert_eq!(reply["size"], content.len());
    let grown = most.max(server.rss()) - before;
    assert!(grown < 32 << 20, "{grown} bytes more");
    let sum = session.shell("sha256sum < /session/data/large").await;
    assert_eq!(text(&sum["stdout"]).split(' ').next(), reply["sha256"].as_str());
}

#[tokio::test]
async fn it_is_replaced_at_once_or_not_at_all() {
    const SIZE: usize = 1 << 20;
    let server = serve(&[]).await;
    let session = server.session().await;
    session.put("d/table.csv", numbered(0, SIZE)).await.json(200);
    // Each file that a reader opens has one version's content from its first byte to its last.
    let code = format!(
        "import os\nseen = []\n\
         while not os.path.exists('/session/go'):\n\
        \x20   whole = open('/session/data/d/table.csv', 'rb').read()\n\
        \x20   seeds = {{line[:8] for line in whole.split(b'\\n') if len(line) == 8}}\n\
        \x20   assert len(whole) == {SIZE} and len(seeds) == 1, (len(whole), seeds)\n\
        \x20   new = [seed for seed in seeds if seed not in seen]\n\
        \x20   if new and len(seen) < 2: print(['first', 'second'][len(seen)], flush=True)\n\
        \x20   seen += new"
    );
    let reader = session.begin("reader", "running", json!({"code": code})).await;
    session.has_printed("reader", "first").await;
    for seed in 1..=8 {
        let reply = session.put("d/table.csv", numbered(seed, SIZE)).await.json(200);
        assert_eq!(reply["sha256"], sha256(numbered(seed, SIZE)));
    }
    // Two at once: one of them wins, with its whole content.
    let (one, two) = tokio::join!(
        session.put("d/table.csv", numbered(100, SIZE)),
        session.put("d/table.csv", numbered(200, SIZE))
    );
    let hashes = [one.json(200)["sha256"].take(), two.json(200)["sha256"].take()];
    session.has_printed("reader", "second").await;
    session.release().await;
    let result = reader.result().await;
    assert_eq!((&result["status"], &result["stdout"]), (&json!("ok"), &json!("first\nsecond\n")));
    let sum = session.shell("sha256sum < /session/data/d/table.csv").await;
    let sum = text(&sum["stdout"]).split(' ').next();
    assert!(hashes.iter().any(|hash| hash.as_str() == sum), "{sum:?} {hashes:?}");
    assert_eq!(session.all_in("/session/data").await, ["d", "d/table.csv"]);
}

#[tokio::test]
async fn it_may_come_in_pieces_and_is_pending_until_the_last() {
    let server = serve(&[]).await;
    let session = server.session().await;
    let mut chunked = session.begin_put("pieces.csv", "Transfer-Encoding: chunked").await;
    let mut counted = session.begin_put("counted.csv", "Content-Length: 8").await;
    chunked.send("4\r\na,b\n\r\n").await;
    counted.send("a,b\n").await;
    for name in ["pieces.csv", "counted.csv"] {
        eventually("it is pending", async || session.status(name).await == "PENDING").await;
        let pending = session.dataset(name).await;
        assert_eq!(pending["path"], format!("/session/data/{name}"));
        assert_eq!((pending.get("reason"), pending.get("size")), (None, None), "{pending:#}");
    }
    // Code in the sandbox sees nothing of it, and other work continues.
    assert_eq!(session.all_in("/session/data").await, Vec::<String>::new());
    assert_eq!(super::incoming(&server.installation).len(), 2);
    chunked.send("4\r\n1,2\n\r\n0\r\n\r\n").await;
    counted.send("1,2\n").await;
    for sending in [chunked, counted] {
        let (status, reply) = sending.answer().await;
        assert_eq!((status, &reply["status"], &reply["size"]), (200, &json!("LOADED"), &json!(8)));
    }
    assert_eq!(session.shell("cat /session/data/*").await["stdout"], "a,b\n1,2\na,b\n1,2\n");
    assert!(super::incoming(&server.installation).is_empty());
}

#[tokio::test]
async fn what_replaces_another_is_pending_too() {
    let server = serve(&[]).await;
    let session = server.session().await;
    session.put("t.csv", "a\n1\n").await.json(200);
    let mut second = session.begin_put("t.csv", "Content-Length: 6").await;
    eventually("it is pending", async || session.status("t.csv").await == "PENDING").await;
    assert_eq!(session.dataset("t.csv").await["size"], 4, "the old one is still there");
    second.send("b\n").await;
    drop(second);
    eventually("it has failed", async || session.status("t.csv").await == "FAILED").await;
    let failed = session.dataset("t.csv").await;
    assert!(text(&failed["reason"]).contains("interrupted"), "{failed:#}");
    assert_eq!(session.shell("cat data/t.csv").await["stdout"], "a\n1\n", "it was not touched");
    // A file that code writes in its place is not reported as failed.
    session.shell("sleep 0.01; echo c > data/t.csv").await;
    let own = session.dataset("t.csv").await;
    assert_eq!((&own["status"], own.get("reason")), (&json!("LOADED"), None), "{own:#}");
}

#[tokio::test]
async fn it_comes_while_code_runs() {
    let server = serve(&[]).await;
    let session = server.session().await;
    let code = "import os, time\nprint('waiting', flush=True)\n\
                while not os.path.exists('/session/data/late.csv'): time.sleep(0.005)\n\
                print(open('/session/data/late.csv').read())";
    let waiting = session.begin("waiting", "running", json!({"code": code})).await;
    session.has_printed("waiting", "waiting").await;
    session.put("late.csv", "it is here").await.json(200);
    assert_eq!(waiting.result().await["stdout"], "waiting\nit is here\n");
}

#[tokio::test]
async fn only_sessions_that_live_and_are_ones_own_take_it() {
    let installation = Arc::new(Installation::new().env("DATASET_ACCESS", "API"));
    let keys = ["a", "b"].map(|tenant| installation.key(&["--name", tenant, "--tenant", tenant]));
    let server: Server = installation.serve().await;
    let [ours, theirs] = keys.map(|key| server.with_key(text(&key["secret"])));
    let session = ours.session_with(json!({})).await;
    session.put("t.csv", "x").await.json(200);
    let foreign = belljar_testkit::session::Session::of(&theirs, &session.id);
    let unknown = belljar_testkit::session::Session::of(&ours, "ses_unknown");
    for other in [&foreign, &unknown] {
        other.put("t.csv", "y").await.error(404, "session_not_found");
        other
            .put(&format!("t.csv?sha256={}", sha256("x")), "")
            .await
            .error(404, "session_not_found");
        other.post_datasets(json!({"dataset": "x"})).await.error(404, "session_not_found");
        let list = other.client.get(&other.path("/datasets")).await;
        list.error(404, "session_not_found");
        let export = other.client.post(&other.path("/datasets/export"), json!({})).await;
        export.error(404, "session_not_found");
    }
    assert_eq!(session.shell("cat /session/data/t.csv").await["stdout"], "x");

    session.put("t.csv?sha265=typo", "y").await.error(422, "invalid");
    session.put("t.csv?sha256=short", "y").await.error(422, "invalid");
    assert_eq!(session.shell("cat /session/data/t.csv").await["stdout"], "x");

    // A session that ends during an upload, and one that has ended.
    let mut late = session.begin_put("late", "Content-Length: 4").await;
    late.send("la").await;
    drop(late);
    session.stop().await;
    session.put("t.csv", "y").await.error(410, "session_ended");
    let list = ours.get(&session.path("/datasets")).await;
    list.error(410, "session_ended");
    let export = ours.post(&session.path("/datasets/export"), json!({})).await;
    export.error(410, "session_ended");
}

#[tokio::test]
async fn too_large_is_refused_before_it_comes_or_when_it_does() {
    let server = serve(&[("BELLJAR_DATASET_SIZE", "1M")]).await;
    let session = server.session().await;
    let vast = session.begin_put("declared", "Content-Length: 1048577").await;
    let (status, reply) = vast.answer().await;
    assert_eq!((status, &reply["error"]["code"]), (413, &json!("too_large")), "{reply:#}");
    assert!(text(&reply["error"]["message"]).contains("BELLJAR_DATASET_SIZE"), "{reply:#}");

    let mut counted = session.begin_put("counted", "Transfer-Encoding: chunked").await;
    let piece = format!("80000\r\n{}\r\n", "x".repeat(0x80000));
    counted.send(&piece).await;
    counted.send(&piece).await;
    counted.send("1\r\nx\r\n").await;
    // The server does not wait for the rest.
    counted.send("1\r\nx\r\n").await;
    let (status, reply) = counted.answer().await;
    assert_eq!((status, &reply["error"]["code"]), (413, &json!("too_large")), "{reply:#}");
    let failed = session.dataset("counted").await;
    assert_eq!(failed["status"], "FAILED");
    assert!(text(&failed["reason"]).contains("BELLJAR_DATASET_SIZE"), "{failed:#}");
    assert_eq!(session.dataset("declared").await, Value::Null, "it was never begun");

    // A client that sends the body without waiting gets the error too.
    session.put("sent", vec![b'x'; 8 << 20]).await.error(413, "too_large");
    session.put(".hidden", vec![b'x'; 8 << 20]).await.error(422, "invalid");
    session.put("most", vec![b'x'; 1 << 20]).await.json(200);
    assert_eq!(session.all_in("/session/data").await, ["most"]);
    assert!(super::incoming(&server.installation).is_empty());
}
