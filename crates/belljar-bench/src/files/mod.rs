//! `belljar bench --files`: artifacts and datasets of a server of our own, as its clients see them.
//!
//! What depends on the disk is measured in turns with its peer, each time after everything written
//! before is on the disk, and told as the median of the rounds; on a busy machine look at the
//! ratios.

mod nginx;
mod report;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use belljar_sys::{file, privileges, process};
use serde_json::{Value, json};

use super::samples::Samples;
use super::server::{Corner, Server};
use super::wire::{Wire, delete, exec, id_of, request};
use super::{Machine, count, mib, peers, progress};
use crate::cli::BenchArgs;
use nginx::Nginx;
use report::{Check, Download, Ingest, Many, Report, Staging, Transfer};

/// The size of what is large.
const LARGE: u64 = 1 << 30;
const QUICK_LARGE: u64 = 256 << 20;

/// Files that one execution leaves.
const FILES: u64 = 10_000;

/// What is asked for at a time when a file is downloaded by ranges.
const RANGE: u64 = 16 << 20;

/// What the client reads or sends at a time.
const PIECE: usize = 1 << 20;

/// Executions that find caches cold and are not counted.
const COLD: usize = 50;

pub(super) fn bench(args: &BenchArgs) -> Result<ExitCode> {
    privileges::raise_open_files();
    let report = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("failed to start the event loop")?
        .block_on(measure(args))?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        report.print();
    }
    Ok(ExitCode::SUCCESS)
}

struct Bench {
    corner: Corner,
    server: Server,
    wire: Wire,
    /// Bytes of a large file.
    large: u64,
    rounds: u64,
}

async fn measure(args: &BenchArgs) -> Result<Report> {
    let progress = progress();
    let say = |text: &str| progress.set_message(text.to_owned());
    let (large, rounds) = if args.quick { (QUICK_LARGE, 1) } else { (LARGE, 3) };
    let unlimited = |name| (name, "0".to_owned());
    let corner = Corner::new(vec![
        unlimited("BELLJAR_ARTIFACT_SIZE"),
        unlimited("BELLJAR_SESSION_ARTIFACTS"),
        unlimited("BELLJAR_SESSION_ARTIFACT_BYTES"),
        unlimited("BELLJAR_TENANT_ARTIFACTS"),
        unlimited("BELLJAR_TENANT_ARTIFACT_BYTES"),
        ("BELLJAR_LINK_TTL", "86400".into()),
    ])?;
    say("waiting for a server to come to rest");
    let server = Server::start(&corner, 0)?;
    let mut wire = Wire::connect(server.address).await?;
    server.at_rest(&mut wire).await?;
    let mut bench = Bench { corner, server, wire, large, rounds };
    let mut notes = Vec::new();

    say("executions that leave nothing");
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

    say("ending");
    let Bench { server, .. } = bench;
    server.stop()?;
    progress.finish_and_clear();
    let machine = Machine::of_this();
    Ok(Report { machine, ingest, many, check, staging, transfers, download, notes })
}

/// An artifact that lies on the shelf.
struct Shelved {
    blob: PathBuf,
    /// Its link, without the server.
    link: String,
}

