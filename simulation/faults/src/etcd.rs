//! An etcd in miniature, and the way of processes to it.
//!
//! The server has what of etcd the cluster relies on: one order of commits, revisions, leases that end by its own clock, history that
//! is compacted, watches that lag. On demand it is away, changes its leader (away for a moment, and leases begin anew), or forgets
//! history.
//!
//! [`SimulatedEtcd`] is a process's `StateStore` over it, with the deadlines and pauses of `forebay-state`'s: a request that is not
//! answered may have been carried out; leases are renewed three times in their ttl, and given up when they cannot be; a watch that
//! breaks begins where it ended, or with a snapshot where the history is gone.

mod server;
mod store;

pub(crate) use server::{add, away, change_leader, compact_now, counts, entries, fresh};
pub(crate) use store::SimulatedEtcd;
