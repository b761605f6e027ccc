//! What a check comes to: a row with the part of the machine that it is about, a verdict, and what to do.

use serde::Serialize;

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
    /// The limits of control groups, and what a container or a pod may do and has for itself.
    Container,
    /// Units of systemd.
    Units,
    /// Interfaces and ports.
    Network,
    /// Object stores, and the clock that requests to them are signed by.
    Origin,
    /// etcd and coordinators.
    Cluster,
    /// Identities, and what proves them.
    Security,
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
            Self::Container => "container",
            Self::Units => "units",
            Self::Network => "network",
            Self::Origin => "origin",
            Self::Cluster => "cluster",
            Self::Security => "security",
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
    pub(super) fn new(section: Section, name: &'static str, verdict: Verdict, what: impl Into<String>) -> Self {
        Self { section, name, subject: None, verdict, what: what.into(), remedy: None }
    }

    pub(super) fn about(self, subject: impl Into<String>) -> Self {
        Self { subject: Some(subject.into()), ..self }
    }

    pub(super) fn remedy(self, remedy: impl Into<String>) -> Self {
        Self { remedy: Some(remedy.into()), ..self }
    }
}
