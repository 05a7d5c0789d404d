//! `belljar bench --files`: artifacts, datasets and files of sessions on a temporary server.
//!
//! Operations that depend on the disk are measured in turns with their peers. Each measurement
//! begins when all earlier writes are on the disk. The figures are medians of the rounds; on a busy
//! machine, look at the ratios.

mod figures;
mod nginx;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use belljar_sys::{file, process};
use serde_json::{Value, json};

use crate::connection::{Connection, delete, exec, id_of, request};
use crate::figures::Machine;
use crate::samples::{Samples, median, mib};
use crate::scratch_host::{ScratchHost, Server};
use crate::{BenchArgs, BenchConfig, peers, progress};
use figures::{ArtifactCheck, Download, FileFigures, Ingest, ManyFiles, Staging, Transfer};
use nginx::Nginx;

/// The size of a large file.
const LARGE: u64 = 1 << 30;
const QUICK_LARGE: u64 = 256 << 20;

/// Artifacts of one execution.
const FILES: u64 = 10_000;

/// The size of a range when a file is downloaded by ranges.
const RANGE: u64 = 16 << 20;

/// How much the client reads or sends at a time.
const PIECE: usize = 1 << 20;

/// Executions before the measurement, while caches are cold; they are not counted.
const COLD: usize = 50;

/// A server, and the files that are sent to it and read from it.
struct FilesBench {
    host: ScratchHost,
    server: Server,
    connection: Connection,
    /// Bytes of a large file.
    large: u64,
    rounds: u64,
}

pub(super) async fn measure(args: &BenchArgs, config: &BenchConfig) -> Result<FileFigures> {
    let progress = progress();
    let say = |text: &str| progress.set_message(text.to_owned());
    let (large, rounds) = if args.quick { (QUICK_LARGE, 1) } else { (LARGE, 3) };
    let unlimited = |name| (name, "0".to_owned());
    let limits = vec![
        unlimited("BELLJAR_ARTIFACT_SIZE"),
        unlimited("BELLJAR_SESSION_ARTIFACTS"),
        unlimited("BELLJAR_SESSION_ARTIFACT_BYTES"),
        unlimited("BELLJAR_TENANT_ARTIFACTS"),
        unlimited("BELLJAR_TENANT_ARTIFACT_BYTES"),
        ("BELLJAR_LINK_TTL", "86400".into()),
    ];
    let host = ScratchHost::new(config, limits)?;
    say("starting a server");
    let server = Server::start(&host, 0)?;
    let mut connection = Connection::connect(server.address).await?;
    server.settled(&mut connection).await?;
    let mut bench = FilesBench { host, server, connection, large, rounds };
    let mut notes = Vec::new();

    say("executions without artifacts");
    let check = bench.check(if args.quick { 500 } else { 5000 }).await?;
    say("a large artifact");
    let (ingest, artifact) = bench.ingest().await?;
    say("downloading it");
    let download = bench.download(&artifact).await;
    let download = download.map_err(|error| notes.push(format!("nginx: {error:#}"))).ok();
    say("many small artifacts");
    let many = vec![bench.many("BIND").await?, bench.many("TMPFS").await?];
    say("large datasets");
    let staging = bench.staging().await?;

    say("large files");
    let transfers = bench.transfers().await?;

    say("stopping the server");
    let FilesBench { server, .. } = bench;
    server.stop()?;
    progress.finish_and_clear();
    let machine = Machine::of_this();
    Ok(FileFigures { machine, ingest, many, check, staging, transfers, download, notes })
}

/// An artifact in the server's store.
struct StoredArtifact {
    blob: PathBuf,
    /// The path of its download link.
    link: String,
}

