//! Hundreds of sandboxes, well-behaved and not, one after another and several at a time.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use belljar::{home, settings::Settings};
use belljar_engine::exec::result::ExecResult;
use belljar_proto::exec::{DEFAULT_OUTPUT_LIMIT, ExecSpec, Language, Status, What};
use belljar_runtime::ZygoteState;
use belljar_runtime::link::Following;
use belljar_runtime::native::{NativeConfig, NativeRuntime, Prepared};
use belljar_runtime::{KernelStart, Limits, Sandbox, SandboxSpec};
use belljar_sys::process;

use crate::census::{Census, assert_no_ids_are_taken};
use belljar_testkit::scratch_host::ScratchHost;

const CYCLES: usize = 500;
const AT_A_TIME: usize = 4;
const HOSTILE_CYCLES: usize = 50;

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_left_of_hundreds_of_sandboxes() {
    belljar_testkit::skip_unless_root!("control groups and blocks of ids need root");
    let scratch = ScratchHost::new();
    fs::create_dir_all(scratch.run_dir().join("ids")).expect("a directory");
    let before = Census::take(&scratch);
    let runtime = launch(&scratch).await;
    let idle = Census::settled(&scratch);

    several_at_a_time(&runtime, CYCLES, |runtime, _| ordinary(runtime)).await;
    idle.wait_until_restored(&scratch);
    assert_no_ids_are_taken(&scratch);

    several_at_a_time(&runtime, HOSTILE_CYCLES, hostile).await;
    idle.wait_until_restored(&scratch);
    assert_no_ids_are_taken(&scratch);

    // A live sandbox must appear in the census. A census that counts nothing would find no leaks.
    let alive = create(&runtime).await;
    assert_ne!(Census::take(&scratch), idle);
    alive.destroy().await;
    let ended = Arc::into_inner(runtime).expect("nobody else holds it");
    drop(ended);
    before.wait_until_restored(&scratch);
}

async fn launch(scratch: &ScratchHost) -> Arc<NativeRuntime> {
    let settings = Settings::load().expect("settings");
    let prepared = Prepared::start(NativeConfig {
        executable: belljar_testkit::belljar().into(),
        run_dir: scratch.run_dir().to_owned(),
        cgroup_parent: scratch.cgroup_parent().to_owned(),
        image: home::image(&settings).expect("an image"),
    });
    let runtime = prepared.and_then(Prepared::launch).expect("a runtime");
    runtime.keep_zygote();
    let state = runtime.zygote_settled().await;
    assert!(matches!(state, ZygoteState::Warm(_)), "{state:?}");
    // Starts everything that starts with the first sandbox.
    ordinary(Arc::clone(&runtime)).await;
    runtime
}

async fn several_at_a_time<F: Future<Output = ()> + Send + 'static>(
    runtime: &Arc<NativeRuntime>,
    count: usize,
    cycle: impl Fn(Arc<NativeRuntime>, usize) -> F,
) {
    let mut cycles = tokio::task::JoinSet::new();
    for n in 0..count {
        if cycles.len() >= AT_A_TIME {
            cycles.join_next().await.expect("there are some").expect("a cycle");
        }
        cycles.spawn(cycle(Arc::clone(runtime), n));
    }
    while let Some(ended) = cycles.join_next().await {
        ended.expect("a cycle");
    }
}

/// Makes, uses and destroys a sandbox.
async fn ordinary(runtime: Arc<NativeRuntime>) {
    let sandbox = create(&runtime).await;
    let result = run(&sandbox, "6 * 7").await;
    assert_eq!(result.results[0].text(), Some("42"));
    sandbox.destroy().await;
}

