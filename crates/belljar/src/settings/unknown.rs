//! Refuses unknown settings: an unknown name is a typing error, and without an error it would seem to work.

use anyhow::{Result, bail};

use super::variables::{GROUPS, INTERNAL, declared, is_kubernetes};

pub(super) const PREFIX: &str = "BELLJAR_";

/// Refuses names that begin with our prefix and are not declared.
pub(super) fn refuse<'a>(
    names: impl Iterator<Item = &'a String>,
    place: &'static str,
) -> Result<()> {
    let is_known =
        |name: &str| declared(name).is_some() || INTERNAL.contains(&name) || is_kubernetes(name);
    // In alphabetical order, so that the error is always the same.
    let unknown = names.filter(|name| name.starts_with(PREFIX) && !is_known(name)).min();
    match unknown {
        Some(name) => {
            bail!("{name} in {place} is not a setting; the closest is {}", closest(name))
        }
        None => Ok(()),
    }
}

fn closest(name: &str) -> &'static str {
    let all = GROUPS.iter().flat_map(|group| group.variables).map(|variable| variable.name);
    all.min_by_key(|known| distance(name, known)).unwrap_or_default()
}

/// How many bytes must be inserted, removed or replaced to turn one text into the other (Levenshtein).
fn distance(from: &str, to: &str) -> usize {
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (i, a) in from.bytes().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, b) in to.bytes().enumerate() {
            let replaced = diagonal + usize::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refuse_one(name: &str) -> Result<()> {
        refuse([name.to_owned()].iter(), ".env")
    }

    #[test]
    fn a_misspelt_name_is_told_what_it_may_have_meant() {
        for (wrong, right) in [
            ("BELLJAR_MEMROY", "BELLJAR_MEMORY"),
            ("BELLJAR_TMPFS_SIZE_MB", "TMPFS_SIZE_MB"),
            ("BELLJAR_CPU", "BELLJAR_CPUS"),
            ("BELLJAR_ALLOWED_HOST", "BELLJAR_ALLOWED_HOSTS"),
        ] {
            let expected = format!("{wrong} in .env is not a setting; the closest is {right}");
            assert_eq!(refuse_one(wrong).unwrap_err().to_string(), expected);
        }
    }

    #[test]
    fn other_peoples_variables_are_theirs() {
        for name in ["PATH", "BELLJARS", "BELLJAR_PORT_8000_TCP", "BELLJAR_DEBUG_ZYGOTE"] {
            refuse_one(name).unwrap();
        }
    }

    #[test]
    fn distances_are_counted_in_edits() {
        for (a, b, edits) in [("", "abc", 3), ("kitten", "sitting", 3), ("same", "same", 0)] {
            assert_eq!((distance(a, b), distance(b, a)), (edits, edits), "{a} {b}");
        }
    }
}
