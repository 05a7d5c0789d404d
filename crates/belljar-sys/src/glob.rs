//! Patterns for paths: `*` and `?` stay within a name, `**` spans directories, `[a-z]` and `[!a-z]`
//! are one character of a set. After a backslash, a special character is an ordinary one.

use std::io;

/// Patterns are short; a longer one is a mistake.
const MAX_PATTERN: usize = 4096;

/// A parsed pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Glob(Vec<Segment>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Segment {
    /// `**`: any number of directories, also none.
    Any,
    Name(Vec<Piece>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Piece {
    Char(char),
    One,
    Many,
    Set { negated: bool, ranges: Vec<(char, char)> },
}

impl Glob {
    pub fn new(pattern: &str) -> io::Result<Glob> {
        if pattern.is_empty() || pattern.len() > MAX_PATTERN {
            return invalid("a pattern has 1 to 4096 bytes");
        }
        if pattern.starts_with('/') {
            return invalid("a pattern is relative to the directory that is listed");
        }
        pattern.split('/').map(segment).collect::<io::Result<_>>().map(Glob)
    }

    /// Whether something below the directory that is listed can match.
    #[must_use]
    pub fn goes_deeper(&self) -> bool {
        self.0.len() > 1 || self.0.contains(&Segment::Any)
    }

    #[must_use]
    pub fn matches(&self, path: &[u8]) -> bool {
        // Names that are not UTF-8 match like their replacement text.
        let names: Vec<Vec<char>> = path
            .split(|byte| *byte == b'/')
            .map(|name| String::from_utf8_lossy(name).chars().collect())
            .collect();
        matches_all(&self.0, &names)
    }
}

fn segment(text: &str) -> io::Result<Segment> {
    match text {
        "**" => return Ok(Segment::Any),
        "" | "." | ".." => return invalid("a pattern has no empty names, no `.` and no `..`"),
        _ => {}
    }
    let mut pieces = Vec::new();
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        pieces.push(match c {
            '*' if pieces.last() == Some(&Piece::Many) => continue,
            '*' => Piece::Many,
            '?' => Piece::One,
            '[' => set(&mut chars)?,
            '\\' => Piece::Char(chars.next().unwrap_or('\\')),
            c => Piece::Char(c),
        });
    }
    Ok(Segment::Name(pieces))
}

/// Parses what follows `[`.
fn set(chars: &mut std::str::Chars<'_>) -> io::Result<Piece> {
    let mut rest = chars.clone();
    let negated = matches!(rest.clone().next(), Some('!' | '^'));
    if negated {
        rest.next();
    }
    let mut ranges = Vec::new();
    loop {
        let from = match rest.next() {
            // A `]` in the first position is an ordinary character.
            Some(']') if !ranges.is_empty() => break,
            Some('\\') => rest.next(),
            from => from,
        };
        let Some(from) = from else { return invalid("a `[` in a pattern is never closed") };
        let mut ahead = rest.clone();
        let to = match (ahead.next(), ahead.next()) {
            (Some('-'), Some(to)) if to != ']' => {
                rest = ahead;
                to
            }
            _ => from,
        };
        ranges.push((from, to));
    }
    *chars = rest;
    Ok(Piece::Set { negated, ranges })
}

fn matches_all(segments: &[Segment], names: &[Vec<char>]) -> bool {
    // Row by row: the time is proportional to the product of both lengths.
    let mut reached = vec![false; names.len() + 1];
    reached[0] = true;
    for segment in segments {
        let mut next = vec![false; names.len() + 1];
        for at in 0..=names.len() {
            match segment {
                Segment::Any => next[at] = reached[at] || (at > 0 && next[at - 1]),
                Segment::Name(pieces) => {
                    next[at] = at > 0 && reached[at - 1] && is_name(pieces, &names[at - 1]);
                }
            }
        }
        reached = next;
    }
    reached[names.len()]
}

fn is_name(pieces: &[Piece], name: &[char]) -> bool {
    let mut reached = vec![false; name.len() + 1];
    reached[0] = true;
    for piece in pieces {
        let mut next = vec![false; name.len() + 1];
        for at in 0..=name.len() {
            next[at] = match piece {
                Piece::Many => reached[at] || (at > 0 && next[at - 1]),
                piece => at > 0 && reached[at - 1] && is_char(piece, name[at - 1]),
            };
        }
        reached = next;
    }
    reached[name.len()]
}

fn is_char(piece: &Piece, c: char) -> bool {
    match piece {
        Piece::Char(wanted) => *wanted == c,
        Piece::One => true,
        Piece::Set { negated, ranges } => {
            ranges.iter().any(|(from, to)| (*from..=*to).contains(&c)) != *negated
        }
        Piece::Many => false,
    }
}

fn invalid<T>(why: &'static str) -> io::Result<T> {
    Err(io::Error::new(io::ErrorKind::InvalidInput, why))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn patterns_mean_what_they_say() {
        let yes = [
            ("*.py", "a.py"),
            ("*", "x"),
            ("**", "a/b/c"),
            ("**/*.py", "a.py"),
            ("**/*.py", "a/b/c.py"),
            ("a/**/z", "a/z"),
            ("a/**/z", "a/b/c/z"),
            ("?.txt", "\u{e4}.txt"),
            ("[a-c]x", "bx"),
            ("[!a-c]x", "dx"),
            ("[]]", "]"),
            ("\\*", "*"),
            ("a*b*c", "aXbYbZc"),
            ("**/b/**", "a/b/c"),
            ("[a-]", "-"),
            ("*", ".hidden"),
        ];
        for (pattern, path) in yes {
            assert!(Glob::new(pattern).unwrap().matches(path.as_bytes()), "{pattern} {path}");
        }
        let no = [
            ("*.py", "a/b.py"),
            ("*", "a/b"),
            ("a/*", "a"),
            ("?", "ab"),
            ("[a-c]", "d"),
            ("[!a]", "a"),
            ("\\*", "x"),
            ("a/**/z", "b/z"),
            ("*.py", "a.pyc"),
        ];
        for (pattern, path) in no {
            assert!(!Glob::new(pattern).unwrap().matches(path.as_bytes()), "{pattern} {path}");
        }
        for wrong in ["", "/a", "a//b", "../a", "a/./b", "[a", "[", &"x".repeat(5000)] {
            assert!(Glob::new(wrong).is_err(), "{wrong}");
        }
        assert!(Glob::new("a/b").unwrap().goes_deeper() && Glob::new("**").unwrap().goes_deeper());
        assert!(!Glob::new("*.py").unwrap().goes_deeper());
    }

    proptest! {
        #[test]
        fn no_pattern_takes_long(stars in 1usize..60, name in "[ab]{0,60}") {
            let glob = Glob::new(&"a*".repeat(stars)).unwrap();
            let count = name.matches('a').count();
            prop_assert_eq!(glob.matches(name.as_bytes()), name.starts_with('a') && count >= stars);
        }

        #[test]
        fn a_path_matches_itself(path in "[a-z\\[\\]*?!\\\\]{1,9}(/[a-z*?]{1,9}){0,3}") {
            let escaped: String = path.chars().flat_map(|c| match c {
                '/' => vec!['/'],
                c => vec!['\\', c],
            }).collect();
            prop_assert!(Glob::new(&escaped).unwrap().matches(path.as_bytes()));
        }
    }
}