/// Makes a sandbox that ends in one of many bad ways.
async fn hostile(runtime: Arc<NativeRuntime>, n: usize) {
    const BAD_WAYS: usize = 10;
    match n % BAD_WAYS {
        0 => leave_alone(&runtime, FORK_BOMB).await,
        1 => leave_alone(&runtime, DAEMONS).await,
        2 => leave_alone(&runtime, SOCKETS).await,
        3 => leave_alone(&runtime, "os.kill(os.getpid(), signal.SIGSTOP)").await,
        4 => {
            let sandbox = create(&runtime).await;
            let result = run(&sandbox, "b'x' * (1 << 30)").await;
            assert_eq!(result.status, Status::Oom, "{result:#?}");
            sandbox.destroy().await;
        }
        5 => {
            let sandbox = create(&runtime).await;
            process::signal(sandbox.pid(), 9).expect("the guest lives");
            sandbox.ended().await;
            sandbox.destroy().await;
        }
        6 => drop(create(&runtime).await),
        7 => {
            let sandbox = create(&runtime).await;
            let following = start(&sandbox, "time.sleep(1000)").await;
            drop((sandbox, following));
        }
        8 => {
            // The caller gives up at some point of the creation.
            let pause = Duration::from_micros(300 * n as u64);
            let _ = tokio::time::timeout(pause, runtime.create(&spec())).await;
            is_not_mixed_up(&runtime).await;
        }
        _ => {
            let sandbox = runtime.create(&spec()).await.expect("a sandbox");
            let pause = Duration::from_micros(100 * n as u64);
            let _ = tokio::time::timeout(pause, sandbox.start_kernel(Language::Python)).await;
            sandbox.start_kernel(Language::Python).await.expect("a second attempt may succeed");
            assert_eq!(run(&sandbox, "1").await.status, Status::Ok);
            sandbox.destroy().await;
        }
    }
}

const FORK_BOMB: &str = "\
while True:
    try: os.fork()
    except OSError: pass";

const DAEMONS: &str = "\
for _ in range(5):
    if os.fork() == 0:
        os.setsid()
        if os.fork(): os._exit(0)
        time.sleep(1000)";

const SOCKETS: &str = "\
import socket
pairs = [socket.socketpair() for _ in range(500)]
time.sleep(1000)";

/// Starts code and destroys the sandbox under it.
async fn leave_alone(runtime: &Arc<NativeRuntime>, code: &str) {
    let sandbox = create(runtime).await;
    let mut following = start(&sandbox, code).await;
    // A fork bomb may print errors on stderr before its first line on stdout arrives.
    while following.next().await.expect("it begins").body != b"begun\n" {}
    sandbox.destroy().await;
}

/// The process that we believe belongs to a sandbox is in the sandbox that answers us.
async fn is_not_mixed_up(runtime: &Arc<NativeRuntime>) {
    let sandbox = create(runtime).await;
    let mark = sandbox.name().to_owned();
    run(&sandbox, &format!("open('/tmp/mark', 'w').write('{mark}')")).await;
    let seen = fs::read_to_string(format!("/proc/{}/root/tmp/mark", sandbox.pid()));
    assert_eq!(seen.expect("it is there"), mark);
    sandbox.destroy().await;
}

fn spec() -> SandboxSpec {
    let limits = Limits { memory: 256 << 20, pids: 24, ..Limits::default() };
    SandboxSpec { limits, ..SandboxSpec::default() }
}

async fn create(runtime: &Arc<NativeRuntime>) -> Sandbox {
    let sandbox = runtime.create(&spec()).await.expect("a sandbox");
    assert_eq!(
        sandbox.start_kernel(Language::Python).await.expect("a kernel"),
        KernelStart::Forked
    );
    sandbox
}

async fn start(sandbox: &Sandbox, code: &str) -> Following {
    let code = format!("import os, signal, time\nprint('begun', flush=True)\n{code}");
    sandbox.exec(cell(), code.as_bytes()).await.expect("the kernel is free")
}

async fn run(sandbox: &Sandbox, code: &str) -> ExecResult {
    let mut following = sandbox.exec(cell(), code.as_bytes()).await.expect("the kernel is free");
    let (result, lost) =
        belljar_engine::exec::collect("exec".into(), &mut following, 1 << 20, |_| {}).await;
    assert!(!lost, "{result:#?}");
    result
}

fn cell() -> ExecSpec {
    ExecSpec {
        exec_id: "exec".into(),
        what: What::Cell { language: Language::Python, echo: true },
        env: Vec::new(),
        timeout_ms: 60_000,
        grace_ms: 1000,
        output_limit: DEFAULT_OUTPUT_LIMIT,
        stdin: false,
        script: None,
        merge_output: false,
    }
}
