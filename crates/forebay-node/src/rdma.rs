//! RDMA for worker and mount: from the configuration to I/O threads, listeners and paths.
//!
//! * [`cards`]: the network cards that the configuration names, and an I/O thread on each;
//! * [`Servers`]: a worker's listeners, one for each card's data and one for metadata;
//! * [`RdmaConnector`]: a mount's links to workers.
//!
//! RDMA that is asked for and cannot be had is an error at start, with the remedy, unless `network.rdma.data.fallback` is
//! `tcp-at-start`; what is wrong with metadata alone costs metadata alone. A worker with RDMA always listens on TCP too: clients without it just work, and those with it ask over
//! TCP where to connect.

pub mod cards;
mod connector;
mod idle;
pub mod rails;
mod remedy;
mod servers;
mod trace;

use forebay_config::{Config, RdmaFallback};
use forebay_rdma::Library;
use tracing::warn;

pub use connector::RdmaConnector;
pub use idle::say_which_are_idle;
pub use servers::Servers;

use crate::error::{Fault, UserError};

/// Whether blocks are to go over RDMA, through registered buffers.
pub fn is_wanted_for_data(config: &Config) -> bool {
    config.network_rdma_data_enabled
}

/// Whether anything is.
pub fn is_wanted(config: &Config) -> bool {
    config.network_rdma_data_enabled || config.network_rdma_metadata_enabled
}

/// What came of the attempt to have RDMA: `None` when it was not asked for, or could not be had and need not be.
fn or_tcp<T>(config: &Config, attempt: anyhow::Result<T>) -> anyhow::Result<Option<T>> {
    match attempt {
        Ok(had) => Ok(Some(had)),
        Err(error) if config.network_rdma_data_fallback == RdmaFallback::TcpAtStart => {
            let remedy = remedy::of(&error);
            warn!(cause = format!("{error:#}"), remedy, "RDMA cannot be had, TCP is used");
            Ok(None)
        }
        Err(error) => {
            let UserError { exit, what, .. } = UserError::from(&error);
            let next = format!(
                "{}; or set network.rdma.data.fallback = \"tcp-at-start\" to run on TCP, or network.rdma.data.enabled = false",
                remedy::of(&error)
            );
            Err(Fault::new(exit, format!("RDMA cannot be had: {what}"), next).into())
        }
    }
}

/// What came of the attempt to have RDMA for attributes and listings: without it they go over TCP, whatever
/// `network.rdma.data.fallback` says, and data is none the worse.
fn metadata_or_tcp<T>(attempt: anyhow::Result<T>) -> Option<T> {
    attempt
        .inspect_err(|error| {
            let next = format!("{}; or set network.rdma.metadata.enabled = false", remedy::of(error));
            warn!(cause = format!("{error:#}"), next, "metadata cannot go over RDMA, TCP is used for it");
        })
        .ok()
}

/// libucp, as configured.
pub fn library(config: &Config) -> anyhow::Result<&'static Library> {
    Ok(Library::load(config.ucx_library.as_deref())?)
}

/// Loads libucp while the process has one thread, where it is going to be needed: only then can UCX be told to leave
/// `malloc` alone. What is wrong with it is told when it is needed.
pub fn load_early(config: &Config) {
    if is_wanted(config) {
        let _ = library(config);
    }
}
