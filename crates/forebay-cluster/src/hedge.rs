//! Hedged reads: when a read that waits for its worker is sent to another one as well. Pure: no I/O, no clock.
//!
//! * [`ReadLatencies`]: how long reads of a worker take, by size; from it, how long one may take before it counts as
//!   overdue;
//! * [`HedgeBudget`]: how many reads may be sent twice;
//! * [`Pace`]: whether a worker is slow at present, so that reads are better sent to another at once;
//! * [`Watch`]: what becomes of one read that is overdue.
//!
//! A hedge costs a request, so it must be rare while nothing is wrong: it is sent after the 99th percentile of what the
//! worker itself took lately (Dean and Barroso, "The tail at scale", 2013), and the budget bounds what that estimate gets
//! wrong. It must not depend on the budget while a worker is stopped: then the worker becomes slow after a few lost races,
//! and its reads go elsewhere at once, which needs no second request. Where the budget does not suffice for these races,
//! reads that have waited for very long are hedged on credit.

mod budget;
mod latencies;
mod pace;
mod watch;

pub use budget::HedgeBudget;
pub use latencies::ReadLatencies;
pub use pace::{Pace, Turn};
pub use watch::{Step, Watch};

use std::time::Duration;

/// How reads are hedged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HedgeOptions {
    /// A read is not hedged before it has waited so long, however fast its worker usually is.
    pub min_delay: Duration,
    /// How many requests more there may be, in percent.
    pub budget_percent: u32,
}

impl Default for HedgeOptions {
    fn default() -> Self {
        Self { min_delay: Duration::from_millis(2), budget_percent: 5 }
    }
}
