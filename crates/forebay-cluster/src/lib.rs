//! Who is in the cluster, who owns what, and who can be reached. Pure: no I/O, no clock.
//!
//! * [`Ring`]: the members and, by weighted rendezvous hashing, the order in which they own a key;
//! * [`Membership`]: where a ring comes from; [`StaticMembership`] is a configured list;
//! * [`Health`]: whether a member that failed is worth another try yet.

mod health;
mod member;
mod placement;

pub use health::{Backoff, Health};
pub use member::{Member, Membership, StaticMembership};
pub use placement::{PlacementKey, Ring};
