//! What every connection decides, whatever carries its bytes: which calls wait for an answer, and when silence means death.
//! Pure.

mod liveness;
mod outstanding;

pub use liveness::{Liveness, Verdict};
pub use outstanding::{Begun, Outstanding};
