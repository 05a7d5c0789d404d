//! The request of a client to execute something, and its conversion: checks, command lines,
//! defaults.

use std::collections::BTreeMap;
use std::sync::Arc;

use belljar_proto::exec::{Language, What};
use belljar_runtime::{USER_ID, languages};

use super::request::{ExecAsk, ExecRequest, MAX_TIMEOUT_S, shell_argv, timeout_ms};
use crate::EngineError;
use crate::checks::{check_argv, check_env, path_inside};

/// The name of the only user in a sandbox.
pub const USER_NAME: &str = "belljar";

/// The highest limit of kept output, per stream.
const MAX_OUTPUT: u64 = 64 << 20;

/// A request to execute something, not yet checked.
#[derive(Debug, Clone)]
pub struct ExecParams {
    pub source: Source,
    /// The client's own id. Requests with the same id are executed once.
    pub id: Option<String>,
    pub timeout_s: Option<f64>,
    /// Added to the time limit, for code that enforces the limit itself.
    pub extra_ms: u64,
    /// Bytes of stdout and of stderr to keep, each.
    pub output_limit: Option<u64>,
    pub env: BTreeMap<String, String>,
    pub cwd: Option<String>,
    pub background: bool,
    pub stdin: Stdin,
    pub user: Option<String>,
    /// For a cell in bash: stderr is merged into stdout.
    pub merge_output: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// Code for the kernel of a language. In the background, it runs in a separate process.
    Code { language: Language, text: String },
    /// A command line for a shell.
    Shell(String),
    /// A program and its arguments.
    Program(Vec<String>),
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Stdin {
    #[default]
    Closed,
    /// Stays open; the client sends input while the code runs.
    Open,
    /// The complete input of a command.
    Text(String),
}

impl ExecParams {
    #[must_use]
    pub fn new(source: Source) -> ExecParams {
        ExecParams {
            source,
            id: None,
            timeout_s: None,
            extra_ms: 0,
            output_limit: None,
            env: BTreeMap::new(),
            cwd: None,
            background: false,
            stdin: Stdin::Closed,
            user: None,
            merge_output: false,
        }
    }

    /// Converts it to a request for a session, or returns what is wrong with it.
    pub fn into_ask(self) -> Result<ExecAsk, EngineError> {
        self.id.as_deref().map_or(Ok(()), check_id)?;
        check_env(&self.env)?;
        self.user.as_deref().map_or(Ok(()), check_user)?;
        let (what, code) = self.what()?;
        let mut request = ExecRequest::new(what);
        // Background work has no time limit unless the client sets one.
        let default = self.background.then_some(MAX_TIMEOUT_S);
        if let Some(seconds) = self.timeout_s.or(default) {
            request.timeout_ms = checked_timeout(seconds)?.saturating_add(self.extra_ms);
        }
        if let Some(bytes) = self.output_limit {
            request.output_limit = checked_output(bytes)?;
        }
        request.env = self.env;
        request.background = self.background;
        request.stdin = self.stdin == Stdin::Open;
        request.merge_output = self.merge_output;
        Ok(ExecAsk { id: self.id, request, code })
    }

    /// The same for a run. A bash script of a run gets its own process, because no kernel has to
    /// keep its state.
    pub(crate) fn into_ask_of_run(mut self) -> Result<ExecAsk, EngineError> {
        if let Source::Code { language: Language::Bash, text } = &mut self.source {
            check_script(text)?;
            self.source = Source::Shell(std::mem::take(text));
        }
        self.into_ask()
    }

    /// What to execute, and the code or input for it.
    fn what(&self) -> Result<(What, Arc<[u8]>), EngineError> {
        let argv = match &self.source {
            Source::Code { language, text } => {
                self.check_code(*language, text)?;
                if !self.background {
                    let what = What::Cell { language: *language, echo: true };
                    return Ok((what, text.as_bytes().into()));
                }
                languages::script(*language, text).unwrap_or_default()
            }
            Source::Shell(script) => shell_argv(script.clone()),
            Source::Program(argv) => argv.clone(),
        };
        check_argv(&argv)?;
        let argv = match self.source {
            Source::Program(_) => found_on_path(argv),
            _ => argv,
        };
        let input = match &self.stdin {
            Stdin::Text(text) => text.as_bytes().into(),
            Stdin::Closed | Stdin::Open => Arc::default(),
        };
        Ok((What::Command { argv, cwd: path_inside(self.cwd.as_deref())? }, input))
    }

