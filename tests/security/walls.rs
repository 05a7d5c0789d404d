//! A positive control for every wall: a sandbox is made without the wall, and an attack must
//! notice.
//!
//! `walls.txt` lists for each wall the attacks that notice when it is missing, the quickest first. The
//! quick form tries the first of them. `make test-walls` tries all attacks on all walls and fails where
//! the table is wrong. A wall whose absence no attack notices is in `BACKED` (`native/walls.rs`), with
//! the wall that stands behind it and the reason.
//!
//! The server is this program. Spawner and guest are the real ones, and are not changed for this
//! test.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use belljar::{home, settings::Settings};
use belljar_engine::exec::Code;
use belljar_proto::exec::{Event, ExecSpec, What};
use belljar_runtime::native::image::Image;
use belljar_runtime::native::walls::{BACKED, Backed, Gap, Weakening, walls};
use belljar_runtime::native::{NativeConfig, NativeRuntime, Prepared};
use belljar_runtime::{DataMount, Limits, SandboxSpec};
use belljar_sys::{ids, procfs};
use futures_util::StreamExt as _;
use libtest_mimic::Failed;

use belljar_testkit::attack::Attack;
use belljar_testkit::attack_host::AttackHost;
use belljar_testkit::scratch_host::ScratchHost;

const TABLE: &str = include_str!("walls.txt");

/// Not an attack from inside: the host checks which ids the processes of a sandbox have.
const HOST_LOOKS_AT_IDS: &str = "host_looks_at_ids";

/// Also a check by the host: whether a sandbox that wants more than its share of a processor is throttled.
/// Code inside cannot distinguish that from a busy machine.
const HOST_LOOKS_AT_THROTTLING: &str = "host_looks_at_throttling";

/// Entry of the table for a wall without which no sandbox can be made.
const NOT_MADE: &str = "NOT-MADE";

/// How many walls are tried at the same time. Few, because some attacks measure their share of the
/// machine.
const AT_ONCE: usize = 3;

/// Time limit for attacks that do not end because a wall is missing.
const PATIENCE: Duration = Duration::from_secs(20);

/// Kinds of attacks that do not test walls. They test the host's own code, and were judged with all
/// walls in place.
const ELSEWHERE: [&str; 5] = ["artifact_", "control_", "crash_", "residue_", "limit_output"];

/// Attacks that would reach other sandboxes if a wall is missing, or that take long.
const LEFT_OUT: [&str; 8] = [
    "process_kill_everyone",
    "process_stop_everyone",
    "process_signal_host",
    "limit_fork_bomb",
    "limit_fork_bomb_wild",
    "shell_fork_bomb",
    "limit_time_orphan",
    "limit_time_stubborn",
];

/// The outcome of an attack on a sandbox that lacks a wall.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Verdict {
    Held,
    Noticed(String),
    NotMade(String),
}

struct WallSite {
    scratch: ScratchHost,
    image: Image,
    host: AttackHost,
    attacks: BTreeMap<String, Attack>,
    /// Mounted in sandboxes at `/data`.
    data: tempfile::TempDir,
    /// Starts the spawner on a host that grants as much as it can. What a sandbox may not have must
    /// be denied by one of its own walls.
    generous: PathBuf,
}

impl WallSite {
    fn new() -> Result<WallSite, Failed> {
        let settings = Settings::load()?;
        let data = tempfile::tempdir()?;
        // Sandboxes run as other users.
        fs::set_permissions(data.path(), fs::Permissions::from_mode(0o755))?;
        fs::write(data.path().join("table.csv"), "a,b\n1,2\n")?;
        let generous = data.path().with_extension("belljar");
        let script =
            "#!/bin/bash\nulimit -r 99; ulimit -e 40; ulimit -Hn 65536\nexec BELLJAR \"$@\"\n";
        fs::write(&generous, script.replace("BELLJAR", belljar_testkit::belljar()))?;
        fs::set_permissions(&generous, fs::Permissions::from_mode(0o755))?;
        let attacks = Attack::all().into_iter().map(|attack| (attack.name.clone(), attack));
        Ok(WallSite {
            scratch: ScratchHost::new(),
            image: home::image(&settings)?,
            host: AttackHost::start(),
            attacks: attacks.collect(),
            data,
            generous,
        })
    }

