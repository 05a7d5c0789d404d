//! The code that the benchmarks run, and how a sandbox runs it.

use anyhow::{Result, ensure};
use belljar_engine::exec;
use belljar_proto::exec::{ExecSpec, Language, Status, What};
use belljar_runtime::Sandbox;

/// First result of a new session: imports all preloaded packages and uses none of them.
pub(crate) const FIRST: &str =
    "import numpy, pandas, pyarrow, matplotlib.pyplot, sklearn, scipy, PIL, openpyxl; 6 * 7";

/// First result of a new session that uses pandas.
pub(crate) const FIRST_PANDAS: &str = "import pandas as pd; int(pd.Series([1, 2, 3]).sum())";

/// A cell that takes almost no time in the kernel.
pub(crate) const NOTHING: &str = "x = 1";

/// Sandboxes in the pool while a native backend or a server is measured.
pub(crate) const POOL_SIZE: usize = 8;

/// Bytes of output that are kept.
const OUTPUT_LIMIT: u64 = 1 << 20;

pub(crate) async fn execute(sandbox: &Sandbox, code: &str) -> Result<()> {
    let spec = ExecSpec {
        exec_id: next_id(),
        what: What::Cell { language: Language::Python, echo: true },
        env: Vec::new(),
        timeout_ms: 60_000,
        grace_ms: 1_000,
        output_limit: OUTPUT_LIMIT,
        stdin: false,
        script: None,
        merge_output: false,
    };
    let exec_id = spec.exec_id.clone();
    let mut following = sandbox.exec(spec, code.as_bytes()).await?;
    let (result, _) = exec::collect(exec_id, &mut following, OUTPUT_LIMIT, |_| {}).await;
    ensure!(result.status == Status::Ok, "the code failed: {:?} {:?}", result.reason, result.error);
    Ok(())
}

fn next_id() -> String {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(1);
    format!("bench_{}", NEXT.fetch_add(1, Ordering::Relaxed))
}
