//! Where the members of a cluster come from.

use std::sync::Arc;

use crate::{Member, Ring, Topology};

/// Where the list of members comes from. A snapshot costs one atomic increment; the list may change between two.
pub trait Membership: Send + Sync + 'static {
    /// The members as they are now.
    fn topology(&self) -> Arc<Topology>;
}

/// A list that never changes.
#[derive(Debug)]
pub struct StaticMembership(Arc<Topology>);

impl StaticMembership {
    /// Workers at these addresses, all of one weight.
    #[must_use]
    pub fn new(addresses: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        let member =
            |address: &str| Member { name: address.into(), address: address.into(), weight: 1.0, identity: None };
        Self::of(addresses.into_iter().map(|address| member(address.as_ref())))
    }

    /// These workers.
    #[must_use]
    pub fn of(members: impl IntoIterator<Item = Member>) -> Self {
        Self(Arc::new(Topology::of(Ring::new(members))))
    }
}

impl Membership for StaticMembership {
    fn topology(&self) -> Arc<Topology> {
        Arc::clone(&self.0)
    }
}