    /// A runtime whose sandboxes have these gaps.
    async fn runtime(&self, gaps: Vec<Gap>) -> Result<Arc<NativeRuntime>, Failed> {
        let config = NativeConfig {
            executable: self.generous.clone(),
            run_dir: self.scratch.run_dir().to_owned(),
            cgroup_parent: self.scratch.cgroup_parent().to_owned(),
            image: self.image.clone(),
        };
        let weakening = Weakening::new(gaps);
        let started =
            tokio::task::spawn_blocking(move || Prepared::start_weakened(config, weakening));
        Ok(started.await??.launch()?)
    }

    async fn try_one(&self, runtime: &Arc<NativeRuntime>, name: &str) -> Result<Verdict, Failed> {
        if name == HOST_LOOKS_AT_IDS {
            return self.look_at_ids(runtime).await;
        }
        if name == HOST_LOOKS_AT_THROTTLING {
            return self.look_at_throttling(runtime).await;
        }
        let attack = self.attacks.get(name).ok_or(format!("there is no attack {name}"))?;
        let text = fs::read_to_string(&attack.path)?;
        let is_python = attack.path.extension().is_some_and(|end| end == "py");
        let code = if is_python { format!("exec python3 -c {}", quoted(&text)) } else { text };
        let directory = tempfile::tempdir()?;
        let mut run = crate::run_of(attack, &self.host, Code::shell(code, Vec::new()))?;
        run.spec.data = Some(DataMount { host_path: self.data.path().to_owned() });
        run.timeout_ms = run.timeout_ms.min(15_000);
        run.outputs = directory.path().join("outputs");
        let tried = tokio::time::timeout(PATIENCE, crate::outcome_of(run, runtime)).await;
        let outcome = match tried {
            Err(_) => return Ok(Verdict::Noticed("it did not end".to_owned())),
            Ok(Err(belljar_engine::EngineError::Create(error))) => {
                return Ok(Verdict::NotMade(error.to_string()));
            }
            Ok(Err(error)) => return Ok(Verdict::Noticed(error.to_string())),
            Ok(Ok(outcome)) => outcome,
        };
        Ok(match attack.judge(&[outcome], &self.host.canary) {
            Ok(()) => Verdict::Held,
            Err(why) => Verdict::Noticed(why),
        })
    }

    /// Two sandboxes at a time have different ids, above the ids of people.
    async fn look_at_ids(&self, runtime: &Arc<NativeRuntime>) -> Result<Verdict, Failed> {
        let mut made = Vec::new();
        for _ in 0..2 {
            match runtime.create(&SandboxSpec::default()).await {
                Ok(sandbox) => made.push(sandbox),
                Err(error) => return Ok(Verdict::NotMade(error.to_string())),
            }
        }
        let uid = |pid: u32| procfs::status_field(pid, "Uid").and_then(|id| u32::try_from(id).ok());
        let uids: BTreeSet<Option<u32>> = made.iter().map(|sandbox| uid(sandbox.pid())).collect();
        for sandbox in made {
            sandbox.destroy().await;
        }
        let first = ids::IdRange::USUAL.first + ids::IdRange::USUAL.block_size;
        let own = uids.iter().all(|id| id.is_some_and(|id| id >= first));
        let held = own && uids.len() == 2;
        Ok(if held { Verdict::Held } else { Verdict::Noticed(format!("host ids {uids:?}")) })
    }

