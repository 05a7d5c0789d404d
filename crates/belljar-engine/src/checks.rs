//! Limits on the requests of clients that do not depend on the state of the server.

use std::collections::BTreeMap;

use belljar_runtime::{Limits, paths};

use crate::EngineError;
use crate::spec::SessionAsk;

/// The longest argument or variable that the kernel accepts.
const MAX_ARGUMENT: usize = 128 * 1024 - 1;

/// All variables of one environment. The environments of the session and of an execution are sent
/// together in the head of a frame, which must also have room for the arguments of a command.
const MAX_ENVIRONMENT: usize = 256 * 1024;

/// The longest key of a session, in characters.
const MAX_KEY: usize = 512;

/// The largest metadata of a session, in bytes of JSON.
const MAX_METADATA: usize = 16 * 1024;

/// More memory than any machine has, so a larger value is a mistake.
const MAX_MEMORY: u64 = 1 << 44;

fn invalid<T>(message: impl Into<String>) -> Result<T, EngineError> {
    Err(EngineError::Invalid(message.into()))
}

/// Refuses a request for a session that no server could serve.
pub(crate) fn check_session(ask: &SessionAsk) -> Result<(), EngineError> {
    if let Some(key) = &ask.key
        && (key.is_empty() || key.chars().count() > MAX_KEY || key.contains(char::is_control))
    {
        return invalid(format!(
            "key: expected 1 to {MAX_KEY} characters, none of them a control character"
        ));
    }
    let metadata = ask.metadata.as_ref().map(serde_json::to_string);
    let length = metadata.map_or(0, |json| json.map_or(usize::MAX, |text| text.len()));
    if length > MAX_METADATA {
        return invalid(format!("metadata: at most {MAX_METADATA} bytes"));
    }
    ask.env.as_ref().map_or(Ok(()), check_env)?;
    check_limits(ask)
}

fn check_limits(ask: &SessionAsk) -> Result<(), EngineError> {
    if ask.memory.is_some_and(|memory| memory < Limits::MIN_MEMORY) {
        return invalid(format!("limits.memory: at least {} MiB", Limits::MIN_MEMORY >> 20));
    }
    if [ask.memory, ask.tmpfs].into_iter().flatten().any(|size| size > MAX_MEMORY) {
        return invalid("limits: no machine has that much memory");
    }
    if ask.pids.is_some_and(|pids| !(4..=100_000).contains(&pids)) {
        return invalid("limits.pids: expected 4 to 100000");
    }
    if ask.tmpfs.is_some_and(|size| size < 1 << 20) {
        return invalid("limits.tmpfs: at least 1 MiB");
    }
    Ok(())
}

/// Refuses environment variables that a process cannot have.
pub(crate) fn check_env(env: &BTreeMap<String, String>) -> Result<(), EngineError> {
    let length = |(name, value): (&String, &String)| name.len() + "=".len() + value.len();
    if env.iter().any(|variable| length(variable) > MAX_ARGUMENT) {
        return invalid(format!(
            "env: a variable is longer than {MAX_ARGUMENT} bytes; write it to a file"
        ));
    }
    if env.iter().map(length).sum::<usize>() > MAX_ENVIRONMENT {
        return invalid(format!(
            "env: more than {MAX_ENVIRONMENT} bytes in all; write them to a file"
        ));
    }
    for (name, value) in env {
        if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
            return invalid(format!(
                "env: `{}` cannot be a variable: a name is not empty and has no `=`, and neither \
                 name nor value has NUL bytes",
                name.escape_debug()
            ));
        }
    }
    Ok(())
}

/// Refuses arguments that a process cannot have.
pub(crate) fn check_argv(argv: &[String]) -> Result<(), EngineError> {
    if argv.first().is_none_or(String::is_empty) {
        return invalid("command: expected a program");
    }
    if argv.iter().any(|argument| argument.contains('\0')) {
        return invalid("command: arguments cannot have NUL bytes");
    }
    if argv.iter().any(|argument| argument.len() > MAX_ARGUMENT) {
        return invalid(format!(
            "command: an argument is longer than {MAX_ARGUMENT} bytes; write it to a file first"
        ));
    }
    Ok(())
}

/// The working directory of a command: `/session`, or a path relative to it.
pub(crate) fn path_inside(cwd: Option<&str>) -> Result<String, EngineError> {
    match cwd {
        None => Ok(paths::SESSION.into()),
        Some(path) if path.is_empty() || path.contains('\0') => invalid("cwd: expected a path"),
        Some(path) if path.starts_with('/') => Ok(path.to_owned()),
        Some(path) => Ok(format!("{}/{path}", paths::SESSION)),
    }
}
