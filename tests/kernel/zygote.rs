//! The zygote: what it contains, and what kernels that start with its memory share.

use std::collections::BTreeMap;
use std::time::Duration;

use belljar_proto::exec::{Language, Status};
use belljar_runtime::Limits;
use tokio::time::timeout;

use crate::lab::{Lab, eventually};

#[tokio::test]
async fn a_zygote_is_memory_and_no_process() {
    let lab = Lab::warm().await;
    let zygote = lab.zygote().await;
    assert_eq!(zygote.failed, BTreeMap::new(), "every module was imported");
    assert_eq!(zygote.threads, [""; 0]);
    assert!(zygote.rss_kib > 10 << 10, "{} KiB", zygote.rss_kib);
    let session = lab.session().await;
    // The kernel has nothing from the sandbox that loaded the zygote, nor from our own environment.
    let ours = std::env::var("CARGO_MANIFEST_DIR").expect("set by cargo");
    let look = format!(
        "import os; ({ours:?} in repr(dict(os.environ)), sorted(os.listdir('/proc/self/fd'))[:3])"
    );
    assert_eq!(session.value(&look).await, "(False, ['0', '1', '2'])");
    let open = "import os\n[os.readlink(f'/proc/self/fd/{fd}') for fd in os.listdir('/proc/self/fd') if os.path.exists(f'/proc/self/fd/{fd}') and os.readlink(f'/proc/self/fd/{fd}').startswith('/memfd')]";
    assert_eq!(session.value(open).await, "[]", "the files of the zygote are closed");
    assert_eq!(session.value("open('/proc/self/comm').read()").await, "'python\\n'");
}

/// No kernel can change the memory that kernels share, even if it keeps the files it was given.
#[tokio::test]
async fn what_kernels_begin_with_cannot_be_changed() {
    let lab = Lab::warm().await;
    let session = lab.session().await;
    let attack = "\
import ctypes, glob, os, re
found = [l.split() for l in open('/proc/self/maps') if '/memfd:pages' in l and 'rw-p' in l]
start, end = (int(x, 16) for x in found[0][0].split('-'))
reached = []
for path in glob.glob('/proc/self/map_files/*'):
    try:
        if '/memfd:pages' in os.readlink(path):
            os.close(os.open(path, os.O_RDWR)); reached.append(path)
    except OSError:
        pass
len(found) > 0, reached";
    assert_eq!(session.value(attack).await, "(True, [])");
    assert_eq!(lab.session().await.value("1 + 1").await, "2");
}

#[tokio::test]
async fn two_kernels_of_one_zygote_have_nothing_in_common() {
    let lab = Lab::warm().await;
    let (one, other) = (lab.session().await, lab.session().await);
    for draw in [
        "__import__('random').random()",
        "__import__('numpy').random.random()",
        "__import__('numpy').random.default_rng().random()",
        "__import__('uuid').uuid4()",
        "__import__('secrets').token_hex()",
        "__import__('os').urandom(8)",
        "__import__('tempfile').mktemp()",
        "__import__('multiprocessing').current_process().authkey.hex()",
    ] {
        let (ours, theirs) = (one.value(draw).await, other.value(draw).await);
        assert_ne!(ours, theirs, "{draw}");
    }
    let leave = "\
import os, pandas
x = pandas.mine = os.environ['MINE'] = 'mine'
open('/tmp/mine', 'w').close()";
    assert_eq!(one.run(leave).await.status, Status::Ok);
    let seen = "\
import os, pandas
[name for name, there in {
    'variable': 'x' in globals(),
    'module': hasattr(pandas, 'mine'),
    'environment': 'MINE' in os.environ,
    'file': os.path.exists('/tmp/mine'),
}.items() if there]";
    assert_eq!(other.value(seen).await, "[]");
    assert_eq!(lab.session().await.value(seen).await, "[]", "nor is it in the zygote");
}

#[tokio::test]
async fn a_start_that_was_given_up_leaves_no_second_kernel() {
    let lab = Lab::warm().await;
    for n in 0..12 {
        let session = lab.session_without_kernel().await;
        let pause = Duration::from_micros(800 * n);
        let _ = timeout(pause, session.sandbox.start_kernel(Language::Python)).await;
        session.sandbox.start_kernel(Language::Python).await.expect("a kernel");
        assert_eq!(session.value("1").await, "1");
        eventually("one is left", || session.processes().len() == 1).await;
    }
}

/// The spawner cannot open any file of the machine. It gets the trees that sandboxes are made from
/// as open descriptors.
#[tokio::test]
async fn the_spawner_has_left_the_files_of_the_machine() {
    let lab = Lab::cold();
    if !lab.runtime.separates_ids() {
        belljar_testkit::skip!("without root the spawner finds what it mounts by its path");
    }
    let root = format!("/proc/{}/root", lab.runtime.spawner_pid());
    let entries = std::fs::read_dir(&root).expect("it lives");
    let mut names: Vec<_> = entries.map(|entry| entry.expect("an entry").file_name()).collect();
    names.sort();
    assert_eq!(names, ["dev", "proc", "sys"]);
    let session = lab.session().await;
    assert_eq!(session.value("1 + 1").await, "2", "and makes sandboxes all the same");
}

/// The processor limit does not slow down the building of a sandbox. It applies before code of its
/// owner runs.
#[tokio::test]
async fn a_sandbox_with_little_processor_time_is_not_held_back_while_it_is_built() {
    let lab = Lab::cold();
    if lab.runtime.cgroups().is_err() {
        belljar_testkit::skip!("there are no cgroups here");
    }
    let limits = Limits { millicpus: 10, ..Limits::default() };
    for _ in 0..2 {
        let session = lab.sandbox(limits).await;
        assert_eq!(session.sandbox.throttled(), Some(0), "nothing was held back so far");
        session.sandbox.start_kernel(Language::Bash).await.expect("a shell");
        session.bash("for i in {1..4000}; do :; done").await;
        assert!(session.sandbox.throttled() > Some(0), "the limit holds now");
    }
}