impl Bench {
    /// The cost of looking whether an execution left something: three sessions in turns, one of
    /// which has nothing to look at.
    async fn check(&mut self, rounds: usize) -> Result<Check> {
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
                ensure!(self.wire.call(request).await?.is_ok(), "the code failed");
                if round >= COLD {
                    samples.push(begun.elapsed());
                }
            }
        }
        for id in [absent, empty, folders] {
            self.wire.call(&delete(&id)).await?.json()?;
        }
        let [absent, empty, folders] = samples;
        // Neighbours in time had the same disturbances.
        let cost = |with: &[Duration]| {
            let paired = with.iter().zip(&absent);
            median(paired.map(|(a, b)| (a.as_secs_f64() - b.as_secs_f64()) * 1000.0).collect())
        };
        Ok(Check {
            empty_ms: cost(&empty),
            folders_ms: cost(&folders),
            without: absent.into_iter().collect::<Samples>().summary(),
            reach_ms: 0.1,
        })
    }

    /// A large file that was written before appears among the artifacts.
    async fn ingest(&mut self) -> Result<(Ingest, Shelved)> {
        let id = self.session(&spacious("BIND")).await?;
        let write = format!(
            "import os\nwith open('/session/large', 'wb') as f:\n    \
             for _ in range({}): f.write(os.urandom({PIECE}))",
            self.large / PIECE as u64
        );
        self.run(&id, &write).await?;
        let (mut took, mut ours, mut theirs, mut ratios) = (vec![], vec![], vec![], vec![]);
        let mut growth: f64 = 0.0;
        let mut shelved = None;
        for round in 0..self.rounds {
            // Content that nobody has seen.
            let mark = format!(
                "with open('/session/large', 'r+b') as f: f.write(b'{round} {}')",
                process::random_name()
            );
            self.run(&id, &mark).await?;
            self.settle()?;
            let before = self.server.rss().context("the server has no memory")?;
            self.server.forget_peak();
            let link = format!("os.link('/session/large', '/session/artifacts/{round}.bin')");
            let (result, wall) = self.timed(&id, &link).await?;
            let peak = self.server.peak().unwrap_or_default();
            growth = growth.max(mib(peak.saturating_sub(before)));
            let seconds = after_the_code(&result, wall);
            let artifact = taken(&result, 1)?.first().context("there is one")?.clone();
            ensure!(artifact["size"] == self.large, "it was not taken whole");
            let place = artifact["host_path"].as_str().context("an artifact without a place")?;
            let alone = peers::once(Command::new("sha256sum").arg(place))?.as_secs_f64();
            ours.push(self.speed(seconds));
            theirs.push(self.speed(alone));
            ratios.push(alone / seconds);
            took.push(seconds);
            let url = artifact["url"].as_str().context("an artifact without a link")?;
            let link = url.find("/artifacts/").map_or(url, |at| &url[at..]).to_owned();
            shelved = Some(Shelved { blob: place.into(), link });
        }
        self.wire.call(&delete(&id)).await?.json()?;
        let ingest = Ingest {
            bytes: self.large,
            rounds: self.rounds,
            seconds: median(took),
            mb_per_s: median(ours),
            sha256sum_mb_per_s: median(theirs),
            ratio: median(ratios),
            reach_ratio: 0.7,
            server_growth_mib: growth,
            reach_growth_mib: 32.0,
        };
        Ok((ingest, shelved.context("there was no round")?))
    }

    /// Many small files at once.
    async fn many(&mut self, storage: &'static str) -> Result<Many> {
        let id = self.session(&spacious(storage)).await?;
        let (mut code, mut after) = (vec![], vec![]);
        for _ in 0..self.rounds {
            // Each file is another piece of the same noise: none is like another.
            let write = format!(
                "import os\nnoise = os.urandom({FILES} + 1024)\nfor n in range({FILES}):\n    \
                 with open(f'/session/artifacts/{{n}}.bin', 'wb') as f: f.write(noise[n:n + 1024])"
            );
            self.settle()?;
            let (result, wall) = self.timed(&id, &write).await?;
            taken(&result, FILES)?;
            let after_s = after_the_code(&result, wall);
            code.push(wall.as_secs_f64() - after_s);
            after.push(after_s);
        }
        self.wire.call(&delete(&id)).await?.json()?;
        let (code_s, after_s) = (median(code), median(after));
        Ok(Many { storage, files: FILES, rounds: self.rounds, code_s, after_s, reach_s: 3.0 })
    }

    /// Large datasets from the client, and again from the cache.
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
                let answer = self.wire.call(&known).await?.json()?;
                cached.push(self.speed(begun.elapsed().as_secs_f64()));
                ensure!(answer["cached"] == true, "it was not cached");
                self.run(&id, "os.remove('/session/data/large.bin')").await?;
            }
            self.wire.call(&delete(&id)).await?.json()?;
            for (from, speeds) in [("client", sent), ("cache", cached)] {
                let mb_per_s = median(speeds);
                all.push(Staging { storage, from, bytes: self.large, mb_per_s, reach: 300.0 });
            }
        }
        Ok(all)
    }

    /// Sends content that nobody has seen; its hash, and how long that took.
    async fn put(&mut self, id: &str) -> Result<(String, f64)> {
        let mut piece = vec![0; PIECE];
        let path = format!("/v1/sessions/{id}/datasets/large.bin");
        let head = format!(
            "PUT {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n",
            self.large
        );
        let begun = Instant::now();
        self.wire.send(head.as_bytes()).await?;
        for _ in 0..self.large / PIECE as u64 {
            piece[..16].copy_from_slice(&process::random_bytes::<16>());
            self.wire.send(&piece).await?;
        }
        let answer = self.wire.answer().await?.json()?;
        let seconds = begun.elapsed().as_secs_f64();
        ensure!(answer["cached"] == false, "it was cached already");
        let sha256 = answer["sha256"].as_str().context("a dataset without a hash")?;
        Ok((sha256.to_owned(), seconds))
    }

    /// A large file into a session, and out of it again.
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
                let length = self.wire.drain(ask.as_bytes(), &mut vec![0; PIECE]).await?;
                read.push(self.speed(begun.elapsed().as_secs_f64()));
                ensure!(length as u64 == self.large, "{length} bytes are not what was sent");
            }
            self.wire.call(&delete(&id)).await?.json()?;
            for (direction, speeds) in [("upload", sent), ("download", read)] {
                let mb_per_s = median(speeds);
                let bytes = self.large;
                all.push(Transfer { direction, storage, bytes, mb_per_s, reach: 500.0 });
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
        self.wire.send(head.as_bytes()).await?;
        for _ in 0..size / PIECE as u64 {
            piece[..16].copy_from_slice(&process::random_bytes::<16>());
            self.wire.send(&piece).await?;
        }
        let answer = self.wire.answer().await?.json()?;
        ensure!(answer["size"] == size, "it was not written whole");
        Ok(begun.elapsed().as_secs_f64())
    }

    /// An artifact by ranges over one connection, in turns with nginx.
    async fn download(&mut self, artifact: &Shelved) -> Result<Download> {
        let nginx = Nginx::serve(&artifact.blob, &self.corner.directory().join("nginx"))?;
        let mut their_wire = Wire::connect(nginx.address).await?;
        let (mut ours, mut theirs, mut ratios) = (vec![], vec![], vec![]);
        // The first of each finds caches cold.
        for round in 0..=self.rounds * 2 {
            let mine = by_ranges(&mut self.wire, &artifact.link, self.large).await?;
            let other = by_ranges(&mut their_wire, nginx::PATH, self.large).await?;
            if round > 0 {
                ours.push(self.speed(mine));
                theirs.push(self.speed(other));
                ratios.push(other / mine);
            }
        }
        Ok(Download {
            bytes: self.large,
            range_bytes: RANGE,
            rounds: self.rounds * 2,
            mb_per_s: median(ours),
            nginx_mb_per_s: median(theirs),
            ratio: median(ratios),
            reach_ratio: 0.5,
        })
    }

    async fn session(&mut self, body: &Value) -> Result<String> {
        id_of(&self.wire.call(&request("POST", "/v1/sessions", body)).await?.json()?)
    }

    async fn run(&mut self, id: &str, code: &str) -> Result<()> {
        self.timed(id, code).await.map(drop)
    }

    /// Code that ends well: its result, and how long that took to come.
    async fn timed(&mut self, id: &str, code: &str) -> Result<(Value, Duration)> {
        let body = json!({ "code": code, "timeout": 600 });
        let request = request("POST", &format!("/v1/sessions/{id}/exec"), &body);
        let begun = Instant::now();
        let answer = self.wire.call(&request).await?;
        let wall = begun.elapsed();
        let result = answer.json()?;
        ensure!(result["status"] == "ok", "the code failed: {}", result["error"]);
        Ok((result, wall))
    }

    /// Waits until the disk has what was written so far: whoever is next begins with a calm one.
    fn settle(&self) -> Result<()> {
        settle(self.corner.directory())
    }

    /// Of a large file, in megabytes (not MiB) per second.
    fn speed(&self, seconds: f64) -> f64 {
        mib(self.large) * 1.048_576 / seconds
    }
}

