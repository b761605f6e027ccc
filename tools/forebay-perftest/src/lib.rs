//! The network benchmark: what the links between two hosts give, and what the cache makes of it.
//!
//! Kinds of operation, so that one tool says where time goes:
//!
//! * `WRITE`: one-sided, into the server's memory. It has ended when it is flushed, since only then the bytes are there;
//! * `READ`: one-sided, out of the server's memory: what the network card gives;
//! * `SEAL`: by verbs, the same and then, fenced, a read of what would say whether the bytes are right: what a one-sided read of the cache
//!   takes of the network (ADR 0035), without its checksums;
//! * `CACHE`: a request and its reply over [`forebay_rdma`] or [`forebay_tcp`], from a service that has everything in
//!   memory: what a mount gets from a worker, without the checksums that the mount adds.
//!
//! The others go by UCX or by verbs, and [`compare`](mod@compare) has what came of either side by side.
//!
//! Over TCP, `READ` and `WRITE` are the plainest thing that sockets can do: blocking, one thread a connection.
//!
//! The parts: [`plan`](mod@plan) (pure: which tests, how many threads, which bytes), `statistics` and `text` (pure: what is
//! reported and how it looks), `wire` (what passes over the control connection), `control` (the client's end of it), `ucx`
//! (how both sides set UCX up), `link` (the trait: one job's way to the server, with an implementation for each kind),
//! `load_threads` (a thread for each job), [`client`](mod@client) (a run from beginning to end), [`server`](mod@server).
//!
//! **How READ and WRITE are driven.** Each job of the client has a thread, and a UCX worker with an endpoint, or a queue pair with a
//! completion queue, of its own. It polls
//! while short latencies are measured, as every such tool does, and sleeps when there is nothing to do while bandwidth is
//! measured, as the cache's own threads do: otherwise CPU time would say how long the test took. `CACHE` shares one I/O thread and
//! one link among all jobs, as a mount does.
//!
//! Every endpoint uses error handling by peer, as the cache's do, so that a server's death is noticed. UCX 1.13 then emulates
//! one-sided operations over shared memory, which costs the server time, too: `ucx_perftest -e` shows the same.
//!
//! **One thread serves all clients.** For one-sided operations a network card needs no thread on the server's side.
//! Transports in software (TCP, and some of shared memory's) do: the server's one UCX worker is driven for them, and by
//! events, so it costs nothing with a card.
//!
//! **What is counted.** Percentiles are exact: every latency is kept, [`plan::MAX_ITERATIONS`] of them at most, which
//! needs no histogram. Bandwidth counts operations that ended, from the common start of all jobs to the end of the last one.
//! Links are made before a test starts.
//!
//! **Trust.** A client that reaches the server's port can read and write the benchmark's own memory and nothing else,
//! can use up to [`plan::MAX_CLIENTS`] places, and learns its version. Every message is checked before it is used, on
//! both sides.

#![cfg_attr(not(test), warn(clippy::expect_used, clippy::unwrap_used))]

pub mod client;
pub mod compare;
mod control;
mod error;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod link;
mod load_threads;
mod memory;
pub mod options;
mod pattern;
pub mod plan;
pub mod report;
pub mod server;
mod statistics;
mod text;
mod ucx;
mod usage;
mod verbs;
mod wire;

pub use error::Error;
pub use options::{CardNames, Case, ClientOptions, Kind, ServerOptions, TransportChoice, UcxOptions, VerbsCard};
pub use report::Report;
pub use server::Server;
pub use statistics::{Bandwidth, Latency};
