//! A node of Forebay to embed: a worker, a mount, a coordinator and a client of them, or all of these in one process.
//!
//! ```no_run
//! # async fn example() -> Result<(), forebay_node::UserError> {
//! use forebay_node::Node;
//!
//! // What `forebay up s3://bucket /mnt/data` runs.
//! let node = Node::builder().standalone("s3://bucket").mount("/mnt/data").start().await?;
//! println!("mounted at {:?}", node.addresses().mountpoint);
//! node.shutdown().await
//! # }
//! ```
//!
//! [`NodeBuilder`] says what is to run and with which configuration, [`Node`] is the handle of what runs. The program `forebay` is made
//! of the same: its commands build a node, print what it says of itself, and end it at a signal.
//!
//! The modules are what those commands need besides: where things listen ([`binding`]), what a process reports
//! ([`report`]) and how others ask for it ([`control`]), which mounts there are on this machine ([`state`]), what a pod
//! of Fluid's runs ([`fluid`]), and how errors are told to people ([`error`]).

#![cfg_attr(not(test), warn(clippy::expect_used, clippy::unwrap_used))]

pub mod after_stop;
pub mod assembly;
mod audit;
pub mod binding;
pub mod block_size;
mod builder;
pub mod claimed;
pub mod clients;
pub mod cluster;
pub mod control;
mod coordinating;
mod direct;
mod disks;
pub mod driving;
mod elsewhere;
pub mod error;
mod exposure;
mod fdstore;
pub mod fluid;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod giving_up;
mod handover;
mod hot;
mod http;
mod keeper_process;
mod keeper_watch;
mod keeper_watcher;
pub mod keepers;
pub mod keeping;
mod leaving;
mod lending;
pub mod local;
mod materialise_requests;
mod measured;
mod memory;
mod metrics;
mod mounted;
pub mod mountpoint;
mod namespaces;
mod node;
pub mod origin;
mod page;
mod plan;
mod private_coordinator;
pub mod process;
pub mod rdma;
mod reloading;
pub mod report;
mod rescuing;
mod s3;
pub mod security;
pub mod staged;
mod start;
pub mod state;
mod stopping;
mod takeover;
mod unit_job;
mod web;
pub mod window;
mod worker_node;

pub use builder::NodeBuilder;
pub use error::UserError;
pub use forebay_client as client;
pub use forebay_config as config;
pub use forebay_handover::LETS_GO_WITHIN;
pub use forebay_types as types;
pub use mounted::MountSummary;
pub use node::{Node, NodeAddresses};
pub use web::Pages;
