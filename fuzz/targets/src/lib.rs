//! What the fuzz targets do with their input.
//!
//! A target is a function of bytes that reads them as Forebay reads what comes from outside, and asserts what must hold whatever
//! they are: nothing panics, what was read is written again as it was, no limit is passed, no byte is given out that is not what
//! was stored. [`TARGETS`] is the list; `docs/VERIFICATION.md` says what each reads and asserts.
//!
//! Nothing here knows libFuzzer, so the same functions run in two places: under it, from `fuzz/fuzz_targets/`, with
//! AddressSanitizer and a nightly compiler; and in `tests/seeds.rs`, which replays what is committed in `fuzz/seeds/` with every
//! `make test`. Where a parser is private to its crate, the crate itself has the target's body, in a module `fuzzing` behind a
//! feature of that name.
//!
//! Checksums stand between a fuzzer and what lies behind them, so most targets can be told by a bit of their input to put them
//! right first (`seal`). Everything is a function of the input alone: no clock and no randomness decides what is asserted.

mod input;
mod seal;
mod support;
mod targets;

pub use targets::{Seed, TARGETS, Target, run};
