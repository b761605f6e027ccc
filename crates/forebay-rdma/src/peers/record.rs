//! What is told to whoever keeps a record: who is let in or sent away, and what it asks for, as over TCP.

use std::fmt::Display;
use std::net::SocketAddr;
use std::sync::Arc;

use forebay_transport::{Request, Witness, subject_of};
use forebay_types::Failure;

use super::{Peer, Peers, UNNAMED};
use crate::security::Proved;

impl Peers {
    /// A connection of `peer` is not accepted.
    pub(crate) fn turned_away(&self, peer: Option<SocketAddr>, why: &dyn Display) {
        self.witness(peer.unwrap_or(UNNAMED), None).iter().for_each(|witness| witness.turned_away(why));
    }

    /// A connection that was accepted has to go.
    pub(super) fn sent_away(&self, peer: &Peer, why: &dyn Display) {
        let witness = peer.witness.get().cloned().or_else(|| self.witness(peer.from, None));
        witness.iter().for_each(|witness| witness.turned_away(why));
    }

    /// Who records what a connection asks for, whether it proved something or not.
    pub(super) fn witness(&self, from: SocketAddr, proved: Option<&Proved>) -> Option<Arc<Witness>> {
        let auditing = self.options.audit.as_ref()?;
        Some(Witness::new(auditing, from.into(), proved.map(Proved::identity)))
    }
}

impl Peer {
    /// It may talk.
    pub(super) fn admitted(&self) {
        self.witness.get().iter().for_each(|witness| witness.admitted());
    }

    /// It may not ask for `request`.
    pub(super) fn refused(&self, request: &Request, why: &Failure) {
        self.witness.get().iter().for_each(|witness| witness.refused(request.op, &subject_of(request), why));
    }
}
