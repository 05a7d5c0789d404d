//! The result of a benchmark, as text and as JSON.

use std::fmt;

use anyhow::Result;
use belljar_sys::procfs;
use serde::Serialize;

/// The results of a benchmark, ready to print.
#[derive(Debug)]
pub struct Measured {
    /// All figures, as JSON.
    pub json: String,
    /// One line: the machine, and what was measured.
    pub heading: String,
    pub header: Vec<&'static str>,
    pub rows: Vec<Vec<String>>,
    /// Lines below the table.
    pub remarks: Vec<String>,
}

impl Measured {
    pub(crate) fn of(figures: &impl Figures) -> Result<Measured> {
        Ok(Measured {
            json: serde_json::to_string_pretty(figures)?,
            heading: figures.heading(),
            header: figures.header(),
            rows: figures.rows(),
            remarks: figures.remarks(),
        })
    }
}

/// The figures of one benchmark: JSON by `Serialize`, and a table to read.
pub(crate) trait Figures: Serialize {
    fn heading(&self) -> String;

    fn header(&self) -> Vec<&'static str> {
        vec!["what", "measured", "target", ""]
    }

    fn rows(&self) -> Vec<Vec<String>>;

    fn remarks(&self) -> Vec<String> {
        Vec::new()
    }
}

/// A row of a table with targets.
pub(crate) fn target_row(what: &str, measured: String, target: String, met: bool) -> Vec<String> {
    vec![what.to_owned(), measured, target, verdict(met).to_owned()]
}

/// A row of the same table for a figure without a target.
pub(crate) fn plain_row(what: &str, measured: String) -> Vec<String> {
    vec![what.to_owned(), measured, String::new(), String::new()]
}

pub(crate) fn verdict(met: bool) -> &'static str {
    if met { "met" } else { "MISSED" }
}

/// The machine that was measured.
#[derive(Debug, Serialize)]
pub(crate) struct Machine {
    kernel: String,
    pub(crate) processors: usize,
    version: &'static str,
}

impl Machine {
    pub(crate) fn of_this() -> Machine {
        Machine {
            kernel: procfs::kernel_release(),
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            version: env!("CARGO_PKG_VERSION"),
        }
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Machine { kernel, processors, version } = self;
        write!(f, "belljar {version} on Linux {kernel}, {processors} processors")
    }
}
