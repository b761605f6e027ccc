//! What threads share here. With `--cfg shuttle` it is of a scheduler that tries orders out (`threads.rs`).

#[cfg(not(shuttle))]
pub(crate) use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

#[cfg(shuttle)]
pub(crate) use shuttle::sync::atomic::{AtomicU8, AtomicU64, Ordering};