    /// A loop with a small share of a processor is throttled.
    async fn look_at_throttling(&self, runtime: &Arc<NativeRuntime>) -> Result<Verdict, Failed> {
        let limits = Limits { millicpus: 50, ..Limits::default() };
        let sandbox = match runtime.create(&SandboxSpec { limits, ..SandboxSpec::default() }).await
        {
            Ok(sandbox) => sandbox,
            Err(error) => return Ok(Verdict::NotMade(error.to_string())),
        };
        let code = "for ((i = 0; i < 200000; i++)); do :; done";
        let argv = ["/bin/bash", "-c", code].map(str::to_owned).to_vec();
        let spec = ExecSpec {
            exec_id: "loop".to_owned(),
            what: What::Command { argv, cwd: "/".to_owned() },
            env: Vec::new(),
            timeout_ms: 15_000,
            grace_ms: 1000,
            output_limit: 1000,
            stdin: false,
            script: None,
            merge_output: false,
        };
        let mut following = sandbox.exec(spec, &[]).await?;
        while let Some(event) = following.next().await {
            if let Event::Done(_) = event.event {
                break;
            }
        }
        let throttled = sandbox.throttled();
        sandbox.destroy().await;
        let held = throttled.is_some_and(|times| times > 0);
        Ok(if held { Verdict::Held } else { Verdict::Noticed(format!("throttled {throttled:?}")) })
    }

    /// Names of the attacks that could notice a missing wall.
    fn candidates(&self, gap: Option<&Gap>) -> Vec<String> {
        let limit = match gap {
            Some(Gap::Step { text, .. }) => !text.starts_with("mask") && !text.starts_with("seal"),
            None
            | Some(
                Gap::Cgroups
                | Gap::Memory
                | Gap::Processors
                | Gap::Processes
                | Gap::TmpfsSize
                | Gap::TmpfsInodes,
            ) => true,
            Some(_) => false,
        };
        let names = self.attacks.values().filter(|attack| {
            let name = attack.name.as_str();
            attack.repeat == 1
                && !ELSEWHERE.iter().any(|kind| name.starts_with(kind))
                && !LEFT_OUT.contains(&name)
                && (limit || !name.starts_with("limit_"))
        });
        let names = names.map(|attack| attack.name.clone());
        names.chain([HOST_LOOKS_AT_IDS, HOST_LOOKS_AT_THROTTLING].map(str::to_owned)).collect()
    }
}

impl Drop for WallSite {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.generous);
    }
}

/// Quotes a word for the shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// The table in the repository: for each wall, the attacks that notice.
fn table() -> BTreeMap<String, Vec<String>> {
    let lines = TABLE.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    let entries = lines.map(|line| {
        let (wall, attacks) = line.split_once(" | ").expect("WALL | ATTACKS");
        (wall.trim().to_owned(), attacks.split_whitespace().map(str::to_owned).collect())
    });
    entries.collect()
}

fn backed(wall: &str) -> Option<&'static Backed> {
    BACKED.iter().find(|backed| backed.wall == wall)
}

/// Allows real-time scheduling for every program that is started, where we may.
const GENEROUS: &str = "ulimit -r 99 && ulimit -e 40";

/// Whether this machine has the feature that the wall protects.
fn is_here(wall: &str) -> bool {
    if wall == "forbid real-time scheduling" {
        let granted = std::process::Command::new("bash").args(["-c", GENEROUS]).output();
        return granted.is_ok_and(|granted| granted.status.success());
    }
    let path = wall.strip_prefix("mask ").or_else(|| wall.strip_prefix("seal "));
    path.is_none_or(|path| Path::new(path).exists())
}

