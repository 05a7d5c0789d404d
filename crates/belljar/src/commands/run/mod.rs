//! `belljar run`: runs code or a notebook once, in a new sandbox.

mod args;
mod images;
mod input;
mod modules;
mod notebook;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use belljar_engine::artifacts::Artifacts;
use belljar_engine::exec::Code;
use belljar_engine::exec::result::ExecResult;
use belljar_engine::network::Policy;
use belljar_engine::run::{BroughtFile, Leftovers, Run};
use belljar_proto::exec::{Event, KernelState, Language, Script, Status};
use belljar_runtime::{DataMount, Limits, Runtime, SandboxSpec, paths};
use belljar_sys::process;
use indicatif::HumanBytes;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use super::code::{self, GivenCode};
use super::output::{self, Ending};
use super::{EXIT_LOST, limits};
use crate::backend::Prepared;
use crate::home;
use crate::settings::Settings;
pub(crate) use args::RunArgs;
use input::Input;
use modules::ModuleFiles;
use notebook::Notebook;

/// How many leftover files are listed by name.
const MAX_NAMED: usize = 5;

/// What to run, and how.
struct Plan {
    run: Run,
    /// A notebook, instead of the run's own code.
    notebook: Option<Notebook>,
    input: InputOf,
    file: Option<PathBuf>,
    json: bool,
    keep_going: bool,
    save_as: Option<PathBuf>,
}

/// A result as JSON.
#[derive(Debug, Serialize)]
struct PrintedRun<'a> {
    #[serde(flatten)]
    result: &'a ExecResult,
    #[serde(skip_serializing_if = "Option::is_none")]
    left_behind: Option<&'a Leftovers>,
}

/// When the code gets our standard input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum InputOf {
    /// Never: the code cannot read it, or the input was the code itself.
    None,
    /// When the code requests it.
    Asking,
    FromTheStart,
}

pub(crate) fn run(args: RunArgs, settings: &Settings) -> Result<ExitCode> {
    let plan = plan(args, settings)?;
    let prepared = Prepared::start(settings)?;
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("failed to start the event loop")?
        .block_on(execute(plan, prepared, settings))
}

/// Checks the flags and prepares the run.
fn plan(args: RunArgs, settings: &Settings) -> Result<Plan> {
    let file = args.file.clone().filter(|path| path != Path::new("-"));
    let is_notebook =
        file.as_ref().and_then(|path| path.extension()).is_some_and(|ending| ending == "ipynb");
    check_notebook_flags(&args, is_notebook)?;
    let given = code::read(args.code.as_deref(), args.file.as_deref(), args.lang)?;
    let nothing = Code::cell(Language::Python, Vec::new(), true);
    let mut run = Run::new(new_id(), nothing, spec_of(&args, settings)?);
    if let (Some(path), false) = (&file, args.no_modules)
        && (is_notebook || given.lang == Language::Python)
    {
        run.files = modules(path, &given.code)?;
    }
    let (mut notebook, mut input) = (None, InputOf::None);
    match &file {
        Some(path) if is_notebook => {
            let read = Notebook::read(&given.code, args.lang);
            notebook = Some(read.with_context(|| format!("`{}` cannot be run", path.display()))?);
        }
        _ => input = set_code(&mut run, given, &args, file.as_deref())?,
    }
    run.stdin = input != InputOf::None;
    set_network(&mut run, args.network, args.env, settings)?;
    run.timeout_ms = args.timeout;
    let outputs = args.outputs.as_ref().unwrap_or(&settings.outputs_dir);
    run.outputs = std::path::absolute(outputs)
        .with_context(|| format!("failed to find `{}`", outputs.display()))?;
    if let Some(limit) = args.max_output {
        run.output_limit = limit;
    }
    let (json, keep_going, save_as) = (args.json, args.keep_going, args.save_as);
    Ok(Plan { run, notebook, input, file, json, keep_going, save_as })
}

fn check_notebook_flags(args: &RunArgs, is_notebook: bool) -> Result<()> {
    if !is_notebook && (args.keep_going || args.save_as.is_some()) {
        bail!("--keep-going and --save-as are for notebooks: files whose name ends in .ipynb");
    }
    if is_notebook && !args.args.is_empty() {
        bail!(
            "a notebook takes no arguments; --env KEY=VALUE sets variables that its cells can read"
        );
    }
    Ok(())
}

