//! Settings: flags over environment over `.env` over defaults. Every variable is declared once, in
//! [`VARIABLES`], with the text that `belljar setup` writes into a fresh `.env`.

use std::collections::HashMap;
use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use belljar_runtime::Limits;

#[derive(Debug)]
pub struct Variable {
    pub name: &'static str,
    pub default: &'static str,
    pub help: &'static str,
}

pub const VARIABLES: &[Variable] = &[
    Variable {
        name: "BELLJAR_HOME",
        default: "",
        help: "Where environments and images are kept.\n\
               Default: /var/lib/belljar for root, ~/.local/share/belljar for others.",
    },
    Variable {
        name: "BELLJAR_RUN_DIR",
        default: "",
        help: "Where sockets and locks are kept while sandboxes live.\n\
               Default: /run/belljar for root, $XDG_RUNTIME_DIR/belljar for others.",
    },
    Variable {
        name: "BELLJAR_PYTHON",
        default: "python3",
        help: "The interpreter that `belljar setup` builds the sandboxes' environment on.",
    },
    Variable {
        name: "BELLJAR_PACKAGES",
        default: "numpy pandas pyarrow matplotlib scikit-learn scipy pillow openpyxl ipython",
        help: "Packages that `belljar setup` installs for sandboxes, separated by spaces.",
    },
    Variable {
        name: "BELLJAR_PRELOAD",
        default: "numpy pandas pyarrow pyarrow.parquet matplotlib matplotlib.pyplot sklearn scipy \
                  PIL openpyxl IPython",
        help: "Modules that every kernel starts with already loaded, separated by spaces.\n\
               More modules make importing them free and the zygote larger.",
    },
    Variable {
        name: "BELLJAR_MEMORY",
        default: "512M",
        help: "Memory of a sandbox, files in RAM included.",
    },
    Variable { name: "BELLJAR_CPUS", default: "1", help: "Processors of a sandbox." },
    Variable { name: "BELLJAR_PIDS", default: "256", help: "Processes and threads of a sandbox." },
    Variable {
        name: "TMPFS_SIZE_MB",
        default: "1024",
        help: "Megabytes of files that a sandbox may keep in RAM.\n\
               They count as memory, so three quarters of that are the most it can be.",
    },
    Variable {
        name: "BELLJAR_CGROUP_PARENT",
        default: "belljar",
        help: "Name of the control group below which sandboxes are put.",
    },
    Variable {
        name: "BELLJAR_STRICT",
        default: "0",
        help: "1: refuse to run anything while a limit cannot be enforced. 0: warn.",
    },
    Variable {
        name: "BELLJAR_LOG",
        default: "warn",
        help: "What to log to standard error: error, warn, info, debug, or per module.",
    },
];

#[derive(Debug)]
pub struct Settings {
    pub home: PathBuf,
    pub run_dir: PathBuf,
    pub python: PathBuf,
    pub packages: Vec<String>,
    pub preload: Vec<String>,
    pub limits: Limits,
    pub cgroup_parent: String,
    pub strict: bool,
}

impl Settings {
    /// Reads the environment and the `.env` of the current directory.
    pub fn load() -> Result<Settings> {
        let file = match fs::read_to_string(".env") {
            Ok(text) => parse_env_file(&text).context("failed to read .env")?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => HashMap::new(),
            Err(error) => return Err(error).context("failed to read .env"),
        };
        Settings::from_lookup(|name| env::var(name).ok().or_else(|| file.get(name).cloned()))
    }

    fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Result<Settings> {
        let value = |name: &str| {
            let declared = VARIABLES.iter().find(|variable| variable.name == name);
            let default = declared.expect("every variable that is read is declared").default;
            lookup(name).filter(|value| !value.is_empty()).unwrap_or_else(|| default.to_owned())
        };
        let words = |name: &str| value(name).split_whitespace().map(str::to_owned).collect();
        let cpus = |text: &str| {
            crate::cli::parse_cpus(text).map_err(|_| "expected 0.01 to 1024".to_owned())
        };
        let number = |text: &str| text.parse::<u64>().map_err(|_| "expected a number".to_owned());
        let limits = Limits {
            memory: parsed(&value, "BELLJAR_MEMORY", crate::cli::parse_size)?,
            millicpus: parsed(&value, "BELLJAR_CPUS", cpus)?,
            pids: parsed(&value, "BELLJAR_PIDS", number)?,
            tmpfs: parsed(&value, "TMPFS_SIZE_MB", number)?.saturating_mul(1 << 20),
        };
        if limits.memory < MIN_MEMORY {
            bail!("BELLJAR_MEMORY: a sandbox needs at least {} MiB", MIN_MEMORY >> 20);
        }
        let strict = match value("BELLJAR_STRICT").as_str() {
            "1" | "true" | "yes" => true,
            "0" | "false" | "no" => false,
            other => bail!("BELLJAR_STRICT={other}: expected 1 or 0"),
        };
        Ok(Settings {
            home: path_or(value("BELLJAR_HOME"), default_home)?,
            run_dir: path_or(value("BELLJAR_RUN_DIR"), default_run_dir)?,
            python: value("BELLJAR_PYTHON").into(),
            packages: words("BELLJAR_PACKAGES"),
            preload: words("BELLJAR_PRELOAD"),
            limits,
            cgroup_parent: value("BELLJAR_CGROUP_PARENT"),
            strict,
        })
    }
}