/// A session that has room for large files.
fn spacious(storage: &str) -> Value {
    json!({ "storage": storage, "limits": { "memory": "4G", "tmpfs": "2G", "cpus": 2 } })
}

fn settle(directory: &Path) -> Result<()> {
    let opened = File::open(directory)?;
    file::sync_file_system(&opened).context("failed to wait for the disk")
}

/// From the end of the code to its told result, in seconds.
fn after_the_code(result: &Value, wall: Duration) -> f64 {
    wall.as_secs_f64() - result["duration_ms"].as_f64().unwrap_or_default() / 1000.0
}

fn taken(result: &Value, expected: u64) -> Result<&Vec<Value>> {
    let artifacts = result["artifacts"].as_array().context("a result without artifacts")?;
    let refused = &result["artifacts_refused"];
    ensure!(artifacts.len() as u64 == expected, "not all were taken: {refused}");
    Ok(artifacts)
}

async fn by_ranges(wire: &mut Wire, path: &str, size: u64) -> Result<f64> {
    let mut scratch = vec![0; PIECE];
    let begun = Instant::now();
    for from in (0..size).step_by(usize::try_from(RANGE)?) {
        let to = (from + RANGE).min(size) - 1;
        let request =
            format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nrange: bytes={from}-{to}\r\n\r\n");
        let length = wire.drain(request.as_bytes(), &mut scratch).await?;
        ensure!(length as u64 == to - from + 1, "{length} bytes are not what was asked for");
    }
    Ok(begun.elapsed().as_secs_f64())
}

/// The middle one, or between the two in the middle.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => 0.0,
        n if n % 2 == 1 => values[middle],
        _ => values[middle - 1..=middle].iter().sum::<f64>() / count(2),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median(vec![]), 0.0);
        assert_eq!(median(vec![3.0, 1.0, 9.0]), 3.0);
        assert_eq!(median(vec![4.0, 1.0, 9.0, 2.0]), 3.0);
    }
}
