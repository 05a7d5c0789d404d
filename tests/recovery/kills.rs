//! kill -9 at random points of a busy server, fifty times.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::worker::{Dice, Worker};
use belljar_testkit::installation::Installation;
use belljar_testkit::port::free_port;
use belljar_testkit::wait::eventually;
use tokio::task::JoinHandle;

const KILLS: u64 = 50;
const WORKERS: u64 = 4;

/// Sessions and variables are kept. What was accepted is executed once and its output is complete.
/// What was stopped stays stopped. In the end nothing is left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_killed_fifty_times_loses_nothing() {
    let seed = std::env::var("RECOVERY_SEED").ok().and_then(|text| text.parse().ok());
    let seed: u64 = seed.unwrap_or_else(|| u64::from(std::process::id()));
    eprintln!("RECOVERY_SEED={seed}");
    let mut dice = Dice::new(seed);
    let port = free_port();
    let installation = Installation::new()
        .env("BELLJAR_LISTEN", &format!("127.0.0.1:{port}"))
        .env("BELLJAR_POOL", "2")
        .env("BELLJAR_LOG", "warn");
    let installation = Arc::new(installation);
    let mut server = installation.serve().await;
    let total = Arc::new(AtomicU64::new(0));
    let over = Arc::new(AtomicBool::new(false));
    let mut working = Vec::new();
    for n in 0..WORKERS {
        let name = format!("worker{n}");
        let begun = Worker::begin(&name, port, seed + n, Arc::clone(&total));
        let (mut worker, over) = (begun.await, Arc::clone(&over));
        working.push(tokio::spawn(async move {
            while !over.load(Ordering::Relaxed) {
                worker.work().await;
            }
            worker
        }));
    }
    for kill in 0..KILLS {
        let done = total.load(Ordering::Relaxed);
        // At a random moment, from the start of a new server to its ordinary work.
        tokio::time::sleep(Duration::from_millis(dice.below(400))).await;
        if kill % 2 == 1 {
            let is_done = async || {
                total.load(Ordering::Relaxed) > done || working.iter().any(JoinHandle::is_finished)
            };
            eventually("a worker has done something", is_done).await;
        }
        let installation = server.kill().await;
        server = installation.serve().await;
        if let Some(worker) = working.iter().position(JoinHandle::is_finished) {
            working.swap_remove(worker).await.expect("a worker goes on");
        }
    }
    over.store(true, Ordering::Relaxed);
    for worker in working {
        worker.await.expect("no worker has met a lie").check().await;
    }
    let done = total.load(Ordering::Relaxed);
    assert!(done >= KILLS / 2, "too little work between the kills: {done}");
    eprintln!("{done} pieces of work");

    // Only live sessions may have left traces. After all of them are stopped, nothing is left.
    for session in server.get("/v1/sessions?limit=1000").await.json(200)["sessions"]
        .as_array()
        .expect("a list")
    {
        let id = session["id"].as_str().expect("an id");
        server.delete(&format!("/v1/sessions/{id}")).await.json(200);
    }
    server.terminate().await;
    installation.has_no_traces().await;
}