/// All walls of this machine's sandboxes, each with its gap and, where another wall stands behind
/// it, the gap in that one.
fn all_walls(site: &WallSite) -> Result<Vec<(String, Vec<Gap>)>, Failed> {
    let all: BTreeMap<String, Gap> = walls(&site.image).into_iter().collect();
    let order = walls(&site.image).into_iter().map(|(name, _)| name);
    let mut known = BTreeSet::new();
    let mut found = Vec::new();
    for name in order.filter(|name| known.insert(name.clone())) {
        let mut gaps = vec![all[&name].clone()];
        if let Some(Backed { by: Some(by), .. }) = backed(&name) {
            gaps.push(all.get(*by).ok_or(format!("{name} is backed by no wall: {by}"))?.clone());
        }
        found.push((name, gaps));
    }
    let stale = BACKED.iter().find(|backed| !all.contains_key(backed.wall));
    match stale {
        Some(backed) => Err(format!("BACKED names no wall: {}", backed.wall).into()),
        None => Ok(found),
    }
}

/// Returns the line to print for a wall, or why the build fails.
async fn check(site: &WallSite, name: &str, gaps: Vec<Gap>) -> Result<String, Failed> {
    let backing = backed(name);
    if let Some(Backed { by: None, why, .. }) = backing {
        return Ok(format!("redundant: {why}"));
    }
    if !is_here(name) {
        return Ok("not on this machine".to_owned());
    }
    let table = table();
    let attacks = table.get(name).filter(|attacks| !attacks.is_empty()).ok_or(format!(
        "no attack misses the wall `{name}`: write one, or say in BACKED why it is not needed"
    ))?;
    // If only the other wall is missing, this wall must hold. Otherwise it backs nothing.
    if let [_, other] = gaps.as_slice() {
        let runtime = site.runtime(vec![other.clone()]).await?;
        match site.try_one(&runtime, &attacks[0]).await? {
            Verdict::Held => {}
            verdict => return Err(format!("`{name}` is not what holds: {verdict:?}").into()),
        }
    }
    let runtime = match site.runtime(gaps).await {
        Err(error) if attacks[0] == NOT_MADE => {
            return Ok(format!("no sandbox is made: {error:?}"));
        }
        runtime => runtime?,
    };
    let attack = &attacks[0];
    let tried = if attack == NOT_MADE { "path_passwd" } else { attack };
    let verdict = site.try_one(&runtime, tried).await?;
    let more =
        if attacks.len() > 1 { format!(", {} more", attacks.len() - 1) } else { String::new() };
    let behind = match backing {
        Some(Backed { by: Some(by), why, .. }) => format!(" (without `{by}` too: {why})"),
        _ => String::new(),
    };
    match (verdict, attack.as_str()) {
        (Verdict::NotMade(_), NOT_MADE) => Ok("no sandbox is made without it".to_owned()),
        (Verdict::Noticed(_), _) if attack != NOT_MADE => Ok(format!("{attack}{more}{behind}")),
        (verdict, _) => Err(format!("without `{name}`: {attack} says {verdict:?}").into()),
    }
}

/// `make test`: for every wall, the first attack in the table notices that the wall is missing.
pub(crate) fn quick() -> Result<(), Failed> {
    let site = WallSite::new()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let (lines, failures) = runtime.block_on(async {
        let walls = all_walls(&site)?;
        let names: BTreeSet<&str> = walls.iter().map(|(name, _)| name.as_str()).collect();
        let mut failures: Vec<String> = table()
            .keys()
            .filter(|name| !names.contains(name.as_str()))
            .map(|name| format!("walls.txt names no wall: {name}"))
            .collect();
        // With all walls in place, none of these attacks succeeds.
        let intact = site.runtime(Vec::new()).await?;
        let used: BTreeSet<String> =
            table().into_values().filter_map(|attacks| attacks.into_iter().next()).collect();
        for attack in used.iter().filter(|attack| *attack != NOT_MADE) {
            match site.try_one(&intact, attack).await? {
                Verdict::Held => {}
                verdict => failures.push(format!("with all walls {attack} says {verdict:?}")),
            }
        }
        let checks = walls.iter().map(|(name, gaps)| {
            let (site, gaps) = (&site, gaps.clone());
            async move { (name.clone(), check(site, name, gaps).await) }
        });
        let checked: Vec<_> = futures_util::stream::iter(checks).buffered(AT_ONCE).collect().await;
        let mut lines = Vec::new();
        for (name, outcome) in checked {
            match outcome {
                Ok(line) => lines.push((name, line)),
                Err(failed) => {
                    let why = failed.message().unwrap_or_default().to_owned();
                    lines.push((name, "NOBODY".to_owned()));
                    failures.push(why);
                }
            }
        }
        Ok::<_, Failed>((lines, failures))
    })?;
    let mut shown = String::from("wall, and the attack that misses it\n");
    for (wall, line) in &lines {
        writeln!(shown, "  {wall:<46} {line}").expect("memory");
    }
    print!("{shown}");
    // `make test` prints this file.
    fs::write(Path::new(env!("CARGO_TARGET_TMPDIR")).join("walls.txt"), &shown)?;
    if failures.is_empty() { Ok(()) } else { Err(failures.join("\n\n").into()) }
}

