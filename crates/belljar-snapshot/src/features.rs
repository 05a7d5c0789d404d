//! The instruction sets of the processor, by which libraries choose their code.

use core::arch::asm;
use core::arch::x86_64::{__cpuid, __cpuid_count, CpuidResult};

/// A set of instruction sets, a bit for each.
#[repr(transparent)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Features([u64; WORDS]);

const WORDS: usize = 2;

impl Features {
    /// What this machine's processor has, and what the system allows programs to use.
    #[must_use]
    pub fn of_this_machine() -> Features {
        // Each costs microseconds in a virtual machine.
        let [last, last_amd] = [0, 0x8000_0000].map(|leaf| cpuid(leaf, 0).eax);
        let words = LEAVES.map(|(leaf, subleaf)| match leaf {
            0x8000_0000.. if leaf > last_amd => NOTHING,
            ..0x8000_0000 if leaf > last => NOTHING,
            _ => cpuid(leaf, subleaf),
        });
        let state = enabled_state(&words[BASIC]);
        let mut found = Features::default();
        for (number, (_, place, needed)) in KNOWN.iter().enumerate() {
            let Place(leaf, register, bit) = *place;
            let word = match register {
                Register::A => words[leaf].eax,
                Register::B => words[leaf].ebx,
                Register::C => words[leaf].ecx,
                Register::D => words[leaf].edx,
            };
            if word >> bit & 1 != 0 && state & needed == *needed {
                found.0[number / 64] |= 1 << (number % 64);
            }
        }
        found
    }

    /// The names of all in the set, as Linux writes them in `/proc/cpuinfo`.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        (0..WORDS * 64).filter(move |number| self.has(*number)).map(name)
    }

    /// The names of all in the set that `here` does not have.
    pub fn missing_in(self, here: Features) -> impl Iterator<Item = &'static str> {
        let mut missing = self;
        missing.0.iter_mut().zip(here.0).for_each(|(word, other)| *word &= !other);
        missing.names()
    }

    fn has(self, number: usize) -> bool {
        self.0[number / 64] >> (number % 64) & 1 != 0
    }
}

fn name(number: usize) -> &'static str {
    KNOWN.get(number).map_or("an instruction set of a newer processor", |known| known.0)
}

fn cpuid(leaf: u32, subleaf: u32) -> CpuidResult {
    #[allow(unused_unsafe, reason = "safe since Rust 1.94")]
    // SAFETY: every processor of this architecture has the instruction.
    unsafe {
        if subleaf == 0 { __cpuid(leaf) } else { __cpuid_count(leaf, subleaf) }
    }
}

/// The registers that the system saves for programs (XCR0).
fn enabled_state(basic: &CpuidResult) -> u64 {
    const OSXSAVE: u32 = 1 << 27;
    if basic.ecx & OSXSAVE == 0 {
        return 0;
    }
    let (low, high): (u32, u32);
    // SAFETY: the processor has the instruction, and the system allows it.
    unsafe {
        asm!("xgetbv", in("ecx") 0, out("eax") low, out("edx") high, options(nomem, nostack));
    };
    u64::from(high) << 32 | u64::from(low)
}

#[derive(Debug, Clone, Copy)]
enum Register {
    A,
    B,
    C,
    D,
}

/// Leaf, register and bit of CPUID.
#[derive(Debug, Clone, Copy)]
struct Place(usize, Register, u32);

/// Leaves and subleaves, and their positions.
const LEAVES: [(u32, u32); 6] =
    [(1, 0), (7, 0), (7, 1), (13, 1), (0x8000_0001, 0), (0x8000_0008, 0)];
const BASIC: usize = 0;
const EXTENDED: usize = 1;
const EXTENDED_MORE: usize = 2;
const STATE: usize = 3;
const AMD: usize = 4;
const AMD_MORE: usize = 5;

const NOTHING: CpuidResult = CpuidResult { eax: 0, ebx: 0, ecx: 0, edx: 0 };

const NONE: u64 = 0;
const AVX: u64 = 0b110;
const AVX512: u64 = 0b1110_0110;
const AMX: u64 = 0b11 << 17;

use Register::{A, B, C, D};

