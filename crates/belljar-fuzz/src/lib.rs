//! Fuzzes parsers: they must neither panic nor allocate beyond a bound. For tests only; no program depends on this
//! crate.
//!
//! ```text
//!   seeds (valid inputs) ─▶ mutations, or plain noise ─▶ parser ─▶ panic? memory? ─▶ smallest input
//! ```
//!
//! A test program that uses [`Parser`] installs [`Counting`] as its allocator. `make test` tries the same
//! few hundred inputs each time; `make fuzz SECONDS=600` tries new ones, 600 seconds for each parser. The
//! inputs come from `proptest`, which works with the same compiler as the rest. cargo-fuzz would find
//! deeper paths by watching coverage, but needs a nightly compiler.

#![deny(unsafe_code)]

mod allocation;
mod mutation;

use std::time::{Duration, Instant};

use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};

pub use allocation::{Counting, peak_of};
pub use mutation::repair_tar;

/// The default number of inputs.
const CASES: u32 = 400;

/// How long to go on, in seconds; `make fuzz` sets it.
const SECONDS: &str = "BELLJAR_FUZZ_SECONDS";

/// A parser under test.
#[derive(Debug, Clone)]
pub struct Parser {
    name: &'static str,
    seeds: Vec<Vec<u8>>,
    cases: u32,
    fixed: usize,
    per_byte: usize,
}

impl Parser {
    /// Valid inputs to mutate; without any, all inputs are noise.
    #[must_use]
    pub fn new(name: &'static str, seeds: Vec<Vec<u8>>) -> Parser {
        Parser { name, seeds, cases: CASES, fixed: 0, per_byte: 0 }
    }

    /// Inputs to try in `make test`, for parsers that take longer than others.
    #[must_use]
    pub fn cases(self, cases: u32) -> Parser {
        Parser { cases, ..self }
    }

    /// The most memory that it may use at a time: a constant, and an amount for each byte of input.
    #[must_use]
    pub fn allocates_at_most(self, fixed: usize, per_byte: usize) -> Parser {
        Parser { fixed, per_byte, ..self }
    }

    /// Tries all seeds as they are, then inputs made of them.
    ///
    /// # Panics
    ///
    /// If the parser panics, or uses too much memory; with the smallest input found that does so.
    pub fn withstands(&self, parse: impl Fn(&[u8])) {
        // Without the counting allocator, the bound would always hold.
        let ((), measured) = peak_of(|| drop(vec![1_u8; 4096]));
        assert!(measured >= 4096, "the test program needs `Counting` as its global allocator");
        for seed in &self.seeds {
            self.check(seed, &parse).unwrap_or_else(|why| panic!("{}: a seed: {why}", self.name));
        }
        let Some(seconds) = std::env::var(SECONDS).ok().and_then(|text| text.parse().ok()) else {
            return self.run(self.cases, TestRng::deterministic_rng(RngAlgorithm::ChaCha), &parse);
        };
        let (begun, mut tried) = (Instant::now(), 0_u64);
        while begun.elapsed() < Duration::from_secs(seconds) {
            self.run(CASES, TestRunner::new(Config::default()).new_rng(), &parse);
            tried += u64::from(CASES);
        }
        println!("{}: {tried} inputs in {seconds} s", self.name);
    }

    fn run(&self, cases: u32, rng: TestRng, parse: &impl Fn(&[u8])) {
        let config = Config { cases, failure_persistence: None, ..Config::default() };
        let mut runner = TestRunner::new_with_rng(config, rng);
        let outcome = runner.run(&mutation::inputs(&self.seeds), |input| {
            self.check(&input.0, parse).map_err(TestCaseError::fail)
        });
        if let Err(error) = outcome {
            panic!("{}: {error}", self.name);
        }
    }

    fn check(&self, input: &[u8], parse: &impl Fn(&[u8])) -> Result<(), String> {
        let ((), peak) = peak_of(|| parse(input));
        let most = self.fixed.saturating_add(self.per_byte.saturating_mul(input.len()));
        if peak > most {
            let length = input.len();
            return Err(format!(
                "held {peak} bytes for an input of {length}, and {most} are allowed"
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[global_allocator]
    static ALLOCATOR: Counting = Counting;

    fn complaint(parser: &Parser, parse: impl Fn(&[u8])) -> String {
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            parser.withstands(parse);
        }));
        let error = caught.expect_err("it must not pass");
        error.downcast_ref::<String>().cloned().unwrap_or_default()
    }

    fn parser() -> Parser {
        let seed = b"\x04\x00\x00\x00abcd".to_vec();
        Parser::new("toy", vec![seed]).allocates_at_most(64 << 10, 8)
    }

    #[test]
    fn a_parser_that_believes_a_length_is_found_out() {
        let trusting = |bytes: &[u8]| {
            if let Some(length) = bytes.first_chunk() {
                let length = u32::from_le_bytes(*length).min(1 << 24) as usize;
                drop(std::hint::black_box(vec![1_u8; length]));
            }
        };
        let why = complaint(&parser(), trusting);
        assert!(why.contains("held") && why.contains("are allowed"), "{why}");
        let careful = |bytes: &[u8]| {
            if let Some((length, rest)) = bytes.split_first_chunk() {
                let length = u32::from_le_bytes(*length) as usize;
                drop(rest.get(..length).map(<[u8]>::to_vec));
            }
        };
        parser().withstands(careful);
    }

    #[test]
    fn a_parser_that_panics_is_found_out() {
        let careless = |bytes: &[u8]| {
            let length = bytes.first_chunk().map_or(0, |length| u32::from_le_bytes(*length));
            let _ = bytes[4.min(bytes.len())..][..length as usize].len();
        };
        let why = complaint(&parser(), careless);
        assert!(why.contains("toy") && why.contains("range"), "{why}");
    }
}
