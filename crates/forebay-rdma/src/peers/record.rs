//! What is told to whoever keeps a record: who is let in or sent away, and what it asks for, as over TCP. And for whom there is no room.

use std::fmt::Display;
use std::net::SocketAddr;
use std::sync::Arc;

use forebay_transport::connection::Refusal;
use forebay_transport::{ConnectionAudit, Request, subject_of};
use forebay_types::Failure;
use tokio::sync::Notify;

use super::{Peer, Peers, UNNAMED};
use crate::peer_link::PeerLink;
use crate::security::Proved;

impl<L: PeerLink> Peers<L> {
    /// A connection of `peer` is not accepted.
    pub(crate) fn turned_away(&self, peer: Option<SocketAddr>, why: &dyn Display) {
        self.gauges.count_refused();
        self.audit(peer.unwrap_or(UNNAMED), None).iter().for_each(|audit| audit.turned_away(why));
    }

    /// A connection that was accepted has to go.
    pub(super) fn sent_away(&self, peer: &Peer<L>, why: &dyn Display) {
        let audit = peer.audit.get().cloned().or_else(|| self.audit(peer.from, None));
        audit.iter().for_each(|audit| audit.turned_away(why));
    }

    /// A connection has to make way for another one: it has not said hello for long.
    pub(super) fn makes_way(&self, oldest: &Notify) {
        tracing::warn!("closed an RDMA connection that said no hello, since more wait than there may be");
        self.gauges.count_no_room();
        oldest.notify_one();
    }

    /// Why a connection that has greeted is not taken in.
    pub(super) fn no_room(&self, refusal: Refusal) -> String {
        let why = match refusal {
            Refusal::Full(limit) => format!("this server has its {limit} connections; raise `worker.max_connections`"),
            Refusal::Client(limit) => format!(
                "this server has {limit} connections from your address; raise its `worker.max_connections_per_client`"
            ),
            // It was counted when it had to.
            Refusal::MadeWay => return "it said hello too late".to_owned(),
        };
        self.gauges.count_no_room();
        why
    }

    /// Who records what a connection asks for, whether it proved something or not.
    pub(super) fn audit(&self, from: SocketAddr, proved: Option<&Proved>) -> Option<Arc<ConnectionAudit>> {
        let auditing = self.options.audit.as_ref()?;
        Some(ConnectionAudit::new(auditing, from.into(), proved.map(Proved::identity)))
    }
}

impl<L> Peer<L> {
    /// It may talk.
    pub(super) fn admitted(&self) {
        self.audit.get().iter().for_each(|audit| audit.admitted());
    }

    /// It may not ask for `request`.
    pub(super) fn refused(&self, request: &Request, why: &Failure) {
        self.audit.get().iter().for_each(|audit| audit.refused(request.op, &subject_of(request), why));
    }
}
