//! The same work done by others, in the same run, on the same machine.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::samples::{Samples, Summary};
use crate::home;
use crate::settings::Settings;

/// How long one round of a command takes that must succeed.
pub(super) fn once(command: &mut Command) -> Result<Duration> {
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

fn timed(command: &mut Command, rounds: usize) -> Result<Summary> {
    let samples = (0..rounds).map(|_| once(command)).collect::<Result<Samples>>()?;
    Ok(samples.summary())
}

/// Our own command line, with no server, and a plain interpreter doing the same, in turns.
pub(super) fn command_line(settings: &Settings, rounds: usize) -> Result<(Summary, Summary)> {
    let ours = std::env::current_exe()?;
    // The interpreter itself: what is called `python3` on the PATH may be a wrapper that takes its
    // time.
    let theirs = environment_python(settings);
    let theirs = std::fs::canonicalize(&theirs).unwrap_or(theirs);
    let (mut ours_samples, mut theirs_samples) = (Samples::default(), Samples::default());
    for _ in 0..rounds {
        theirs_samples.push(once(Command::new(&theirs).args(["-c", "print(1)"]))?);
        ours_samples.push(once(Command::new(&ours).args(["run", "-c", "print(1)"]))?);
    }
    Ok((ours_samples.summary(), theirs_samples.summary()))
}

/// The interpreter of the sandboxes' own environment, as the host starts it.
fn environment_python(settings: &Settings) -> PathBuf {
    let python = home::environment_dir(settings).join("bin/python");
    if python.exists() { python } else { "python3".into() }
}

/// A fresh interpreter of the sandboxes' own environment, without any isolation.
pub(super) fn python(settings: &Settings, code: &str, rounds: usize) -> Result<Summary> {
    timed(Command::new(environment_python(settings)).args(["-I", "-c", code]), rounds)
}

/// `docker run` of an image that has the packages.
pub(super) fn docker(settings: &Settings, code: &str, rounds: usize) -> Result<Summary> {
    let answers = Command::new("docker")
        .args(["version", "--format", "{{.Server.Version}}"])
        .output()
        .is_ok_and(|output| output.status.success());
    if !answers {
        bail!("no docker engine answers");
    }
    let image = settings.bench_image.as_deref();
    let image = image.context("set BELLJAR_BENCH_IMAGE to an image with pandas")?;
    docker_run(image, settings, code, rounds)
}

/// The same of an engine that is known to answer, with the runtime that the settings name.
pub(super) fn docker_run(
    image: &str,
    settings: &Settings,
    code: &str,
    rounds: usize,
) -> Result<Summary> {
    let mut command = Command::new("docker");
    command.args(["run", "--rm", "--network", "none", "--memory", "512m", "--cpus", "1"]);
    if let Some(runtime) = &settings.backend.docker_runtime {
        command.args(["--runtime", runtime]);
    }
    command.args([image, "python3", "-c", code]);
    timed(&mut command, rounds)
}

/// Resident memory of one interpreter that has done the work, in KiB.
pub(super) fn python_rss_kib(settings: &Settings, code: &str) -> Option<u64> {
    let code = format!(
        "{code}\nimport resource\nprint(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    );
    let output =
        Command::new(environment_python(settings)).args(["-I", "-c", &code]).output().ok()?;
    String::from_utf8(output.stdout).ok()?.trim().parse().ok()
}
