//! What can be set of the transport over verbs, and what it asks of a card.

use std::sync::Arc;
use std::time::Duration;

use forebay_memory::Pool;
use forebay_types::ByteSize;
use forebay_verbs::{Device, Handshake, Id, PathOptions, QueuePairOptions, Reading};
use tokio_util::sync::CancellationToken;

use crate::options::FabricOptions;
use crate::trace::Trace;
use crate::verbs::credits::RESERVE;
use crate::verbs::frame::{FRAME_HEADER, MAX_CREDITS, MAX_INSIDE, Offer};

/// How long an I/O thread busy-polls unless told otherwise: as over UCX.
const SPIN: Duration = Duration::from_micros(50);
/// How long a connection may be without acknowledgement from the peer's card unless told otherwise: less than silence takes to mean death.
const UNACKNOWLEDGED: Duration = Duration::from_secs(4);
/// How often a message that was not acknowledged is sent again unless told otherwise: as often as can be said.
const RETRIES: u8 = 7;
/// How often one is for which the peer has no receive, unless told otherwise. Credits keep that from happening.
const RECEIVER_NOT_READY_RETRIES: u8 = 2;
/// Requests of a send queue, of which a reply of a block in single sectors takes nine.
const REQUESTS: u32 = 128;
/// Messages under way that do not fit into their request.
const FRAMES: u32 = 16;
/// Bytes of a request's frame, so that it needs no memory of its own: 96 where there is no body.
const INLINE: u32 = 96;
/// Reads of one connection whose payload is on its way; further ones wait.
const WINDOWS: usize = 256;
/// Reads of the worker's memory by one connection that are under way; what is beyond that asks the worker.
const READS: u32 = 16;
/// Frames that a server takes, of a size that fits a request with a path or a description.
pub(crate) const OF_SERVER: Offer =
    Offer { credits: 32, frame_length: 1024, client_id: None, one_sided: false, in_messages: false, mtu: None };
/// Frames that a client takes: a header, its body, and payload that goes with them.
const OF_CLIENT: Offer = Offer {
    credits: 64,
    frame_length: (FRAME_HEADER + 64 + 960) as u32 + MAX_INSIDE,
    client_id: None,
    one_sided: false,
    in_messages: false,
    mtu: None,
};
/// Bytes of payload in a frame of its own. Longer ones would have the worker keep more for each connection ([`FRAMES`] of them).
const PAYLOAD: u32 = 16 << 10;
/// Receive buffers of a connection whose payload comes in messages, unless told otherwise.
const RECEIVE_BUFFERS: ByteSize = ByteSize::mib(1);

/// The most of them of a connection that a thread drives: for one read of 64 KiB at a time, whose answer they hold at once.
const LONE_BUFFERS: ByteSize = ByteSize::kib(160);
/// Frames that a client takes over a connection that a thread drives, through windows: an answer at a time, and what is said of the
/// connection.
const LONE_CREDITS: u16 = 8;

/// What an I/O thread over verbs is to use.
#[derive(Clone, Debug)]
pub struct VerbsOptions {
    /// The I/O thread's name, for logs: the card's.
    pub name: String,
    /// The card's name, as `rdma link` has it: `mlx5_0`.
    pub device: String,
    /// What is asked of the fabric. GID and partition are not: they are those of the addresses that are connected and listened at.
    pub fabric: FabricOptions,
    /// How long a connection may be without acknowledgement from the peer's card before it is broken, all attempts together; where
    /// the wait for one is said ([`FabricOptions::ack_timeout`]), that counts.
    pub unacknowledged: Duration,
    /// Memory that payload comes from, or goes to.
    pub pool: Pool,
    /// How much of it to register at start. The rest works too, but is registered for each use.
    pub registered: ByteSize,
    /// Have payload written through memory windows, if the card has them. Otherwise, and without them, it comes in messages.
    pub windows: bool,
    /// What each connection of a client has to receive into, where payload comes in messages: at least 64 KiB, at most 16 MiB.
    pub receive_buffers: ByteSize,
    /// How long its thread, and a caller whose call is the only one, ask for the next message before they sleep.
    pub spin: Duration,
    /// Where registering memory is recorded.
    pub trace: Option<Arc<Trace>>,
    /// Once this is cancelled, no caller waits for the thread any more: it does not start, and registers nothing more.
    pub given_up: CancellationToken,
}

