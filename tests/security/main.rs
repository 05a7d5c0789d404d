//! Attacks from inside a sandbox. Each is a small file under `attacks/` that tries one thing, and
//! fails the build if it succeeds.
//!
//! Every attack is made twice: through the command line, in a kernel started by executing Python,
//! and in a kernel forked from a zygote, which is faster and has the risk of leftover data.

mod surfaces;
mod walls;

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use belljar::{home, settings::Settings};
use belljar_engine::EngineError;
use belljar_engine::exec::Code;
use belljar_engine::run::Run;
use belljar_proto::exec::{Language, Status};
use belljar_runtime::ZygoteState;
use belljar_runtime::native::{NativeConfig, NativeRuntime, Prepared};
use belljar_runtime::{Limits, Runtime, SandboxSpec};
use belljar_testkit::attack::{Attack, Outcome};
use belljar_testkit::attack_host::AttackHost;
use libtest_mimic::{Arguments, Failed, Trial};

/// An attack that starts its own server.
type Surface = fn() -> Result<(), Failed>;

fn main() {
    let arguments = Arguments::from_args();
    let mut trials: Vec<Trial> = Attack::all()
        .into_iter()
        .map(|attack| {
            Trial::test(format!("executed::{}", attack.name), move || by_command_line(&attack))
        })
        .collect();
    trials.push(Trial::test("forked::all_attacks", in_forked_kernels));
    let surfaces: [(&str, Surface); 5] = [
        ("liars_on_the_freeze_line", surfaces::liars_on_the_freeze_line),
        ("forks_cannot_change_what_they_share", surfaces::forks_cannot_change_what_they_share),
        ("volumes_hold_what_is_put_in_them", surfaces::volumes_hold_what_is_put_in_them),
        ("ports_and_terminals", surfaces::ports_and_terminals_are_the_sessions_own),
        ("playing_dead", surfaces::a_session_that_plays_dead_can_be_stopped),
    ];
    for (name, attack) in surfaces {
        trials.push(Trial::test(format!("surfaces::{name}"), attack));
    }
    trials.push(Trial::test("walls::each_is_missed", walls::quick));
    // For `make test-walls`: takes many minutes.
    trials
        .push(Trial::test("walls::all_attacks_on_all_walls", walls::full).with_ignored_flag(true));
    libtest_mimic::run(&arguments, trials).exit();
}

fn by_command_line(attack: &Attack) -> Result<(), Failed> {
    let host = AttackHost::start();
    let directory = tempfile::tempdir()?;
    let outcomes = (0..attack.repeat)
        .map(|_| run_command(attack, &host, directory.path()))
        .collect::<Result<Vec<_>, String>>()?;
    attack.judge(&outcomes, &host.canary).map_err(Failed::from)
}

fn run_command(attack: &Attack, host: &AttackHost, directory: &Path) -> Result<Outcome, String> {
    let mut command = Command::new(belljar_testkit::belljar());
    command.current_dir(directory).args(["run", "--json"]).args(&attack.flags);
    for (key, value) in &host.env {
        command.arg("--env").arg(format!("{key}={value}"));
    }
    command.arg(&attack.path).env("BELLJAR_TEST_SECRET", &host.canary);
    let output = command.output().map_err(|error| error.to_string())?;
    let result: serde_json::Value = serde_json::from_slice(&output.stdout).map_err(|error| {
        format!("belljar did not survive: {error}\n{}", String::from_utf8_lossy(&output.stderr))
    })?;
    let text = |key: &str| result[key].as_str().unwrap_or_default().to_owned();
    Ok(Outcome {
        status: serde_json::from_value(result["status"].clone()).map_err(|e| e.to_string())?,
        exit_code: output.status.code().unwrap_or(-1),
        stdout: text("stdout"),
        stderr: text("stderr") + result["error"]["traceback"].as_str().unwrap_or_default(),
        outputs: directory.join("outputs"),
    })
}

fn in_forked_kernels() -> Result<(), Failed> {
    let host = AttackHost::start();
    let settings = Settings::load()?;
    let prepared = Prepared::start(NativeConfig {
        executable: belljar_testkit::belljar().into(),
        run_dir: settings.run_dir.clone(),
        cgroup_parent: settings.cgroup_parent.clone(),
        image: home::image(&settings)?,
    })?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let failures = runtime.block_on(attack_forked_kernels(prepared, &host))?;
    if failures.is_empty() { Ok(()) } else { Err(failures.join("\n\n").into()) }
}

