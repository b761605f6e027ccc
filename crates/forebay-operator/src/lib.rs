//! Forebay as objects of Kubernetes: what a cluster of Forebay is to show, load and keep is said in objects, and
//! workers hand over what they hold before their node goes.
//!
//! | object | becomes |
//! | --- | --- |
//! | `ForebayMount` | a mount of the cluster, as of `forebay mounts add` |
//! | `ForebayLoad` | a job, as of `forebay job load`, with its progress in the object's status |
//! | `ForebayPolicy` | a policy, as of `forebay policy set` |
//! | a cordoned node | a drain of the worker there, as of `forebay cluster drain` |
//!
//! What is to be done is decided by plain functions of what an object says and of what was seen ([`mount`], [`load`],
//! [`policy`], [`leaving`]): no clock, no I/O, no cluster. The shell around them ([`Operator`]) watches the API server,
//! asks a coordinator over its REST interface as anybody with an admin's identity may, and writes states of objects by
//! server-side apply. It goes over all objects of a kind again and again, so it needs no memory: an operator that was
//! killed continues where the objects say that it was. The one thing that it must remember, which workers it has asked
//! to leave, is in a ConfigMap.
//!
//! What changes is told beside the conditions, as Events ([`event`]), and counted ([`Counts`]).
//!
//! An operator is for one namespace, that of the cluster that it speaks to, and needs rights there and on no more than
//! the list of nodes.

#![cfg_attr(not(test), warn(clippy::expect_used, clippy::unwrap_used))]

pub mod condition;
pub mod event;
pub mod leaving;
pub mod load;
pub mod mount;
pub mod policy;
pub mod resources;

mod claim;
mod counts;
mod shell;

pub use counts::Counts;
pub use shell::{LeavingOptions, Operator, OperatorError, OperatorOptions};

/// The definitions of the three kinds, for `kubectl apply`: what the chart installs, too.
#[must_use]
pub fn crds() -> String {
    [
        include_str!("../crds/forebaymounts.yaml"),
        include_str!("../crds/forebayloads.yaml"),
        include_str!("../crds/forebaypolicies.yaml"),
    ]
    .concat()
}
