//! Who is told where bytes lie in this worker's memory, to read them there (ADR 0035).

use std::rc::Rc;
use std::time::Instant;

use forebay_one_sided::Location;
use forebay_transport::{Caller, Op, Request};

use super::{Peer, Peers};
use crate::peer_link::{PeerLink, Seen};

impl<L: PeerLink> Peers<L> {
    /// Where the bytes of a read lie that was just answered, if its peer may be told and can read them there.
    #[cold]
    pub(super) fn locate(&self, peer: &Peer<L>, request: &Request) -> Option<Location> {
        if !peer.endpoint.may_tell(self.seen(peer, &request.caller)) {
            return None;
        }
        let location = self.service.locate(request)?;
        peer.endpoint.open(&location).then_some(location)
    }

    /// Has those forget what they were told who may not know it any more. To be called now and then.
    pub(crate) fn look_at_readers(&self) {
        let now = Instant::now();
        let peers: Vec<_> = self.peers.borrow().values().map(Rc::clone).collect();
        for peer in peers {
            let caller = peer.proved.get().map_or_else(Caller::default, |proved| proved.caller.clone());
            peer.endpoint.look(self.seen(&peer, &caller), now);
        }
    }

    fn seen(&self, peer: &Peer<L>, caller: &Caller) -> Seen {
        Seen {
            sees_all: self.service.shows_all(caller) && !peer.denied.get(),
            is_recorded: peer.audit.get().is_some_and(|audit| audit.records(Op::Read)),
            number: self.service.shown_number(),
        }
    }
}
