//! `belljar doctor`: tests what this machine can enforce.

use std::fs;
use std::io;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;

use anyhow::{Context, Result};
use belljar_engine::in_full;
use belljar_engine::objects::Objects;
use belljar_runtime::docker::{DockerConfig, DockerRuntime};
use belljar_runtime::native::NativeRuntime;
use belljar_runtime::selftest::Limit;
use belljar_runtime::{Runtime, VolumeKind, VolumePlace};
use belljar_sys::cgroup::Place;
use belljar_sys::ids::IdRange;
use belljar_sys::{landlock, procfs, tty};
use clap::Args;
use indicatif::HumanBytes;
use serde::Serialize;

use super::colours::{Colour, Paint};
use super::output::plain;
use super::posture::Posture;
use super::{limits, setup};
use crate::backend::{self, Prepared};
use crate::home;
use crate::settings::Settings;

#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Print the findings as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum State {
    Ok,
    /// Sandboxes run, with less protection or fewer features.
    Weak,
    /// Not available; sandboxes do not need it.
    Absent,
    /// No sandbox can run.
    Broken,
}

#[derive(Debug, Serialize)]
struct Finding {
    feature: &'static str,
    state: State,
    detail: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    advice: String,
}

#[derive(Debug, Serialize)]
struct Diagnosis {
    /// Whether sandboxes can run at all.
    usable: bool,
    /// Whether every limit is enforced.
    all_enforced: bool,
    /// The kind of container in which this runs.
    posture: Posture,
    findings: Vec<Finding>,
}

