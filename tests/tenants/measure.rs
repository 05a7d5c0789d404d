//! Measures how long a tenant waits for answers.

use std::fmt;
use std::time::{Duration, Instant};

use serde_json::json;

use belljar_testkit::client::Client;
use belljar_testkit::session::Session;

/// Sorted latencies of each kind of request.
#[derive(Debug, Default)]
pub(crate) struct Latencies {
    exec: Vec<Duration>,
    create: Vec<Duration>,
    list: Vec<Duration>,
    stream: Vec<Duration>,
    upload: Vec<Duration>,
}

impl Latencies {
    fn each(&self) -> [(&'static str, &Vec<Duration>); 5] {
        [
            ("exec", &self.exec),
            ("create", &self.create),
            ("list", &self.list),
            ("stream", &self.stream),
            ("upload", &self.upload),
        ]
    }

    /// The p99 latency of each kind; with few samples, the slowest.
    pub(crate) fn p99s(&self) -> [(&'static str, Duration); 5] {
        self.each().map(|(name, sorted)| {
            let at = (sorted.len() * 99).div_ceil(100).saturating_sub(1);
            (name, sorted[at])
        })
    }
}

impl fmt::Display for Latencies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for ((name, sorted), (_, p99)) in self.each().into_iter().zip(self.p99s()) {
            let median = sorted[sorted.len() / 2];
            write!(f, "{name} {}/{} ms  ", median.as_millis(), p99.as_millis())?;
        }
        f.write_str("(median/p99)")
    }
}

pub(crate) async fn measure(client: &Client, session: &Session, samples: usize) -> Latencies {
    let mut latencies = Latencies::default();
    for _ in 0..samples {
        latencies.exec.push(timed(session.python("1 + 1")).await);
        latencies.list.push(timed(client.get("/v1/sessions")).await);
        let log = session.path("/log?limit=5");
        latencies.list.push(timed(client.get(&log)).await);
        latencies.stream.push(timed(stream(client, session)).await);
        let put = client.request(hyper::Method::PUT, &session.path("/files/file"), "hello");
        latencies.upload.push(timed(client.send(put)).await);
        let mut made = None;
        let create = async { made = Some(client.session_with(json!({})).await) };
        latencies.create.push(timed(create).await);
        if let Some(made) = made {
            made.stop().await;
        }
    }
    let Latencies { exec, create, list, stream, upload } = &mut latencies;
    [exec, create, list, stream, upload].into_iter().for_each(|times| times.sort_unstable());
    latencies
}

async fn timed<T>(doing: impl Future<Output = T>) -> Duration {
    let begun = Instant::now();
    doing.await;
    begun.elapsed()
}

/// From the request to the last event.
async fn stream(client: &Client, session: &Session) {
    let ask = json!({"code": "for n in range(100): print(n, flush=True)"});
    let events = client.post_stream(&session.path("/exec"), ask).await.rest().await;
    assert_eq!(events.last().expect("events").name, "done");
}
