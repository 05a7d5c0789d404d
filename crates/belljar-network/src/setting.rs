//! Settings that hold secrets: a JSON object, or a file with one, with values from the environment. Errors
//! never repeat a value.

use std::fs;
use std::io::Read;

use hyper::header::HeaderValue;
use serde_json::{Map, Value};

/// The largest file that is read.
const MAX_FILE: u64 = 1 << 20;

/// The entries of a setting: a JSON object, or `@` and the path of a file with one. `what` describes an entry, for the
/// error.
pub fn entries(text: &str, what: &str) -> Result<Map<String, Value>, String> {
    let text = match text.trim().strip_prefix('@') {
        Some(path) => read_file(path.trim())?,
        None => text.to_owned(),
    };
    let value = serde_json::from_str(&text)
        .map_err(|why| format!("not valid JSON: line {}, column {}", why.line(), why.column()))?;
    match value {
        Value::Object(entries) => Ok(entries),
        _ => Err(format!("expected a JSON object with {what}")),
    }
}

fn read_file(path: &str) -> Result<String, String> {
    let read = || {
        let mut text = String::new();
        fs::File::open(path)?.take(MAX_FILE + 1).read_to_string(&mut text)?;
        Ok::<_, std::io::Error>(text)
    };
    let text = read().map_err(|cause| format!("failed to read `{path}`: {cause}"))?;
    if text.len() as u64 > MAX_FILE {
        return Err(format!("`{path}` is larger than {MAX_FILE} bytes"));
    }
    Ok(text)
}

/// The value of a header, in which each `${NAME}` is replaced by a variable of the environment. Adds to `secrets` the
/// texts that must not appear in messages: the variables, the words of the value, and the whole value. The error
/// completes "the value ...".
pub fn header_value(
    text: &str,
    env: &dyn Fn(&str) -> Option<String>,
    secrets: &mut Vec<String>,
) -> Result<HeaderValue, String> {
    let text = expand(text, env, secrets)?;
    let mut value = HeaderValue::try_from(&text).map_err(
        |_| "has a line break or another control character; does one of its variables end in one?",
    )?;
    value.set_sensitive(true);
    secrets.extend(text.split_whitespace().map(str::to_owned));
    secrets.push(text);
    Ok(value)
}

/// Replaces each `${NAME}`, and adds the values of the variables to `secrets`.
fn expand(
    text: &str,
    env: &dyn Fn(&str) -> Option<String>,
    secrets: &mut Vec<String>,
) -> Result<String, String> {
    let mut expanded = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("${") {
        let (name, after) = after.split_once('}').ok_or("has a `${` without its `}`")?;
        let is_name = !name.is_empty()
            && !name.starts_with(|c: char| c.is_ascii_digit())
            && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
        if !is_name {
            return Err("has text between `${` and `}` that is not a variable name".into());
        }
        let secret = env(name).filter(|secret| !secret.is_empty());
        let secret = secret.ok_or(format!("needs the environment variable {name}; set it"))?;
        expanded.push_str(before);
        expanded.push_str(&secret);
        secrets.push(secret);
        rest = after;
    }
    expanded.push_str(rest);
    Ok(expanded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_come_from_the_environment_and_errors_do_not_repeat_them() {
        let env = |name: &str| match name {
            "TOKEN" => Some("hunter2".into()),
            "BROKEN" => Some("hunter2\n".into()),
            _ => None,
        };
        let mut secrets = Vec::new();
        let value = header_value("Bearer ${TOKEN} $5", &env, &mut secrets).unwrap();
        assert_eq!(value, "Bearer hunter2 $5");
        assert!(value.is_sensitive());
        assert_eq!(secrets, ["hunter2", "Bearer", "hunter2", "$5", "Bearer hunter2 $5"]);
        for (text, why) in [
            ("${MISSING}", "variable MISSING"),
            ("${hunter2", "without its"),
            ("${hunter2 x}", "not a variable name"),
            ("${BROKEN}", "line break"),
        ] {
            let error = header_value(text, &env, &mut secrets).unwrap_err();
            assert!(error.contains(why) && !error.contains("hunter2"), "{text}: {error}");
        }
    }

    #[test]
    fn entries_come_from_the_text_or_a_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), r#"{"a": 1}"#).unwrap();
        let found = entries(&format!(" @{}", file.path().display()), "a number each").unwrap();
        assert_eq!(found["a"], 1);
        fs::write(file.path(), "hunter2").unwrap();
        for (text, why) in [
            (format!("@{}", file.path().display()), "not valid JSON"),
            ("{hunter2".into(), "not valid JSON: line 1, column 2"),
            (r#"["hunter2"]"#.into(), "a JSON object with a number each"),
            ("@/nowhere/at/all.json".into(), "`/nowhere/at/all.json`"),
        ] {
            let error = entries(&text, "a number each").unwrap_err();
            assert!(error.contains(why) && !error.contains("hunter2"), "{text}: {error}");
        }
    }
}
