//! Which members are in the cluster, which of them own what, and which can be reached. Pure: no I/O, no clock.
//!
//! * [`records`]: what the state of a cluster says, as it is stored; [`grants`]: who may write and read what of it;
//! * [`MemberView`]: from what the state store tells to the [`Topology`] in use, with the last known one while it is away;
//! * [`Ring`]: the members and, by weighted rendezvous hashing, the order in which they own a key;
//! * [`Topology`]: a ring, which members are leaving it and which are new, and which to ask for a block before the
//!   origin;
//! * [`Registration`]: what a worker says of itself: damped, active and warming, draining;
//! * [`Membership`]: where a topology comes from; [`StaticMembership`] is a configured list;
//! * [`Health`]: whether a member that failed is worth another try yet;
//! * [`Pauses`]: how long to pause before something is tried again;
//! * [`LatencyRecord`]: which of several replicas answers first;
//! * [`HedgeOptions`]: when a read that waits for its worker is sent to another one as well.

#![cfg_attr(not(test), warn(clippy::expect_used, clippy::unwrap_used))]

pub mod grants;
mod health;
mod hedge;
mod latency;
mod member;
mod membership;
mod pauses;
mod placement;
pub mod records;
mod registration;
mod topology;
mod view;

pub use health::{Backoff, Health};
pub use hedge::{HedgeBudget, HedgeOptions, Pace, ReadLatencies, Step, Turn, Watch};
pub use latency::{LatencyRecord, favour};
pub use member::Member;
pub use membership::{Membership, StaticMembership};
pub use pauses::Pauses;
pub use placement::{PlacementKey, Ranked, Ring};
pub use registration::{JoinHistory, Registration, Standing};
pub use topology::{MAX_PEERS, Topology};
pub use view::{Freshness, MemberView, Reach, topology_of};
