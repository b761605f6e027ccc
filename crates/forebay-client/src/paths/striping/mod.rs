//! One large read over several cards at once: who gets which part, and when a part is asked for again. Pure: nothing
//! here sends, waits or looks at a clock.
//!
//! * [`PathSpeed`](speed::PathSpeed): what one path carries, measured by what it delivers;
//! * [`PathLoads`]: how busy and how fast the paths to a worker are, and whether it is worth it to divide reads of it;
//! * [`divide`](division): the parts, so that all paths are done at the same moment;
//! * [`Stripe`]: one read under way: which parts have come, failed, or are late.

mod division;
mod loads;
#[cfg(test)]
mod model;
mod speed;
mod stripe;

pub(super) use division::{Division, MAX_PATHS, MIN_STRIPED, PartOfRead, parts_of};
pub(super) use loads::{Ended, PathLoads};
pub(super) use speed::Sent;
pub(super) use stripe::{AfterFailure, Stripe};
