//! The name of a language. The protocol does not list languages: a guest runs kernels of languages that were
//! added after it was built.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

/// The longest name.
const MAX: usize = 31;

/// A language, or one of several that a kernel understands: `javascript.typescript` is the
/// TypeScript of the kernel called `javascript`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Language {
    /// Filled up with zeros.
    name: [u8; MAX],
}

#[expect(non_upper_case_globals, reason = "they read as what they are: names of languages")]
impl Language {
    pub const Python: Language = Language::known("python");
    pub const Bash: Language = Language::known("bash");
    /// Not a language: the browser of a session, whose cells are actions.
    pub const Browser: Language = Language::known("browser");

    /// A name: lower-case letters, digits and `_`, with at most one dot in between.
    #[must_use]
    pub fn new(name: &str) -> Option<Language> {
        let is_word = |word: &str| {
            !word.is_empty()
                && word.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
        };
        let is_name = match name.split_once('.') {
            Some((kernel, variant)) => is_word(kernel) && is_word(variant),
            None => is_word(name),
        };
        (is_name && name.len() <= MAX).then(|| Language::known(name))
    }

    const fn known(name: &str) -> Language {
        let mut bytes = [0; MAX];
        let mut at = 0;
        while at < name.len() {
            bytes[at] = name.as_bytes()[at];
            at += 1;
        }
        Language { name: bytes }
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        let length = self.name.iter().position(|byte| *byte == 0).unwrap_or(MAX);
        str::from_utf8(&self.name[..length]).expect("names are ASCII")
    }

    /// The kernel it runs in, which may be that of other languages too.
    #[must_use]
    pub fn kernel(&self) -> Language {
        let name = self.as_str();
        Language::known(name.split_once('.').map_or(name, |(kernel, _)| kernel))
    }

    /// Which of its kernel's languages it is, if not the first.
    #[must_use]
    pub fn variant(&self) -> Option<&str> {
        self.as_str().split_once('.').map(|(_, variant)| variant)
    }
}

impl fmt::Debug for Language {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Language({})", self.as_str())
    }
}

impl fmt::Display for Language {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for Language {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for Language {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Language, D::Error> {
        let name = String::deserialize(deserializer)?;
        Language::new(&name).ok_or_else(|| D::Error::custom("not the name of a language"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_words_and_a_variant_may_follow() {
        let typescript = Language::new("javascript.typescript").unwrap();
        assert_eq!(typescript.kernel(), Language::new("javascript").unwrap());
        assert_eq!(typescript.variant(), Some("typescript"));
        assert_eq!(
            (Language::Python.kernel(), Language::Python.variant()),
            (Language::Python, None)
        );
        assert_eq!(serde_json::to_string(&Language::Bash).unwrap(), "\"bash\"");
        for name in ["", "Python", "a b", "a.b.c", ".a", "a.", "a\0", "ü", &"a".repeat(32)] {
            assert_eq!(Language::new(name), None, "{name:?}");
        }
    }
}
