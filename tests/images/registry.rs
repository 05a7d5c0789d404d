//! Registries: `docker-registry` from Debian, and one that misbehaves.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use crate::fixture::{Small, digest};
use belljar_testkit::port::free_address;
use belljar_testkit::wait::eventually_blocking;

/// The user `anna` with the password `secret`.
const USERS: &str = "anna:$2b$04$DCuq/STzFIUQ3tHiehPyvej.WeX.oHbMjZPhuaa4QgfkofCdSg1yi\n";

/// An empty `docker-registry` on loopback.
pub(crate) struct Registry {
    process: Child,
    pub(crate) address: String,
    _directory: tempfile::TempDir,
}

impl Registry {
    pub(crate) fn start() -> Registry {
        Registry::start_with("")
    }

    /// Requires a user name and a password.
    pub(crate) fn start_private() -> Registry {
        Registry::start_with("auth:\n  htpasswd:\n    realm: test\n    path: DIR/users\n")
    }

    fn start_with(more: &str) -> Registry {
        let directory = tempfile::tempdir().expect("a directory");
        let address = free_address();
        let installation = directory.path().display().to_string();
        let config = format!(
            "version: 0.1\nlog:\n  level: error\nstorage:\n  filesystem:\n    rootdirectory: \
             {installation}/data\nhttp:\n  addr: {address}\n{}",
            more.replace("DIR", &installation)
        );
        std::fs::write(directory.path().join("config.yml"), config).expect("a file");
        std::fs::write(directory.path().join("users"), USERS).expect("a file");
        let process = Command::new("docker-registry")
            .arg("serve")
            .arg(directory.path().join("config.yml"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("docker-registry is installed (scripts/prepare-system does it)");
        let registry = Registry { process, address, _directory: directory };
        eventually_blocking("the registry listens", || {
            TcpStream::connect(&registry.address).is_ok()
        });
        registry
    }

    /// Uploads an image under a tag.
    pub(crate) fn push(&self, repository: &str, tag: &str, image: &Small) {
        for blob in [&image.layer, &image.config] {
            self.push_blob(repository, blob);
        }
        let kind = "application/vnd.oci.image.manifest.v1+json";
        self.push_manifest(repository, tag, kind, &image.manifest);
    }

    pub(crate) fn push_manifest(&self, repository: &str, tag: &str, kind: &str, bytes: &[u8]) {
        let path = format!("/v2/{repository}/manifests/{tag}");
        let (status, _) = self.ask("PUT", &path, kind, bytes);
        assert_eq!(status, 201, "{tag}");
    }

    fn push_blob(&self, repository: &str, bytes: &[u8]) {
        let (status, head) = self.ask("POST", &format!("/v2/{repository}/blobs/uploads/"), "", b"");
        assert_eq!(status, 202);
        let location = head
            .lines()
            .find_map(|line| line.strip_prefix("Location: "))
            .expect("it says where")
            .trim();
        let path = location.split_once(&self.address).map_or(location, |(_, path)| path);
        let joint = if path.contains('?') { '&' } else { '?' };
        let path = format!("{path}{joint}digest={}", digest(bytes));
        let (status, _) = self.ask("PUT", &path, "application/octet-stream", bytes);
        assert_eq!(status, 201);
    }

    fn ask(&self, method: &str, path: &str, kind: &str, body: &[u8]) -> (u16, String) {
        let mut stream = TcpStream::connect(&self.address).expect("it listens");
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nContent-Type: {kind}\r\nContent-Length: \
             {}\r\nConnection: close\r\n\r\n",
            self.address,
            body.len()
        );
        stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body)).expect("sent");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).expect("it answers");
        let answer = String::from_utf8_lossy(&answer).into_owned();
        let status = answer.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status");
        (status, answer)
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// How `Impostor` sends the layer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Manners {
    /// Sends other bytes than were requested.
    Lies,
    /// Stops half-way, once. The rest can be requested.
    CutsOff,
    /// Stops half-way, always at the same place.
    NeverFinishes,
    /// Sends more than the manifest announces.
    SendsMore,
}

/// A registry with one image called `small`, which misbehaves as its `Manners` say.
pub(crate) struct Impostor {
    pub(crate) address: String,
    /// Requested paths, with the start of the range.
    pub(crate) asked: Arc<Mutex<Vec<String>>>,
}

impl Impostor {
    pub(crate) fn start(image: &Small, manners: Manners) -> Impostor {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address").to_string();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let mut things: HashMap<String, Vec<u8>> = HashMap::new();
        things.insert("/v2/small/manifests/1".into(), image.manifest.clone());
        things.insert(format!("/v2/small/blobs/{}", digest(&image.config)), image.config.clone());
        let layer = format!("/v2/small/blobs/{}", digest(&image.layer));
        things.insert(layer.clone(), image.layer.clone());
        things.insert("/v2/".into(), b"{}".to_vec());
        let noted = Arc::clone(&asked);
        std::thread::spawn(move || {
            let mut cuts = 0;
            for stream in listener.incoming() {
                let Ok(stream) = stream else { return };
                let Some((path, from)) = read_request(&stream) else { continue };
                noted.lock().expect("nobody panics").push(format!("{path} from {from}"));
                let Some(content) = things.get(&path) else {
                    let _ = (&stream).write_all(
                        b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
                    );
                    continue;
                };
                let mut content = content.clone();
                let mut sent = content.len();
                if path == layer {
                    match manners {
                        Manners::Lies => content.reverse(),
                        Manners::SendsMore => content.extend_from_slice(b"and more"),
                        Manners::CutsOff if cuts == 0 => sent = content.len() / 2,
                        Manners::NeverFinishes => sent = content.len() / 2,
                        Manners::CutsOff => {}
                    }
                    cuts += 1;
                }
                if manners == Manners::SendsMore {
                    sent = content.len();
                }
                answer(&stream, &content, from, sent);
            }
        });
        Impostor { address, asked }
    }
}

/// The requested path, and the start of the range.
fn read_request(stream: &TcpStream) -> Option<(String, usize)> {
    let mut lines = BufReader::new(stream).lines();
    let path = lines.next()?.ok()?.split(' ').nth(1)?.to_owned();
    let mut from = 0;
    for line in lines {
        let line = line.ok()?.to_ascii_lowercase();
        if line.is_empty() {
            break;
        }
        if let Some(range) = line.strip_prefix("range: bytes=") {
            from = range.trim_end_matches('-').parse().ok()?;
        }
    }
    Some((path, from))
}

/// Announces everything from `from` on, and sends it only up to `sent`.
fn answer(mut stream: &TcpStream, content: &[u8], from: usize, sent: usize) {
    let status = if from > 0 { "206 Partial Content" } else { "200 OK" };
    let range = format!("Content-Range: bytes {from}-{}/{}\r\n", content.len() - 1, content.len());
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Length: {}\r\n{}Connection: close\r\n\r\n",
        content.len() - from,
        if from > 0 { &range } else { "" }
    );
    let _ = stream.write_all(head.as_bytes());
    let _ = stream.write_all(&content[from.min(sent)..sent]);
}