impl VerbsOptions {
    /// An I/O thread for the card `device`, with `registered` of `pool` registered at start.
    #[must_use]
    pub fn new(device: impl Into<String>, pool: Pool, registered: ByteSize) -> Self {
        let device = device.into();
        Self {
            name: device.clone(),
            device,
            fabric: FabricOptions::default(),
            unacknowledged: UNACKNOWLEDGED,
            pool,
            registered,
            windows: true,
            receive_buffers: RECEIVE_BUFFERS,
            spin: SPIN,
            trace: None,
            given_up: CancellationToken::new(),
        }
    }
}

/// What is asked of the fabric for a connection, and what a client takes over one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fabric {
    asked: FabricOptions,
    unacknowledged: Duration,
    /// What clients take.
    client: Offer,
    /// What they take over a connection that a thread drives.
    lone: Offer,
    /// What is asked of a path can be had on this card.
    has_paths: bool,
}

impl Fabric {
    /// What `options` ask on `device`.
    ///
    /// # Errors
    /// When they ask for what cannot be had there.
    pub(crate) fn new(options: &VerbsOptions, device: &Device) -> Result<Self, forebay_verbs::Error> {
        let has_paths = device.check_path();
        let (client, lone) = match has_windows(options, device) {
            true => (OF_CLIENT, Offer { credits: LONE_CREDITS, ..OF_CLIENT }),
            false => {
                let buffers = options.receive_buffers;
                (in_messages(buffers), in_messages(buffers.min(LONE_BUFFERS)))
            }
        };
        let this = Self {
            asked: options.fabric,
            unacknowledged: options.unacknowledged,
            client,
            lone,
            has_paths: has_paths.is_ok(),
        };
        match this.path(this.mtu()).is_chosen() {
            true => has_paths.map(|()| this),
            false => Ok(this),
        }
    }

    /// Tells rdma_cm, as far as the kernel lets it be told.
    pub(crate) fn set(&self, id: &Id) {
        let FabricOptions { traffic_class, ack_timeout, .. } = self.asked;
        let class = traffic_class.map_or(Ok(()), |class| id.set_traffic_class(class));
        let timeout = match ack_timeout {
            Some(each) => id.set_ack_timeout(each, 0),
            None => id.set_ack_timeout(self.unacknowledged, self.retries()),
        };
        for (outcome, is_asked) in [(class, true), (timeout, ack_timeout.is_some())] {
            match outcome {
                Ok(()) => {}
                Err(error) if is_asked => {
                    tracing::warn!(%error, "a setting of an RDMA connection has no effect, the kernel does not take it");
                }
                Err(error) => tracing::debug!(%error, "a setting of an RDMA connection is left to the system"),
            }
        }
    }

    /// What a client takes, on this card.
    pub(crate) fn client(&self) -> Offer {
        self.client
    }

    /// What it takes over a connection that a thread drives.
    pub(crate) fn lone(&self) -> Offer {
        self.lone
    }

    /// The largest packet that is wanted.
    pub(crate) fn mtu(&self) -> Option<u16> {
        self.asked.mtu
    }

    /// What a server answers to a client that wants no larger packets than this: the same, if it can have that.
    pub(crate) fn mtu_for(&self, wanted: Option<u16>) -> Option<u16> {
        wanted.filter(|_| self.has_paths)
    }

    /// What is not left to rdma_cm, where both ends agreed about the largest packet.
    pub(crate) fn path(&self, mtu: Option<u16>) -> PathOptions {
        PathOptions { service_level: self.asked.service_level, mtu }
    }

    fn retries(&self) -> u8 {
        self.asked.retry_count.unwrap_or(RETRIES)
    }

    /// What is told to rdma_cm with this offer.
    pub(crate) fn handshake<'a>(&self, offer: &'a [u8], reading: Reading, path: PathOptions) -> Handshake<'a> {
        let receiver_not_ready_retries = self.asked.rnr_retry_count.unwrap_or(RECEIVER_NOT_READY_RETRIES);
        Handshake { private_data: offer, retries: self.retries(), receiver_not_ready_retries, reading, path }
    }
}

