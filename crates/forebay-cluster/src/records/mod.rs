//! What is written into the state of a cluster, as JSON: members, mounts, policies, jobs, and mounts that keep files.
//!
//! Every key that any process writes begins with a constant of these files. Who may write and read it in an etcd with users
//! is in [`crate::grants`].
//!
//! Readers take records of newer releases: unknown fields are passed over.

pub mod clients;
pub mod coordinators;
pub mod members;
pub mod mounts;
pub mod policies;

/// A key that no process writes: `forebay doctor` reads it to see whether etcd answers.
pub const NOBODYS: &str = "doctor";

/// What all keys of a cluster begin with in an etcd, which several clusters may share.
#[must_use]
pub fn root(cluster: &str) -> String {
    format!("/forebay/{cluster}/")
}
