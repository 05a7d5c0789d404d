//! The checked-in description of the API is the one that the code generates.

use std::fs;
use std::path::Path;

use serde_json::Value;

use belljar_testkit::openapi::check;
use belljar_testkit::server::Server;

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
    // Every reference has a target.
    let text = served.to_string();
    for reference in text.split("\"$ref\":\"#").skip(1) {
        let pointer = reference.split('"').next().expect("a pointer");
        assert!(served.pointer(pointer).is_some(), "nothing at {pointer}");
    }
    // Every listed operation exists, and its refusals are JSON.
    for (path, operations) in served["paths"].as_object().expect("paths") {
        let path = path.replace("{id}", "ses_none").replace("{exec}", "exec_none");
        for method in operations.as_object().expect("operations").keys() {
            let method = method.to_uppercase().parse().expect("a method");
            let answer = server.send(server.request(method, &path, "")).await;
            assert_ne!(answer.status, 405, "{path}");
            // A response to HEAD has no body.
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

#[test]
fn an_answer_that_the_document_does_not_name_is_noticed() {
    // All of these responses are in the document.
    check("GET", "/v1/sessions/ses_1", 404);
    check("PUT", "/v1/sessions/ses_1/files/a/b%20c?mode=755", 507);
    check("PUT", "/v1/sessions/ses_1/datasets/export", 413);
    check("POST", "/v1/sessions/ses_1/datasets/export", 409);
    // None of these is an operation.
    check("GET", "/nowhere", 404);
    check("DELETE", "/v1/sessions", 405);
    for (method, path, status) in [
        ("GET", "/v1/sessions/ses_1", 410),
        ("POST", "/v1/sessions/ses_1/exec?x", 418),
        ("PUT", "/v1/sessions/ses_1/files/a/b", 201),
        ("GET", "/healthz", 401),
    ] {
        let noticed = std::panic::catch_unwind(|| check(method, path, status));
        assert!(noticed.is_err(), "{method} {path} {status}");
    }
}

#[test]
fn operations_have_names_links_and_examples() {
    let document = belljar_api::openapi();
    let mut names = std::collections::BTreeSet::new();
    for operations in document["paths"].as_object().expect("paths").values() {
        for (method, operation) in operations.as_object().expect("operations") {
            let name = operation["operationId"].as_str().expect("a name");
            assert!(names.insert(name.to_owned()), "two are called {name}");
            for (status, answer) in operation["responses"].as_object().expect("answers") {
                assert!(answer["description"].is_string(), "{method} {name}: {status}");
            }
        }
    }
    let links = |path: &str, status: &str| {
        let links = &document["paths"][path]["post"]["responses"][status]["links"];
        links.as_object().expect("links").clone()
    };
    let of_session = links("/v1/sessions", "201");
    for (next, link) in of_session.iter().chain(&links("/v1/sessions/{id}/exec", "200")) {
        assert_eq!(link["operationId"], next.as_str());
        assert!(names.contains(next), "{next} is no operation");
    }
    for next in ["execs_exec", "sessions_state", "sessions_stop", "sessions_fork", "browser_goto"] {
        assert!(of_session.contains_key(next), "no link to {next}");
    }
    let body = &document["paths"]["/v1/sessions"]["post"]["requestBody"];
    assert_eq!(body["required"], false);
    assert!(body["content"]["application/json"]["example"].is_object());
    let exec = &document["paths"]["/v1/sessions/{id}/exec"]["post"]["requestBody"];
    assert_eq!(exec["required"], true);
}
