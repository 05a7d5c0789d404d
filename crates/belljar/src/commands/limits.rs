//! Which limits hold on this machine: tried once per boot, remembered, and never silent.

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

/// A verdict is good for as long as nothing it depends on has changed.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Circumstances {
    boot: String,
    version: String,
    uid: u32,
    cgroup_parent: String,
    backend: String,
    /// Without cgroups there are no limits to enforce.
    sets_limits: bool,
    /// Where we stand in the machine's control groups decides what was delegated to us.
    cgroup: String,
}

#[derive(Debug, Serialize, Deserialize)]
struct Remembered {
    circumstances: Circumstances,
    verdicts: Vec<Verdict>,
}

/// The verdicts, from memory if they are there.
pub(super) async fn verdicts(
    runtime: &Arc<dyn Runtime>,
    settings: &Settings,
) -> Result<Vec<Verdict>> {
    match remembered(&**runtime, settings) {
        Some(verdicts) => Ok(verdicts),
        None => test(runtime, settings).await,
    }
}

/// The verdicts, if they are there and still good.
pub(super) fn remembered(runtime: &dyn Runtime, settings: &Settings) -> Option<Vec<Verdict>> {
    let text = fs::read(path(settings)).ok()?;
    let remembered: Remembered = serde_json::from_slice(&text).ok()?;
    (remembered.circumstances == circumstances(runtime, settings)).then_some(remembered.verdicts)
}

/// Tries all limits, whatever is remembered.
pub(super) async fn test(runtime: &Arc<dyn Runtime>, settings: &Settings) -> Result<Vec<Verdict>> {
    let verdicts = selftest::run(runtime).await.context("failed to test the limits")?;
    let remembered = Remembered {
        circumstances: circumstances(&**runtime, settings),
        verdicts: verdicts.clone(),
    };
    // Not being able to remember costs time at the next start and nothing else.
    if let Ok(text) = serde_json::to_vec(&remembered) {
        let _ = fs::write(path(settings), text);
    }
    Ok(verdicts)
}

/// Says which limits do not hold, or refuses to go on without them.
pub(super) fn insist(verdicts: &[Verdict], settings: &Settings) -> Result<()> {
    let void: Vec<&Verdict> = verdicts.iter().filter(|verdict| !verdict.enforced).collect();
    let named = |verdict: &&Verdict| format!("{} ({})", verdict.limit.name(), verdict.detail);
    let list: Vec<String> = void.iter().map(named).collect();
    if void.is_empty() {
        return Ok(());
    }
    if settings.strict {
        bail!(
            "not enforced on this machine: {}; BELLJAR_STRICT=1 forbids to run without, \
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
