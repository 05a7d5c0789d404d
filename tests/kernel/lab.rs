//! A runtime that makes sandboxes, and sessions that talk to their kernels.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use belljar::{home, settings::Settings};
use belljar_engine::exec::result::ExecResult;
use belljar_proto::exec::{
    DEFAULT_GRACE_MS, DEFAULT_OUTPUT_LIMIT, DEFAULT_TIMEOUT_MS, Event, ExecSpec, InputRequest,
    Language, What,
};
use belljar_proto::guest::RefusalCode;
use belljar_proto::zygote::Warm;
use belljar_runtime::link::{Following, Link};
use belljar_runtime::native::{NativeConfig, NativeRuntime, Prepared};
use belljar_runtime::{KernelStart, Limits, RuntimeError, Sandbox, SandboxSpec, ZygoteState};
use belljar_sys::procfs;

/// Time limit for anything that normally takes a moment, on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) struct Lab {
    pub(crate) runtime: Arc<NativeRuntime>,
}

impl Lab {
    /// Kernels are executed: there is no zygote.
    pub(crate) fn cold() -> Lab {
        let settings = Settings::load().expect("settings");
        let prepared = Prepared::start(NativeConfig {
            executable: belljar_testkit::belljar().into(),
            run_dir: settings.run_dir.clone(),
            cgroup_parent: settings.cgroup_parent.clone(),
            image: home::image(&settings).expect("an image"),
        });
        Lab { runtime: prepared.and_then(Prepared::launch).expect("a runtime") }
    }

    /// Kernels begin with the memory of a zygote that is warm.
    pub(crate) async fn warm() -> Lab {
        let lab = Lab::cold();
        lab.runtime.keep_zygote();
        lab.zygote().await;
        lab
    }

    /// The zygote, as soon as it is warm.
    pub(crate) async fn zygote(&self) -> Warm {
        match self.runtime.zygote_settled().await {
            ZygoteState::Warm(warm) => warm,
            other => panic!("there is no zygote: {other:?}"),
        }
    }

    pub(crate) async fn session(&self) -> Session {
        self.session_with(Limits::default()).await
    }

    pub(crate) async fn session_without_kernel(&self) -> Session {
        self.sandbox(Limits::default()).await
    }

    pub(crate) async fn session_with(&self, limits: Limits) -> Session {
        let session = self.sandbox(limits).await;
        let start = session.sandbox.start_kernel(Language::Python).await.expect("a kernel");
        let expected = match self.runtime.zygote_state() {
            Some(_) => KernelStart::Forked,
            None => KernelStart::Executed,
        };
        assert_eq!(start, expected);
        session
    }

    /// A sandbox with a shell and no other kernel.
    pub(crate) async fn shell_session(&self, limits: Limits) -> Session {
        let session = self.sandbox(limits).await;
        session.sandbox.start_kernel(Language::Bash).await.expect("a shell");
        session
    }

    pub(crate) async fn sandbox(&self, limits: Limits) -> Session {
        let spec = SandboxSpec { limits, ..SandboxSpec::default() };
        let sandbox = self.runtime.create(&spec).await.expect("a sandbox");
        Session { sandbox, next: AtomicU64::new(1) }
    }
}

/// Runs the same checks on a forked and on an executed kernel, each in its own sandbox.
pub(crate) async fn of_both_kinds<F: Future<Output = ()>>(
    limits: Limits,
    check: impl Fn(Session) -> F,
) {
    for lab in [Lab::warm().await, Lab::cold()] {
        check(lab.session_with(limits).await).await;
    }
}

/// A sandbox with a kernel.
pub(crate) struct Session {
    pub(crate) sandbox: Sandbox,
    next: AtomicU64,
}

impl Session {
    /// Runs a cell to its end.
    pub(crate) async fn run(&self, code: &str) -> ExecResult {
        self.begin(code).await.finish().await
    }

    /// Runs a cell that only prints, and returns its output.
    pub(crate) async fn printed(&self, code: &str) -> String {
        let result = self.run(code).await;
        assert_eq!((result.exit_code, result.stderr.as_str()), (0, ""), "{result:#?}");
        result.stdout.into()
    }

    /// The text of a cell's last expression.
    pub(crate) async fn value(&self, code: &str) -> String {
        let result = self.run(code).await;
        let text = result.results.last().and_then(|bundle| bundle.text());
        text.unwrap_or_else(|| panic!("{code} gave no value: {result:#?}")).to_owned()
    }

    pub(crate) async fn begin(&self, code: &str) -> Cell {
        self.try_begin(cell(&self.fresh_id()), code).await.expect("the kernel is free")
    }

    pub(crate) async fn try_begin(&self, spec: ExecSpec, code: &str) -> Result<Cell, RuntimeError> {
        self.try_begin_bytes(spec, code.as_bytes()).await
    }

    pub(crate) async fn try_begin_bytes(
        &self,
        spec: ExecSpec,
        body: &[u8],
    ) -> Result<Cell, RuntimeError> {
        let id = spec.exec_id.clone();
        let following = self.sandbox.exec(spec, body).await?;
        Ok(Cell { id, following })
    }

