//! A cluster of real processes: nodes, gateways, Postgres and S3, each in its own network namespace, and faults.

mod checker;
mod deaths;
mod faults;
mod figures;
mod history;
mod migration;
mod moves;
mod outages;
mod random;
mod routes;
mod suites;
mod workload;

use std::time::Instant;

use belljar_testkit::client::Answer;
use belljar_testkit::session::Session;
use belljar_testkit::wait::PATIENCE;
use serde_json::Value;

/// Skips the current test if this machine cannot run clusters.
#[macro_export]
macro_rules! skip_without_cluster {
    () => {
        if let Some(why) = belljar_testkit::cluster::is_impossible() {
            belljar_testkit::skip!("{why}");
        }
    };
}

/// Executes something once, and repeats the request while the answer is 503 or 502. Returns the first other answer.
async fn answer_after(session: &Session, mut ask: Value) -> Answer {
    let deadline = Instant::now() + PATIENCE;
    let random = belljar_sys::process::random_name();
    ask["exec_id"] = random[..16].into();
    loop {
        let answer = session.exec(ask.clone()).await;
        if !matches!(answer.status, 502 | 503) {
            return answer;
        }
        assert!(Instant::now() < deadline, "never another answer: {answer}");
        let pause = if answer.status == 503 { answer.retry_after() } else { 1 };
        tokio::time::sleep(std::time::Duration::from_secs(u64::from(pause)) / 4).await;
    }
}

/// The result of an execution that has to succeed.
async fn answered(session: &Session, ask: Value) -> Value {
    let result = answer_after(session, ask).await.json(200);
    assert_eq!(result["status"], "ok", "{result:#}");
    result
}
