//! Text that may be large, such as what an execution printed, and JSON with such text in it.
//!
//! Printed text can become six times as long in JSON (`\u0000`). Whoever sends it need not have
//! all of that in memory: [`Parts`] is the JSON around the text, and the text itself as it is, to be
//! escaped piece by piece.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::ops::Deref;
use std::sync::Arc;

use serde::{Serialize, Serializer};

/// Text from this length on is a part of its own.
const LARGE: usize = 16 * 1024;

/// How much text is escaped at once.
const PIECE: usize = 16 * 1024;

/// Cheap to clone; in JSON, a string.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Text(Arc<String>);

impl From<String> for Text {
    fn from(text: String) -> Text {
        Text(Arc::new(text))
    }
}

impl From<Text> for String {
    fn from(text: Text) -> String {
        Arc::unwrap_or_clone(text.0)
    }
}

impl Deref for Text {
    type Target = String;

    fn deref(&self) -> &String {
        &self.0
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self)
    }
}

impl PartialEq<str> for Text {
    fn eq(&self, other: &str) -> bool {
        self.as_str() == other
    }
}

impl PartialEq<&str> for Text {
    fn eq(&self, other: &&str) -> bool {
        self.as_str() == *other
    }
}

impl PartialEq<String> for Text {
    fn eq(&self, other: &String) -> bool {
        *self.0 == *other
    }
}

impl Serialize for Text {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let aside = self.len() >= LARGE && SPLITTING.with_borrow(Option::is_some);
        if !aside {
            return serializer.serialize_str(self);
        }
        // Both quotes are in the buffer when this returns: the serializer has none of its own.
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
    /// The JSON that this thread is taking apart, while it does.
    static SPLITTING: RefCell<Option<Splitting>> = const { RefCell::new(None) };
}

#[derive(Debug, Default)]
struct Splitting {
    json: Vec<u8>,
    parts: VecDeque<Part>,
}

impl Splitting {
    /// Puts text between the two quotes that were written last.
    fn put_aside(&mut self, text: Text) {
        self.json.pop();
        self.parts.push_back(Part::Json(std::mem::replace(&mut self.json, vec![b'"'])));
        self.parts.push_back(Part::Text(text, 0));
    }
}

/// What the serializer writes to.
struct Buffer;

impl io::Write for Buffer {
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
enum Part {
    Json(Vec<u8>),
    /// Text, and how much of it has been taken.
    Text(Text, usize),
}

/// A value as JSON, in which large text is not escaped yet.
#[derive(Debug)]
pub struct Parts(VecDeque<Part>);

impl Parts {
    pub fn of(value: &impl Serialize) -> serde_json::Result<Parts> {
        SPLITTING.set(Some(Splitting::default()));
        let written = serde_json::to_writer(Buffer, value);
        let splitting = SPLITTING.take().unwrap_or_default();
        written?;
        let Splitting { json, mut parts } = splitting;
        parts.push_back(Part::Json(json));
        Ok(Parts(parts))
    }

    /// Bytes of memory that this holds.
    #[must_use]
    pub fn held(&self) -> usize {
        let held = |part: &Part| match part {
            Part::Json(json) => json.len(),
            Part::Text(text, _) => text.len(),
        };
        self.0.iter().map(held).sum()
    }
}

/// The JSON, a piece at a time.
impl Iterator for Parts {
    type Item = Vec<u8>;

    fn next(&mut self) -> Option<Vec<u8>> {
        loop {
            match self.0.front_mut()? {
                Part::Json(json) => {
                    let json = std::mem::take(json);
                    self.0.pop_front();
                    return Some(json);
                }
                Part::Text(text, taken) if *taken < text.len() => {
                    let rest = &text[*taken..];
                    let end = boundary(rest, PIECE);
                    *taken += end;
                    // A string cannot fail to be one.
                    let mut quoted = serde_json::to_vec(&rest[..end]).unwrap_or_default();
                    quoted.pop();
                    quoted.drain(..1);
                    return Some(quoted);
                }
                Part::Text(..) => drop(self.0.pop_front()),
            }
        }
    }
}

/// The end of the last character that lies within the first `most` bytes.
fn boundary(text: &str, most: usize) -> usize {
    let longest = most.min(text.len());
    // The beginning is one.
    (0..=longest).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Serialize)]
    struct Inner {
        before: u8,
        text: Text,
        #[serde(flatten)]
        more: More,
    }

    #[derive(Serialize)]
    struct More {
        other: Text,
        list: Vec<Text>,
    }

    fn whole(value: &impl Serialize) -> Vec<u8> {
        Parts::of(value).unwrap().flatten().collect()
    }

    #[test]
    fn text_without_escapes_is_not_copied() {
        let text = Text::from("x".repeat(1 << 20));
        let parts = Parts::of(&[&text, &text]).unwrap();
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
            let text = Text::from(unit.repeat(times));
            let inner = || Inner {
                before: 1,
                text: text.clone(),
                more: More { other: text.clone(), list: vec![text.clone(), Text::default()] },
            };
            let value = [inner(), inner()];
            prop_assert_eq!(whole(&value), serde_json::to_vec(&value).unwrap());
        }
    }
}
