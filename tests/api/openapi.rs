//! The description of the API that is checked in is the one the code gives.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::server::Server;

const CHECKED_IN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../openapi/belljar.json");

#[test]
fn the_document_is_that_of_the_code() {
    let document = serde_json::to_string_pretty(&belljar_api::openapi()).expect("JSON") + "\n";
    if std::env::var_os("BLESS").is_some() {
        fs::create_dir_all(Path::new(CHECKED_IN).parent().expect("a directory")).expect("made");
        fs::write(CHECKED_IN, &document).expect("written");
    }
    let checked_in = fs::read_to_string(CHECKED_IN).unwrap_or_default();
    assert!(
        checked_in == document,
        "the API has changed; look at the difference after \
         `BLESS=1 cargo nextest run --test api openapi`"
    );
}

#[tokio::test]
async fn it_is_served_and_complete() {
    let server = Server::start().await;
    let served = server.get("/openapi.json").await.json(200);
    let checked_in: Value =
        serde_json::from_str(&fs::read_to_string(CHECKED_IN).expect("a file")).expect("JSON");
    assert_eq!(served, checked_in);
    // Whatever a reference points at is there.
    let text = served.to_string();
    for reference in text.split("\"$ref\":\"#").skip(1) {
        let pointer = reference.split('"').next().expect("a pointer");
        assert!(served.pointer(pointer).is_some(), "nothing at {pointer}");
    }
    // Every operation that it names exists, and refuses what makes no sense in JSON.
    for (path, operations) in served["paths"].as_object().expect("paths") {
        let path = path.replace("{id}", "ses_none").replace("{exec}", "exec_none");
        for method in operations.as_object().expect("operations").keys() {
            let method = method.to_uppercase().parse().expect("a method");
            let answer = server.send(server.request(method, &path, "")).await;
            assert_ne!(answer.status, 405, "{path}");
            // An answer to HEAD has no body to look at.
            if path.contains("_none") && answer.status == 404 && !answer.body.is_empty() {
                let what = if path.contains("/sessions/") { "session" } else { "artifact" };
                assert_eq!(
                    answer.error(404, &format!("{what}_not_found")),
                    format!("there is no {what} `ses_none`")
                );
            }
        }
    }
}