impl FilesBench {
    /// The cost of searching for artifacts after an execution. Measures three sessions in turns,
    /// one of which has no directory for artifacts.
    async fn check(&mut self, rounds: usize) -> Result<ArtifactCheck> {
        let absent = self.session(&json!({})).await?;
        self.run(&absent, "import os; os.rmdir('/session/artifacts')").await?;
        let empty = self.session(&json!({})).await?;
        let folders = self.session(&json!({})).await?;
        let make = "import os; [os.makedirs(f'/session/artifacts/{n}') for n in range(3)]";
        self.run(&folders, make).await?;

        let requests = [&absent, &empty, &folders].map(|id| exec(id, "pass"));
        let mut samples = [const { Vec::new() }; 3];
        for round in 0..rounds + COLD {
            for (request, samples) in requests.iter().zip(&mut samples) {
                let begun = Instant::now();
                ensure!(self.connection.call(request).await?.is_ok(), "the code failed");
                if round >= COLD {
                    samples.push(begun.elapsed());
                }
            }
        }
        for id in [absent, empty, folders] {
            self.connection.call(&delete(&id)).await?.json()?;
        }
        let [absent, empty, folders] = samples;
        // Compares consecutive executions, because both had the same other load on the machine.
        let cost = |with: &[Duration]| {
            let paired = with.iter().zip(&absent);
            median(paired.map(|(a, b)| (a.as_secs_f64() - b.as_secs_f64()) * 1000.0).collect())
        };
        Ok(ArtifactCheck {
            empty_ms: cost(&empty),
            folders_ms: cost(&folders),
            without: absent.into_iter().collect::<Samples>().summary(),
            target_ms: 0.1,
        })
    }

    /// Stores a large artifact: the file was written before, and the code only links it into the
    /// artifacts.
    async fn ingest(&mut self) -> Result<(Ingest, StoredArtifact)> {
        let id = self.session(&spacious("BIND")).await?;
        let write = format!(
            "import os\nwith open('/session/large', 'wb') as f:\n    \
             for _ in range({}): f.write(os.urandom({PIECE}))",
            self.large / PIECE as u64
        );
        self.run(&id, &write).await?;
        let (mut took, mut ours, mut theirs, mut ratios) = (vec![], vec![], vec![], vec![]);
        let mut growth: f64 = 0.0;
        let mut stored = None;
        for round in 0..self.rounds {
            // New content, so that it is not in the store yet.
            let mark = format!(
                "with open('/session/large', 'r+b') as f: f.write(b'{round} {}')",
                process::random_name()
            );
            self.run(&id, &mark).await?;
            self.settle()?;
            let before = self.server.rss().context("the memory of the server is not known")?;
            self.server.forget_peak();
            let link = format!("os.link('/session/large', '/session/artifacts/{round}.bin')");
            let (result, wall) = self.timed(&id, &link).await?;
            let peak = self.server.peak().unwrap_or_default();
            growth = growth.max(mib(peak.saturating_sub(before)));
            let seconds = seconds_after_code(&result, wall);
            let artifact = artifacts_of(&result, 1)?.first().context("no artifact")?.clone();
            ensure!(artifact["size"] == self.large, "the artifact is not complete");
            let path = artifact["host_path"].as_str().context("an artifact without a path")?;
            let alone = peers::once(Command::new("sha256sum").arg(path))?.as_secs_f64();
            ours.push(self.speed(seconds));
            theirs.push(self.speed(alone));
            ratios.push(alone / seconds);
            took.push(seconds);
            let url = artifact["url"].as_str().context("an artifact without a link")?;
            let link = url.find("/artifacts/").map_or(url, |at| &url[at..]).to_owned();
            stored = Some(StoredArtifact { blob: path.into(), link });
        }
        self.connection.call(&delete(&id)).await?.json()?;
        let ingest = Ingest {
            bytes: self.large,
            rounds: self.rounds,
            seconds: median(took),
            mb_per_s: median(ours),
            sha256sum_mb_per_s: median(theirs),
            ratio: median(ratios),
            target_ratio: 0.7,
            server_growth_mib: growth,
            target_growth_mib: 32.0,
        };
        Ok((ingest, stored.context("there was no round")?))
    }

    /// Stores many small artifacts of one execution.
    async fn many(&mut self, storage: &'static str) -> Result<ManyFiles> {
        let id = self.session(&spacious(storage)).await?;
        let (mut code, mut after) = (vec![], vec![]);
        for _ in 0..self.rounds {
            // Each file is another part of the same random bytes, so that no two are equal.
            let write = format!(
                "import os\nnoise = os.urandom({FILES} + 1024)\nfor n in range({FILES}):\n    \
                 with open(f'/session/artifacts/{{n}}.bin', 'wb') as f: f.write(noise[n:n + 1024])"
            );
            self.settle()?;
            let (result, wall) = self.timed(&id, &write).await?;
            artifacts_of(&result, FILES)?;
            let after_s = seconds_after_code(&result, wall);
            code.push(wall.as_secs_f64() - after_s);
            after.push(after_s);
        }
        self.connection.call(&delete(&id)).await?.json()?;
        let (code_s, after_s) = (median(code), median(after));
        Ok(ManyFiles { storage, files: FILES, rounds: self.rounds, code_s, after_s, target_s: 3.0 })
    }