/// Whether memory windows are used on `device`.
pub(crate) fn has_windows(options: &VerbsOptions, device: &Device) -> bool {
    options.windows && device.has_windows()
}

/// Calls without a caller that a connection may have under way over which a client takes `ours`, no more than `wanted`: a read that was
/// given up keeps its window until it is answered, and half of the windows stay for others.
pub(crate) fn max_abandoned(ours: &Offer, wanted: usize) -> usize {
    if ours.in_messages { wanted } else { wanted.min(WINDOWS / 2) }
}

/// Frames that a client takes whose payload comes in messages: as many as there are buffers for.
fn in_messages(buffers: ByteSize) -> Offer {
    let frame_length = FRAME_HEADER as u32 + PAYLOAD;
    let frames = buffers.as_u64() / u64::from(frame_length);
    // At least two, and no more than a peer may want.
    let credits = frames.saturating_sub(RESERVE.into()).clamp(2, MAX_CREDITS.into()) as u16;
    Offer { credits, frame_length, in_messages: true, ..OF_CLIENT }
}

/// Which end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Client,
    Server,
}

impl End {
    /// Its queue pair, where it takes `ours` and the other end `theirs`, and which reads the peer's memory or does not.
    pub(crate) fn queue_pair(self, ours: &Offer, theirs: &Offer, reading: Reading) -> QueuePairOptions {
        QueuePairOptions {
            receives: u32::from(ours.credits + RESERVE),
            receive_length: ours.frame_length as usize,
            requests: REQUESTS,
            frames: FRAMES,
            frame_length: theirs.frame_length as usize,
            inline: INLINE,
            windows: if self == Self::Client && !ours.in_messages { WINDOWS } else { 0 },
            reads: if reading == Reading::Ours { READS } else { 0 },
        }
    }
}

#[cfg(test)]
mod tests {
    use forebay_transport::wire::{HEADER_LEN, MAX_BODY_BESIDE_PAYLOAD};

    use super::*;

    #[test]
    fn what_most_messages_are_fits_into_one_frame_and_both_ends_take_each_others_offers() {
        assert_eq!(
            OF_CLIENT.frame_length,
            FRAME_HEADER as u32 + HEADER_LEN as u32 + MAX_BODY_BESIDE_PAYLOAD + MAX_INSIDE
        );
        assert!(INLINE as usize >= FRAME_HEADER + HEADER_LEN);
        for offer in [OF_CLIENT, OF_SERVER, in_messages(RECEIVE_BUFFERS)] {
            assert_eq!(Offer::decode(&offer.encode()), Ok(offer));
        }
    }

    #[test]
    fn a_connection_retires_before_reads_that_were_given_up_have_all_windows() {
        assert_eq!([3, 4096].map(|wanted| max_abandoned(&OF_CLIENT, wanted)), [3, WINDOWS / 2]);
        assert_eq!(max_abandoned(&in_messages(RECEIVE_BUFFERS), 4096), 4096, "there are none");
    }

    #[test]
    fn what_payload_in_messages_is_received_into_is_within_what_is_configured() {
        for size in [ByteSize::kib(64), ByteSize::kib(100), RECEIVE_BUFFERS, ByteSize::mib(16)] {
            let offer = in_messages(size);
            let pair = End::Client.queue_pair(&offer, &OF_SERVER, Reading::None);
            let taken = u64::from(pair.receives) * pair.receive_length as u64;
            assert!(taken <= size.as_u64() + u64::from(offer.frame_length), "{size}: {taken}");
            assert!(taken >= size.as_u64() - 2 * u64::from(offer.frame_length), "{size}: {taken}");
            assert!(Offer::decode(&offer.encode()) == Ok(offer) && pair.windows == 0, "{size}: {offer:?}");
        }
        // The longest read that a thread waits for, and its reply: the worker never waits for credits.
        assert!(u32::from(in_messages(LONE_BUFFERS).credits) > (64 << 10) / PAYLOAD);
        for size in [ByteSize::bytes(0), ByteSize::gib(1)] {
            let offer = in_messages(size);
            assert_eq!(Offer::decode(&offer.encode()), Ok(offer), "it can be worked with");
        }
    }
}
