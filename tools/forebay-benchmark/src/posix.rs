//! `fio` on any directory: what is measured, how, and what it means.
//!
//! ```text
//!  settings ──► plan ──► job ──► (fio) ──► outcome ──► record::Step
//!                 ▲                                       │
//!                 └──────── knee: is the sweep past it? ◄─┤
//!                                                         ▼
//!                            judge ◄── scaling, baseline, knee: what the record means
//! ```
//!
//! All of these are pure: they take values and give values; none starts a process, reads a file or looks at a clock. The
//! driver, [`run`], does, and the caches that it fills and empties are behind [`run::Cache`].
//!
//! * [`settings`]: the axes, sizes and times: the published benchmark's, or a laptop's; [`sizes`]: the files;
//! * [`mod@plan`]: which runs there are, in the order that changes the cache least and compares targets fairly;
//! * [`job`]: fio's command lines and job files;
//! * [`mod@outcome`]: what fio's JSON says, of one machine or of several;
//! * [`mod@knee`]: up to how many jobs a sweep is worth it, and what is full then;
//! * [`scaling`]: what more workers and clients give;
//! * [`baseline`]: what others have published, as fractions of their hardware;
//! * [`quality`]: whether figures are such that they can be shown;
//! * [`judge`]: all of it in sentences.

pub mod baseline;
pub mod job;
pub mod judge;
pub mod knee;
pub mod outcome;
pub mod plan;
pub mod quality;
pub mod run;
pub mod scaling;
pub mod settings;
pub mod sizes;
#[cfg(test)]
mod testing;
mod words;

pub use job::{Command, JobError, command, preparation, running};
pub use judge::findings;
pub use knee::{Knee, is_past, knee};
pub use outcome::{OutcomeError, outcome};
pub use plan::{Planned, plan, same_sweep};
pub use run::Cache;
pub use settings::{Engine, Settings, SettingsError};
pub use sizes::{DataFile, Sizes};