    fn check_code(&self, language: Language, text: &str) -> Result<(), EngineError> {
        if matches!(self.stdin, Stdin::Text(_)) {
            return invalid(
                "stdin: text is for a command; for code, use \"stdin\": true and POST .../stdin",
            );
        }
        if self.cwd.is_some() && !self.background {
            return invalid("cwd: a kernel has its own working directory; change it in the code");
        }
        match language {
            Language::Bash => check_script(text),
            _ => Ok(()),
        }
    }
}

impl Source {
    /// The text of the client, for the audit log.
    pub(crate) fn text(&self) -> Vec<u8> {
        match self {
            Source::Code { text, .. } | Source::Shell(text) => text.clone().into_bytes(),
            Source::Program(argv) => argv.join(" ").into_bytes(),
        }
    }
}

/// The language of this name; Python by default.
pub fn language_named(name: Option<&str>) -> Result<Language, EngineError> {
    let name = name.unwrap_or("python");
    languages::find(name).ok_or_else(|| {
        EngineError::Invalid(format!(
            "language: `{}` does not exist; expected {}",
            name.escape_debug(),
            languages::names()
        ))
    })
}

fn invalid(message: &str) -> Result<(), EngineError> {
    Err(EngineError::Invalid(message.to_owned()))
}

fn check_script(text: &str) -> Result<(), EngineError> {
    match text.contains('\0') {
        true => invalid("code: a shell cannot read NUL bytes"),
        false => Ok(()),
    }
}

fn check_id(id: &str) -> Result<(), EngineError> {
    let fine = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    match (1..=64).contains(&id.len()) && id.bytes().all(fine) {
        true => Ok(()),
        false => invalid("exec_id: expected 1 to 64 letters, digits, `_`, `-` or `.`"),
    }
}

fn check_user(user: &str) -> Result<(), EngineError> {
    if user == USER_NAME || user == USER_ID.to_string() {
        return Ok(());
    }
    Err(EngineError::Invalid(format!(
        "user: `{}` does not exist; everything in a sandbox runs as `{USER_NAME}` ({USER_ID})",
        user.escape_debug()
    )))
}

fn checked_timeout(seconds: f64) -> Result<u64, EngineError> {
    timeout_ms(seconds).ok_or_else(|| {
        EngineError::Invalid("timeout: expected more than 0 seconds and at most a year".into())
    })
}

fn checked_output(bytes: u64) -> Result<u64, EngineError> {
    if bytes > MAX_OUTPUT {
        return Err(EngineError::Invalid(format!(
            "max_output: at most {} MiB; write larger output to a file",
            MAX_OUTPUT >> 20
        )));
    }
    Ok(bytes)
}

/// If a program has no path, `env` finds it on the PATH of the code.
fn found_on_path(argv: Vec<String>) -> Vec<String> {
    // `env` would read these as a variable or an option.
    if argv[0].contains(['/', '=']) || argv[0].starts_with('-') {
        return argv;
    }
    ["/usr/bin/env".to_owned()].into_iter().chain(argv).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(params: ExecParams) -> Result<ExecAsk, String> {
        params.into_ask().map_err(|error| match error {
            EngineError::Invalid(message) => message,
            other => panic!("not an invalid request: {other}"),
        })
    }

    fn argv(params: ExecParams) -> Vec<String> {
        match ask(params).unwrap().request.what {
            What::Command { argv, .. } => argv,
            What::Cell { .. } => panic!("a cell"),
        }
    }

    fn python(text: &str) -> Source {
        Source::Code { language: Language::Python, text: text.into() }
    }

    #[test]
    fn command_lines_are_built_from_what_the_client_wrote() {
        let shell = ExecParams::new(Source::Shell("ls | wc".into()));
        assert_eq!(argv(shell), ["/bin/bash", "-c", "ls | wc"]);
        let program = |words: &[&str]| {
            argv(ExecParams::new(Source::Program(words.iter().map(|w| (*w).into()).collect())))
        };
        assert_eq!(program(&["ls", "-l"]), ["/usr/bin/env", "ls", "-l"]);
        assert_eq!(program(&["/bin/ls"]), ["/bin/ls"]);
        assert_eq!(program(&["a=b"]), ["a=b"]);
        let background = ExecParams { background: true, ..ExecParams::new(python("1")) };
        let ask = ask(background.clone()).unwrap();
        assert_eq!(ask.request.lane(), None);
        assert_eq!(ask.request.timeout_ms, timeout_ms(MAX_TIMEOUT_S).unwrap());
        assert_eq!(argv(background).last().map(String::as_str), Some("1"));
    }

    #[test]
    fn a_script_for_bash_has_a_process_of_its_own_in_a_run() {
        let bash = Source::Code { language: Language::Bash, text: "pwd".into() };
        let of_run = ExecParams::new(bash.clone()).into_ask_of_run().unwrap();
        let argv = ["/bin/bash", "-c", "pwd"].map(str::to_owned).to_vec();
        let cwd = belljar_runtime::paths::SESSION.into();
        assert_eq!(of_run.request.what, What::Command { argv, cwd });
        assert_eq!(ask(ExecParams::new(bash)).unwrap().request.lane(), Some(Language::Bash));
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_the_field_that_is_wrong() {
        let with = |change: &dyn Fn(&mut ExecParams)| {
            let mut params = ExecParams::new(python("1"));
            change(&mut params);
            ask(params).unwrap_err()
        };
        for (message, field) in [
            (with(&|params| params.id = Some("a b".into())), "exec_id"),
            (with(&|params| params.timeout_s = Some(0.0)), "timeout"),
            (with(&|params| params.timeout_s = Some(f64::NAN)), "timeout"),
            (with(&|params| params.output_limit = Some(MAX_OUTPUT + 1)), "max_output"),
            (with(&|params| params.user = Some("root".into())), "user"),
            (with(&|params| params.cwd = Some("x".into())), "cwd"),
            (with(&|params| params.stdin = Stdin::Text("x".into())), "stdin"),
            (with(&|params| drop(params.env.insert("a=".into(), "b".into()))), "env"),
            (with(&|params| params.source = Source::Program(Vec::new())), "command"),
            (with(&|params| params.source = Source::Shell("\0".into())), "command"),
        ] {
            assert!(message.starts_with(&format!("{field}: ")), "{field}: {message}");
        }
    }
}
