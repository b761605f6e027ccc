//! Verdicts of facts and configuration: a row for whatever a person would look at when something does not work.

mod boot;
mod bound;
mod cards;
mod cluster;
mod configuration;
mod confinement;
mod container;
mod device_nodes;
mod fuse;
mod infiniband;
mod limits;
mod links;
mod local;
mod memory;
mod mounts;
mod network;
mod origin;
mod partitions;
mod peer;
pub mod ports;
mod provider;
mod rdma;
mod security;
mod slots;
mod speeds;
mod system;
mod ucx;
mod units;
mod verdict;
mod window;

use forebay_config::Config;

use crate::facts::Facts;

pub(crate) use rdma::roce_mtu;
pub use verdict::{Check, Section, Verdict};

/// Looks at everything.
#[must_use]
pub fn check(facts: &Facts, config: &Config) -> Vec<Check> {
    [
        system::check(facts, config),
        rdma::check(facts, config),
        provider::check(facts, config),
        links::check(facts, config),
        slots::check(facts, config),
        partitions::check(facts, config),
        infiniband::check(facts),
        boot::check(facts, config),
        ucx::check(facts, config),
        memory::check(facts, config),
        fuse::check(facts, config),
        local::check(facts, config),
        mounts::check(facts),
        limits::check(facts, config),
        container::check(facts, config),
        confinement::check(facts, config),
        units::check(facts, config),
        window::check(facts, config),
        network::check(facts, config),
        bound::check(facts, config),
        ports::check(facts, config),
        origin::check(facts),
        cluster::check(facts),
        security::check(facts, config),
        configuration::check(facts, config),
        cards::check(facts, config),
        peer::check(facts, config),
    ]
    .concat()
}
