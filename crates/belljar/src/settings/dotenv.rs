//! The `.env` file: how it is read, and what a fresh one says.

use std::collections::HashMap;

use anyhow::{Result, bail};

use super::variables::GROUPS;

/// `KEY=value` lines, `#` comments, optional quotes and `export`.
pub(super) fn parse(text: &str) -> Result<HashMap<String, String>> {
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

    #[test]
    fn env_files_are_read_as_people_write_them() {
        let text = "# a comment\n\nA=1\nexport B='two words'\nC = \"x=y\" \n";
        let values = parse(text).unwrap();
        assert_eq!(values["A"], "1");
        assert_eq!(values["B"], "two words");
        assert_eq!(values["C"], "x=y");
        assert!(parse("A=1\nnonsense\n").unwrap_err().to_string().contains("line 2"));
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
