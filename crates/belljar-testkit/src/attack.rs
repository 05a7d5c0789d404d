//! One attack: a file that tries one thing from inside a sandbox, and how its outcome is judged.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use belljar_proto::exec::Status;

#[derive(Debug, Clone)]
pub struct Attack {
    pub name: String,
    pub path: PathBuf,
    pub flags: Vec<String>,
    /// The sandbox held if one of these is true.
    expect: Vec<Expect>,
    /// The most bytes that a run may print, for attacks on that limit.
    most_output: Option<usize>,
    /// An artifact that must be kept, whatever happens to the others.
    arrives: Option<String>,
    pub repeat: usize,
    /// No `name=value` pair of the last line may be the same in two runs.
    distinct: bool,
    arch: Option<String>,
    /// It uses something that container engines do in another way.
    pub native_only: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expect {
    /// The attack reports it: its last line is `CONTAINED`.
    Contained,
    /// The run ends with this status.
    Ends(Status),
    /// Contained, and the files it left are harmless.
    Artifacts,
}

/// The exit status of `belljar run` for code that succeeded and left files that could not be kept.
const NOT_KEPT: i32 = 123;

/// How a run of an attack went.
#[derive(Debug)]
pub struct Outcome {
    pub status: Status,
    pub exit_code: i32,
    pub stdout: String,
    pub stderr: String,
    /// Where artifacts were promoted to.
    pub outputs: PathBuf,
}

impl Attack {
    pub fn all() -> Vec<Attack> {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/security/attacks");
        let mut attacks: Vec<Attack> = fs::read_dir(directory)
            .expect("the attacks are there")
            .map(|entry| Attack::read(&entry.expect("a directory entry").path()))
            .filter(|attack| {
                attack.arch.as_deref().is_none_or(|arch| arch == std::env::consts::ARCH)
            })
            .collect();
        attacks.sort_by(|a, b| a.name.cmp(&b.name));
        attacks
    }

    fn read(path: &Path) -> Attack {
        let text = fs::read_to_string(path).expect("an attack is text");
        let header = |key: &str| {
            text.lines().find_map(|line| Some(line.strip_prefix(key)?.trim().to_owned()))
        };
        let expect = header("# expect:").unwrap_or_else(|| "ok".to_owned());
        let expect = expect.split('|').map(|word| match word {
            "ok" => Expect::Contained,
            "artifacts" => Expect::Artifacts,
            // Code that sends messages in place of its kernel can choose how its own run ends.
            "done" => Expect::Ends(Status::Ok),
            "error" => Expect::Ends(Status::Error),
            "oom" => Expect::Ends(Status::Oom),
            "timeout" => Expect::Ends(Status::Timeout),
            "crashed" => Expect::Ends(Status::Crashed),
            other => panic!("{}: unknown expectation `{other}`", path.display()),
        });
        Attack {
            name: path.file_stem().expect("a name").to_string_lossy().into_owned(),
            path: path.to_owned(),
            flags: header("# belljar:")
                .map_or(Vec::new(), |flags| flags.split_whitespace().map(str::to_owned).collect()),
            expect: expect.collect(),
            most_output: header("# output:").map(|n| n.parse().expect("a number")),
            arrives: header("# arrives:"),
            repeat: header("# repeat:").map_or(1, |n| n.parse().expect("a number")),
            distinct: header("# distinct:").is_some(),
            arch: header("# arch:"),
            native_only: header("# only:").is_some_and(|backend| backend == "native"),
        }
    }

    /// `Ok` if the sandbox held; otherwise what went wrong.
    pub fn judge(&self, outcomes: &[Outcome], canary: &str) -> Result<(), String> {
        outcomes.iter().try_for_each(|outcome| self.judge_one(outcome, canary))?;
        if self.distinct {
            let mut seen = HashSet::new();
            for word in outcomes.iter().flat_map(|outcome| last_line(&outcome.stdout).split(' ')) {
                if word.contains('=') && !seen.insert(word) {
                    return Err(format!("two sandboxes drew the same {word}"));
                }
            }
        }
        Ok(())
    }

    fn judge_one(&self, outcome: &Outcome, canary: &str) -> Result<(), String> {
        let fail = |why: String| Err(format!("{why}\n{outcome:#?}"));
        let lines = || outcome.stdout.lines().chain(outcome.stderr.lines());
        if let Some(line) = lines().find(|line| line.starts_with("ESCAPED")) {
            return fail(line.to_owned());
        }
        if lines().any(|line| line.contains(canary)) {
            return fail("the canary was seen".to_owned());
        }
        // Some of its files may not be kept. The command reports that by its exit status.
        let leaves_files = self.expect.contains(&Expect::Artifacts);
        let succeeded = outcome.exit_code == 0 || (leaves_files && outcome.exit_code == NOT_KEPT);
        let contained = last_line(&outcome.stdout).starts_with("CONTAINED") && succeeded;
        if self.most_output.is_some_and(|most| outcome.stdout.len() > most) {
            return fail(format!("{} bytes were printed", outcome.stdout.len()));
        }
        if let Some(name) = &self.arrives
            && !has(&outcome.outputs, name)
        {
            return fail(format!("{name} did not arrive"));
        }
        let mut held = false;
        for expect in &self.expect {
            held |= match expect {
                Expect::Contained => contained,
                Expect::Ends(status) => outcome.status == *status,
                Expect::Artifacts => {
                    harmless(&outcome.outputs, canary)?;
                    contained
                }
            };
        }
        if held { Ok(()) } else { fail(format!("not as expected ({:?})", self.expect)) }
    }
}

fn last_line(text: &str) -> &str {
    text.trim_end().lines().last().unwrap_or_default()
}

/// Whether a directory tree contains a file of this name.
fn has(directory: &Path, name: &str) -> bool {
    let Ok(entries) = fs::read_dir(directory) else { return false };
    entries.filter_map(Result::ok).any(|entry| {
        entry.file_name() == name || (entry.path().is_dir() && has(&entry.path(), name))
    })
}

/// Checks that promoted artifacts are plain files, without special rights and without anything from
/// the host.
fn harmless(directory: &Path, canary: &str) -> Result<(), String> {
    let Ok(entries) = fs::read_dir(directory) else { return Ok(()) };
    for entry in entries {
        let path = entry.map_err(|e| e.to_string())?.path();
        let metadata = fs::symlink_metadata(&path).map_err(|e| e.to_string())?;
        if metadata.is_dir() {
            harmless(&path, canary)?;
        } else if !metadata.is_file() {
            return Err(format!("{} is no plain file", path.display()));
        } else if metadata.permissions().mode() & 0o7000 != 0 {
            return Err(format!("{} has special rights", path.display()));
        } else if metadata.len() < 1 << 20 {
            let contents = fs::read(&path).map_err(|e| e.to_string())?;
            let contents = String::from_utf8_lossy(&contents);
            if contents.contains(canary) || contents.contains("root:x:0:0:root:/root") {
                return Err(format!("{} came from the host", path.display()));
            }
        }
    }
    Ok(())
}
