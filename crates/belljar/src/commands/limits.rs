//! Tests which limits this machine enforces: once per boot, with a stored result. Reports limits that are not enforced.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use belljar_runtime::Runtime;
use belljar_runtime::selftest::{self, Verdict};
use belljar_sys::{privileges, procfs};
use serde::{Deserialize, Serialize};

use crate::logging;
use crate::settings::Settings;

/// The conditions of a verdict. It is valid until one of them changes.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Circumstances {
    boot: String,
    version: String,
    uid: u32,
    cgroup_parent: String,
    backend: String,
    /// Whether limits are set at all: without cgroups there are none to enforce.
    sets_limits: bool,
    /// Our own control group, which determines what is delegated to us.
    cgroup: String,
}

#[derive(Debug, Serialize, Deserialize)]
struct StoredVerdicts {
    circumstances: Circumstances,
    verdicts: Vec<Verdict>,
}

/// The verdicts: the stored ones if they are valid, else those of a new test.
pub(super) async fn verdicts(
    runtime: &Arc<dyn Runtime>,
    settings: &Settings,
) -> Result<Vec<Verdict>> {
    match remembered(&**runtime, settings) {
        Some(verdicts) => Ok(verdicts),
        None => test(runtime, settings).await,
    }
}

/// The stored verdicts, if they are valid.
pub(super) fn remembered(runtime: &dyn Runtime, settings: &Settings) -> Option<Vec<Verdict>> {
    let text = fs::read(path(settings)).ok()?;
    let remembered: StoredVerdicts = serde_json::from_slice(&text).ok()?;
    (remembered.circumstances == circumstances(runtime, settings)).then_some(remembered.verdicts)
}

/// Tests all limits and stores the verdicts.
pub(super) async fn test(runtime: &Arc<dyn Runtime>, settings: &Settings) -> Result<Vec<Verdict>> {
    let verdicts = selftest::run(runtime).await.context("failed to test the limits")?;
    let remembered = StoredVerdicts {
        circumstances: circumstances(&**runtime, settings),
        verdicts: verdicts.clone(),
    };
    // If storing fails, the next start only takes longer.
    if let Ok(text) = serde_json::to_vec(&remembered) {
        let _ = fs::write(path(settings), text);
    }
    Ok(verdicts)
}

/// Warns about limits that are not enforced; with BELLJAR_STRICT, fails.
pub(super) fn insist(verdicts: &[Verdict], settings: &Settings) -> Result<()> {
    let missing: Vec<&Verdict> = verdicts.iter().filter(|verdict| !verdict.enforced).collect();
    let named = |verdict: &&Verdict| format!("{} ({})", verdict.limit.name(), verdict.detail);
    let list: Vec<String> = missing.iter().map(named).collect();
    if missing.is_empty() {
        return Ok(());
    }
    if settings.strict {
        bail!(
            "not enforced on this machine: {}; BELLJAR_STRICT=1 does not allow that; \
             `belljar doctor` says what to do",
            list.join("; ")
        );
    }
    logging::warn(&format!(
        "not enforced on this machine: {}; see `belljar doctor`",
        list.join("; ")
    ));
    Ok(())
}

fn path(settings: &Settings) -> PathBuf {
    settings.run_dir.join("selftest.json")
}

fn circumstances(runtime: &dyn Runtime, settings: &Settings) -> Circumstances {
    Circumstances {
        boot: procfs::boot_id(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        uid: privileges::own_ids().0,
        cgroup_parent: settings.cgroup_parent.clone(),
        backend: runtime.backend(),
        sets_limits: runtime.sets_limits(),
        cgroup: fs::read_to_string("/proc/self/cgroup").unwrap_or_default(),
    }
}
