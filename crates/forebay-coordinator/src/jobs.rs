//! Jobs, without I/O and without a clock: what they are asked, how they go, and what is kept and told of them.
//!
//! [`Job`] is the course of one; the shell in `runner` does what it says. It is public so that it can be driven in
//! virtual time.

mod bandwidth;
mod counts;
mod delivery;
mod index;
mod job;
mod rate;
mod record;
mod report;
mod retry;
mod spec;
mod state;
mod text;
mod walk;
mod window;

pub use counts::{Cause, Failures, FileCounts};
pub(crate) use delivery::Absences;
pub use delivery::{Delivery, Missing};
#[cfg(feature = "fuzzing")]
pub(crate) use index::{Line, Lines};
pub use job::{Answer, Job, Limits, Question, QuestionId, Step};
pub use rate::Speed;
pub use record::JobRecord;
pub use report::{EXIT_CODES, Evicted, JobReport, Progress};
pub use retry::Retry;
pub use spec::{FreeSpec, JobKind, JobSpec, LoadSpec, SpecProblem};
pub use state::{JobState, Pass};