pub(crate) fn doctor(args: &DoctorArgs, settings: &Settings) -> Result<ExitCode> {
    let posture = Posture::here();
    let mut findings = vec![kernel(), seccomp(), landlock_finding()];
    findings.extend(container(posture));
    findings.push(volumes(settings, posture));
    findings.push(session_files(settings));
    findings.extend(match Prepared::start(settings) {
        Ok(prepared) => sandboxes(prepared, settings)?,
        Err(error) => vec![no_namespaces(&error, posture)],
    });
    findings.extend(objects(settings));
    findings.extend([chromium(settings), node()]);
    let diagnosis = Diagnosis {
        usable: findings.iter().all(|finding| finding.state != State::Broken),
        all_enforced: findings
            .iter()
            .all(|finding| matches!(finding.state, State::Ok | State::Absent)),
        posture,
        findings,
    };
    if args.json {
        println!("{}", serde_json::to_string_pretty(&diagnosis)?);
    } else {
        print!("{}", describe(&diagnosis, Paint::of_stdout(), width()));
    }
    Ok(if diagnosis.usable { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The width of the table: readable, and not wider than the terminal.
const WIDEST: usize = 100;
const NARROWEST: usize = 60;

fn width() -> usize {
    let columns = tty::size(io::stdout()).map_or(WIDEST, |(_, columns)| columns.into());
    columns.clamp(NARROWEST, WIDEST)
}

/// A table with one finding per row; the advice is below the detail.
fn describe(diagnosis: &Diagnosis, paint: Paint, width: usize) -> String {
    let widest = diagnosis.findings.iter().map(|finding| finding.feature.len()).max().unwrap_or(0);
    let feature_width = widest.max("feature".len());
    let indent = feature_width + 2 + STATE_WIDTH + 2;
    let row = |feature: &str, state: &str, colour: Option<Colour>, text: &str| {
        let state = format!("{state:<STATE_WIDTH$}");
        let state = colour.map_or(state.clone(), |colour| paint.paint(colour, &state));
        format!("{feature:<feature_width$}  {state}  {text}").trim_end().to_owned() + "\n"
    };
    let mut table = row("feature", "state", None, "seen, and what to do");
    table += &row(
        &"-".repeat(feature_width),
        &"-".repeat(STATE_WIDTH),
        None,
        &"-".repeat(width - indent),
    );
    for finding in &diagnosis.findings {
        let (state, colour) = match finding.state {
            State::Ok => ("ok", Colour::Good),
            State::Weak => ("weak", Colour::Doubtful),
            State::Absent => ("absent", Colour::Dim),
            State::Broken => ("broken", Colour::Bad),
        };
        let mut lines = wrapped(&plain(&finding.detail), width - indent).into_iter();
        table += &row(finding.feature, state, Some(colour), &lines.next().unwrap_or_default());
        let advice = match finding.advice.as_str() {
            "" => Vec::new(),
            advice => wrapped(&format!("-> {}", plain(advice)), width - indent),
        };
        for line in lines.chain(advice) {
            table += &format!("{:indent$}{line}\n", "");
        }
    }
    let (verdict, colour) = match (diagnosis.usable, diagnosis.all_enforced) {
        (true, true) => ("Sandboxes can run, and every limit is enforced.", Colour::Good),
        (true, false) => {
            ("Sandboxes can run, but not everything above is enforced.", Colour::Doubtful)
        }
        (false, _) => ("Sandboxes cannot run on this machine as it is.", Colour::Bad),
    };
    table + "\n" + &paint.paint(colour, verdict) + "\n"
}

const STATE_WIDTH: usize = "broken".len();

/// Breaks text into lines of at most this many characters, between words; a longer word is cut.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        let characters: Vec<char> = word.chars().collect();
        for piece in characters.chunks(width) {
            match lines.last_mut() {
                Some(line) if line.chars().count() + 1 + piece.len() <= width => {
                    line.push(' ');
                    line.extend(piece);
                }
                _ => lines.push(piece.iter().collect()),
            }
        }
    }
    lines
}

fn ok(feature: &'static str, detail: impl Into<String>) -> Finding {
    Finding { feature, state: State::Ok, detail: detail.into(), advice: String::new() }
}

fn kernel() -> Finding {
    const OLDEST: (u32, u32) = (5, 12);
    let release = procfs::kernel_release();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if version >= OLDEST {
        return ok("kernel", format!("Linux {release}"));
    }
    Finding {
        feature: "kernel",
        state: State::Broken,
        detail: format!("Linux {release}"),
        advice: format!("upgrade to Linux {}.{} or newer", OLDEST.0, OLDEST.1),
    }
}

fn seccomp() -> Finding {
    let actions = fs::read_to_string("/proc/sys/kernel/seccomp/actions_avail").unwrap_or_default();
    if actions.split_whitespace().any(|action| action == "kill_process") {
        return ok("seccomp", "system calls are filtered");
    }
    Finding {
        feature: "seccomp",
        state: State::Broken,
        detail: "the kernel has no seccomp filters".into(),
        advice: "use a kernel with CONFIG_SECCOMP_FILTER".into(),
    }
}

fn landlock_finding() -> Finding {
    match landlock::generation() {
        Some(generation) => ok("landlock", format!("generation {generation}")),
        None => Finding {
            feature: "landlock",
            state: State::Weak,
            detail: "absent; mounts alone protect files".into(),
            advice: "boot a kernel with CONFIG_SECURITY_LANDLOCK and lsm=landlock,...".into(),
        },
    }
}

/// The kind of container, unless this is a machine.
fn container(posture: Posture) -> Option<Finding> {
    let feature = "container";
    match posture {
        Posture::Machine => None,
        Posture::Privileged => {
            Some(ok(feature, "privileged: sandboxes can be made and limited as on a machine"))
        }
        Posture::UserNamespace => Some(ok(
            feature,
            "root in a user namespace, with the right to mount: sandboxes have ids of their own; \
             control groups must be delegated, volumes and workspaces cannot be mounted",
        )),
        Posture::Unprivileged => Some(Finding {
            feature,
            state: State::Weak,
            detail: "without the right to mount: sandboxes share one user id, and limits are set \
                     only if control groups are delegated"
                .into(),
            advice: "run it privileged, or in a user namespace (hostUsers: false) with the \
                     capability SYS_ADMIN, writable control groups and procMount: Unmasked"
                .into(),
        }),
    }
}

/// Creates a small volume as the server does, and fills it.
fn volumes(settings: &Settings, posture: Posture) -> Finding {
    let weak = |detail: String, advice: &str| Finding {
        feature: "volumes",
        state: State::Weak,
        detail,
        advice: advice.to_owned(),
    };
    if posture == Posture::UserNamespace {
        let detail = "none can be mounted: file systems of the machine do not translate user ids \
                      for a user namespace";
        return weak(detail.into(), "for volumes, run the server in a privileged container");
    }
    let (kind, why) = settings.volumes.config(settings.strict).new_kind();
    match (kind, why) {
        (VolumeKind::Directory, why) => {
            let detail = format!("sizes are not enforced: {}", why.unwrap_or_default());
            weak(detail, "run the server as root, with loop devices and e2fsprogs")
        }
        (VolumeKind::Image, Some(why)) => {
            weak(format!("none can be made: {why}"), "set BELLJAR_VOLUME_STORAGE=auto")
        }
        (VolumeKind::Image, None) => match VolumePlace::try_limit(&settings.volumes.root) {
            Ok(true) => ok("volumes", "each is a file system of its own; sizes are enforced"),
            Ok(false) => weak("a full one took more".into(), "report this"),
            Err(error) => {
                let advice =
                    "the message says what failed; or set BELLJAR_VOLUME_STORAGE=directory";
                weak(belljar_engine::in_full(&error), advice)
            }
        },
    }
}

/// How the files of sessions with storage BIND are stored. The finding about volumes tests that sizes are enforced.
fn session_files(settings: &Settings) -> Finding {
    let disk = settings.server.disk(settings.strict);
    let feature = "session files";
    match disk.new_kind() {
        (VolumeKind::Image, None) => {
            ok(feature, format!("storage BIND: at most {} each, enforced", HumanBytes(disk.size)))
        }
        (VolumeKind::Image, Some(why)) => Finding {
            feature,
            state: State::Weak,
            detail: format!("no session with storage BIND can be made: {why}"),
            advice: "set BELLJAR_SESSION_FILES=auto".into(),
        },
        (VolumeKind::Directory, why) => Finding {
            feature,
            state: State::Weak,
            detail: format!(
                "storage BIND: sizes are not enforced: {}",
                why.unwrap_or("they are plain directories")
            ),
            advice: match Posture::here() {
                Posture::Machine => "run the server as root, with loop devices and e2fsprogs",
                _ => "run the server in a privileged container, with loop devices and e2fsprogs",
            }
            .into(),
        },
    }
}

fn python(settings: &Settings) -> Finding {
    let environment = home::environment_dir(settings);
    match home::read_manifest(&environment) {
        Some(manifest) => ok(
            "python",
            format!("{} with {}", manifest.python_version, manifest.packages.join(", ")),
        ),
        None => Finding {
            feature: "python",
            state: State::Weak,
            detail: "no environment with packages yet".into(),
            advice: "run `belljar setup`".into(),
        },
    }
}

/// Whether the S3 server of artifacts and snapshots can be reached, if there is one.
fn objects(settings: &Settings) -> Option<Finding> {
    const FEATURE: &str = "artifacts in S3";
    let config = settings.artifacts.objects.as_ref()?;
    let checking = async {
        let objects = Objects::open(config)?;
        objects.check().await
    };
    let event_loop = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let checked = match event_loop {
        Ok(event_loop) => event_loop.block_on(checking).map_err(|error| in_full(&error)),
        Err(error) => Err(error.to_string()),
    };
    Some(match checked {
        Ok(()) => ok(FEATURE, format!("{} can be reached", config.url)),
        Err(detail) => Finding {
            feature: FEATURE,
            state: State::Weak,
            detail,
            advice: "check BELLJAR_BLOBS_URL and AWS_ENDPOINT_URL".into(),
        },
    })
}

/// The browser of sandboxes with the image `host`; other images have their own.
fn chromium(settings: &Settings) -> Finding {
    let tasks = match home::read_manifest(&home::browser_use_dir(settings)) {
        Some(_) => "with browser-use for tasks",
        None => {
            "without browser-use; `belljar setup --browser` adds it for tasks in natural language"
        }
    };
    match setup::CHROMIUM.iter().find(|path| Path::new(path).exists()) {
        Some(path) => ok("chromium", format!("{path}, {tasks}")),
        None => Finding {
            feature: "chromium",
            state: State::Absent,
            detail: "sandboxes of this machine have no browser".into(),
            advice:
                "on Debian: apt-get install chromium; or an image: `belljar image build --browser`"
                    .into(),
        },
    }
}

/// The runtime of JavaScript and TypeScript in sandboxes with the image `host`.
fn node() -> Finding {
    let version = Command::new("node").arg("--version").stdin(Stdio::null()).output();
    match version {
        Ok(output) if output.status.success() => {
            ok("node", format!("Node {}", String::from_utf8_lossy(&output.stdout).trim()))
        }
        _ => Finding {
            feature: "node",
            state: State::Absent,
            detail: "sandboxes of this machine run no JavaScript or TypeScript".into(),
            advice: "on Debian: apt-get install nodejs".into(),
        },
    }
}

/// A container engine, if the backend is native.
async fn other_engine(settings: &Settings) -> Finding {
    let absent = |detail: String, advice: &str| Finding {
        feature: "docker",
        state: State::Absent,
        detail,
        advice: advice.to_owned(),
    };
    let config = match backend::docker_config(settings) {
        Ok(config) => config,
        Err(error) => return absent(format!("{error:#}"), "the message says what to do"),
    };
    match DockerRuntime::look(&config).await {
        Err(error) => {
            absent(belljar_engine::in_full(&error), "only needed for BELLJAR_BACKEND=docker")
        }
        Ok((engine, true)) => ok("docker", format!("{engine}, with the image {}", config.image)),
        Ok((engine, false)) => {
            let detail = format!("{engine}, without the image {}", config.image);
            absent(detail, "for BELLJAR_BACKEND=docker: `belljar image build`")
        }
    }
}

fn no_namespaces(error: &anyhow::Error, posture: Posture) -> Finding {
    let advice = match posture {
        Posture::Machine => {
            "allow user namespaces: sysctl kernel.unprivileged_userns_clone=1, \
             user.max_user_namespaces>0, kernel.apparmor_restrict_unprivileged_userns=0; or \
             use a container engine: BELLJAR_BACKEND=docker"
        }
        _ => {
            "let this container make user namespaces: run it privileged, or with the capability \
             SYS_ADMIN, no seccomp profile and no AppArmor profile"
        }
    };
    Finding {
        feature: "namespaces",
        state: State::Broken,
        detail: format!("{error:#}"),
        advice: advice.into(),
    }
}

/// Makes sandboxes and tests their limits.
fn sandboxes(prepared: Prepared, settings: &Settings) -> Result<Vec<Finding>> {
    let event_loop = tokio::runtime::Builder::new_current_thread().enable_all().build();
    event_loop.context("failed to start the event loop")?.block_on(async {
        match prepared {
            Prepared::Native(prepared) => {
                let runtime = prepared.launch()?;
                let mut findings =
                    vec![python(settings), ids(&runtime), cgroups(&runtime, Posture::here())];
                let namespaces = ok("namespaces", "user, mount, pid, net, ipc, uts, cgroup");
                findings.extend(limit_findings(runtime, settings, namespaces).await);
                findings.push(other_engine(settings).await);
                Ok(findings)
            }
            Prepared::Docker(config) => docker(*config, settings).await,
        }
    })
}

/// The engine, the image, and the limits of its containers.
async fn docker(config: DockerConfig, settings: &Settings) -> Result<Vec<Finding>> {
    let image = config.image.clone();
    let broken = |detail: String, advice: &str| {
        let (feature, state) = ("container engine", State::Broken);
        vec![Finding { feature, state, detail, advice: advice.to_owned() }]
    };
    let runtime = match DockerRuntime::launch(config, None).await {
        Ok(runtime) => runtime,
        Err(error) => return Ok(broken(error.to_string(), "the message says what to do")),
    };
    let detail = format!("{}, {}", runtime.engine(), runtime.backend());
    let mut findings = vec![ok("container engine", detail)];
    let made = ok("image", image);
    findings.extend(limit_findings(runtime, settings, made).await);
    Ok(findings)
}

/// The findings of the self-test; `made` is added if a sandbox could be made.
async fn limit_findings(
    runtime: Arc<dyn Runtime>,
    settings: &Settings,
    made: Finding,
) -> Vec<Finding> {
    let verdicts = match limits::test(&runtime, settings).await {
        Ok(verdicts) => verdicts,
        Err(error) => {
            let (feature, state) = (made.feature, State::Broken);
            let advice = match Posture::here() {
                Posture::UserNamespace => {
                    "the message says which step failed; mounting /proc needs procMount: Unmasked"
                }
                _ => "the message says which step failed, or what to do",
            };
            let advice = advice.to_owned();
            return vec![Finding { feature, state, detail: format!("{error:#}"), advice }];
        }
    };
    let backend = runtime.backend();
    let judged = verdicts.into_iter().map(|verdict| Finding {
        feature: verdict.limit.name(),
        state: if verdict.enforced { State::Ok } else { State::Weak },
        advice: if verdict.enforced { String::new() } else { advice(verdict.limit, &backend) },
        detail: verdict.detail,
    });
    std::iter::once(made).chain(judged).collect()
}

fn ids(runtime: &NativeRuntime) -> Finding {
    if let Some(range) = runtime.id_range() {
        let few = match range == IdRange::USUAL {
            true => String::new(),
            false => {
                let (size, most) = (range.block_size, range.sandboxes());
                format!(" of {size} ids, for at most {most} sandboxes at the same time")
            }
        };
        return ok("user ids", format!("every sandbox has a block of its own{few}"));
    }
    Finding {
        feature: "user ids",
        state: State::Weak,
        detail: "all sandboxes share your uid outside, separated by namespaces only".into(),
        advice: "run the server as root to give each its own".into(),
    }
}

fn cgroups(runtime: &NativeRuntime, posture: Posture) -> Finding {
    match runtime.cgroups() {
        Ok(parent) => {
            let place = match parent.place() {
                Place::Own if posture != Posture::Machine => ", below this container's own group",
                Place::Own => ", below the server's own group",
                Place::Root => "",
            };
            ok("cgroups", format!("{}{place}", parent.layout().name()))
        }
        Err(error) => {
            let error = anyhow::Error::msg(belljar_engine::in_full(error));
            Finding {
                feature: "cgroups",
                state: State::Weak,
                detail: format!("{error:#}"),
                advice: delegate(posture).into(),
            }
        }
    }
}

/// How to get control groups that can be written.
fn delegate(posture: Posture) -> &'static str {
    match posture {
        Posture::Machine => {
            "run as root, or with delegated cgroups (v2): \
             `systemd-run --user --scope -p Delegate=yes belljar ...`"
        }
        _ => {
            "let this container write its own control group (v2): run it privileged, or with a \
             runtime handler that has `cgroup_writable = true` (containerd 2.1)"
        }
    }
}