/// Sets the code of a run that is not a notebook. Returns when the code gets our standard input.
fn set_code(
    run: &mut Run,
    given: GivenCode,
    args: &RunArgs,
    file: Option<&Path>,
) -> Result<InputOf> {
    let GivenCode { code, lang, is_script } = given;
    let name = script_name(file);
    let arguments = |first: String| std::iter::once(first).chain(args.args.iter().cloned());
    // Otherwise the code came from there.
    let input_is_free = args.code.is_some() || file.is_some();
    match lang {
        Language::Python => {
            let argv0 = match (file, &args.code) {
                (Some(_), _) => name.clone(),
                (None, Some(_)) => "-c".into(),
                (None, None) => "-".into(),
            };
            let path = file.map(|_| format!("{}/{name}", paths::SESSION));
            run.script = Some(Script { path, argv: arguments(argv0).collect() });
            if let Some(path) = file {
                run.files.push(BroughtFile { path: name.into_bytes(), content: path.into() });
            }
            run.code = Code::cell(Language::Python, code, !is_script);
            Ok(if input_is_free { InputOf::Asking } else { InputOf::None })
        }
        Language::Bash => {
            let code = String::from_utf8(code)
                .ok()
                .filter(|text| !text.contains('\0'))
                .context("a bash script must be text in UTF-8 without NUL bytes")?;
            let first = if file.is_some() { name } else { "bash".into() };
            run.code = Code::shell(code, arguments(first).collect());
            Ok(if input_is_free { InputOf::FromTheStart } else { InputOf::None })
        }
        language => {
            if !args.args.is_empty() {
                bail!("arguments after -- are for Python and bash, and this is {language}");
            }
            run.code = Code::cell(language, code, !is_script);
            Ok(InputOf::None)
        }
    }
}

fn set_network(
    run: &mut Run,
    asked: Option<Policy>,
    env: Vec<(String, String)>,
    settings: &Settings,
) -> Result<()> {
    let policy = asked.unwrap_or_else(|| settings.network.default.clone());
    let network = settings.network.of_run()?;
    if let Err(why) = network.check(&policy) {
        bail!("--network: {why}");
    }
    run.spec.env = policy.environment().into_iter().chain(env).collect();
    (run.policy, run.network) = (policy, network);
    Ok(())
}

fn spec_of(args: &RunArgs, settings: &Settings) -> Result<SandboxSpec> {
    let limits = Limits {
        memory: args.limits.memory.unwrap_or(settings.limits.memory),
        millicpus: args.limits.cpus.unwrap_or(settings.limits.millicpus),
        pids: args.limits.pids.unwrap_or(settings.limits.pids),
        tmpfs: settings.limits.tmpfs,
    };
    if limits.memory < Limits::MIN_MEMORY {
        bail!("--memory: a sandbox needs at least {} MiB", Limits::MIN_MEMORY >> 20);
    }
    let data = args.data.as_deref().map(data_mount).transpose()?;
    Ok(SandboxSpec { image: args.image.clone(), limits, data, ..SandboxSpec::default() })
}

/// The name of a script in the sandbox: its own, if that is valid UTF-8 and not reserved.
fn script_name(file: Option<&Path>) -> String {
    let name = file.and_then(Path::file_name).and_then(|name| name.to_str());
    name.filter(|name| *name != "artifacts" && *name != "data").unwrap_or("script.py").to_owned()
}

/// The modules in the directory of a script or notebook.
fn modules(path: &Path, code: &[u8]) -> Result<Vec<BroughtFile>> {
    let found = ModuleFiles::find(path, code)?;
    if found.is_cut {
        output::say(&format!(
            "only {} files beside `{}` were copied into the sandbox for imports; there are more, or larger ones",
            found.files.len(),
            path.display()
        ));
    }
    Ok(found.files)
}

fn data_mount(path: &Path) -> Result<DataMount> {
    let host_path =
        fs::canonicalize(path).with_context(|| format!("--data `{}`", path.display()))?;
    if !host_path.is_dir() {
        bail!("--data `{}` is not a directory", path.display());
    }
    Ok(DataMount { host_path })
}

/// A unique id, short enough for a directory name.
fn new_id() -> String {
    format!("run_{}", &process::random_name()[..12])
}