/// A value as the command line would read it, or an error that names its variable.
fn parsed<T>(
    value: &impl Fn(&str) -> String,
    name: &str,
    parse: impl FnOnce(&str) -> Result<T, String>,
) -> Result<T> {
    let text = value(name);
    parse(&text).map_err(|why| anyhow::anyhow!("{name}={text}: {why}"))
}

/// Below this not even an interpreter starts.
pub(crate) const MIN_MEMORY: u64 = 16 << 20;

fn path_or(value: String, default: fn() -> Result<PathBuf>) -> Result<PathBuf> {
    let path = if value.is_empty() { default()? } else { PathBuf::from(value) };
    std::path::absolute(&path).with_context(|| format!("failed to resolve `{}`", path.display()))
}

fn default_home() -> Result<PathBuf> {
    if belljar_sys::privileges::is_root() {
        return Ok("/var/lib/belljar".into());
    }
    match (env::var_os("XDG_DATA_HOME"), env::var_os("HOME")) {
        (Some(data), _) if !data.is_empty() => Ok(Path::new(&data).join("belljar")),
        (_, Some(home)) if !home.is_empty() => Ok(Path::new(&home).join(".local/share/belljar")),
        _ => bail!("HOME is not set; set BELLJAR_HOME to a directory of yours"),
    }
}

fn default_run_dir() -> Result<PathBuf> {
    if belljar_sys::privileges::is_root() {
        return Ok("/run/belljar".into());
    }
    match env::var_os("XDG_RUNTIME_DIR") {
        Some(dir) if !dir.is_empty() => Ok(Path::new(&dir).join("belljar")),
        _ => {
            let (uid, _) = belljar_sys::privileges::own_ids();
            Ok(env::temp_dir().join(format!("belljar-{uid}")))
        }
    }
}

/// `KEY=value` lines, `#` comments, optional quotes and `export`.
fn parse_env_file(text: &str) -> Result<HashMap<String, String>> {
    let mut values = HashMap::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let line = line.strip_prefix("export ").unwrap_or(line);
        let Some((key, value)) = line.split_once('=') else {
            bail!("line {} is neither a comment nor KEY=value", number + 1);
        };
        let value = value.trim();
        let unquoted = ['"', '\'']
            .iter()
            .find_map(|quote| value.strip_prefix(*quote)?.strip_suffix(*quote))
            .unwrap_or(value);
        values.insert(key.trim().to_owned(), unquoted.to_owned());
    }
    Ok(values)
}

/// A fresh `.env`: every variable, commented out, with its default.
pub(crate) fn commented_env_file() -> String {
    let mut text = String::from(
        "# Settings of Belljar, read from the directory it is started in.\n\
         # What is commented out shows the default; the environment wins over this file.\n",
    );
    for variable in VARIABLES {
        text.push('\n');
        for line in variable.help.lines() {
            text.push_str(&format!("# {line}\n"));
        }
        text.push_str(&format!("#{}={}\n", variable.name, variable.default));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(pairs: &[(&str, &str)]) -> Result<Settings> {
        let pairs: HashMap<_, _> = pairs.iter().copied().collect();
        Settings::from_lookup(|name| pairs.get(name).map(|value| (*value).to_owned()))
    }

    #[test]
    fn defaults_are_those_of_the_design() {
        let settings = with(&[("BELLJAR_HOME", "/x"), ("BELLJAR_RUN_DIR", "/y")]).unwrap();
        assert_eq!(settings.limits, Limits::default());
        assert!(!settings.strict);
        assert!(settings.preload.contains(&"pandas".to_owned()));
    }

    #[test]
    fn a_wrong_value_is_named() {
        for (name, value) in [
            ("BELLJAR_MEMORY", "lots"),
            ("BELLJAR_MEMORY", "1M"),
            ("BELLJAR_CPUS", "0"),
            ("BELLJAR_PIDS", "-1"),
            ("BELLJAR_STRICT", "perhaps"),
        ] {
            let error = with(&[(name, value)]).unwrap_err().to_string();
            assert!(error.contains(name), "{error}");
        }
    }

    #[test]
    fn env_files_are_read_as_people_write_them() {
        let text = "# a comment\n\nA=1\nexport B='two words'\nC = \"x=y\" \n";
        let values = parse_env_file(text).unwrap();
        assert_eq!(values["A"], "1");
        assert_eq!(values["B"], "two words");
        assert_eq!(values["C"], "x=y");
        assert!(parse_env_file("A=1\nnonsense\n").unwrap_err().to_string().contains("line 2"));
    }

    #[test]
    fn a_fresh_env_file_changes_nothing() {
        assert!(parse_env_file(&commented_env_file()).unwrap().is_empty());
    }
}