fn advice(limit: Limit, backend: &str) -> String {
    match limit {
        Limit::Network => "report this: a sandbox must have no network but loopback".to_owned(),
        _ if backend.starts_with("docker") => format!(
            "{backend} accepted the limit and does not keep it: look how the runtime is \
             registered with the engine (is it told to ignore cgroups?)"
        ),
        _ => delegate(Posture::here()).to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn diagnosis() -> Diagnosis {
        let weak = Finding {
            feature: "container engine",
            state: State::Weak,
            detail: format!("{} {}", "word ".repeat(40), "x".repeat(200)),
            advice: "do this ".repeat(30),
        };
        Diagnosis {
            usable: true,
            all_enforced: false,
            posture: Posture::Machine,
            findings: vec![ok("kernel", "Linux 6"), weak],
        }
    }

    #[test]
    fn lines_are_no_wider_than_the_terminal() {
        for width in [60, 80, 100] {
            let table = describe(&diagnosis(), Paint::new(false), width);
            assert!(table.lines().all(|line| line.chars().count() <= width), "{table}");
            assert!(table.contains("-> do this do"), "{table}");
            assert!(!table.contains('\u{1b}'));
        }
    }

    #[test]
    fn colours_change_nothing_but_the_colour() {
        let coloured = describe(&diagnosis(), Paint::new(true), 100);
        assert!(coloured.contains("\u{1b}[32mok    \u{1b}[0m  Linux 6"), "{coloured}");
        assert!(coloured.contains("\u{1b}[33mweak  \u{1b}[0m  word"), "{coloured}");
        let plain = describe(&diagnosis(), Paint::new(false), 100);
        let mut without = coloured;
        for code in ["31", "32", "33", "2", "0"] {
            without = without.replace(&format!("\u{1b}[{code}m"), "");
        }
        assert_eq!(without, plain);
    }
}
