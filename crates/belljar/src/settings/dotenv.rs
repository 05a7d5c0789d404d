//! The `.env` file: reads it, and writes a commented one.

use std::collections::HashMap;

use anyhow::{Result, bail};

use super::variables::GROUPS;

/// Blanks around names and values.
const BLANKS: [char; 3] = [' ', '\t', '\r'];

/// Reads `NAME=value` lines, with or without `export`. Comments and quotes are allowed; quoted values may span lines.
/// The Python package reads the same files in the same way (`_settings.py`); both are tested with the cases in
/// tests/env-files.json.
pub(super) fn parse(text: &str) -> Result<HashMap<String, String>> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text).replace("\r\n", "\n");
    if let Some(zero) = text.find('\0') {
        bail!("line {} has a zero byte", 1 + newlines(&text[..zero]));
    }
    let mut values = HashMap::new();
    let (mut rest, mut number) = (text.as_str(), 1);
    while !rest.is_empty() {
        let (line, after) = first_line(rest);
        let content = line.trim_matches(BLANKS);
        if content.is_empty() || content.starts_with('#') {
            (rest, number) = (after, number + 1);
            continue;
        }
        let Some((left, right)) = line.split_once('=') else { bail!(no_assignment(number)) };
        let Some(name) = name_of(left) else { bail!(no_assignment(number)) };
        let behind_equals = rest[line.len() - right.len()..].trim_start_matches(BLANKS);
        let value;
        (value, rest) = match behind_equals.chars().next() {
            Some(quote @ ('"' | '\'')) => {
                let Some((value, behind)) = quoted(&behind_equals[1..], quote) else {
                    bail!("the quote that line {number} opens is not closed");
                };
                number += newlines(&behind_equals[..behind_equals.len() - behind.len()]);
                let (left_over, after) = first_line(behind);
                let left_over = left_over.trim_start_matches(BLANKS);
                if !left_over.is_empty() && !left_over.starts_with('#') {
                    bail!("line {number} has text after its closing quote");
                }
                (value, after)
            }
            _ => (without_comment(right).trim_matches(BLANKS).to_owned(), after),
        };
        number += 1;
        values.insert(name.to_owned(), value);
    }
    Ok(values)
}

fn no_assignment(number: usize) -> String {
    format!("line {number} is neither a comment nor NAME=value")
}

fn newlines(text: &str) -> usize {
    text.matches('\n').count()
}

/// The first line without its line break, and the rest.
fn first_line(text: &str) -> (&str, &str) {
    text.split_once('\n').unwrap_or((text, ""))
}

/// The name on the left of an equals sign.
fn name_of(left: &str) -> Option<&str> {
    let left = left.trim_matches(BLANKS);
    let exported = left.strip_prefix("export").filter(|rest| rest.starts_with(BLANKS));
    let name = exported.unwrap_or(left).trim_start_matches(BLANKS);
    let begins = name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_');
    let is_valid = name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_.-".contains(&b));
    (begins && is_valid).then_some(name)
}

/// A value that is not quoted ends where a comment begins: at a `#` after a blank.
fn without_comment(value: &str) -> &str {
    let begins = |(at, _): &(usize, &str)| *at == 0 || value[..*at].ends_with(BLANKS);
    let comment = value.match_indices('#').find(begins);
    comment.map_or(value, |(at, _)| &value[..at])
}

/// The value up to its closing quote, and the rest. Only double quotes support escapes.
fn quoted(text: &str, quote: char) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut characters = text.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            _ if character == quote => return Some((value, &text[at + 1..])),
            '\\' if quote == '"' => match characters.next()?.1 {
                'n' => value.push('\n'),
                'r' => value.push('\r'),
                't' => value.push('\t'),
                plain @ ('"' | '\\' | '$') => value.push(plain),
                other => value.extend(['\\', other]),
            },
            _ => value.push(character),
        }
    }
    None
}

/// A new `.env`: every variable, commented out, with its default.
pub(crate) fn commented() -> String {
    let mut text = String::from(
        "# Settings of Belljar, read from the directory it is started in.\n\
         # What is commented out shows the default; the environment wins over this file.\n",
    );
    for group in GROUPS {
        text.push_str(&format!("\n\n# ---- {} ----\n", group.title));
        for variable in group.variables {
            text.push('\n');
            for line in variable.help.lines() {
                text.push_str(&format!("# {line}\n"));
            }
            text.push_str(&format!("# Accepts {}.\n", variable.accepts));
            if !variable.when_empty.is_empty() {
                text.push_str(&format!("# Default: {}.\n", variable.when_empty));
            }
            text.push_str(&format!("#{}={}\n", variable.name, variable.default));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(serde::Deserialize)]
    struct Cases {
        cases: Vec<Case>,
    }

    #[derive(serde::Deserialize)]
    struct Case {
        name: String,
        text: String,
        values: Option<HashMap<String, String>>,
        error: Option<String>,
    }

    #[test]
    fn env_files_are_read_as_the_python_package_reads_them() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/env-files.json");
        let Cases { cases } = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        assert!(cases.len() > 30, "{}", cases.len());
        for Case { name, text, values, error } in cases {
            let read = parse(&text);
            assert!(values.is_some() != error.is_some(), "{name}");
            assert_eq!(read.as_ref().ok(), values.as_ref(), "{name}");
            assert_eq!(read.err().map(|error| error.to_string()), error, "{name}");
        }
    }

    #[test]
    fn a_fresh_env_file_changes_nothing_and_neither_does_uncommenting_all_of_it() {
        assert!(parse(&commented()).unwrap().is_empty());
        let uncommented: Vec<String> = commented()
            .lines()
            .map(|line| match line.strip_prefix('#') {
                Some(assignment) if !assignment.starts_with(' ') => assignment.to_owned(),
                _ => line.to_owned(),
            })
            .collect();
        let values = parse(&uncommented.join("\n")).unwrap();
        let all = GROUPS.iter().flat_map(|group| group.variables);
        assert_eq!(values.len(), all.clone().count());
        for variable in all {
            assert_eq!(values[variable.name], variable.default, "{}", variable.name);
        }
    }
}
