//! A worker in its cluster: what makes one of many of it.
//!
//! * [`Joined`]: it is registered and has links to the others, for as long as it is one of them;
//! * `worker_peers.rs`: the others, as a worker asks them;
//! * `leaving.rs`: what it does when it is asked to leave.
//!
//! How it is reached is not its business: the program brings servers and a [`Connector`](forebay_client::Connector) over TCP and
//! RDMA, a simulation brings its own.

#![cfg_attr(not(test), warn(clippy::expect_used, clippy::unwrap_used))]

mod joined;
mod leaving;
mod worker_peers;

pub use joined::{JoinOptions, Joined};