async fn execute(plan: Plan, prepared: Prepared, settings: &Settings) -> Result<ExitCode> {
    let runtime = prepared.launch(None).await?;
    let verdicts = limits::verdicts(&runtime, settings).await?;
    limits::insist(&verdicts, settings)?;
    let interrupted = interruptions()?;
    match plan.notebook {
        Some(_) => execute_notebook(plan, &runtime, interrupted, settings).await,
        None => execute_code(plan, &runtime, interrupted, settings).await,
    }
}

async fn execute_code(
    plan: Plan,
    runtime: &std::sync::Arc<dyn Runtime>,
    interrupted: watch::Receiver<bool>,
    settings: &Settings,
) -> Result<ExitCode> {
    let Plan { run, input: input_of, json, file, .. } = plan;
    let directory = run.outputs.join(&run.id);
    let (mut input, mut pieces) = Input::new();
    match input_of {
        InputOf::None => pieces = Input::none(),
        InputOf::Asking => {}
        InputOf::FromTheStart => input.begin_unasked(),
    }
    let watch = |event: &belljar_runtime::link::ExecEvent| match event.event {
        Event::Input => input.asked(&event.body),
        _ if json => {}
        _ => output::pass_through(&event.event, &event.body),
    };
    let (result, left) = run.execute(runtime, interrupted, pieces, watch).await?;
    // Restores the terminal first, if the code ended during a prompt.
    drop(input);
    let mut lost = !result.artifacts.artifacts_refused.is_empty();
    if json {
        let reply =
            PrintedRun { result: &result, left_behind: Some(&left).filter(|it| !it.is_empty()) };
        output::print(&(serde_json::to_string_pretty(&reply)? + "\n"))?;
    } else {
        report(&result);
        lost |= save_images(&result, &directory);
        report_leftovers(&left);
        hint(&result, file.as_deref(), settings);
    }
    Ok(exit_code(result.exit_code, lost))
}

async fn execute_notebook(
    plan: Plan,
    runtime: &std::sync::Arc<dyn Runtime>,
    interrupted: watch::Receiver<bool>,
    settings: &Settings,
) -> Result<ExitCode> {
    let Plan { run, notebook, json, file, keep_going, save_as, .. } = plan;
    let (Some(notebook), Some(file)) = (notebook, file) else { bail!("there is no notebook") };
    let (id, directory) = (run.id.clone(), run.outputs.join(&run.id));
    let code = notebook.code();
    let notebook = std::cell::RefCell::new(notebook);
    let mut ends: Vec<(usize, ExecResult)> = Vec::new();
    let mut failed: Option<(usize, i32)> = None;
    let watch = |number: usize, event: &belljar_runtime::link::ExecEvent| {
        notebook.borrow_mut().watch(number, &event.event, &event.body);
        if !json {
            output::pass_through(&event.event, &event.body);
        }
    };
    let goes_on = |number: usize, result: &ExecResult| {
        let mut notebook = notebook.borrow_mut();
        let is_error = notebook.ended(number, result);
        if is_error && failed.is_none() {
            failed = Some((number, if result.exit_code == 0 { 1 } else { result.exit_code }));
        }
        if !json {
            report(result);
            hint(result, Some(&file), settings);
        }
        ends.push((notebook.index(number), result.clone()));
        // Without its kernel the other cells cannot run.
        let is_over =
            result.status == Status::Interrupted || result.kernel_state == KernelState::Lost;
        !is_over && (keep_going || !is_error)
    };
    let (artifacts, left) = run.execute_cells(runtime, interrupted, code, watch, goes_on).await?;
    let notebook = notebook.into_inner();
    let count = notebook.len();
    let text = notebook::to_text(&notebook.executed())?;
    let written = match &save_as {
        Some(path) => notebook::replace(path, &text).map(|()| path.clone()),
        None => {
            let stem = file.file_stem().unwrap_or_default().to_string_lossy();
            images::write_new(&directory, &stem, "ipynb", &text)
        }
    };
    let mut lost = !artifacts.artifacts_refused.is_empty();
    if let Err(error) = &written {
        lost = true;
        output::say(&format!("the executed notebook could not be written: {error}"));
    }
    let exit = failed.map_or(0, |(_, exit)| exit);
    if json {
        let mut value = summary(&id, exit, &ends, &artifacts)?;
        value["notebook"] = json!(written.ok());
        if !left.is_empty() {
            value["left_behind"] = serde_json::to_value(&left)?;
        }
        output::print_json(&value)?;
    } else {
        if let Some((number, _)) = failed {
            let rest = match count - ends.len() {
                0 => String::new(),
                rest if keep_going => format!("; {rest} after it did not run"),
                rest => format!("; {rest} after it did not run (--keep-going runs them)"),
            };
            output::say(&format!("cell {} of {count} with code failed{rest}", number + 1));
        }
        output::report_artifacts(&artifacts);
        if let Ok(path) = written {
            output::say(&format!("executed notebook -> {}", path.display()));
        }
        report_leftovers(&left);
    }
    Ok(exit_code(exit, lost))
}

