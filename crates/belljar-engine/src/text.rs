//! Text that may be large, such as the output of an execution, and JSON that contains such text.
//!
//! Text can become six times as long in JSON (`\u0000`). [`JsonParts`] avoids holding all of that in memory: it holds
//! the JSON around the text and the text itself, which is escaped piece by piece.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::ops::Deref;
use std::sync::Arc;

use serde::{Serialize, Serializer};

/// Text of at least this length is a separate part.
const LARGE: usize = 16 * 1024;

/// Bytes of text that are escaped in one step.
const PIECE: usize = 16 * 1024;

/// Cheap to clone. Serialized as a JSON string.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LargeText(Arc<String>);

impl From<String> for LargeText {
    fn from(text: String) -> LargeText {
        LargeText(Arc::new(text))
    }
}

impl From<LargeText> for String {
    fn from(text: LargeText) -> String {
        Arc::unwrap_or_clone(text.0)
    }
}

impl Deref for LargeText {
    type Target = String;

    fn deref(&self) -> &String {
        &self.0
    }
}

impl fmt::Display for LargeText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self)
    }
}

impl PartialEq<str> for LargeText {
    fn eq(&self, other: &str) -> bool {
        self.as_str() == other
    }
}

impl PartialEq<&str> for LargeText {
    fn eq(&self, other: &&str) -> bool {
        self.as_str() == *other
    }
}

impl PartialEq<String> for LargeText {
    fn eq(&self, other: &String) -> bool {
        *self.0 == *other
    }
}

impl Serialize for LargeText {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let aside = self.len() >= LARGE && SPLITTING.with_borrow(Option::is_some);
        if !aside {
            return serializer.serialize_str(self);
        }
        // Both quotes are in the buffer when this returns: the serializer buffers nothing itself.
        let written = serializer.serialize_str("")?;
        SPLITTING.with_borrow_mut(|splitting| {
            if let Some(splitting) = splitting {
                splitting.put_aside(self.clone());
            }
        });
        Ok(written)
    }
}

thread_local! {
    /// The JSON that this thread is splitting into parts.
    static SPLITTING: RefCell<Option<Splitting>> = const { RefCell::new(None) };
}

#[derive(Debug, Default)]
struct Splitting {
    json: Vec<u8>,
    parts: VecDeque<JsonPart>,
}

impl Splitting {
    /// Inserts text between the two quotes that were written last.
    fn put_aside(&mut self, text: LargeText) {
        self.json.pop();
        self.parts.push_back(JsonPart::Json(std::mem::replace(&mut self.json, vec![b'"'])));
        self.parts.push_back(JsonPart::Text(text, 0));
    }
}

/// Passes the output of the serializer to [`SPLITTING`].
struct SplittingWriter;

impl io::Write for SplittingWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        SPLITTING.with_borrow_mut(|splitting| {
            let splitting = splitting.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
            splitting.json.extend_from_slice(bytes);
            Ok(bytes.len())
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[derive(Debug)]
enum JsonPart {
    Json(Vec<u8>),
    /// Text, and how many of its bytes were returned so far.
    Text(LargeText, usize),
}

/// A value as JSON in which large text is not escaped yet. Iterating returns the JSON piece by piece.
#[derive(Debug)]
pub struct JsonParts(VecDeque<JsonPart>);

impl JsonParts {
    pub fn of(value: &impl Serialize) -> serde_json::Result<JsonParts> {
        SPLITTING.set(Some(Splitting::default()));
        let written = serde_json::to_writer(SplittingWriter, value);
        let splitting = SPLITTING.take().unwrap_or_default();
        written?;
        let Splitting { json, mut parts } = splitting;
        parts.push_back(JsonPart::Json(json));
        Ok(JsonParts(parts))
    }

    /// Bytes of memory that this holds.
    #[must_use]
    pub fn held(&self) -> usize {
        let held = |part: &JsonPart| match part {
            JsonPart::Json(json) => json.len(),
            JsonPart::Text(text, _) => text.len(),
        };
        self.0.iter().map(held).sum()
    }
}

impl Iterator for JsonParts {
    type Item = Vec<u8>;

    fn next(&mut self) -> Option<Vec<u8>> {
        loop {
            match self.0.front_mut()? {
                JsonPart::Json(json) => {
                    let json = std::mem::take(json);
                    self.0.pop_front();
                    return Some(json);
                }
                JsonPart::Text(text, taken) if *taken < text.len() => {
                    let rest = &text[*taken..];
                    let end = boundary(rest, PIECE);
                    *taken += end;
                    // Serializing a string cannot fail.
                    let mut quoted = serde_json::to_vec(&rest[..end]).unwrap_or_default();
                    quoted.pop();
                    quoted.drain(..1);
                    return Some(quoted);
                }
                JsonPart::Text(..) => drop(self.0.pop_front()),
            }
        }
    }
}

/// The end of the last character that lies completely within the first `most` bytes.
fn boundary(text: &str, most: usize) -> usize {
    let longest = most.min(text.len());
    // 0 is a boundary.
    (0..=longest).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Serialize)]
    struct Sample {
        before: u8,
        text: LargeText,
        #[serde(flatten)]
        more: More,
    }

    #[derive(Serialize)]
    struct More {
        other: LargeText,
        list: Vec<LargeText>,
    }

    fn whole(value: &impl Serialize) -> Vec<u8> {
        JsonParts::of(value).unwrap().flatten().collect()
    }

    #[test]
    fn text_without_escapes_is_not_copied() {
        let text = LargeText::from("x".repeat(1 << 20));
        let parts = JsonParts::of(&[&text, &text]).unwrap();
        assert_eq!(Arc::strong_count(&text.0), 3);
        assert_eq!(parts.held(), (2 << 20) + r#"["",""]"#.len());
        assert!(parts.into_iter().all(|piece| piece.len() <= PIECE));
    }

    proptest! {
        #[test]
        fn in_parts_it_is_the_same_json(
            unit in "\\PC{0,3}[\u{0}\n\"\\\\€😀]{0,3}",
            times in prop::sample::select(vec![0usize, 1, 20_000]),
        ) {
            let text = LargeText::from(unit.repeat(times));
            let inner = || Sample {
                before: 1,
                text: text.clone(),
                more: More { other: text.clone(), list: vec![text.clone(), LargeText::default()] },
            };
            let value = [inner(), inner()];
            prop_assert_eq!(whole(&value), serde_json::to_vec(&value).unwrap());
        }
    }
}
