//! What is written into the state of a cluster, as JSON: members, mounts, policies, and mounts that keep files.
//!
//! Readers take records of newer releases: unknown fields are passed over.

pub mod clients;
pub mod members;
pub mod mounts;
pub mod policies;
