//! Inputs for fuzzing: mutated valid ones, and noise.

use std::fmt;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

/// The most mutations of one input.
const MAX_MUTATIONS: usize = 6;

/// The most bytes of plain noise.
const MAX_NOISE: usize = 2048;

/// No input grows beyond this.
const MAX_INPUT: usize = 1 << 20;

/// Numbers at common bounds.
const NUMBERS: [u64; 16] = [
    0,
    1,
    0x7f,
    0x80,
    0xff,
    0x100,
    0x7fff,
    0xffff,
    0x10_0000,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    0x1_0000_0000,
    0x7fff_ffff_ffff_ffff,
    0x8000_0000_0000_0000,
    u64::MAX,
];

#[derive(Clone)]
pub(crate) struct Input(pub(crate) Vec<u8>);

impl fmt::Debug for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes: b\"{}\"", self.0.len(), self.0.escape_ascii())
    }
}

/// A mutation of an input.
#[derive(Debug, Clone)]
enum Mutation {
    Flip {
        at: Index,
        bit: u8,
    },
    Set {
        at: Index,
        byte: u8,
    },
    /// A binary number of that many bytes.
    Number {
        at: Index,
        number: u64,
        width: usize,
        little: bool,
    },
    /// A number as text, in place of the digits that are there.
    Digits {
        at: Index,
        text: String,
    },
    Insert {
        at: Index,
        bytes: Vec<u8>,
    },
    Remove {
        from: Index,
        to: Index,
    },
    Repeat {
        from: Index,
        to: Index,
        times: usize,
    },
    Cut {
        at: Index,
    },
    /// The rest comes from another seed.
    Splice {
        at: Index,
        other: Index,
        from: Index,
    },
}

/// Nine of ten inputs begin with a seed.
pub(crate) fn inputs(seeds: &[Vec<u8>]) -> BoxedStrategy<Input> {
    let noise = vec(any::<u8>(), 0..MAX_NOISE).prop_map(Input);
    if seeds.is_empty() {
        return noise.boxed();
    }
    let seeds = seeds.to_vec();
    let mutated =
        (any::<Index>(), vec(mutation(), 1..=MAX_MUTATIONS)).prop_map(move |(which, mutations)| {
            let mut bytes = which.get(&seeds).clone();
            for mutation in mutations {
                mutation.apply(&mut bytes, &seeds);
                bytes.truncate(MAX_INPUT);
            }
            Input(bytes)
        });
    prop_oneof![9 => mutated, 1 => noise].boxed()
}

fn mutation() -> impl Strategy<Value = Mutation> {
    let at = || any::<Index>();
    let number = || {
        let near = (prop::sample::select(NUMBERS.to_vec()), -2..=2_i64)
            .prop_map(|(number, by)| number.wrapping_add_signed(by));
        prop_oneof![near, any::<u64>()]
    };
    let text = prop_oneof![
        number().prop_map(|number| number.to_string()),
        number().prop_map(|number| format!("-{number}")),
        number().prop_map(|number| format!("{number:o}")),
        Just("1e308".to_owned()),
        Just("99999999999999999999999".to_owned()),
    ];
    let width = prop::sample::select([1, 2, 4, 8].to_vec());
    prop_oneof![
        2 => (at(), 0..8_u8).prop_map(|(at, bit)| Mutation::Flip { at, bit }),
        2 => (at(), any::<u8>()).prop_map(|(at, byte)| Mutation::Set { at, byte }),
        3 => (at(), number(), width, any::<bool>()).prop_map(|(at, number, width, little)| {
            Mutation::Number { at, number, width, little }
        }),
        2 => (at(), text).prop_map(|(at, text)| Mutation::Digits { at, text }),
        1 => (at(), vec(any::<u8>(), 1..64)).prop_map(|(at, bytes)| Mutation::Insert { at, bytes }),
        1 => (at(), at()).prop_map(|(from, to)| Mutation::Remove { from, to }),
        2 => (at(), at(), 1..64_usize).prop_map(|(from, to, times)| {
            Mutation::Repeat { from, to, times }
        }),
        1 => at().prop_map(|at| Mutation::Cut { at }),
        1 => (at(), at(), at()).prop_map(|(at, other, from)| Mutation::Splice { at, other, from }),
    ]
}

/// Corrects the checksums of all blocks that look like headers of a tar archive. Otherwise mutations would be
/// rejected by their checksums alone.
pub fn repair_tar(archive: &mut [u8]) {
    const CHECKSUM: std::ops::Range<usize> = 148..156;
    for block in archive.chunks_exact_mut(512) {
        if &block[257..262] == b"ustar" {
            // The checksum is computed with spaces in its own field.
            block[CHECKSUM].fill(b' ');
            let sum: u32 = block.iter().map(|&byte| u32::from(byte)).sum();
            block[CHECKSUM].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        }
    }
}

impl Mutation {
    fn apply(&self, bytes: &mut Vec<u8>, seeds: &[Vec<u8>]) {
        // The end of the input is a position too.
        let places = bytes.len() + 1;
        let place = |at: &Index| at.index(places);
        let range = |from: &Index, to: &Index| {
            let (from, to) = (place(from), place(to));
            from.min(to)..from.max(to)
        };
        match self {
            Mutation::Flip { at, bit } => {
                if let Some(byte) = bytes.get_mut(place(at)) {
                    *byte ^= 1 << bit;
                }
            }
            Mutation::Set { at, byte } => {
                if let Some(old) = bytes.get_mut(place(at)) {
                    *old = *byte;
                }
            }
            Mutation::Number { at, number, width, little } => {
                let little_end = number.to_le_bytes();
                let mut number = little_end[..*width].to_vec();
                if !little {
                    number.reverse();
                }
                let at = place(at);
                let end = bytes.len().min(at + width);
                bytes.splice(at..end, number);
            }
            Mutation::Digits { at, text } => {
                let is_digit = |byte: &u8| byte.is_ascii_digit();
                let at = place(at);
                let Some(from) = bytes[at..].iter().position(is_digit).map(|n| at + n) else {
                    return;
                };
                let length = bytes[from..].iter().take_while(|byte| is_digit(byte)).count();
                bytes.splice(from..from + length, text.bytes());
            }
            Mutation::Insert { at, bytes: more } => {
                let at = place(at);
                bytes.splice(at..at, more.iter().copied());
            }
            Mutation::Remove { from, to } => {
                bytes.drain(range(from, to));
            }
            Mutation::Repeat { from, to, times } => {
                let range = range(from, to);
                let piece = &bytes[range.clone()];
                let times = (*times).min(MAX_INPUT / (piece.len() + 1));
                let repeated = piece.repeat(times);
                bytes.splice(range.end..range.end, repeated);
            }
            Mutation::Cut { at } => bytes.truncate(place(at)),
            Mutation::Splice { at, other, from } => {
                let other = other.get(seeds);
                let rest = &other[from.index(other.len() + 1)..];
                bytes.truncate(place(at));
                bytes.extend_from_slice(rest);
            }
        }
    }
}
