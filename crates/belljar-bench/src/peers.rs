//! Other programs that do the same work, measured in the same run on the same machine.

use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::Serialize;

use crate::BenchConfig;
use crate::samples::{Samples, Summary};

/// One line of code, run by `belljar run` and by a plain interpreter.
#[derive(Debug, Serialize)]
pub(crate) struct CommandLine {
    pub(crate) belljar_run: Summary,
    pub(crate) python3: Summary,
}

/// Measures both commands in turns.
pub(crate) fn command_line(config: &BenchConfig, rounds: usize) -> Result<CommandLine> {
    // The interpreter itself: `python3` on the PATH may be a wrapper that is slow to start.
    let python = fs::canonicalize(&config.python).unwrap_or_else(|_| config.python.clone());
    let (mut ours, mut theirs) = (Samples::default(), Samples::default());
    for _ in 0..rounds {
        theirs.push(once(Command::new(&python).args(["-c", "print(1)"]))?);
        ours.push(once(Command::new(&config.program).args(["run", "-c", "print(1)"]))?);
    }
    Ok(CommandLine { belljar_run: ours.summary(), python3: theirs.summary() })
}

/// Starts a new interpreter of the sandboxes' environment, without isolation.
pub(crate) fn python(config: &BenchConfig, code: &str, rounds: usize) -> Result<Summary> {
    timed(Command::new(&config.python).args(["-I", "-c", code]), rounds)
}

/// Peak resident memory of one interpreter that runs `code`, in KiB.
pub(crate) fn python_rss_kib(config: &BenchConfig, code: &str) -> Option<u64> {
    let code = format!(
        "{code}\nimport resource\nprint(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    );
    let output = Command::new(&config.python).args(["-I", "-c", &code]).output().ok()?;
    String::from_utf8(output.stdout).ok()?.trim().parse().ok()
}

/// Measures `docker run` with the image for comparisons, if an engine answers.
pub(crate) fn docker(config: &BenchConfig, code: &str, rounds: usize) -> Result<Summary> {
    let answers = Command::new("docker")
        .args(["version", "--format", "{{.Server.Version}}"])
        .output()
        .is_ok_and(|output| output.status.success());
    if !answers {
        bail!("no docker engine answers");
    }
    let image = config.peer_image.as_deref();
    let image = image.context("set BELLJAR_BENCH_IMAGE to an image with pandas")?;
    docker_run(image, config, code, rounds)
}

/// Measures `docker run` with `image` and the runtime in the settings.
pub(crate) fn docker_run(
    image: &str,
    config: &BenchConfig,
    code: &str,
    rounds: usize,
) -> Result<Summary> {
    let mut command = Command::new("docker");
    command.args(["run", "--rm", "--network", "none", "--memory", "512m", "--cpus", "1"]);
    if let Some(runtime) = &config.docker_runtime {
        command.args(["--runtime", runtime]);
    }
    command.args([image, "python3", "-c", code]);
    timed(&mut command, rounds)
}

fn timed(command: &mut Command, rounds: usize) -> Result<Summary> {
    let samples = (0..rounds).map(|_| once(command)).collect::<Result<Samples>>()?;
    Ok(samples.summary())
}

/// Runs a command that must succeed. Returns how long it took.
pub(crate) fn once(command: &mut Command) -> Result<Duration> {
    let start = Instant::now();
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("failed to start {:?}", command.get_program()))?;
    let took = start.elapsed();
    if !output.status.success() {
        bail!("{}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(took)
}
