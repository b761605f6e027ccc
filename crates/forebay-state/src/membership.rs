//! What a process knows of its cluster, kept current from the cluster's state; and what a worker tells of itself there.
//!
//! * [`Members`] watches the workers of a group and is the [`forebay_cluster::Membership`] of a client. While the state cannot
//!   be reached it goes on with those that it knows, and says so.
//! * [`Registered`] keeps a worker's record in the state under a lease, through lost leases and lost stores, and tells when
//!   the worker is to leave.
//! * [`Table`] watches any other records: mounts, policies, hot files.
//!
//! What is decided is decided in `forebay-cluster`, by state machines; this module waits for the store, for time and for the
//! end. Each of the three owns one task and joins it in its `close`.

mod members;
mod registered;
mod table;

pub use members::{Knowledge, Members, MembersOptions};
pub use registered::{Registered, RegisteredOptions};
pub use table::Table;
