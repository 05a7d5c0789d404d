//! Settings with secrets in them: written as JSON or kept in a file, with values from the
//! environment filled in. What is wrong is said without repeating values.

use std::fs;
use std::io::Read;

/// The largest file that is read.
const MAX_FILE: u64 = 1 << 20;

/// What a setting says: its text, or that of the file after its `@`.
pub fn read(text: &str) -> Result<String, String> {
    match text.trim().strip_prefix('@') {
        Some(path) => read_file(path.trim()),
        None => Ok(text.to_owned()),
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

/// Fills in each `${NAME}`.
pub fn expand(
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
            return Err("has something between `${` and `}` that is no name".into());
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