/// The exit status of the code; EXIT_LOST if it succeeded but artifacts were lost.
fn exit_code(of_code: i32, lost: bool) -> ExitCode {
    if of_code == 0 && lost { ExitCode::from(EXIT_LOST) } else { output::exit_code(of_code) }
}

/// The result of a notebook as JSON. The outputs of cells are in the executed copy.
fn summary(
    id: &str,
    exit_code: i32,
    ends: &[(usize, ExecResult)],
    artifacts: &Artifacts,
) -> Result<Value> {
    let cells: Vec<Value> = ends
        .iter()
        .enumerate()
        .map(|(number, (index, result))| {
            json!({
                "cell": number + 1,
                "index": index,
                "status": result.status,
                "exit_code": result.exit_code,
                "execution_count": result.execution_count,
                "duration_ms": result.duration_ms,
                "reason": result.reason,
                "error": result.error,
            })
        })
        .collect();
    let mut value = serde_json::to_value(artifacts)?;
    value["exec_id"] = id.into();
    value["exit_code"] = exit_code.into();
    value["cells"] = cells.into();
    Ok(value)
}

fn report_leftovers(left: &Leftovers) {
    if left.is_empty() {
        return;
    }
    let named: Vec<String> =
        left.named.iter().take(MAX_NAMED).map(|name| output::plain(name)).collect();
    let more = match left.files.saturating_sub(named.len() as u64) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    output::say(&format!(
        "not kept: {}{more} ({} in the working directory); files in {} are kept",
        named.join(", "),
        HumanBytes(left.bytes),
        paths::RUN_ARTIFACTS,
    ));
}

/// Saves displayed images and lists their files. Returns whether one could not be saved.
fn save_images(result: &ExecResult, directory: &Path) -> bool {
    let saved = images::save(&result.results, directory);
    for path in &saved.files {
        output::say(&format!("figure -> {}", path.display()));
    }
    for lost in &saved.lost {
        output::say(&format!("not saved: {lost}"));
    }
    !saved.lost.is_empty()
}

/// Becomes true on Ctrl-C, SIGTERM or SIGHUP, which end the code. We still clean up and report the result.
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

/// Prints hints for common mistakes.
fn hint(result: &ExecResult, file: Option<&Path>, settings: &Settings) {
    let Some(error) = &result.error else { return };
    let no_packages = || home::read_manifest(&home::environment_dir(settings)).is_none();
    if error.name == "ModuleNotFoundError" && no_packages() {
        output::say("sandboxes have no packages yet; `belljar setup` installs the usual ones");
    }
    if error.name == "FileNotFoundError"
        && let Some(missing) = missing_here(&error.value, file)
    {
        output::say(&format!(
            "`{}` is on this machine, and the sandbox does not see it; --data DIR shows a directory at {}",
            output::plain(&missing),
            paths::DATA
        ));
    }
}

/// The file that the code did not find, if it exists in our working directory or in that of the script.
fn missing_here(message: &str, file: Option<&Path>) -> Option<String> {
    let name = message.rsplit_once(": '")?.1.strip_suffix('\'')?;
    let path = Path::new(name);
    let beside = file.and_then(Path::parent).map(|directory| directory.join(path));
    let is_here = path.is_relative() && (path.exists() || beside.is_some_and(|it| it.exists()));
    is_here.then(|| name.to_owned())
}

/// Reports the parts of the code's end that its output does not show.
fn report(result: &ExecResult) {
    let reason = result.reason.as_deref();
    Ending { status: result.status, reason, dropped: result.dropped, images: 0 }.report();
    output::report_artifacts(&result.artifacts);
}
