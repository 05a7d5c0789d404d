//! Artifacts: files that code leaves, from the sandbox to the download.

mod disks;
mod downloads;
mod files_in_use;
mod forgetting;
mod hostile;
mod kills;
mod links;
mod many;
mod quotas;
mod results;
mod s3;
mod shown;
mod taking;
mod tenants;

use std::fs;
use std::path::PathBuf;

use hyper::Method;
use hyper::header::{HeaderName, HeaderValue};
use serde_json::{Value, json};

use belljar_testkit::client::{Answer, Client};
use belljar_testkit::installation::Installation;
use belljar_testkit::session::Session;
use belljar_testkit::values::text;

/// The directory where code leaves artifacts.
const DIRECTORY: &str = "/session/artifacts/";

/// Artifacts of a result, by path relative to the directory, in the reported order.
#[track_caller]
fn reply(result: &Value) -> Vec<&str> {
    let artifacts = list(&result["artifacts"]);
    artifacts.iter().map(|artifact| below(text(&artifact["path"]))).collect()
}

/// Refused files of a result: path and reason.
fn refused(result: &Value) -> Vec<(&str, &str)> {
    let refused = result["artifacts_refused"].as_array().map(Vec::as_slice).unwrap_or_default();
    refused.iter().map(|one| (below(text(&one["path"])), text(&one["reason"]))).collect()
}

/// Why this file was not taken.
#[track_caller]
fn reason<'a>(result: &'a Value, path: &str) -> &'a str {
    let refused = refused(result);
    let found = refused.iter().find(|(refused, _)| *refused == path);
    found.unwrap_or_else(|| panic!("{path} was not refused: {result:#}")).1
}

fn below(path: &str) -> &str {
    path.strip_prefix(DIRECTORY).unwrap_or(path)
}

#[track_caller]
fn list(value: &Value) -> &[Value] {
    value.as_array().unwrap_or_else(|| panic!("not a list: {value:#}"))
}

/// The one artifact of a result.
#[track_caller]
fn only(result: &Value) -> &Value {
    let [artifact] = list(&result["artifacts"]) else { panic!("not one: {result:#}") };
    artifact
}

/// The link to an artifact without the server's address, which changes after a restart.
#[track_caller]
fn link(artifact: &Value) -> String {
    let url = text(&artifact["url"]);
    let at = url.find("/artifacts/").unwrap_or_else(|| panic!("no link: {url}"));
    url[at..].to_owned()
}

/// The same link with another token.
fn with_token(link: &str, token: &str) -> String {
    let (path, _) = link.split_once("?token=").expect("a link");
    format!("{path}?token={token}")
}

fn token(link: &str) -> &str {
    link.split_once("?token=").expect("a link").1
}

/// Sends a request with these headers.
async fn ask(client: &Client, method: Method, path: &str, headers: &[(&str, &str)]) -> Answer {
    let mut request = client.request(method, path, "");
    for (name, value) in headers {
        let name = HeaderName::try_from(*name).expect("a name");
        request.headers_mut().insert(name, HeaderValue::from_str(value).expect("a value"));
    }
    client.send(request).await
}

/// Paths of all stored blobs, sorted.
fn blobs(installation: &Installation) -> Vec<PathBuf> {
    let mut paths = Vec::new();
    let entries = |path: PathBuf| {
        fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path())
    };
    for tenant in entries(installation.path("blobstore")) {
        if tenant.file_name().is_some_and(|name| name != "incoming") {
            paths.extend(entries(tenant).flat_map(entries));
        }
    }
    paths.sort();
    paths
}

/// A session that leaves artifacts.
trait ArtifactSession {
    /// Leaves a file with this content, and nothing else.
    async fn leaves(&self, name: &str, content: &str) -> Value;

    /// The directory's content as the sandbox sees it.
    async fn inside(&self) -> String;
}

impl ArtifactSession for Session {
    async fn leaves(&self, name: &str, content: &str) -> Value {
        let code = format!(
            "import os\npath = '{DIRECTORY}' + {}\n\
             os.makedirs(os.path.dirname(path), exist_ok=True)\n\
             with open(path, 'w') as file: file.write({})",
            json!(name),
            json!(content)
        );
        let result = self.python(&code).await;
        assert_eq!(result["status"], "ok", "{result:#}");
        result
    }

    async fn inside(&self) -> String {
        let found = self.shell("find artifacts ! -type d | LC_ALL=C sort").await;
        text(&found["stdout"]).replace("artifacts/", "").trim_end().replace('\n', " ")
    }
}
