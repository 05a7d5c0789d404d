//! Datasets over HTTP: uploads, what code and callers see, and exports.

mod broken;
mod cache;
mod export;
mod hostile;
mod list;
mod modes;
mod names;
mod origin;
mod sources;
mod upload;

use std::path::PathBuf;
use std::pin::Pin;

use belljar_engine::artifacts::Digest;
use hyper::Method;
use hyper::body::Bytes;
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use belljar_testkit::client::{Answer, Target, Wire};
use belljar_testkit::installation::Installation;
use belljar_testkit::server::Server;
use belljar_testkit::session::Session;
use belljar_testkit::values::{names, text};
use belljar_testkit::wait::PATIENCE;

/// A server whose sessions accept datasets.
async fn serve(env: &[(&str, &str)]) -> Server {
    let installation = Installation::new().env("DATASET_ACCESS", "API");
    let installation =
        env.iter().fold(installation, |installation, (name, value)| installation.env(name, value));
    std::sync::Arc::new(installation).serve().await
}

fn sha256(content: impl AsRef<[u8]>) -> String {
    Digest::of(content.as_ref()).to_string()
}

/// Files that are being written into the cache.
fn incoming(installation: &Installation) -> Vec<String> {
    names(&installation.path("cache/incoming"))
}

/// The path of cached content, of any tenant.
fn cached(installation: &Installation, sha256: &str) -> Option<PathBuf> {
    let tenants = names(&installation.path("cache")).into_iter();
    let mut paths = tenants.map(|tenant| installation.path("cache").join(tenant).join(sha256));
    paths.find(|path| path.exists())
}

/// Requests for the datasets of a session.
trait DatasetSession {
    /// Uploads a dataset. `name` is as in the URL, and may have a query.
    async fn put(&self, name: &str, content: impl Into<Bytes>) -> Answer;

    async fn post_datasets(&self, ask: Value) -> Answer;

    async fn datasets(&self) -> Value;

    /// The list's entry of one dataset, or null.
    async fn dataset(&self, name: &str) -> Value;

    async fn status(&self, name: &str) -> Value;

    async fn export(&self, ask: Value) -> Value;

    /// Everything in a directory, hidden or not.
    async fn all_in(&self, directory: &str) -> Vec<String>;

    /// Begins an upload: sends only the head, with these `headers`.
    async fn begin_put(&self, name: &str, headers: &str) -> Sending;
}

impl DatasetSession for Session {
    async fn put(&self, name: &str, content: impl Into<Bytes>) -> Answer {
        let path = self.path(&format!("/datasets/{name}"));
        self.client.send(self.client.request(Method::PUT, &path, content)).await
    }

    async fn post_datasets(&self, ask: Value) -> Answer {
        self.client.post(&self.path("/datasets"), ask).await
    }

    async fn datasets(&self) -> Value {
        self.client.get(&self.path("/datasets")).await.json(200)
    }

    async fn dataset(&self, name: &str) -> Value {
        let list = self.datasets().await;
        let mut all = list["datasets"].as_array().expect("a list").iter();
        all.find(|dataset| dataset["name"] == name).cloned().unwrap_or_default()
    }

    async fn status(&self, name: &str) -> Value {
        self.dataset(name).await["status"].take()
    }

    async fn export(&self, ask: Value) -> Value {
        self.client.post(&self.path("/datasets/export"), ask).await.json(200)
    }

    async fn all_in(&self, directory: &str) -> Vec<String> {
        let found = self.shell(&format!("find {directory} -mindepth 1 -printf '%P\\n'")).await;
        let mut names: Vec<String> = text(&found["stdout"]).lines().map(str::to_owned).collect();
        names.sort();
        names
    }

    async fn begin_put(&self, name: &str, headers: &str) -> Sending {
        let Target::Tcp(address) = self.client.target else { panic!("no address") };
        let path = self.path(&format!("/datasets/{name}"));
        let mut sending = Sending(self.client.dial().await);
        let head = format!("PUT {path} HTTP/1.1\r\nHost: {address}\r\n{headers}\r\n\r\n");
        sending.send(head).await;
        sending
    }
}

/// A request whose body is sent in pieces. Dropping it closes the connection.
struct Sending(Pin<Box<dyn Wire>>);

impl Sending {
    async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        let sending = tokio::time::timeout(PATIENCE, async {
            self.0.write_all(bytes.as_ref()).await?;
            self.0.flush().await
        });
        sending.await.expect("it is taken").expect("it is taken");
    }

    /// The status and the body of the response, which ends when it is complete or the server
    /// closes.
    async fn answer(mut self) -> (u16, Value) {
        let mut answer = Vec::new();
        let reading = async {
            loop {
                if let Some(parsed) = parse(&answer) {
                    return parsed;
                }
                let length = self.0.read_buf(&mut answer).await.expect("an answer");
                assert_ne!(length, 0, "half an answer: {}", String::from_utf8_lossy(&answer));
            }
        };
        tokio::time::timeout(PATIENCE, reading).await.expect("an answer")
    }
}

/// A JSON response, if it is complete.
fn parse(answer: &[u8]) -> Option<(u16, Value)> {
    let text = std::str::from_utf8(answer).ok()?;
    let (head, body) = text.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    if status == 100 {
        return parse(body.as_bytes());
    }
    Some((status, serde_json::from_str(body).ok()?))
}

/// Every line contains the seed, so that mixed content is detected.
fn numbered(seed: u32, length: usize) -> Vec<u8> {
    let mut bytes = format!("{seed:08}\n").repeat(length / 9 + 1).into_bytes();
    bytes.truncate(length);
    bytes
}

/// A Parquet file with columns `a` and `b`; only its footer is valid.
fn parquet(rows: u8) -> Vec<u8> {
    let mut footer = vec![0x15, 2, 0x19, 0x3c];
    footer.extend(b"\x48\x06schema\x15\x04\0");
    footer.extend(b"\x15\x02\x38\x01a\0");
    footer.extend(b"\x15\x02\x38\x01b\0");
    footer.extend([0x16, rows * 2, 0]);
    let length = u32::try_from(footer.len()).expect("a small one").to_le_bytes();
    [b"PAR1", &footer[..], &length, b"PAR1"].concat()
}

/// A dataset's entry without the fields that differ between test runs.
fn steady(mut entry: Value) -> Value {
    let modified = entry.as_object_mut().and_then(|entry| entry.remove("modified"));
    assert!(modified.as_ref().map(text).is_some_and(|time| time.ends_with('Z')), "{entry:#}");
    entry
}
