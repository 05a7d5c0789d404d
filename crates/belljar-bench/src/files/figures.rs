//! The figures of `belljar bench --files`, and their targets.

use serde::Serialize;

use crate::figures::{Figures, Machine, target_row};
use crate::samples::{Summary, mib};

/// Results for artifacts, datasets and files.
#[derive(Debug, Serialize)]
pub(crate) struct FileFigures {
    pub(super) machine: Machine,
    pub(super) ingest: Ingest,
    pub(super) many: Vec<ManyFiles>,
    pub(super) check: ArtifactCheck,
    pub(super) staging: Vec<Staging>,
    pub(super) transfers: Vec<Transfer>,
    pub(super) download: Option<Download>,
    /// Why a figure is missing.
    pub(super) notes: Vec<String>,
}

/// Storing a large artifact: from the end of the code to the response with the result.
#[derive(Debug, Serialize)]
pub(super) struct Ingest {
    pub(super) bytes: u64,
    pub(super) rounds: u64,
    pub(super) seconds: f64,
    pub(super) mb_per_s: f64,
    /// The speed of `sha256sum` on the same content, measured right after.
    pub(super) sha256sum_mb_per_s: f64,
    /// Our speed divided by the speed of `sha256sum`.
    pub(super) ratio: f64,
    pub(super) target_ratio: f64,
    /// The largest growth of the server's resident memory.
    pub(super) server_growth_mib: f64,
    pub(super) target_growth_mib: f64,
}

/// Many small artifacts of one execution.
#[derive(Debug, Serialize)]
pub(super) struct ManyFiles {
    pub(super) storage: &'static str,
    pub(super) files: u64,
    pub(super) rounds: u64,
    /// How long the code took to write them.
    pub(super) code_s: f64,
    /// From the end of the code to the response.
    pub(super) after_s: f64,
    pub(super) target_s: f64,
}

/// The cost of searching for artifacts after an execution that has none.
#[derive(Debug, Serialize)]
pub(super) struct ArtifactCheck {
    /// Executions without a directory for artifacts.
    pub(super) without: Summary,
    /// How much longer an execution takes with an empty directory, and with three folders in it:
    /// medians.
    pub(super) empty_ms: f64,
    pub(super) folders_ms: f64,
    pub(super) target_ms: f64,
}

#[derive(Debug, Serialize)]
pub(super) struct Staging {
    pub(super) storage: &'static str,
    /// The source: the client, or the server's cache.
    pub(super) from: &'static str,
    pub(super) bytes: u64,
    pub(super) mb_per_s: f64,
    pub(super) target_mb_per_s: f64,
}

/// Transfer of a large file of a session, from and to its client.
#[derive(Debug, Serialize)]
pub(super) struct Transfer {
    pub(super) direction: &'static str,
    pub(super) storage: &'static str,
    pub(super) bytes: u64,
    pub(super) mb_per_s: f64,
    pub(super) target_mb_per_s: f64,
}

#[derive(Debug, Serialize)]
pub(super) struct Download {
    pub(super) bytes: u64,
    pub(super) range_bytes: u64,
    pub(super) rounds: u64,
    pub(super) mb_per_s: f64,
    pub(super) nginx_mb_per_s: f64,
    /// Our speed divided by that of nginx.
    pub(super) ratio: f64,
    pub(super) target_ratio: f64,
}

impl Figures for FileFigures {
    fn heading(&self) -> String {
        format!("{}, files", self.machine)
    }

    fn rows(&self) -> Vec<Vec<String>> {
        let mut rows = self.ingest.rows().to_vec();
        rows.extend(self.many.iter().map(ManyFiles::row));
        rows.push(self.check.row());
        rows.extend(self.staging.iter().map(Staging::row));
        rows.extend(self.transfers.iter().map(Transfer::row));
        rows.extend(self.download.iter().map(Download::row));
        rows
    }

    fn remarks(&self) -> Vec<String> {
        self.notes.iter().map(|note| format!("note: {note}")).collect()
    }
}

impl Ingest {
    fn rows(&self) -> [Vec<String>; 2] {
        [
            target_row(
                &format!("artifact of {}", size(self.bytes)),
                format!(
                    "{:.0} MB/s ({:.2} s), sha256sum alone {:.0} MB/s: {:.0} %",
                    self.mb_per_s,
                    self.seconds,
                    self.sha256sum_mb_per_s,
                    self.ratio * 100.0
                ),
                format!(">= {:.0} %", self.target_ratio * 100.0),
                self.ratio >= self.target_ratio,
            ),
            target_row(
                "... the server's memory grows by",
                format!("{:.1} MiB", self.server_growth_mib),
                format!("<= {:.0} MiB", self.target_growth_mib),
                self.server_growth_mib <= self.target_growth_mib,
            ),
        ]
    }
}

impl ManyFiles {
    fn row(&self) -> Vec<String> {
        target_row(
            &format!("{} files of 1 KB, {}", self.files, self.storage),
            format!("{:.2} s after {:.2} s of code", self.after_s, self.code_s),
            format!("<= {:.0} s", self.target_s),
            self.after_s <= self.target_s,
        )
    }
}

impl ArtifactCheck {
    fn row(&self) -> Vec<String> {
        target_row(
            "no artifact: the check takes",
            format!(
                "{:.3} ms, with 3 folders {:.3} ms, of p50 {:.2} ms",
                self.empty_ms, self.folders_ms, self.without.p50_ms
            ),
            format!("< {} ms", self.target_ms),
            self.empty_ms < self.target_ms && self.folders_ms < self.target_ms,
        )
    }
}

impl Staging {
    fn row(&self) -> Vec<String> {
        let Staging { storage, from, bytes, mb_per_s, target_mb_per_s } = self;
        target_row(
            &format!("dataset of {} from the {from}, {storage}", size(*bytes)),
            format!("{mb_per_s:.0} MB/s"),
            format!(">= {target_mb_per_s:.0} MB/s"),
            mb_per_s >= target_mb_per_s,
        )
    }
}

impl Transfer {
    fn row(&self) -> Vec<String> {
        let Transfer { direction, storage, bytes, mb_per_s, target_mb_per_s } = self;
        target_row(
            &format!("{direction} of a file of {}, {storage}", size(*bytes)),
            format!("{mb_per_s:.0} MB/s"),
            format!(">= {target_mb_per_s:.0} MB/s"),
            mb_per_s >= target_mb_per_s,
        )
    }
}

impl Download {
    fn row(&self) -> Vec<String> {
        target_row(
            &format!("download by ranges of {}", size(self.range_bytes)),
            format!(
                "{:.0} MB/s, nginx {:.0} MB/s: {:.0} %",
                self.mb_per_s,
                self.nginx_mb_per_s,
                self.ratio * 100.0
            ),
            format!(">= {:.0} %", self.target_ratio * 100.0),
            self.ratio >= self.target_ratio,
        )
    }
}

fn size(bytes: u64) -> String {
    let mib = mib(bytes);
    if mib < 1024.0 { format!("{mib:.0} MiB") } else { format!("{:.0} GiB", mib / 1024.0) }
}
