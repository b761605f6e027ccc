//! Verdicts of facts and configuration: a row for whatever a person would look at when something does not work.

mod boot;
mod bound;
mod cards;
mod cluster;
mod configuration;
mod fuse;
mod infiniband;
mod links;
mod local;
mod memory;
mod mounts;
mod network;
mod origin;
mod partitions;
mod peer;
pub mod ports;
mod rdma;
mod slots;
mod speeds;
mod system;
mod ucx;
mod window;

use forebay_config::Config;
use serde::Serialize;

use crate::facts::Facts;

pub(crate) use rdma::roce_mtu;

/// What is to be thought of something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// As it should be.
    Ok,
    /// Good to know; nothing is wrong.
    Info,
    /// It works, but not as well as it could, or not with everything.
    Warn,
    /// What the configuration asks for cannot work.
    Fail,
}

impl Verdict {
    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Info => "info",
            Self::Warn => "warn",
            Self::Fail => "fail",
        }
    }
}

/// The part of the machine that something is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Section {
    /// The kernel and tools.
    System,
    /// RDMA devices and modules.
    Rdma,
    /// libucp.
    Ucx,
    /// Memory and its limits.
    Memory,
    /// What a mount needs.
    Fuse,
    /// Interfaces and ports.
    Network,
    /// Object stores, and the clock that requests to them are signed by.
    Origin,
    /// etcd and coordinators.
    Cluster,
    /// The configuration.
    Configuration,
    /// Another host.
    Peer,
}

impl Section {
    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::Rdma => "rdma",
            Self::Ucx => "ucx",
            Self::Memory => "memory",
            Self::Fuse => "fuse",
            Self::Network => "network",
            Self::Origin => "origin",
            Self::Cluster => "cluster",
            Self::Configuration => "configuration",
            Self::Peer => "peer",
        }
    }
}

/// What was looked at, and what came of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// The part of the machine.
    pub section: Section,
    /// What was looked at: the same word in every report.
    pub name: &'static str,
    /// The device, port, interface, key or URL that it is about, where there may be several.
    pub subject: Option<String>,
    /// What is to be thought of it.
    pub verdict: Verdict,
    /// What is the case.
    pub what: String,
    /// What to do: commands to type, settings to make.
    pub remedy: Option<String>,
}

impl Check {
    fn new(section: Section, name: &'static str, verdict: Verdict, what: impl Into<String>) -> Self {
        Self { section, name, subject: None, verdict, what: what.into(), remedy: None }
    }

    fn about(self, subject: impl Into<String>) -> Self {
        Self { subject: Some(subject.into()), ..self }
    }

    fn remedy(self, remedy: impl Into<String>) -> Self {
        Self { remedy: Some(remedy.into()), ..self }
    }
}

/// Looks at everything.
#[must_use]
pub fn check(facts: &Facts, config: &Config) -> Vec<Check> {
    [
        system::check(facts, config),
        rdma::check(facts, config),
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
        window::check(facts, config),
        network::check(facts, config),
        bound::check(facts, config),
        ports::check(facts, config),
        origin::check(facts),
        cluster::check(facts),
        configuration::check(facts, config),
        cards::check(facts, config),
        peer::check(facts, config),
    ]
    .concat()
}
