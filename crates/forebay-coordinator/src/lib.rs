//! The coordinator of a cluster: jobs, mounts, cache policies, and eyes on all of it.
//!
//! Any number of coordinators may run; the state store elects one that runs jobs, and all answer. None is on the path
//! of a read: without coordinators everything is served, and only jobs wait.
//!
//! * [`jobs`]: what a load or a free does, as a state machine without I/O and without a clock;
//! * [`Runner`]: the shell around it: asks the cache, keeps records, resumes what another coordinator left;
//! * [`api`]: the REST interface, described by OpenAPI; [`ApiClient`] speaks it;
//! * [`Coordinator`]: start and end of all that, and the campaign for leadership;
//! * [`LeaderConnector`]: how a coordinator reaches the one that leads;
//! * [`CacheAccess`] and [`ClusterView`]: the interfaces to the cache and to the members of the cluster; [`fake`] is a
//!   cache for tests.

#![cfg_attr(not(test), warn(clippy::expect_used, clippy::unwrap_used))]

pub mod api;
pub mod fake;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
pub mod jobs;

mod cache;
mod client;
mod clock;
mod coordinator;
mod election_wait;
mod leader;
mod listening;
mod mount;
mod runner;
mod series;
mod service;
mod web;
mod worker_stats;

pub use cache::{CacheAccess, HeldBytes, Loaded};
pub use client::{ApiClient, ApiError};
pub use coordinator::{Coordinator, CoordinatorOptions};
pub use election_wait::once_led;
pub use leader::{LeaderConnector, LeaderRecord, LeaderStream, PlainConnector, SecureConnector};
pub use listening::{CoordinatorError, Listen};
pub use runner::{Runner, RunnerError, RunnerOptions};
pub use series::{Plot, Point, Throughput, Window};
pub use service::{ClusterView, MountCheck};
