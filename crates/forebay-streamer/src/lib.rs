//! `libforebay_streamer.so`, which takes the place of `libstreamer.so` in Run:ai's model streamer: `STREAMER_LIBRARY` names it, and
//! whatever loads models by `runai_model_streamer` (vLLM's and SGLang's load format `runai_streamer`) reads through Forebay with its
//! command line unchanged, without a mount between. The Python module has the functions, too (`python/src/lib.rs`), and is what a wheel
//! gives for `STREAMER_LIBRARY`. This library is for processes without Python, and for packages.
//!
//! * `abi.rs`: the functions, those of 0.15.9 to 0.16 and those of 0.17, which have other names;
//! * `streamer.rs`: submissions of ranges, and answers in the order in which ranges arrive;
//! * `owed.rs`: how many answers a submission still gets. Pure;
//! * `places.rs`: where a path leads: to the machine's cluster, to a cache in this process, or to the local file system. Pure;
//! * `sources.rs`: sessions and files behind these places;
//! * `codes.rs`: what a caller is told, and its words.
//!
//! The functions and what they mean were read in the packages' Python code, and in the public header of the library. A caller of this
//! interface is told a number and no words, so what failed and what to do about it goes to standard error.

#![cfg_attr(not(test), warn(clippy::expect_used, clippy::unwrap_used))]

mod abi;
mod codes;
mod owed;
mod places;
mod sources;
mod streamer;

pub use abi::*;
