//! An API server that answers as Kubernetes does.

use std::collections::VecDeque;
use std::sync::Mutex;

use axum::body::Body;
use axum::extract::{RawQuery, State};
use axum::http::HeaderMap;
use axum::response::IntoResponse as _;
use axum::{Router, routing};
use futures_util::stream;
use serde_json::{Value, json};

use super::*;

fn pod(uid: &str, phase: &str, states: &[&str]) -> Value {
    let containers: Vec<Value> = states
        .iter()
        .map(|state| json!({"name": "c", "state": {*state: {"exitCode": 1}}}))
        .collect();
    json!({"metadata": {"uid": uid, "resourceVersion": "7"},
           "status": {"phase": phase, "containerStatuses": containers}})
}

fn is_dead(pod: Value) -> bool {
    Pod::deserialize(pod).unwrap().is_dead()
}

#[test]
fn only_ended_containers_of_an_ended_pod_are_a_proof() {
    assert!(is_dead(pod("a", "Failed", &["terminated"])));
    assert!(is_dead(pod("a", "Succeeded", &["terminated", "terminated"])));
    assert!(!is_dead(pod("a", "Running", &["terminated"])), "it starts again");
    assert!(!is_dead(pod("a", "Failed", &["running"])), "deleted by force");
    assert!(!is_dead(pod("a", "Failed", &["terminated", "running"])));
    assert!(!is_dead(pod("a", "Failed", &[])));
    assert!(!is_dead(json!({"metadata": {"uid": "a"}})));
}

/// The answers to the requests to come, and the requests that came.
#[derive(Default)]
struct ApiServer {
    answers: Mutex<VecDeque<Result<String, u16>>>,
    requests: Mutex<Vec<String>>,
}

async fn answer(
    State(server): State<Arc<ApiServer>>,
    headers: HeaderMap,
    RawQuery(query): RawQuery,
) -> axum::response::Response {
    assert_eq!(headers["authorization"], "Bearer secret");
    server.requests.lock().unwrap().push(query.unwrap_or_default());
    let next = server.answers.lock().unwrap().pop_front();
    match next {
        // In small pieces, so that lines are cut anywhere.
        Some(Ok(text)) => {
            let size = (text.len() / 100).max(7);
            let pieces: Vec<Vec<u8>> = text.as_bytes().chunks(size).map(<[u8]>::to_vec).collect();
            Body::from_stream(stream::iter(pieces.into_iter().map(Ok::<_, io::Error>)))
                .into_response()
        }
        Some(Err(status)) => axum::http::StatusCode::from_u16(status).unwrap().into_response(),
        None => std::future::pending().await,
    }
}

/// The UIDs of dead pods, and the error at the end.
async fn followed(answers: Vec<Result<String, u16>>) -> (Vec<String>, String, Vec<String>) {
    let server = Arc::new(ApiServer { answers: Mutex::new(answers.into()), ..Default::default() });
    let router = Router::new()
        .route("/api/v1/namespaces/prod/pods", routing::get(answer))
        .with_state(Arc::clone(&server));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let serving = tokio::spawn(async move { axum::serve(listener, router).await });
    let account = tempfile::tempdir().unwrap();
    std::fs::write(account.path().join("namespace"), "prod\n").unwrap();
    std::fs::write(account.path().join("token"), "secret\n").unwrap();
    let (authority, _) = tls::create_authority().unwrap();
    std::fs::write(account.path().join("ca.crt"), authority).unwrap();
    let url = format!("http://{address}");
    let watch = PodWatch::new(&url, account.path(), "component=node".into()).unwrap();
    let (sender, mut receiver) = mpsc::channel(QUEUED);
    let error = watch.follow(&sender).await.unwrap_err();
    serving.abort();
    let dead = std::iter::from_fn(|| receiver.try_recv().ok()).collect();
    let requests = server.requests.lock().unwrap().clone();
    (dead, error.to_string(), requests)
}

fn list(pods: &[Value]) -> Result<String, u16> {
    Ok(json!({"metadata": {"resourceVersion": "41"}, "items": pods}).to_string())
}

fn events(events: &[(&str, Value)]) -> Result<String, u16> {
    let line =
        |(kind, object): &(&str, Value)| format!("{}\n", json!({"type": kind, "object": object}));
    Ok(events.iter().map(line).collect())
}

#[tokio::test]
async fn dead_pods_are_found_in_the_list_and_in_the_watch() {
    let (dead, error, requests) = followed(vec![
        list(&[pod("listed", "Failed", &["terminated"]), pod("lives", "Running", &["running"])]),
        events(&[
            ("MODIFIED", pod("watched", "Failed", &["terminated"])),
            ("DELETED", pod("forced", "Running", &["running"])),
            ("DELETED", pod("deleted", "Succeeded", &["terminated"])),
        ]),
        // The watch ended, so the pods are listed again.
        list(&[]),
        events(&[("ERROR", json!({"code": 410, "message": "too old resource version"}))]),
    ])
    .await;
    assert_eq!(dead, ["listed", "watched", "deleted"]);
    assert!(error.contains("too old resource version"), "{error}");
    assert_eq!(requests[0], "labelSelector=component%3Dnode");
    assert!(
        requests[1].contains("watch=true&resourceVersion=41&timeoutSeconds=300"),
        "{requests:?}"
    );
}

#[tokio::test]
async fn a_refusal_or_garbage_is_an_error() {
    let (dead, error, _) = followed(vec![Err(403)]).await;
    assert!(dead.is_empty() && error.contains("did not answer"), "{error}");
    let (_, error, _) = followed(vec![list(&[]), Ok("{\"type\": \n".into())]).await;
    assert!(error.contains("not JSON"), "{error}");
    let (_, error, _) = followed(vec![list(&[]), Ok("x".repeat(MAX_EVENT + 9))]).await;
    assert!(error.contains("more than"), "{error}");
}