/// `make test-walls`: tries all attacks on sandboxes that lack one wall, and prints what the table
/// should be.
pub(crate) fn full() -> Result<(), Failed> {
    let site = WallSite::new()?;
    let only = std::env::var("WALL").ok();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let (found, failures) = runtime.block_on(async {
        let mut failures = Vec::new();
        let intact = site.runtime(Vec::new()).await?;
        let mut candidates: BTreeSet<String> = site.candidates(None).into_iter().collect();
        // Skipped for a single wall, to save time: the ordinary tests show that all walls hold.
        for name in candidates.clone().iter().filter(|_| only.is_none()) {
            let verdict = site.try_one(&intact, name).await?;
            if verdict != Verdict::Held {
                candidates.remove(name);
                failures.push(format!("with all walls {name} says {verdict:?}"));
            }
        }
        let mut found = BTreeMap::new();
        for (wall, gaps) in all_walls(&site)? {
            let meant = |only: &String| only.split(',').any(|part| wall.contains(part));
            if !only.as_ref().is_none_or(meant) || !is_here(&wall) {
                continue;
            }
            let runtime = match site.runtime(gaps.clone()).await {
                Ok(runtime) => runtime,
                Err(error) => {
                    println!("{wall} | {NOT_MADE}  # {error:?}");
                    found.insert(wall, vec![NOT_MADE.to_owned()]);
                    continue;
                }
            };
            let mut noticed: Vec<(Duration, String)> = Vec::new();
            let names = site.candidates(gaps.first());
            for name in names.into_iter().filter(|name| candidates.contains(name)) {
                let begun = Instant::now();
                match site.try_one(&runtime, &name).await? {
                    Verdict::Held => {}
                    Verdict::Noticed(_) => noticed.push((begun.elapsed(), name)),
                    Verdict::NotMade(why) => {
                        println!("# {wall}: {why}");
                        noticed = vec![(Duration::ZERO, NOT_MADE.to_owned())];
                        break;
                    }
                }
            }
            noticed.sort();
            let names: Vec<String> = noticed.into_iter().map(|(_, name)| name).collect();
            println!("{wall} | {}", names.join(" "));
            found.insert(wall, names);
        }
        Ok::<_, Failed>((found, failures))
    })?;
    let known = table();
    let mut differences = failures;
    for (wall, names) in &found {
        let before: BTreeSet<&String> = known.get(wall).into_iter().flatten().collect();
        let now: BTreeSet<&String> = names.iter().collect();
        let list = |one: &BTreeSet<&String>, other: &BTreeSet<&String>| {
            one.difference(other).map(|name| name.as_str()).collect::<Vec<_>>().join(" ")
        };
        if before != now {
            differences.push(format!(
                "{wall}: new [{}], no longer [{}]",
                list(&now, &before),
                list(&before, &now)
            ));
        }
    }
    if differences.is_empty() { Ok(()) } else { Err(differences.join("\n").into()) }
}