/// Name, place, and the registers that it needs. The positions are part of the format: new ones come at the end, none goes.
///
/// Instructions that other processors ignore, and hints about their speed, are not in the list; nor is what every processor of
/// this architecture has.
const KNOWN: &[(&str, Place, u64)] = &[
    ("pni", Place(BASIC, C, 0), NONE),
    ("pclmulqdq", Place(BASIC, C, 1), NONE),
    ("ssse3", Place(BASIC, C, 9), NONE),
    ("fma", Place(BASIC, C, 12), AVX),
    ("cx16", Place(BASIC, C, 13), NONE),
    ("sse4_1", Place(BASIC, C, 19), NONE),
    ("sse4_2", Place(BASIC, C, 20), NONE),
    ("movbe", Place(BASIC, C, 22), NONE),
    ("popcnt", Place(BASIC, C, 23), NONE),
    ("aes", Place(BASIC, C, 25), NONE),
    ("xsave", Place(BASIC, C, 26), NONE),
    ("avx", Place(BASIC, C, 28), AVX),
    ("f16c", Place(BASIC, C, 29), AVX),
    ("rdrand", Place(BASIC, C, 30), NONE),
    ("fsgsbase", Place(EXTENDED, B, 0), NONE),
    ("bmi1", Place(EXTENDED, B, 3), NONE),
    ("avx2", Place(EXTENDED, B, 5), AVX),
    ("bmi2", Place(EXTENDED, B, 8), NONE),
    ("rtm", Place(EXTENDED, B, 11), NONE),
    ("avx512f", Place(EXTENDED, B, 16), AVX512),
    ("avx512dq", Place(EXTENDED, B, 17), AVX512),
    ("rdseed", Place(EXTENDED, B, 18), NONE),
    ("adx", Place(EXTENDED, B, 19), NONE),
    ("avx512ifma", Place(EXTENDED, B, 21), AVX512),
    ("clflushopt", Place(EXTENDED, B, 23), NONE),
    ("clwb", Place(EXTENDED, B, 24), NONE),
    ("avx512cd", Place(EXTENDED, B, 28), AVX512),
    ("sha_ni", Place(EXTENDED, B, 29), NONE),
    ("avx512bw", Place(EXTENDED, B, 30), AVX512),
    ("avx512vl", Place(EXTENDED, B, 31), AVX512),
    ("avx512vbmi", Place(EXTENDED, C, 1), AVX512),
    ("waitpkg", Place(EXTENDED, C, 5), NONE),
    ("avx512_vbmi2", Place(EXTENDED, C, 6), AVX512),
    ("gfni", Place(EXTENDED, C, 8), NONE),
    ("vaes", Place(EXTENDED, C, 9), AVX),
    ("vpclmulqdq", Place(EXTENDED, C, 10), AVX),
    ("avx512_vnni", Place(EXTENDED, C, 11), AVX512),
    ("avx512_bitalg", Place(EXTENDED, C, 12), AVX512),
    ("avx512_vpopcntdq", Place(EXTENDED, C, 14), AVX512),
    ("rdpid", Place(EXTENDED, C, 22), NONE),
    ("movdiri", Place(EXTENDED, C, 27), NONE),
    ("movdir64b", Place(EXTENDED, C, 28), NONE),
    ("avx512_vp2intersect", Place(EXTENDED, D, 8), AVX512),
    ("serialize", Place(EXTENDED, D, 14), NONE),
    ("amx_bf16", Place(EXTENDED, D, 22), AMX),
    ("avx512_fp16", Place(EXTENDED, D, 23), AVX512),
    ("amx_tile", Place(EXTENDED, D, 24), AMX),
    ("amx_int8", Place(EXTENDED, D, 25), AMX),
    ("sha512", Place(EXTENDED_MORE, A, 0), AVX),
    ("sm3", Place(EXTENDED_MORE, A, 1), AVX),
    ("sm4", Place(EXTENDED_MORE, A, 2), AVX),
    ("avx_vnni", Place(EXTENDED_MORE, A, 4), AVX),
    ("avx512_bf16", Place(EXTENDED_MORE, A, 5), AVX512),
    ("cmpccxadd", Place(EXTENDED_MORE, A, 7), NONE),
    ("amx_fp16", Place(EXTENDED_MORE, A, 21), AMX),
    ("avx_ifma", Place(EXTENDED_MORE, A, 23), AVX),
    ("avx_vnni_int8", Place(EXTENDED_MORE, D, 4), AVX),
    ("avx_ne_convert", Place(EXTENDED_MORE, D, 5), AVX),
    ("amx_complex", Place(EXTENDED_MORE, D, 8), AMX),
    ("avx_vnni_int16", Place(EXTENDED_MORE, D, 10), AVX),
    ("avx10", Place(EXTENDED_MORE, D, 19), AVX512),
    ("xsaveopt", Place(STATE, A, 0), NONE),
    ("xsavec", Place(STATE, A, 1), NONE),
    ("xgetbv1", Place(STATE, A, 2), NONE),
    ("lahf_lm", Place(AMD, C, 0), NONE),
    ("abm", Place(AMD, C, 5), NONE),
    ("sse4a", Place(AMD, C, 6), NONE),
    ("xop", Place(AMD, C, 11), AVX),
    ("fma4", Place(AMD, C, 16), AVX),
    ("tbm", Place(AMD, C, 21), NONE),
    ("rdtscp", Place(AMD, D, 27), NONE),
    ("clzero", Place(AMD_MORE, B, 0), NONE),
];

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::BTreeSet;

    use super::*;

    pub(crate) fn of(words: [u64; WORDS]) -> Features {
        Features(words)
    }

    /// Linux reads the same instruction, and leaves out what it has disabled.
    #[test]
    fn linux_names_the_same_instruction_sets() {
        let text = std::fs::read_to_string("/proc/cpuinfo").expect("a processor");
        let line = text.lines().find(|line| line.starts_with("flags")).expect("flags");
        let linux: BTreeSet<&str> = line.split_whitespace().skip(2).collect();
        let known: BTreeSet<&str> = KNOWN.iter().map(|known| known.0).collect();
        let expected: BTreeSet<&str> = linux.intersection(&known).copied().collect();
        assert_eq!(Features::of_this_machine().names().collect::<BTreeSet<_>>(), expected);
    }

    #[test]
    fn each_is_listed_once_and_fits() {
        let names: BTreeSet<&str> = KNOWN.iter().map(|known| known.0).collect();
        assert_eq!(names.len(), KNOWN.len());
        assert!(KNOWN.len() <= WORDS * 64);
    }

    #[test]
    fn only_what_is_missing_matters() {
        let (less, more) = (of([0b0101, 0]), of([0b1101, 0]));
        assert_eq!(less.missing_in(more).count(), 0);
        assert_eq!(more.missing_in(less).collect::<Vec<_>>(), ["fma"]);
        let unknown = of([0, 1 << 63]);
        assert_eq!(unknown.missing_in(more).count(), 1, "one of a newer version is missing");
    }
}
