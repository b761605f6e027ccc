//! What every connection decides, whatever carries its bytes: whether it is taken in, which calls wait for an answer,
//! and when silence means death. Pure.

mod admission;
mod liveness;
mod outstanding;

pub use admission::{Admission, AdmissionLimits, Arrival, LastUse, Refusal};
pub use liveness::{Liveness, Verdict};
pub use outstanding::{Begun, Outstanding};
