//! `belljar run`: one piece of code, one sandbox, one result.

use std::fs;
use std::io::{self, Read, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use belljar_engine::result::ExecResult;
use belljar_engine::run::{Code, Run};
use belljar_proto::exec::{Event, MimeBundle, Status};
use belljar_proto::frame::MAX_BODY;
use belljar_runtime::link::ExecEvent;
use belljar_runtime::native::Prepared;
use belljar_runtime::{DataMount, Limits, SandboxSpec};
use belljar_sys::process;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use super::limits;
use crate::cli::{Lang, RunArgs};
use crate::home;
use crate::settings::{MIN_MEMORY, Settings};

pub(super) fn run(args: RunArgs, settings: &Settings) -> Result<ExitCode> {
    let json = args.json;
    let run = plan(args, settings)?;
    let prepared = home::prepare_runtime(settings)?;
    let result = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("failed to start the event loop")?
        .block_on(execute(run, prepared, settings, json))?;
    if json {
        let text = serde_json::to_string_pretty(&result)? + "\n";
        match io::stdout().write_all(text.as_bytes()) {
            // Who reads only the beginning has what they wanted.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
            printed => printed.context("failed to print the result")?,
        }
    } else {
        report(&result);
        hint(&result, settings);
    }
    // Statuses are small numbers; anything else a process could not have returned anyway.
    Ok(ExitCode::from(u8::try_from(result.exit_code & 0xff).unwrap_or(1)))
}

/// Turns what the user asked for into a run, or says what is wrong with it.
fn plan(args: RunArgs, settings: &Settings) -> Result<Run> {
    let lang = args.lang.unwrap_or_else(|| language_of(args.file.as_deref()));
    let (code, echo) = match (&args.code, &args.file) {
        (Some(code), _) => (code.clone().into_bytes(), true),
        (None, Some(path)) if path == Path::new("-") => (read_stdin()?, true),
        (None, Some(path)) => (read_code(path)?, false),
        (None, None) => bail!("give a FILE, - or -c CODE"),
    };
    if code.len() > MAX_BODY {
        bail!("the code has {} bytes, more than the {MAX_BODY} allowed", code.len());
    }
    let code = match lang {
        Lang::Python => Code::Python { code, echo },
        Lang::Bash => Code::Bash {
            code: String::from_utf8(code)
                .ok()
                .filter(|text| !text.contains('\0'))
                .context("a bash script must be text in UTF-8 without NUL bytes")?,
        },
    };
    let limits = Limits {
        memory: args.memory.unwrap_or(settings.limits.memory),
        millicpus: args.cpus.unwrap_or(settings.limits.millicpus),
        pids: args.pids.unwrap_or(settings.limits.pids),
        tmpfs: settings.limits.tmpfs,
    };
    if limits.memory < MIN_MEMORY {
        bail!("--memory: a sandbox needs at least {} MiB", MIN_MEMORY >> 20);
    }
    let data = args.data.map(|path| data_mount(&path)).transpose()?;
    let spec = SandboxSpec { limits, env: args.env, data, ..SandboxSpec::default() };
    let mut run = Run::new(new_id(), code, spec);
    run.timeout_ms = args.timeout;
    let outputs = args.outputs.as_ref().unwrap_or(&settings.outputs_dir);
    run.outputs = std::path::absolute(outputs)
        .with_context(|| format!("failed to find `{}`", outputs.display()))?;
    if let Some(limit) = args.max_output {
        run.output_limit = limit;
    }
    Ok(run)
}

fn language_of(file: Option<&Path>) -> Lang {
    match file.and_then(Path::extension).and_then(|e| e.to_str()) {
        Some("sh" | "bash") => Lang::Bash,
        _ => Lang::Python,
    }
}

fn read_stdin() -> Result<Vec<u8>> {
    let mut code = Vec::new();
    let most = MAX_BODY as u64 + 1;
    io::stdin().take(most).read_to_end(&mut code).context("failed to read standard input")?;
    Ok(code)
}

fn read_code(path: &Path) -> Result<Vec<u8>> {
    let context = || format!("failed to read `{}`", path.display());
    let metadata = fs::metadata(path).with_context(context)?;
    if metadata.is_dir() {
        bail!("`{}` is a directory", path.display());
    }
    let mut code = Vec::new();
    let most = MAX_BODY as u64 + 1;
    fs::File::open(path).with_context(context)?.take(most).read_to_end(&mut code)?;
    Ok(code)
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
    let runtime = prepared.launch()?;
    let verdicts = limits::verdicts(&runtime, settings).await?;
    limits::insist(&verdicts, settings)?;
    let interrupted = interruptions()?;
    let result = run.execute(&runtime, interrupted, |event| {
        if !json {
            pass_through(event);
        }
    });
    let result = result.await?;
    drop(Arc::into_inner(runtime));
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

/// Output goes through as it comes, byte for byte.
fn pass_through(event: &ExecEvent) {
    match event.event {
        Event::Stdout => write_all(&mut io::stdout(), &event.body),
        Event::Stderr => write_all(&mut io::stderr(), &event.body),
        Event::Display | Event::Result => {
            let bundle = serde_json::from_slice::<MimeBundle>(&event.body).ok();
            if let Some(text) = bundle.as_ref().and_then(MimeBundle::text) {
                write_all(&mut io::stdout(), format!("{text}\n").as_bytes());
            }
        }
        Event::Error => {
            let report = serde_json::from_slice::<belljar_proto::exec::ErrorReport>(&event.body);
            if let Ok(report) = report {
                let text = report.traceback.trim_end().to_owned() + "\n";
                write_all(&mut io::stderr(), text.as_bytes());
            }
        }
        // A run takes no input while it goes on.
        Event::Input | Event::Done(_) => {}
    }
}

/// A reader that went away is no reason to stop the code; there is just nobody to tell.
fn write_all(to: &mut impl Write, bytes: &[u8]) {
    let _ = to.write_all(bytes).and_then(|()| to.flush());
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
    let say = |text: String| write_all(&mut io::stderr(), format!("belljar: {text}\n").as_bytes());
    let state = match result.status {
        Status::Timeout => Some("timed out".to_owned()),
        Status::Oom => Some("out of memory".to_owned()),
        Status::Crashed => Some("crashed".to_owned()),
        Status::Interrupted => Some("interrupted".to_owned()),
        Status::Ok | Status::Error => None,
    };
    match (state, &result.reason) {
        (Some(state), Some(reason)) => say(format!("{state}: {reason}")),
        (Some(state), None) => say(state),
        (None, Some(reason)) => say(reason.clone()),
        (None, None) => {}
    }
    for (stream, bytes) in
        [("stdout", result.dropped.stdout_bytes), ("stderr", result.dropped.stderr_bytes)]
    {
        if bytes > 0 {
            say(format!("{bytes} bytes of {stream} exceeded --max-output and were dropped"));
        }
    }
    let pictures = result.results.iter().filter(|bundle| bundle.data.contains_key("image/png"));
    let pictures = pictures.count();
    if pictures > 0 {
        say(format!("{pictures} picture(s) were shown; --json has them"));
    }
    for artifact in &result.artifacts.artifacts {
        say(format!("{} -> {}", artifact.path.escape_debug(), artifact.host_path.display()));
    }
    for refused in &result.artifacts.artifacts_refused {
        say(format!("not taken: {} ({})", refused.path.escape_debug(), refused.reason));
    }
}
