//! The zygote: what it holds, what its kernels share, and life without it.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use belljar_proto::exec::{Language, Status};
use belljar_runtime::KernelStart;
use belljar_runtime::native::zygote::ZygoteState;
use belljar_sys::process;
use tokio::time::timeout;

use crate::lab::{Lab, eventually};

const SIGKILL: i32 = 9;

#[tokio::test]
async fn a_zygote_holds_nothing_that_kernels_must_not_see() {
    let lab = Lab::warm().await;
    let zygote = lab.zygote().await;
    assert_eq!(zygote.failed, BTreeMap::new(), "every module was imported");
    assert_eq!(zygote.threads, [""; 0]);
    // Also after it has forked: nothing of a kernel stays behind.
    for _ in 0..3 {
        let session = lab.session().await;
        assert_eq!(session.value("1").await, "1");
        session.sandbox.destroy().await;
    }
    has_one_thread(zygote.pid);
    has_no_open_files(zygote.pid);
    has_no_environment_of_ours(zygote.pid);
}

fn has_one_thread(pid: u32) {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).expect("it lives").count();
    assert_eq!(threads, 1);
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    assert_eq!(children.expect("it lives"), "", "its kernels belong to their sandboxes");
}

fn has_no_open_files(pid: u32) {
    let directory = fs::read_dir(format!("/proc/{pid}/fd")).expect("it lives");
    let mut open: Vec<String> = directory
        .map(|entry| fs::read_link(entry.expect("an entry").path()).expect("a link"))
        .map(|target| target.display().to_string())
        .map(|target| target.split(":[").next().unwrap_or_default().to_owned())
        .collect();
    open.sort();
    assert_eq!(open, ["/dev/null", "/dev/null", "/dev/null", "socket"]);
    assert!(
        !fs::exists(format!("/proc/{pid}/root/root")).expect("it can be looked at"),
        "its root is the image's"
    );
}

/// Neither in `/proc/PID/environ` nor anywhere in its memory.
fn has_no_environment_of_ours(pid: u32) {
    // Something of our own environment that could not be there by chance.
    let ours = std::env::var("CARGO_MANIFEST_DIR").expect("set by cargo");
    let environ = fs::read(format!("/proc/{pid}/environ")).expect("it lives");
    let environ = String::from_utf8_lossy(&environ);
    let names: Vec<_> =
        environ.split('\0').filter_map(|pair| Some(pair.split_once('=')?.0)).collect();
    let foreign: Vec<_> = names
        .iter()
        .filter(|name| name.starts_with("CARGO") || name.starts_with("NEXTEST"))
        .collect();
    assert!(foreign.is_empty(), "{foreign:?}");
    assert!(!environ.contains(&ours), "{environ}");
    assert!(!memory_holds(pid, &ours));
    assert!(memory_holds(pid, "ZeroDivisionError"), "the search finds what is there");
}

fn memory_holds(pid: u32, text: &str) -> bool {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).expect("it lives");
    let memory = fs::File::open(format!("/proc/{pid}/mem")).expect("it lives");
    let mut grep = Command::new("grep")
        .args(["-c", "-a", "-F", "-e", text])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("grep starts");
    let mut pipe = grep.stdin.take().expect("it was piped");
    let mut buffer = vec![0; 1 << 20];
    for line in maps.lines().filter(|line| line.contains(" rw")) {
        let range = line.split(' ').next().and_then(|range| range.split_once('-'));
        let (from, to) = range.expect("a range of addresses");
        let address = |text| u64::from_str_radix(text, 16).expect("an address");
        let (mut at, end) = (address(from), address(to));
        while at < end {
            let most = usize::try_from(end - at).map_or(buffer.len(), |n| n.min(buffer.len()));
            // Some special mappings cannot be read.
            let Ok(read) = memory.read_at(&mut buffer[..most], at) else { break };
            if read == 0 || pipe.write_all(&buffer[..read]).is_err() {
                break;
            }
            at += read as u64;
        }
    }
    drop(pipe);
    grep.wait().expect("grep ends").success()
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

#[tokio::test]
async fn a_killed_zygote_is_missed_and_comes_back() {
    let lab = Lab::warm().await;
    let survivor = lab.session().await;
    survivor.run("x = 1").await;
    let old = lab.zygote().await;
    process::signal(old.pid, SIGKILL).expect("it lives");

    let orphan = lab.session_without_kernel().await;
    let start = orphan.sandbox.start_kernel(Language::Python).await.expect("a kernel");
    assert_eq!((start, orphan.value("1").await.as_str()), (KernelStart::Executed, "1"));
    assert_eq!(survivor.value("x").await, "1", "kernels live on");

    let is_back = || match lab.runtime.zygote_state() {
        Some(ZygoteState::Warm(warm)) => warm.pid != old.pid,
        _ => false,
    };
    eventually("another zygote is warm", is_back).await;
    let next = lab.session().await;
    assert_eq!(next.run("import pandas").await.status, Status::Ok);
}
