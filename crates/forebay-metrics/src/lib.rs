//! What Forebay counts, for Prometheus and for people.
//!
//! A component counts with atomics of its own ([`LatencyHistogram`] is one) and gives out snapshots. Nothing here is
//! told of each event, so nothing is counted twice and a scrape costs the component nothing: at a scrape, the
//! implementations of [`Collect`] turn snapshots into [`Families`], and `exposition` writes them down in the text
//! format that Prometheus reads.
//!
//! * `latency`: durations in buckets, and what can be said of an interval;
//! * `sharded`: counters that each hit adds to;
//! * `family`: metrics with names, units and labels, and the rules for their names;
//! * `exposition`: the text;
//! * `process`: what the kernel counts of this process;
//! * `readiness`: whether, and if not why not;
//! * `report`: the counters as lines for people;
//! * `http`: a server that no client can keep busy, also of others, at a port or a Unix socket (`listener`): `places` decides
//!   which connections stay, `seats` sees to it, and in `socket` no client is waited for without end (`patience`);
//! * `hosts`, `guard`: under which names, and from which pages, such a listener may be asked; `access`: by whom, and for
//!   what; `refused` counts what may not, and `audit` tells it to whoever keeps a record, without secrets (`masking`);
//! * `server`: `/metrics`, `/healthz`, `/readyz` and `/stats` over HTTP.

#![cfg_attr(not(test), warn(clippy::expect_used, clippy::unwrap_used))]

mod access;
mod audit;
mod exposition;
mod family;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod guard;
mod hosts;
mod http;
mod latency;
mod listener;
mod masking;
mod patience;
mod places;
mod process;
mod readiness;
mod refused;
mod report;
mod seats;
mod server;
mod sharded;
mod socket;

pub use access::{Access, Naming, Operation};
pub use audit::About;
pub use exposition::{CONTENT_TYPE, Registry};
pub use family::{Collect, Families, Family, FamilyMut, Kind, Sample, Unit, Value};
pub use hosts::HostNames;
pub use http::{HttpLimits, HttpServer};
pub use latency::{BOUNDS_NANOS, LatencyHistogram, LatencySnapshot};
pub use listener::HttpListener;
pub use process::{ProcessStats, process_started};
pub use readiness::Readiness;
pub use refused::collect_refused;
pub use report::lines;
pub use server::{MetricsServer, Site, WebError, counters, routes, serve, serve_health};
pub use sharded::ShardedCounter;
