//! How a connection comes to be: over rdma_cm, step by step, each of which ends with an event.

use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use forebay_verbs::{CompletionQueue, Event, EventKind, Id, QueuePair, Reading};
use tokio::sync::mpsc;

use crate::verbs::channel::Channel;
use crate::verbs::core::Core;
use crate::verbs::frame::{OFFER_LEN, Offer};
use crate::verbs::links::Link;
use crate::verbs::options::{End, OF_SERVER};

/// Forgets an id that does not become a connection.
struct Forget<'a> {
    core: &'a Core,
    id: usize,
    is_linked: bool,
}

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        if !self.is_linked {
            self.core.links.forget_id(self.id);
        }
    }
}

/// Connects to the listener at `address`, from the address `from` if given, and tells it our `offer`; with completions on queues of its
/// `own`, or on one of the thread's. Nothing of it is left if the future is dropped. Says also whether the server lets us read its
/// memory, if we offered to.
///
/// # Errors
/// Why there is no connection.
pub(crate) async fn connect(
    core: &Rc<Core>,
    own: Option<[&Arc<CompletionQueue>; 2]>,
    address: SocketAddr,
    from: Option<IpAddr>,
    offer: Offer,
    within: Duration,
) -> Result<(Rc<Link>, bool), String> {
    let words = |error: forebay_verbs::Error| error.to_string();
    let id = Id::new(&core.events).map_err(words)?;
    core.fabric.set(&id);
    let mut events = core.links.listen_to(&id);
    let mut forget = Forget { core, id: id.key(), is_linked: false };
    id.resolve_address(from.map(|from| SocketAddr::new(from, 0)), address, within).map_err(words)?;
    next(&mut events, EventKind::AddressResolved).await?;
    id.resolve_route(within).map_err(words)?;
    next(&mut events, EventKind::RouteResolved).await?;
    // How long the server's frames are is known with its answer. Longer ones than ours are not made use of.
    let assumed = OF_SERVER;
    let reading = if offer.one_sided { Reading::Ours } else { Reading::None };
    let options = End::Client.queue_pair(&offer, &assumed, reading);
    let shared;
    let queues = match own {
        Some(own) => own,
        None => {
            shared = core.queue_for(&options).map_err(words)?;
            [&shared, &shared]
        }
    };
    let pair = QueuePair::with_queues(id, &core.registration, queues, &options).map_err(words)?;
    let offer = Offer { mtu: core.fabric.mtu(), ..offer };
    let told: [u8; OFFER_LEN] = offer.encode();
    let path = core.fabric.path(offer.mtu);
    pair.connect(core.fabric.handshake(&told, reading, path)).map_err(words)?;
    let answered = if path.is_chosen() { EventKind::Accepted } else { EventKind::Established };
    let answer = next(&mut events, answered).await?;
    let theirs = Offer::decode(&answer.private_data)?;
    if offer.in_messages && !theirs.in_messages {
        let device = core.registration.domain().device().name();
        return Err(format!(
            "the worker's release sends payload through memory windows alone, and {device} has none; run the same release on both sides"
        ));
    }
    if path.is_chosen() {
        if theirs.mtu != offer.mtu {
            tracing::warn!(%address, mtu = offer.mtu, "the worker sends packets as large as the way takes, so we do, too");
        }
        pair.establish(core.fabric.path(theirs.mtu.filter(|_| theirs.mtu == offer.mtu))).map_err(words)?;
    }
    let theirs = Offer { frame_length: theirs.frame_length.min(assumed.frame_length), ..theirs };
    forget.is_linked = true;
    let reads = offer.one_sided && theirs.one_sided;
    let link = core.links.add(pair, Channel::new(&offer, &theirs));
    // What has come since its answer: it may have ended.
    while let Ok(event) = events.try_recv() {
        link.told(&event);
    }
    Ok((link, reads))
}

/// Waits for an event of this kind.
async fn next(events: &mut mpsc::UnboundedReceiver<Event>, kind: EventKind) -> Result<Event, String> {
    let event = events.recv().await.ok_or("its I/O thread has ended")?;
    if event.kind == kind {
        return Ok(event);
    }
    if event.kind == EventKind::Rejected && !event.private_data.is_empty() {
        let reason = String::from_utf8_lossy(&event.private_data);
        let reason = reason.trim_end_matches('\0');
        // A connection manager says no for itself with bytes of its own, or none.
        if !reason.is_empty() && !reason.contains(char::is_control) {
            return Err(reason.to_owned());
        }
    }
    Err(match event.kind {
        EventKind::Rejected => format!("nobody listens there, or it was rejected (reason {})", event.status),
        _ => {
            let error = std::io::Error::from_raw_os_error(event.status.abs());
            format!("{}: {error}", event.name)
        }
    })
}
