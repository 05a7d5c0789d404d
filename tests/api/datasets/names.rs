//! Valid and invalid names of datasets.

use serde_json::json;

use super::DatasetSession as _;
use super::serve;
use belljar_testkit::values::text;

#[tokio::test]
async fn names_are_kept_as_they_are_written() {
    let server = serve(&[]).await;
    let session = server.session().await;
    for (in_url, name) in [
        ("plain", "plain"),
        ("2024/q1/sales.csv", "2024/q1/sales.csv"),
        ("2024%2Fq2%2Fsales.csv", "2024/q2/sales.csv"),
        ("gr%C3%B6%C3%9Fe%20%E2%98%83.csv", "größe ☃.csv"),
        ("two%20words.csv", "two words.csv"),
        ("plus+and&and=.csv", "plus+and&and=.csv"),
        ("100%25.csv", "100%.csv"),
        ("%2541.csv", "%41.csv"),
        ("-rf", "-rf"),
        ("$(touch%20x);%20'%22.csv", "$(touch x); '\".csv"),
        // Not confused with the call `export`.
        ("export", "export"),
        ("dir/export", "dir/export"),
    ] {
        let answer = session.put(in_url, name.to_owned()).await.json(200);
        let path = format!("/session/data/{name}");
        assert_eq!((text(&answer["name"]), text(&answer["path"])), (name, path.as_str()));
        let read = format!("print(open({path:?}).read(), end='')");
        assert_eq!(session.printed(&read).await, name);
        assert_eq!(session.dataset(name).await["path"], path);
    }
    let long = "x".repeat(200);
    let deep = ["d"; 8].join("/");
    for name in [&long, &deep] {
        assert_eq!(session.put(name, "x").await.json(200)["name"], **name);
    }
}

#[tokio::test]
async fn names_that_lead_elsewhere_or_hide_are_refused() {
    let server = serve(&[]).await;
    let session = server.session().await;
    let long = "x".repeat(201);
    let deep = ["d"; 9].join("/");
    for bad in [
        "..",
        "%2e%2e",
        "../x",
        "..%2Fx",
        "a/../b",
        "a/%2e%2e/%2e%2e/b",
        "%2Fetc%2Fpasswd",
        "a//b",
        ".",
        ".hidden",
        "a/.hidden/b",
        "a%00b",
        "a%0Ab",
        "a%1Bb",
        "a%7Fb",
        "a%C2%85b",
        "a%5Cb",
        "%5C%5Chost%5Cshare",
        "a%2F",
        long.as_str(),
        deep.as_str(),
    ] {
        let message = session.put(bad, "x").await.error(422, "invalid");
        assert!(message.contains("name"), "{bad}: {message}");
        let known = format!("{bad}?sha256={}", super::sha256("x"));
        session.put(&known, "").await.error(422, "invalid");
    }
    for bad in ["a%FFb", "a%FF/b"] {
        let answer = session.put(bad, "x").await;
        assert!((400..500).contains(&answer.status), "{answer}");
    }
    // An empty name is invalid on every route that it could match.
    for nothing in ["", "a/"] {
        let answer = session.put(nothing, "x").await;
        assert!([404, 405, 422].contains(&answer.status), "{answer}");
    }
    for bad in ["..", "/etc/passwd", ".x", "", "a\\b", "a\u{0}b"] {
        session.post_datasets(json!({"dataset": bad})).await.error(422, "invalid");
        let ask = json!({"datasets": [bad]});
        let path = session.path("/datasets/export");
        server.post(&path, ask).await.error(422, "invalid");
    }
    assert_eq!(session.all_in("/session/data").await, Vec::<String>::new());
    let list = session.datasets().await;
    assert_eq!(list["datasets"], json!([]));
    assert!(text(&list["message"]).contains("no datasets"), "{list:#}");
}