    /// Runs a cell in the shell to its end.
    pub(crate) async fn bash(&self, code: &str) -> ExecResult {
        self.begin_bash(code).await.finish().await
    }

    pub(crate) async fn begin_bash(&self, code: &str) -> Cell {
        let spec = bash_cell(&self.fresh_id());
        self.try_begin(spec, code).await.expect("the shell is free")
    }

    /// Runs a cell in the shell; returns its output and exit status.
    pub(crate) async fn bash_says(&self, code: &str) -> (String, i32) {
        let result = self.bash(code).await;
        assert_eq!(result.stderr, "", "{code}: {result:#?}");
        (result.stdout.into(), result.exit_code)
    }

    pub(crate) fn fresh_id(&self) -> String {
        format!("exec_{}", self.next.fetch_add(1, Ordering::Relaxed))
    }

    /// Runs a command beside the kernel. The kernel may be busy or idle.
    pub(crate) async fn shell(&self, script: &str) {
        let result = self.begin_shell(script).await.finish().await;
        assert_eq!(result.exit_code, 0, "{script}: {result:#?}");
    }

    pub(crate) async fn begin_shell(&self, script: &str) -> Cell {
        let id = format!("shell_{}", self.next.fetch_add(1, Ordering::Relaxed));
        let argv = ["/bin/sh", "-c", script].map(str::to_owned).to_vec();
        let what = What::Command { argv, cwd: "/tmp".into() };
        let env = self.sandbox.environment();
        let command = self.try_begin(ExecSpec { what, env, ..cell(&id) }, "").await;
        command.expect("commands need no kernel")
    }

    /// Why a cell was not accepted.
    pub(crate) async fn refusal(&self, spec: ExecSpec) -> RefusalCode {
        refused(self.try_begin(spec, "1").await.map(|_| ()))
    }

    /// A second connection to the same guest.
    pub(crate) async fn connect(&self) -> Link {
        self.sandbox.link().again().await.expect("the guest takes more than one connection")
    }

    /// Processes in the sandbox besides the guest, as the host counts them.
    pub(crate) fn processes(&self) -> Vec<u32> {
        procfs::descendants(&procfs::parents(), self.sandbox.pid())
    }
}

/// A cell as a caller would send it.
pub(crate) fn cell(id: &str) -> ExecSpec {
    ExecSpec {
        exec_id: id.to_owned(),
        what: What::Cell { language: Language::Python, echo: true },
        env: Vec::new(),
        timeout_ms: DEFAULT_TIMEOUT_MS,
        grace_ms: DEFAULT_GRACE_MS,
        output_limit: DEFAULT_OUTPUT_LIMIT,
        stdin: false,
        script: None,
        merge_output: false,
    }
}

/// A cell for a shell.
pub(crate) fn bash_cell(id: &str) -> ExecSpec {
    ExecSpec { what: What::Cell { language: Language::Bash, echo: false }, ..cell(id) }
}

/// The code of an expected refusal.
#[track_caller]
pub(crate) fn refused<T: fmt::Debug>(outcome: Result<T, RuntimeError>) -> RefusalCode {
    match outcome {
        Err(RuntimeError::Refused(refusal)) => refusal.code,
        other => panic!("not refused: {other:?}"),
    }
}

/// A cell that runs.
#[derive(Debug)]
pub(crate) struct Cell {
    pub(crate) id: String,
    pub(crate) following: Following,
}

impl Cell {
    pub(crate) async fn finish(mut self) -> ExecResult {
        let (result, lost) = belljar_engine::exec::collect(
            self.id,
            &mut self.following,
            DEFAULT_OUTPUT_LIMIT,
            |_| {},
        )
        .await;
        assert!(!lost, "the sandbox was lost: {result:#?}");
        result
    }

    /// Waits until the code asks for a line of input.
    pub(crate) async fn has_asked(&mut self) -> InputRequest {
        loop {
            let event = self.following.next().await.expect("the sandbox lives");
            match event.event {
                Event::Input => return serde_json::from_slice(&event.body).expect("a question"),
                Event::Done(outcome) => panic!("it ended without asking: {outcome:?}"),
                _ => {}
            }
        }
    }

    /// Waits until the output contains this text anywhere. Use it where more output follows at once,
    /// because a chunk of output can end anywhere.
    pub(crate) async fn has_printed_somewhere(&mut self, text: &str) {
        let mut seen = Vec::new();
        while !String::from_utf8_lossy(&seen).contains(text) {
            seen.extend(self.following.next().await.expect("the sandbox lives").body);
        }
    }

    /// Waits for output that ends like this; returns where the next event begins.
    pub(crate) async fn has_printed(&mut self, end: &str) -> (u64, u64) {
        let mut seen = Vec::new();
        loop {
            let event = self.following.next().await.expect("the sandbox lives");
            let size = event.body.len() as u64;
            seen.extend(event.body);
            if seen.ends_with(end.as_bytes()) {
                return (event.seq, event.offset + size);
            }
        }
    }
}

/// Checks a condition repeatedly until it holds; fails if it does not hold in time.
pub(crate) async fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "never: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