async fn attack_forked_kernels(
    prepared: Prepared,
    host: &AttackHost,
) -> Result<Vec<String>, Failed> {
    let runtime = prepared.launch()?;
    runtime.keep_zygote();
    let ZygoteState::Warm(warm) = runtime.zygote_settled().await else {
        return Err("the zygote did not get warm".into());
    };
    if !warm.threads.is_empty() {
        return Err(format!("the zygote has several threads: {:?}", warm.threads).into());
    }
    let mut failures = Vec::new();
    // Shell scripts do not use the kernel and were tried through the command line.
    for attack in Attack::all().iter().filter(|a| a.path.extension().is_some_and(|e| e == "py")) {
        let directory = tempfile::tempdir()?;
        let mut outcomes = Vec::new();
        for _ in 0..attack.repeat {
            let outcome = run_forked(attack, host, &runtime, directory.path()).await;
            outcomes.push(outcome.map_err(|why| {
                format!("{}: {}", attack.name, why.message().unwrap_or_default())
            })?);
        }
        if let Err(why) = attack.judge(&outcomes, &host.canary) {
            failures.push(format!("{}: {why}", attack.name));
        }
    }
    Ok(failures)
}

async fn run_forked(
    attack: &Attack,
    host: &AttackHost,
    runtime: &Arc<NativeRuntime>,
    directory: &Path,
) -> Result<Outcome, Failed> {
    let code = Code::cell(Language::Python, std::fs::read(&attack.path)?, false);
    let mut run = run_of(attack, host, code)?;
    run.outputs = directory.join(format!("{:?}", std::time::Instant::now()).replace('/', "_"));
    let outcome = outcome_of(run, runtime).await;
    outcome.map_err(|error| in_full(&error).into())
}

/// A run of an attack, with the limits it asks for.
fn run_of(attack: &Attack, host: &AttackHost, code: Code) -> Result<Run, Failed> {
    let mut limits = Limits::default();
    let mut timeout_ms = 50_000;
    for pair in attack.flags.chunks(2) {
        let [flag, value] = pair else { return Err("flags come with values".into()) };
        match flag.as_str() {
            "--memory" => {
                let mib: u64 = value.strip_suffix('M').ok_or("memory in M")?.parse()?;
                limits.memory = mib << 20;
            }
            "--pids" => limits.pids = value.parse()?,
            "--cpus" => {
                #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
                let millicpus = (value.parse::<f64>()? * 1000.0) as u32;
                limits.millicpus = millicpus;
            }
            "--timeout" => timeout_ms = value.parse::<u64>()? * 1000,
            other => return Err(format!("unknown flag {other}").into()),
        }
    }
    let spec = SandboxSpec { limits, env: host.env.clone(), ..SandboxSpec::default() };
    let mut run = Run::new(format!("attack_{}", attack.name), code, spec);
    run.timeout_ms = timeout_ms;
    Ok(run)
}

async fn outcome_of(run: Run, runtime: &Arc<NativeRuntime>) -> Result<Outcome, EngineError> {
    let outputs = run.outputs.clone();
    let (_never, interrupt) = tokio::sync::watch::channel(false);
    let runtime: Arc<dyn Runtime> = Arc::<NativeRuntime>::clone(runtime);
    let (_sender, no_input) = tokio::sync::mpsc::channel(1);
    let (result, _) = run.execute(&runtime, interrupt, no_input, |_| {}).await?;
    let traceback = result.error.map(|error| error.traceback).unwrap_or_default();
    Ok(Outcome {
        status: result.status,
        exit_code: if result.status == Status::Ok { result.exit_code } else { 1 },
        stdout: result.stdout.into(),
        stderr: String::from(result.stderr) + &traceback,
        outputs,
    })
}

/// An error with all its causes.
fn in_full(error: &dyn std::error::Error) -> String {
    let cause = error.source().map(|cause| format!(": {}", in_full(cause)));
    format!("{error}{}", cause.unwrap_or_default())
}
