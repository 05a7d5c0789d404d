//! The usage of each tenant, per day.

use std::collections::BTreeMap;

use async_trait::async_trait;
use belljar_proto::exec::Status;
use serde::Serialize;

use crate::StoreError;
use crate::execs::STATUSES;

/// The usage of one tenant on one day.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct UsageRow {
    pub tenant: String,
    /// `YYYY-MM-DD`, in UTC.
    pub day: String,
    pub sessions: u64,
    pub runs: u64,
    /// Executions by status.
    pub execs: BTreeMap<&'static str, u64>,
    pub cpu_seconds: f64,
    /// Memory in use, integrated over time: one GiB for an hour is 3600.
    pub memory_gib_seconds: f64,
    pub bytes_in: u64,
    pub bytes_out: u64,
}

/// An addition to the usage of a tenant on a day.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UsageDelta {
    pub sessions: u64,
    pub runs: u64,
    /// In the order of [`STATUSES`].
    pub execs: [u64; STATUSES.len()],
    pub cpu_us: u64,
    pub memory_mib_ms: u64,
    pub bytes_in: u64,
    pub bytes_out: u64,
}

impl UsageDelta {
    pub fn count(&mut self, status: Status) {
        if let Some(index) = STATUSES.iter().position(|known| *known == status) {
            self.execs[index] += 1;
        }
    }
}

#[async_trait]
pub trait UsageRecords {
    /// Adds to the day of each of these tenants.
    async fn add_usage(
        &self,
        day: String,
        deltas: Vec<(String, UsageDelta)>,
    ) -> Result<(), StoreError>;

    /// Days from `since` on, of one tenant or of all tenants.
    async fn usage(
        &self,
        tenant: Option<String>,
        since: String,
    ) -> Result<Vec<UsageRow>, StoreError>;
}