    /// Stages large datasets from the client, and again from the cache.
    async fn staging(&mut self) -> Result<Vec<Staging>> {
        let mut all = Vec::new();
        for storage in ["BIND", "TMPFS"] {
            let mut body = spacious(storage);
            body["datasets"] = "API".into();
            let id = self.session(&body).await?;
            let (mut sent, mut cached) = (vec![], vec![]);
            for _ in 0..self.rounds {
                self.settle()?;
                let (sha256, seconds) = self.put(&id).await?;
                sent.push(self.speed(seconds));
                self.run(&id, "import os; os.remove('/session/data/large.bin')").await?;
                self.settle()?;
                let path = format!("/v1/sessions/{id}/datasets/large.bin?sha256={sha256}");
                let known = request("PUT", &path, &Value::Null);
                let begun = Instant::now();
                let response = self.connection.call(&known).await?.json()?;
                cached.push(self.speed(begun.elapsed().as_secs_f64()));
                ensure!(response["cached"] == true, "the dataset was not in the cache");
                self.run(&id, "os.remove('/session/data/large.bin')").await?;
            }
            self.connection.call(&delete(&id)).await?.json()?;
            for (from, speeds) in [("client", sent), ("cache", cached)] {
                let mb_per_s = median(speeds);
                all.push(Staging {
                    storage,
                    from,
                    bytes: self.large,
                    mb_per_s,
                    target_mb_per_s: 300.0,
                });
            }
        }
        Ok(all)
    }

    /// Uploads new content as a dataset. Returns its hash, and how long that took.
    async fn put(&mut self, id: &str) -> Result<(String, f64)> {
        let mut piece = vec![0; PIECE];
        let path = format!("/v1/sessions/{id}/datasets/large.bin");
        let head = format!(
            "PUT {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n",
            self.large
        );
        let begun = Instant::now();
        self.connection.send(head.as_bytes()).await?;
        for _ in 0..self.large / PIECE as u64 {
            piece[..16].copy_from_slice(&process::random_bytes::<16>());
            self.connection.send(&piece).await?;
        }
        let response = self.connection.response().await?.json()?;
        let seconds = begun.elapsed().as_secs_f64();
        ensure!(response["cached"] == false, "the dataset was in the cache already");
        let sha256 = response["sha256"].as_str().context("a dataset without a hash")?;
        Ok((sha256.to_owned(), seconds))
    }

    /// Copies a large file into a session, and out of it again.
    async fn transfers(&mut self) -> Result<Vec<Transfer>> {
        let mut all = Vec::new();
        for storage in ["TMPFS", "BIND"] {
            let id = self.session(&spacious(storage)).await?;
            let path = format!("/v1/sessions/{id}/files/large.bin");
            let (mut sent, mut read) = (vec![], vec![]);
            for _ in 0..self.rounds {
                self.settle()?;
                let seconds = self.send_file(&path).await?;
                sent.push(self.speed(seconds));
                let ask = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n");
                let begun = Instant::now();
                let length = self.connection.drain(ask.as_bytes(), &mut vec![0; PIECE]).await?;
                read.push(self.speed(begun.elapsed().as_secs_f64()));
                ensure!(
                    length as u64 == self.large,
                    "{length} bytes are not the length of the file"
                );
            }
            self.connection.call(&delete(&id)).await?.json()?;
            for (direction, speeds) in [("upload", sent), ("download", read)] {
                let mb_per_s = median(speeds);
                let bytes = self.large;
                all.push(Transfer { direction, storage, bytes, mb_per_s, target_mb_per_s: 500.0 });
            }
        }
        Ok(all)
    }

