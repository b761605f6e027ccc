//! Which process writes and reads which keys of a cluster's state: what it needs to be granted in an etcd with users, and no
//! more.
//!
//! All grants are for keys that begin alike. The election watches [`LEADER`] as a prefix, and needs it granted as one.
//! Tests hold the code to this table: what processes wrote, and a cluster in an etcd that enforces it.

use crate::records::NOBODYS;
use crate::records::clients::{CLIENTS, DELIVERIES, MATERIALISE_REQUESTS};
use crate::records::coordinators::{COORDINATORS, JOBS, LEADER};
use crate::records::members::{DRAINS, JOINS, WORKERS};
use crate::records::mounts::{LAST_ADDED, MOUNTS};
use crate::records::policies::{HOT, POLICIES};

/// What a process is in a cluster. One that is several needs what each of them does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// `forebay worker`, and a mount that shares its cache.
    Worker,
    /// `forebay coordinator`.
    Coordinator,
    /// `forebay mount`, and commands that read as it does.
    Mount,
}

/// What may be done with keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Get, list and watch them, and compare them in a transaction.
    Read,
    /// Put and delete them.
    Write,
    /// Both.
    ReadWrite,
}

/// Keys that begin alike, and what a role may do with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The beginning of the keys, relative to the cluster.
    pub prefix: &'static str,
    /// What may be done with them.
    pub access: Access,
}

const WORKER: &[Grant] = &[
    grant(WORKERS, Access::ReadWrite),
    grant(JOINS, Access::ReadWrite),
    grant(DRAINS, Access::Read),
    grant(MOUNTS, Access::Read),
    grant(POLICIES, Access::Read),
    grant(HOT, Access::Read),
    grant(NOBODYS, Access::Read),
];

const COORDINATOR: &[Grant] = &[
    grant(LEADER, Access::ReadWrite),
    grant(COORDINATORS, Access::Write),
    grant(JOBS, Access::ReadWrite),
    grant(MOUNTS, Access::ReadWrite),
    grant(LAST_ADDED, Access::ReadWrite),
    grant(POLICIES, Access::ReadWrite),
    grant(HOT, Access::ReadWrite),
    grant(DRAINS, Access::ReadWrite),
    grant(MATERIALISE_REQUESTS, Access::ReadWrite),
    grant(DELIVERIES, Access::ReadWrite),
    grant(CLIENTS, Access::Read),
    grant(WORKERS, Access::Read),
    grant(NOBODYS, Access::Read),
];

const MOUNT: &[Grant] = &[
    grant(CLIENTS, Access::Write),
    grant(DELIVERIES, Access::Write),
    grant(MATERIALISE_REQUESTS, Access::Read),
    grant(WORKERS, Access::Read),
    grant(MOUNTS, Access::Read),
    grant(POLICIES, Access::Read),
    grant(HOT, Access::Read),
    grant(NOBODYS, Access::Read),
];

const fn grant(prefix: &'static str, access: Access) -> Grant {
    Grant { prefix, access }
}

impl Role {
    /// All roles.
    pub const ALL: [Self; 3] = [Self::Worker, Self::Coordinator, Self::Mount];

    /// What it is called.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Worker => "worker",
            Self::Coordinator => "coordinator",
            Self::Mount => "mount",
        }
    }

    /// What it is granted.
    #[must_use]
    pub fn grants(self) -> &'static [Grant] {
        match self {
            Self::Worker => WORKER,
            Self::Coordinator => COORDINATOR,
            Self::Mount => MOUNT,
        }
    }

    /// Whether it may write `key`, which is relative to the cluster.
    #[must_use]
    pub fn may_write(self, key: &str) -> bool {
        self.grants().iter().any(|grant| grant.access != Access::Read && key.starts_with(grant.prefix))
    }

    /// Whether it may read `key`, which is relative to the cluster.
    #[must_use]
    pub fn may_read(self, key: &str) -> bool {
        self.grants().iter().any(|grant| grant.access != Access::Write && key.starts_with(grant.prefix))
    }
}

impl Access {
    /// What `etcdctl role grant-permission` calls it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::ReadWrite => "readwrite",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WRITTEN: [&str; 13] = [
        WORKERS,
        JOINS,
        DRAINS,
        LEADER,
        COORDINATORS,
        JOBS,
        MOUNTS,
        LAST_ADDED,
        POLICIES,
        HOT,
        MATERIALISE_REQUESTS,
        DELIVERIES,
        CLIENTS,
    ];

    #[test]
    fn every_key_has_a_role_that_writes_it_and_none_begins_like_another() {
        for key in WRITTEN {
            assert!(Role::ALL.iter().any(|role| role.may_write(key)), "nobody may write {key}");
            assert!(!Role::ALL.iter().any(|role| role.may_write(NOBODYS)));
            let alike = WRITTEN.iter().filter(|other| other.starts_with(key)).count();
            assert_eq!(alike, 1, "a grant for {key} is one for other keys, too");
        }
        for grant in Role::ALL.iter().flat_map(|role| role.grants()) {
            assert!(WRITTEN.contains(&grant.prefix) || grant.prefix == NOBODYS, "{grant:?} is for nothing");
        }
    }

    #[test]
    fn who_caches_or_reads_changes_nothing_that_others_go_by() {
        let decisions = [MOUNTS, LAST_ADDED, POLICIES, HOT, DRAINS, LEADER, JOBS, MATERIALISE_REQUESTS, COORDINATORS];
        for key in decisions {
            assert!(!Role::Worker.may_write(key) && !Role::Mount.may_write(key), "{key}");
        }
        assert!(!Role::Mount.may_write(WORKERS), "a mount is no worker");
        assert!(!Role::Coordinator.may_write(WORKERS), "a worker alone speaks for itself");
        assert!(!Role::Worker.may_read(JOBS) && !Role::Mount.may_read(JOBS));
    }
}
