//! Parses keys: Ctrl-] and the key after it are commands for us; all other keys go to the session.

/// Ctrl-].
const PREFIX: u8 = 0x1d;
const LEAVE: u8 = b'd';

/// Parses keys.
#[derive(Debug, Default)]
pub(super) struct Keys {
    /// The prefix was typed, so the next key is a command.
    prefixed: bool,
}

/// The meaning of the keys that were typed.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Typed {
    /// Input for the session.
    pub(super) inside: Vec<u8>,
    /// The user detaches; keys after that are dropped.
    pub(super) leave: bool,
}

impl Keys {
    pub(super) fn read(&mut self, typed: &[u8]) -> Typed {
        let mut inside = Vec::with_capacity(typed.len() + 1);
        for &byte in typed {
            match (std::mem::take(&mut self.prefixed), byte) {
                (false, PREFIX) => self.prefixed = true,
                (false, byte) => inside.push(byte),
                (true, LEAVE) => return Typed { inside, leave: true },
                (true, PREFIX) => inside.push(PREFIX),
                (true, byte) => inside.extend([PREFIX, byte]),
            }
        }
        Typed { inside, leave: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_prefix_is_ours() {
        let typed = |pieces: &[&[u8]]| {
            let mut keys = Keys::default();
            let mut all = Vec::new();
            for piece in pieces {
                let Typed { inside, leave } = keys.read(piece);
                all.extend(inside);
                if leave {
                    return (all, true);
                }
            }
            (all, false)
        };
        assert_eq!(typed(&[b"a\x03d\xff"]), (b"a\x03d\xff".to_vec(), false));
        assert_eq!(typed(&[b"ab\x1ddxy"]), (b"ab".to_vec(), true));
        assert_eq!(typed(&[b"ab\x1d", b"d"]), (b"ab".to_vec(), true));
        assert_eq!(typed(&[b"\x1d\x1dd"]), (b"\x1dd".to_vec(), false));
        assert_eq!(typed(&[b"\x1d", b"x", b"\x1d"]), (b"\x1dx".to_vec(), false));
    }
}
