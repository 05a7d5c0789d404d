//! What was measured, and what is to be reached.

use serde::Serialize;

use super::super::samples::Summary;
use super::super::{Machine, mib};
use crate::table;

#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) machine: Machine,
    pub(super) ingest: Ingest,
    pub(super) many: Vec<Many>,
    pub(super) check: Check,
    pub(super) staging: Vec<Staging>,
    pub(super) transfers: Vec<Transfer>,
    pub(super) download: Option<Download>,
    /// Why something is missing.
    pub(super) notes: Vec<String>,
}

/// A large artifact, from the end of the code to the told result.
#[derive(Debug, Serialize)]
pub(super) struct Ingest {
    pub(super) bytes: u64,
    pub(super) rounds: u64,
    pub(super) seconds: f64,
    pub(super) mb_per_s: f64,
    /// Of the same content alone, right after.
    pub(super) sha256sum_mb_per_s: f64,
    /// Ours to theirs.
    pub(super) ratio: f64,
    pub(super) reach_ratio: f64,
    /// The most that the server's resident memory grew by.
    pub(super) server_growth_mib: f64,
    pub(super) reach_growth_mib: f64,
}

/// Many small artifacts of one execution.
#[derive(Debug, Serialize)]
pub(super) struct Many {
    pub(super) storage: &'static str,
    pub(super) files: u64,
    pub(super) rounds: u64,
    /// What the code itself needed to write them.
    pub(super) code_s: f64,
    /// From its end to the told result.
    pub(super) after_s: f64,
    pub(super) reach_s: f64,
}

/// What an execution that leaves nothing pays for the look.
#[derive(Debug, Serialize)]
pub(super) struct Check {
    /// Of executions that have no directory to look at.
    pub(super) without: Summary,
    /// How much longer it takes where there is one, and where three are in it: medians.
    pub(super) empty_ms: f64,
    pub(super) folders_ms: f64,
    pub(super) reach_ms: f64,
}

#[derive(Debug, Serialize)]
pub(super) struct Staging {
    pub(super) storage: &'static str,
    /// The client, or the server's cache.
    pub(super) from: &'static str,
    pub(super) bytes: u64,
    pub(super) mb_per_s: f64,
    pub(super) reach: f64,
}

/// A large file of a session, to and from its client.
#[derive(Debug, Serialize)]
pub(super) struct Transfer {
    pub(super) direction: &'static str,
    pub(super) storage: &'static str,
    pub(super) bytes: u64,
    pub(super) mb_per_s: f64,
    pub(super) reach: f64,
}

#[derive(Debug, Serialize)]
pub(super) struct Download {
    pub(super) bytes: u64,
    pub(super) range_bytes: u64,
    pub(super) rounds: u64,
    pub(super) mb_per_s: f64,
    pub(super) nginx_mb_per_s: f64,
    /// Ours to theirs.
    pub(super) ratio: f64,
    pub(super) reach_ratio: f64,
}

impl Report {
    pub(super) fn print(&self) {
        println!("{}, files\n", self.machine);
        print!("{}", table::render(&["what", "measured", "reach", ""], &self.rows()));
        for note in &self.notes {
            println!("note: {note}");
        }
    }

    fn rows(&self) -> Vec<Vec<String>> {
        let mut rows = Vec::new();
        let mut row = |what: String, measured: String, reach: String, met: bool| {
            rows.push(vec![what, measured, reach, if met { "met" } else { "MISSED" }.into()]);
        };
        let Report { ingest, many, check, staging, download, .. } = self;
        row(
            format!("artifact of {}", size(ingest.bytes)),
            format!(
                "{:.0} MB/s ({:.2} s), sha256sum alone {:.0} MB/s: {:.0} %",
                ingest.mb_per_s,
                ingest.seconds,
                ingest.sha256sum_mb_per_s,
                ingest.ratio * 100.0
            ),
            format!(">= {:.0} %", ingest.reach_ratio * 100.0),
            ingest.ratio >= ingest.reach_ratio,
        );
        row(
            "... the server's memory grows by".into(),
            format!("{:.1} MiB", ingest.server_growth_mib),
            format!("<= {:.0} MiB", ingest.reach_growth_mib),
            ingest.server_growth_mib <= ingest.reach_growth_mib,
        );
        for many in many {
            row(
                format!("{} files of 1 KB, {}", many.files, many.storage),
                format!("{:.2} s after {:.2} s of code", many.after_s, many.code_s),
                format!("<= {:.0} s", many.reach_s),
                many.after_s <= many.reach_s,
            );
        }
        row(
            "no artifact: the look costs".into(),
            format!(
                "{:.3} ms, with 3 folders {:.3} ms, of p50 {:.2} ms",
                check.empty_ms, check.folders_ms, check.without.p50_ms
            ),
            format!("< {} ms", check.reach_ms),
            check.empty_ms < check.reach_ms && check.folders_ms < check.reach_ms,
        );
        for staging in staging {
            row(
                format!(
                    "dataset of {} from the {}, {}",
                    size(staging.bytes),
                    staging.from,
                    staging.storage
                ),
                format!("{:.0} MB/s", staging.mb_per_s),
                format!(">= {:.0} MB/s", staging.reach),
                staging.mb_per_s >= staging.reach,
            );
        }
        for transfer in &self.transfers {
            row(
                format!(
                    "{} of a file of {}, {}",
                    transfer.direction,
                    size(transfer.bytes),
                    transfer.storage
                ),
                format!("{:.0} MB/s", transfer.mb_per_s),
                format!(">= {:.0} MB/s", transfer.reach),
                transfer.mb_per_s >= transfer.reach,
            );
        }
        if let Some(download) = download {
            row(
                format!("download by ranges of {}", size(download.range_bytes)),
                format!(
                    "{:.0} MB/s, nginx {:.0} MB/s: {:.0} %",
                    download.mb_per_s,
                    download.nginx_mb_per_s,
                    download.ratio * 100.0
                ),
                format!(">= {:.0} %", download.reach_ratio * 100.0),
                download.ratio >= download.reach_ratio,
            );
        }
        rows
    }
}

fn size(bytes: u64) -> String {
    let mib = mib(bytes);
    if mib < 1024.0 { format!("{mib:.0} MiB") } else { format!("{:.0} GiB", mib / 1024.0) }
}
