//! What is written into the state of a cluster, as JSON: members, mounts and policies.
//!
//! Readers take records of newer releases: unknown fields are passed over.

pub mod members;
pub mod mounts;
pub mod policies;
