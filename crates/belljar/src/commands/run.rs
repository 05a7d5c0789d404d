//! `belljar run`: one piece of code, one sandbox, one result.

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use belljar_engine::result::ExecResult;
use belljar_engine::run::{Code, Run};
use belljar_proto::exec::Language;
use belljar_runtime::{DataMount, Limits, SandboxSpec};
use belljar_sys::process;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use super::code::{self, Given};
use super::limits;
use super::output::{self, Ending};
use crate::backend::Prepared;
use crate::cli::RunArgs;
use crate::home;
use crate::settings::Settings;

pub(super) fn run(args: RunArgs, settings: &Settings) -> Result<ExitCode> {
    let json = args.json;
    let run = plan(args, settings)?;
    let prepared = Prepared::start(settings)?;
    let result = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("failed to start the event loop")?
        .block_on(execute(run, prepared, settings, json))?;
    if json {
        output::print(&(serde_json::to_string_pretty(&result)? + "\n"))?;
    } else {
        report(&result);
        hint(&result, settings);
    }
    Ok(output::exit_code(result.exit_code))
}

/// Turns what the user asked for into a run, or says what is wrong with it.
fn plan(args: RunArgs, settings: &Settings) -> Result<Run> {
    let Given { code, lang, is_script } =
        code::read(args.code.as_deref(), args.file.as_deref(), args.lang)?;
    let code = match lang {
        Language::Python => Code::Python { code, echo: !is_script },
        Language::Bash => Code::Bash {
            code: String::from_utf8(code)
                .ok()
                .filter(|text| !text.contains('\0'))
                .context("a bash script must be text in UTF-8 without NUL bytes")?,
        },
        language => Code::Cell { language, code, echo: !is_script },
    };
    let limits = Limits {
        memory: args.memory.unwrap_or(settings.limits.memory),
        millicpus: args.cpus.unwrap_or(settings.limits.millicpus),
        pids: args.pids.unwrap_or(settings.limits.pids),
        tmpfs: settings.limits.tmpfs,
    };
    if limits.memory < Limits::MIN_MEMORY {
        bail!("--memory: a sandbox needs at least {} MiB", Limits::MIN_MEMORY >> 20);
    }
    let data = args.data.map(|path| data_mount(&path)).transpose()?;
    let policy = args.network.unwrap_or_else(|| settings.network.default.clone());
    let network = settings.network.of_run()?;
    if let Err(why) = network.check(&policy) {
        bail!("--network: {why}");
    }
    let env = policy.environment().into_iter().chain(args.env).collect();
    let spec = SandboxSpec { image: args.image, limits, env, data, ..SandboxSpec::default() };
    let mut run = Run::new(new_id(), code, spec);
    (run.policy, run.network) = (policy, network);
    run.timeout_ms = args.timeout;
    let outputs = args.outputs.as_ref().unwrap_or(&settings.outputs_dir);
    run.outputs = std::path::absolute(outputs)
        .with_context(|| format!("failed to find `{}`", outputs.display()))?;
    if let Some(limit) = args.max_output {
        run.output_limit = limit;
    }
    Ok(run)
}

fn data_mount(path: &Path) -> Result<DataMount> {
    let host_path =
        fs::canonicalize(path).with_context(|| format!("--data `{}`", path.display()))?;
    if !host_path.is_dir() {
        bail!("--data `{}` is not a directory", path.display());
    }
    Ok(DataMount { host_path })
}

/// Short enough for a directory name, long enough never to meet again.
fn new_id() -> String {
    format!("run_{}", &process::random_name()[..12])
}

async fn execute(
    run: Run,
    prepared: Prepared,
    settings: &Settings,
    json: bool,
) -> Result<ExecResult> {
    let runtime = prepared.launch(None).await?;
    let verdicts = limits::verdicts(&runtime, settings).await?;
    limits::insist(&verdicts, settings)?;
    let interrupted = interruptions()?;
    let result = run.execute(&runtime, interrupted, |event| {
        if !json {
            output::pass_through(&event.event, &event.body);
        }
    });
    let result = result.await?;
    drop(runtime);
    Ok(result)
}

/// Ctrl-C and SIGTERM end the code, not us: the sandbox is cleaned up and the result reported.
fn interruptions() -> Result<watch::Receiver<bool>> {
    let (sender, receiver) = watch::channel(false);
    for kind in [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()] {
        let mut signals = signal(kind).context("failed to listen for signals")?;
        let sender = sender.clone();
        tokio::spawn(async move {
            while signals.recv().await.is_some() {
                sender.send_replace(true);
            }
        });
    }
    Ok(receiver)
}

/// Points out what is easily fixed.
fn hint(result: &ExecResult, settings: &Settings) {
    let missing = result.error.as_ref().is_some_and(|error| error.name == "ModuleNotFoundError");
    if missing && home::read_manifest(&home::environment_dir(settings)).is_none() {
        eprintln!(
            "belljar: sandboxes have no packages yet; `belljar setup` installs the usual ones"
        );
    }
}

/// What the output itself did not say.
fn report(result: &ExecResult) {
    let pictures = result.results.iter().filter(|bundle| output::is_picture(bundle)).count();
    let reason = result.reason.as_deref();
    Ending { status: result.status, reason, dropped: result.dropped, pictures }.report();
    output::report_artifacts(&result.artifacts);
}