    async fn send_file(&mut self, path: &str) -> Result<f64> {
        let mut piece = vec![0; PIECE];
        let size = self.large;
        let head =
            format!("PUT {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {size}\r\n\r\n");
        let begun = Instant::now();
        self.connection.send(head.as_bytes()).await?;
        for _ in 0..size / PIECE as u64 {
            piece[..16].copy_from_slice(&process::random_bytes::<16>());
            self.connection.send(&piece).await?;
        }
        let response = self.connection.response().await?.json()?;
        ensure!(response["size"] == size, "the file is not complete");
        Ok(begun.elapsed().as_secs_f64())
    }

    /// Downloads an artifact by ranges over one connection, in turns with nginx.
    async fn download(&mut self, artifact: &StoredArtifact) -> Result<Download> {
        let nginx = Nginx::serve(&artifact.blob, &self.host.directory().join("nginx"))?;
        let mut nginx_connection = Connection::connect(nginx.address).await?;
        let (mut ours, mut theirs, mut ratios) = (vec![], vec![], vec![]);
        // The first round is not counted, because caches are cold.
        for round in 0..=self.rounds * 2 {
            let our_time = by_ranges(&mut self.connection, &artifact.link, self.large).await?;
            let their_time = by_ranges(&mut nginx_connection, nginx::PATH, self.large).await?;
            if round > 0 {
                ours.push(self.speed(our_time));
                theirs.push(self.speed(their_time));
                ratios.push(their_time / our_time);
            }
        }
        Ok(Download {
            bytes: self.large,
            range_bytes: RANGE,
            rounds: self.rounds * 2,
            mb_per_s: median(ours),
            nginx_mb_per_s: median(theirs),
            ratio: median(ratios),
            target_ratio: 0.5,
        })
    }

    async fn session(&mut self, body: &Value) -> Result<String> {
        id_of(&self.connection.call(&request("POST", "/v1/sessions", body)).await?.json()?)
    }

    async fn run(&mut self, id: &str, code: &str) -> Result<()> {
        self.timed(id, code).await.map(drop)
    }

    /// Executes code that must succeed. Returns its result, and how long the request took.
    async fn timed(&mut self, id: &str, code: &str) -> Result<(Value, Duration)> {
        let body = json!({ "code": code, "timeout": 600 });
        let request = request("POST", &format!("/v1/sessions/{id}/exec"), &body);
        let begun = Instant::now();
        let response = self.connection.call(&request).await?;
        let wall = begun.elapsed();
        let result = response.json()?;
        ensure!(result["status"] == "ok", "the code failed: {}", result["error"]);
        Ok((result, wall))
    }

    /// Waits until all earlier writes are on the disk.
    fn settle(&self) -> Result<()> {
        settle(self.host.directory())
    }

    /// The transfer speed of a large file, in megabytes (not MiB) per second.
    fn speed(&self, seconds: f64) -> f64 {
        mib(self.large) * 1.048_576 / seconds
    }
}

/// A request for a session with enough space for large files.
fn spacious(storage: &str) -> Value {
    json!({ "storage": storage, "limits": { "memory": "4G", "tmpfs": "2G", "cpus": 2 } })
}

fn settle(directory: &Path) -> Result<()> {
    let opened = File::open(directory)?;
    file::sync_file_system(&opened).context("failed to wait for the disk")
}

/// From the end of the code to the response with its result, in seconds.
fn seconds_after_code(result: &Value, wall: Duration) -> f64 {
    wall.as_secs_f64() - result["duration_ms"].as_f64().unwrap_or_default() / 1000.0
}

fn artifacts_of(result: &Value, expected: u64) -> Result<&Vec<Value>> {
    let artifacts = result["artifacts"].as_array().context("a result without artifacts")?;
    let refused = &result["artifacts_refused"];
    ensure!(artifacts.len() as u64 == expected, "not all artifacts were taken: {refused}");
    Ok(artifacts)
}

async fn by_ranges(connection: &mut Connection, path: &str, size: u64) -> Result<f64> {
    let mut scratch = vec![0; PIECE];
    let begun = Instant::now();
    for from in (0..size).step_by(usize::try_from(RANGE)?) {
        let to = (from + RANGE).min(size) - 1;
        let request =
            format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nrange: bytes={from}-{to}\r\n\r\n");
        let length = connection.drain(request.as_bytes(), &mut scratch).await?;
        ensure!(length as u64 == to - from + 1, "{length} bytes are not the requested range");
    }
    Ok(begun.elapsed().as_secs_f64())
}
