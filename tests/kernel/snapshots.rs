//! Snapshots of kernels: a kernel restored from a snapshot remembers everything. It and the original do not see what
//! the other does afterwards.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use belljar_runtime::{
    Fixed, FreezeReport, FreezeRequest, MemoryLayer, MemorySnapshot, RuntimeError, common_layer,
};

use crate::lab::{Lab, Session};

const MIB: u64 = 1 << 20;

/// The snapshots of one test, and their directory.
pub(crate) struct SnapshotDirectory {
    directory: tempfile::TempDir,
    next: u64,
}

pub(crate) struct Taken {
    pub(crate) index: PathBuf,
    pub(crate) report: FreezeReport,
    took: Duration,
}

impl SnapshotDirectory {
    pub(crate) fn new() -> SnapshotDirectory {
        SnapshotDirectory { directory: tempfile::tempdir().expect("a directory"), next: 1 }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    async fn try_take(
        &mut self,
        session: &Session,
        before: Option<&Taken>,
        force: bool,
    ) -> Result<Taken, RuntimeError> {
        let layer = self.next;
        self.next += 1;
        let (pages, index) =
            (self.path(&format!("{layer}.pages")), self.path(&format!("{layer}.index")));
        let before = before.map(|taken| self.open(taken));
        let how = FreezeRequest {
            layer,
            pages: &pages,
            index: &index,
            before: before.as_ref(),
            commons: &self.path("commons"),
            meter: Arc::new(Fixed::new(2048 * MIB)),
            force,
        };
        let began = Instant::now();
        let report = session.sandbox.freeze(&how).await?;
        Ok(Taken { index, report, took: began.elapsed() })
    }

    pub(crate) async fn take(&mut self, session: &Session, before: Option<&Taken>) -> Taken {
        let taken = self.try_take(session, before, false).await.expect("a snapshot");
        assert_eq!(taken.report.refused, [""; 0], "refused");
        taken
    }

    pub(crate) fn open(&self, taken: &Taken) -> MemorySnapshot {
        let open =
            |path: &Path| File::open(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let layers = taken.report.layers.iter().map(|&id| {
            let own = self.path(&format!("{id}.pages"));
            let pages = common_layer(&self.path("commons"), id).unwrap_or(own);
            MemoryLayer { id, pages: open(&pages) }
        });
        MemorySnapshot { layers: layers.collect(), index: open(&taken.index) }
    }

    /// Restores the kernel of a snapshot in another sandbox.
    pub(crate) async fn restore(&self, lab: &Lab, taken: &Taken) -> Session {
        let session = lab.session().await;
        let report = session.sandbox.thaw(&self.open(taken)).await.expect("a kernel");
        assert_eq!(report.lost, [""; 0], "lost");
        session
    }
}

#[tokio::test]
async fn a_kernel_goes_on_in_another_sandbox() {
    for lab in [Lab::warm().await, Lab::cold()] {
        let mut snapshots = SnapshotDirectory::new();
        let session = lab.session().await;
        session
            .printed(
                "import os, json, threading, asyncio\n\
             x = {'a': [1, 2, 3]}; y = x['a']\n\
             def f(n): return n * len(y)\n\
             def g():\n    while True: yield len(y)\n\
             walk = g(); next(walk)\n\
             os.makedirs('sub', exist_ok=True); os.chdir('sub')\n\
             out = open('/tmp/log', 'w+'); out.write('hello '); out.flush()\n\
             await asyncio.sleep(0)\n\
             lock = threading.Lock(); lock.acquire()\n\
             os.environ['MINE'] = 'here'",
            )
            .await;
        let taken = snapshots.take(&session, None).await;
        // Files are not part of a snapshot of memory.
        let other = lab.session().await;
        other.printed("import os; os.makedirs('sub'); open('/tmp/log', 'w').write('hello ')").await;
        let report = other.sandbox.thaw(&snapshots.open(&taken)).await.expect("a kernel");
        assert_eq!(report.lost, [""; 0], "lost");
        for session in [&session, &other] {
            session.printed("y.append(4)").await;
            assert_eq!(session.value("f(10), x, next(walk)").await, "(40, {'a': [1, 2, 3, 4]}, 4)");
            assert_eq!(
                session.value("os.getcwd(), os.environ['MINE']").await,
                "('/session/sub', 'here')"
            );
            assert_eq!(
                session.value("out.write('world'); out.flush(); open('/tmp/log').read()").await,
                "'hello world'"
            );
            assert_eq!(session.value("await asyncio.sleep(0.01, 'awake')").await, "'awake'");
            assert_eq!(
                session.value("lock.locked(), lock.release(), lock.acquire(False)").await,
                "(True, None, True)"
            );
            let raised = session.run("f()").await;
            assert_eq!(raised.exit_code, 1, "{raised:?}");
            assert_eq!(
                session.printed("import subprocess; print(subprocess.getoutput('echo hi'))").await,
                "hi\n"
            );
            // It can be interrupted like any other kernel.
            let mut looping = session.begin("print('on', flush=True)\nwhile True: pass").await;
            looping.has_printed("on\n").await;
            session.sandbox.interrupt(&looping.id).await.expect("it runs");
            assert_eq!(looping.finish().await.exit_code, 130);
        }
        other.printed("x['other'] = True").await;
        assert_eq!(session.value("'other' in x").await, "False");
    }
}

#[tokio::test]
async fn the_second_snapshot_is_small_and_large_values_are_shared() {
    let lab = Lab::warm().await;
    let mut snapshots = SnapshotDirectory::new();
    let session = lab.session().await;
    let setup = "import numpy as np, pandas as pd; big = np.arange(13_000_000); small = 1";
    session.printed(setup).await;
    let first = snapshots.take(&session, None).await;
    assert!(
        first.report.bytes > 100 * MIB && first.report.bytes < 125 * MIB,
        "{}",
        first.report.bytes
    );
    session.printed("small = 2").await;
    let second = snapshots.take(&session, Some(&first)).await;
    assert!(second.report.bytes < 4 * MIB, "{}", second.report.bytes);
    session.printed("small = 3; big[5] = 0").await;
    let third = snapshots.take(&session, Some(&second)).await;
    assert!(third.report.bytes < 4 * MIB, "{}", third.report.bytes);
    eprintln!("took {:?}, {:?}, {:?}", first.took, second.took, third.took);
    for (taken, expected) in
        [(&first, "(1, 5)"), (&second, "(2, 5)"), (&third, "(3, 0)"), (&first, "(1, 5)")]
    {
        let began = Instant::now();
        let other = snapshots.restore(&lab, taken).await;
        eprintln!("developed in {:?}", began.elapsed());
        assert_eq!(other.value("small, int(big[5])").await, expected);
        assert_eq!(other.value("int(big.sum()) - int(big[5]) + 5").await, "84499993500000");
        assert_eq!(other.value("big[:] = 7; int(big.sum())").await, "91000000");
        assert_eq!(other.value("len(pd.DataFrame({'a': big[:10]}).describe())").await, "8");
        let used = other.sandbox.memory_used().expect("it is charged");
        eprintln!("uses {} MiB", used / MIB);
    }
    assert_eq!(session.value("small, int(big[4])").await, "(3, 4)");
}

#[tokio::test]
async fn a_snapshot_of_a_snapshot_and_reasons_for_refusal() {
    let lab = Lab::warm().await;
    let mut snapshots = SnapshotDirectory::new();
    let mut session = lab.session().await;
    session.printed("import pandas as pd; steps = []").await;
    let mut before = None;
    for step in 0..6 {
        session.printed(&format!("steps.append(pd.Series([{step}]))")).await;
        let taken = snapshots.take(&session, before.as_ref()).await;
        session = snapshots.restore(&lab, &taken).await;
        before = Some(taken);
    }
    assert_eq!(session.value("[int(s.sum()) for s in steps]").await, "[0, 1, 2, 3, 4, 5]");

    for (code, reason, undo) in [
        (
            "import threading, time; stop = threading.Event(); t = threading.Thread(target=stop.wait, name='worker'); t.start()",
            "thread `worker` is alive",
            "stop.set(); t.join()",
        ),
        ("import socket; s = socket.socket()", "a socket is open", "s.close()"),
        ("import os; r, w = os.pipe()", "a pipe is open", "os.close(r); os.close(w)"),
        (
            "import subprocess; p = subprocess.Popen(['sleep', '60'])",
            "`sleep`",
            "p.kill(); p.wait()",
        ),
        (
            "import tempfile; t = tempfile.TemporaryFile(); t.fileno()",
            "a file without a name is open",
            "t.close()",
        ),
        ("import mmap; m = mmap.mmap(-1, 4096)", "shared with other processes", "m.close()"),
    ] {
        session.run(code).await;
        let refused =
            snapshots.try_take(&session, before.as_ref(), false).await.expect("an answer");
        let reasons = refused.report.refused.join("; ");
        assert!(reasons.contains(reason), "{code}: {reasons}");
        session.run(undo).await;
    }
    session.run("import socket; s = socket.socket()").await;
    let forced = snapshots.try_take(&session, before.as_ref(), true).await.expect("a snapshot");
    assert_eq!(forced.report.refused, [""; 0]);
    assert!(forced.report.lost[0].starts_with("a socket is open"), "{:?}", forced.report.lost);
    let other = lab.session().await;
    let report = other.sandbox.thaw(&snapshots.open(&forced)).await.expect("a kernel");
    assert!(report.lost[0].starts_with("a socket is open"), "{report:?}");
    assert_eq!(other.value("len(steps)").await, "6");
}

#[tokio::test]
async fn libraries_with_threads_go_on_without_them() {
    let lab = Lab::warm().await;
    let mut snapshots = SnapshotDirectory::new();
    let session = lab.session().await;
    // Arrow reads with its own threads, which keep running.
    let parquet = "import pandas as pd, os; d = pd.DataFrame({'a': range(100000)}); d.to_parquet('/tmp/x.parquet'); \
                   e = pd.read_parquet('/tmp/x.parquet'); len(os.listdir('/proc/self/task')) > 1";
    assert_eq!(session.value(parquet).await, "True");
    let taken = snapshots.take(&session, None).await;
    let other = lab.session().await;
    other.sandbox.thaw(&snapshots.open(&taken)).await.expect("a kernel");
    for session in [&session, &other] {
        let again =
            "d.to_parquet('/tmp/y.parquet'); int(pd.read_parquet('/tmp/y.parquet').a.sum())";
        assert_eq!(session.value(again).await, "4999950000");
    }
}

#[tokio::test]
async fn a_snapshot_that_does_not_fit_leaves_the_kernel_as_it_is() {
    let lab = Lab::warm().await;
    let mut snapshots = SnapshotDirectory::new();
    let session = lab.session().await;
    session.printed("x = 1").await;
    let taken = snapshots.take(&session, None).await;
    let other = lab.session().await;
    other.printed("y = 2").await;
    let mut snapshot = snapshots.open(&taken);
    snapshot.layers.clear();
    let error = other.sandbox.thaw(&snapshot).await.expect_err("layers are missing");
    assert!(error.to_string().contains("changed since"), "{error}");
    let half = snapshots.path("half");
    let bytes = std::fs::read(&taken.index).expect("an index");
    std::fs::write(&half, &bytes[..bytes.len() / 2]).expect("a file");
    let snapshot =
        MemorySnapshot { index: File::open(&half).expect("it is there"), ..snapshots.open(&taken) };
    other.sandbox.thaw(&snapshot).await.expect_err("half an index");
    assert_eq!(other.value("y").await, "2");
}

/// How long restoring a damaged snapshot may take.
const NONSENSE_PATIENCE: Duration = Duration::from_secs(2);

/// If any byte of a snapshot is changed, the restored kernel wakes or does not wake, and no other kernel is
/// harmed.
#[tokio::test]
async fn a_snapshot_with_any_byte_changed_does_no_worse_than_not_wake() {
    const OF_INDEX: usize = 240;
    const OF_PAGES: usize = 24;
    let lab = Lab::warm().await;
    let mut snapshots = SnapshotDirectory::new();
    let session = lab.session().await;
    session.printed("x = list(range(1000)); y = {'a': x}").await;
    let taken = snapshots.take(&session, None).await;
    // This kernel has the same snapshot files mapped in its memory.
    let witness = snapshots.restore(&lab, &taken).await;
    let files = [taken.index.clone(), taken.index.with_extension("pages")];
    let originals = files.clone().map(|path| std::fs::read(path).expect("a file"));
    let changed = snapshots.path("changed");
    let mut other = lab.session().await;
    let (mut woke, mut refused, mut hung) = (0, 0, 0);
    for (file, count) in [(0, OF_INDEX), (1, OF_PAGES)] {
        for number in 0..count {
            // The head of an index has the most important fields, so every fourth change is there.
            // Each bit is tried in turn.
            let len = originals[file].len();
            let head = if file == 0 { 264 } else { 0 };
            let at = match number % 4 {
                0 if head > 0 => (number * 11) % head,
                _ => (number * (len / count) + number * 37) % len,
            };
            let mut bytes = originals[file].clone();
            bytes[at] ^= 1 << ((number / 4) % 8);
            std::fs::write(&changed, &bytes).expect("a file");
            let mut snapshot = snapshots.open(&taken);
            let opened = File::open(&changed).expect("it is there");
            if file == 0 {
                snapshot.index = opened;
            } else {
                let own = snapshot.layers.iter_mut().find(|layer| layer.id == 1).expect("its own");
                own.pages = opened;
            }
            match tokio::time::timeout(NONSENSE_PATIENCE, other.sandbox.thaw(&snapshot)).await {
                Ok(Err(_)) => {
                    refused += 1;
                    continue;
                }
                Ok(Ok(_)) => woke += 1,
                Err(_) => hung += 1,
            }
            // The memory of this kernel may be damaged now, so use a new one.
            other = lab.session().await;
        }
    }
    eprintln!("{woke} woke, {refused} were refused or died, {hung} did not answer");
    assert!(woke > 0 && refused > 0, "nothing was tried");
    assert!(hung < 20, "{hung} did not answer");
    assert_eq!(files.map(|path| std::fs::read(path).expect("a file")), originals);
    for session in [&session, &witness, &snapshots.restore(&lab, &taken).await] {
        assert_eq!(session.value("sum(x), y['a'] is x").await, "(499500, True)");
    }
}

/// Python and the shared object must use the same layout of the structure.
#[tokio::test]
async fn a_request_of_another_layout_is_refused() {
    let lab = Lab::warm().await;
    let mut snapshots = SnapshotDirectory::new();
    let session = lab.session().await;
    session.printed("import belljar_kernel.snapshot as frozen; x = 1").await;
    let good = snapshots.take(&session, None).await;
    for (wrong, undo) in [
        ("frozen._REQUEST_VERSION += 1", "frozen._REQUEST_VERSION -= 1"),
        (
            "import ctypes; sizeof = ctypes.sizeof; ctypes.sizeof = lambda it: sizeof(it) - 8",
            "ctypes.sizeof = sizeof",
        ),
    ] {
        session.printed(wrong).await;
        let refused =
            snapshots.try_take(&session, None, false).await.expect("an answer").report.refused;
        assert_eq!(refused, ["Protocol error"], "{wrong}");
        let error = session.sandbox.thaw(&snapshots.open(&good)).await.expect_err("another layout");
        assert_eq!(error.to_string(), "Protocol error", "{wrong}");
        session.printed(undo).await;
    }
    snapshots.take(&session, None).await;
    assert_eq!(session.value("x").await, "1");
}

/// A zygote still changes after the common snapshot of its kernels was taken, and a forked process shares pages that
/// were changed before the fork. Neither kind of page may be taken for unchanged.
#[tokio::test]
async fn what_is_shared_is_not_taken_for_unchanged() {
    let lab = Lab::warm().await;
    let mut snapshots = SnapshotDirectory::new();
    snapshots.take(&lab.session().await, None).await;
    for n in 0..8 {
        let session = lab.session().await;
        session.printed(&format!("n = {n}; words = [str(i) for i in range(1000)]")).await;
        let first = snapshots.take(&session, None).await;
        let other = snapshots.restore(&lab, &first).await;
        assert_eq!(other.value("n, len(words)").await, format!("({n}, 1000)"));
        let daemon = "import os, time\nif os.fork() == 0:\n    if os.fork() == 0: os.setsid(); time.sleep(60)\n    os._exit(0)\nos.wait()[1]";
        session.printed("n = -1; words += ['x']; import json, re, random").await;
        assert_eq!(session.value(daemon).await, "0");
        let second = snapshots.take(&session, Some(&first)).await;
        let other = snapshots.restore(&lab, &second).await;
        assert_eq!(
            other.value("n, len(words), json.dumps(words[-1])").await,
            "(-1, 1001, '\"x\"')"
        );
    }
}

/// A kernel continues to use a layer whose file was removed, and its next snapshot does not need
/// that layer.
#[tokio::test]
async fn a_layer_may_be_thrown_away_under_a_kernel_that_uses_it() {
    let lab = Lab::warm().await;
    let mut snapshots = SnapshotDirectory::new();
    let session = lab.session().await;
    session.printed("import numpy as np; big = np.arange(4_000_000)").await;
    let first = snapshots.take(&session, None).await;
    let other = snapshots.restore(&lab, &first).await;
    std::fs::remove_file(first.index.with_extension("pages")).expect("a layer");
    for session in [session, other] {
        session.printed("big[7] = 0").await;
        let second = snapshots.take(&session, None).await;
        let third = snapshots.take(&session, Some(&second)).await;
        assert!(third.report.bytes < 4 * MIB, "{}", third.report.bytes);
        let other = snapshots.restore(&lab, &third).await;
        assert_eq!(other.value("int(big.sum()), int(big[7])").await, "(7999997999993, 0)");
    }
}
