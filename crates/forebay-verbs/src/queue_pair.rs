//! A queue pair: one reliable connection, and all the memory that the card may touch for it.
//!
//! What is posted is owned here until a completion says that it has ended. Completions come in the order of the requests, and
//! only some are asked for: one ends all requests before it. When a connection breaks, every request that is left ends with an
//! error ("flushed"), and then the pair is *drained*: the card touches nothing any more. The same is so when the pair was
//! destroyed, which is what happens to one that is dropped; should even that fail, its memory is never freed.

use std::collections::VecDeque;
use std::ffi::CStr;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;

use forebay_memory::{SpanMut, Spans};
use forebay_verbs_sys as sys;
use smallvec::SmallVec;

use crate::cm::Id;
use crate::completion::{Completion, CompletionQueue};
use crate::domain::Region;
use crate::error::{Error, by_errno, by_result, refused};
use crate::frames::Frames;
use crate::reads::{Reads, UnderWay};
use crate::registration::Registration;
use crate::requests::{Ended, Exposure, Plain, Post, QueuePairOptions, Remote, message_request};
use crate::shown::ShownWindows;
use crate::windows::Windows;

mod connecting;
mod ending;
mod plain;
mod reading;
mod receiving;

/// The bit that tells a receive's number from a send's.
const RECEIVE: u64 = 1 << 63;
/// Pieces of memory of one write. More than a block is usually made of, in as many requests as it takes.
const MAX_PIECES: u32 = 16;
/// A completion is asked for at least once in so many parts of the send queue.
const SIGNALS: u32 = 4;

type Pieces = SmallVec<[sys::ibv_sge; 4]>;
type Regions = SmallVec<[Region; 1]>;

/// Requests that were posted together.
struct Posted {
    /// The number of the last of them.
    last: u64,
    requests: u32,
    frame: Option<u32>,
    read: Option<UnderWay>,
    plain: Option<(u64, Plain)>,
    // Before the spans that they are of.
    _regions: Regions,
    _spans: Spans,
}

/// What the card may touch.
struct Memory {
    // The windows before what they are bound to.
    windows: Windows,
    shown: ShownWindows,
    posted: VecDeque<Posted>,
    receives: Frames,
    sends: Frames,
    reads: Reads,
    plain_done: VecDeque<(u64, Plain)>,
}

/// A connection, or what becomes one. Of one thread at a time.
pub struct QueuePair {
    pair: NonNull<sys::ibv_qp>,
    memory: ManuallyDrop<Memory>,
    // Ended after the pair.
    id: ManuallyDrop<Id>,
    registration: Arc<Registration>,
    /// Where its receives and its requests have reserved an entry for each.
    receiving: Arc<CompletionQueue>,
    sending: Arc<CompletionQueue>,
    /// Which receives the card has.
    with_card: Box<[bool]>,
    /// Of the others: the key whose use their message has ended.
    invalidated: Box<[Option<u32>]>,
    free_frames: Vec<u32>,
    requests: u32,
    /// Requests that may be posted.
    room: u32,
    /// Requests since the last one whose completion was asked for.
    unsignalled: u32,
    next: u64,
    finished: u64,
    inline: usize,
    pieces: usize,
    is_broken: bool,
    /// It was destroyed, or that has failed.
    has_ended: bool,
}

// SAFETY: a pair belongs to no thread, and its owner alone uses it. All else that it has may be moved to another thread by itself
// (`ending.rs` says so to the compiler).
unsafe impl Send for QueuePair {}

impl QueuePair {
    /// Entries of a completion queue that a pair with these options takes.
    #[must_use]
    pub fn entries(options: &QueuePairOptions) -> usize {
        options.receives as usize + options.requests as usize
    }

    /// A pair on the card that `id` leads to, with all its receives posted. Spans that are written and exposed are best of
    /// `registration`'s pool; others are registered for each use.
    ///
    /// # Errors
    /// [`Error`]; the id is given up.
    pub fn new(
        id: Id,
        registration: &Arc<Registration>,
        completions: &Arc<CompletionQueue>,
        options: &QueuePairOptions,
    ) -> Result<Self, Error> {
        Self::with_queues(id, registration, [completions, completions], options)
    }

    /// The same with the completions of receives on one queue and those of requests on another: who sleeps until something comes is not
    /// woken by what has gone.
    ///
    /// # Errors
    /// As above.
    pub fn with_queues(
        id: Id,
        registration: &Arc<Registration>,
        [receiving, sending]: [&Arc<CompletionQueue>; 2],
        options: &QueuePairOptions,
    ) -> Result<Self, Error> {
        let domain = registration.domain();
        let device = domain.device();
        if !id.is_on(device) {
            let reason = format!("the way to the peer does not lead over {}", device.name());
            return Err(Error::Refused { what: "make a queue pair", reason });
        }
        let requests = options.requests.clamp(2, device.max_requests);
        let receives = options.receives.clamp(1, device.max_requests);
        let full = || Error::Refused { what: "make a queue pair", reason: "its completions have no room".to_owned() };
        if !receiving.reserve(receives as usize) {
            return Err(full());
        }
        if !sending.reserve(requests as usize) {
            receiving.release(receives as usize);
            return Err(full());
        }
        let made = Self::make(id, registration, [receiving, sending], options, (requests, receives));
        let mut this = made.inspect_err(|_| {
            receiving.release(receives as usize);
            sending.release(requests as usize);
        })?;
        for receive in 0..receives {
            this.receive_again(receive)?;
        }
        Ok(this)
    }

    /// The same without its receives, of a pair for which there is room among the completions.
    fn make(
        id: Id,
        registration: &Arc<Registration>,
        queues: [&Arc<CompletionQueue>; 2],
        options: &QueuePairOptions,
        (requests, receives): (u32, u32),
    ) -> Result<Self, Error> {
        let domain = registration.domain();
        let memory = Memory {
            windows: Windows::new(domain, options.windows),
            shown: ShownWindows::new(domain),
            posted: VecDeque::new(),
            receives: Frames::new(domain, receives, options.receive_length)?,
            sends: Frames::new(domain, options.frames, options.frame_length)?,
            reads: Reads::new(domain, options.reads)?,
            plain_done: VecDeque::new(),
        };
        let max_pieces = MAX_PIECES.min(domain.device().max_sge);
        let room = |inline| sys::ibv_qp_cap {
            max_send_wr: requests,
            max_recv_wr: receives,
            max_send_sge: max_pieces,
            max_recv_sge: 1,
            max_inline_data: inline,
        };
        // Some cards refuse what is too much for them, others say how much less there is.
        let made = create(&id, registration, queues, room(options.inline));
        let made = made.or_else(|_| create(&id, registration, queues, room(0)))?;
        // SAFETY: the id is alive.
        let pair = NonNull::new(unsafe { (*id.id).qp }).ok_or_else(|| refused("make a queue pair"))?;
        Ok(Self {
            pair,
            free_frames: (0..memory.sends.count()).rev().collect(),
            with_card: vec![false; receives as usize].into(),
            invalidated: vec![None; receives as usize].into(),
            memory: ManuallyDrop::new(memory),
            id: ManuallyDrop::new(id),
            registration: Arc::clone(registration),
            receiving: Arc::clone(queues[0]),
            sending: Arc::clone(queues[1]),
            requests,
            room: requests,
            unsignalled: 0,
            next: 0,
            finished: 0,
            inline: made.max_inline_data.min(options.inline) as usize,
            pieces: max_pieces as usize,
            is_broken: false,
            has_ended: false,
        })
    }

    /// Its number on its card, by which completions name it.
    #[must_use]
    pub fn number(&self) -> u32 {
        // SAFETY: the pair is alive.
        unsafe { self.pair.as_ref() }.qp_num
    }

    /// The id that it is the pair of.
    #[must_use]
    pub fn id(&self) -> &Id {
        &self.id
    }

    /// Ends the connection: what is posted is flushed, and the peer is told.
    pub fn disconnect(&mut self) {
        self.is_broken = true;
        let library = self.id.channel.library;
        let mut to_error = sys::ibv_qp_attr::to_state(sys::IBV_QPS_ERR);
        // SAFETY: the pair is alive. A failure shows by what is never flushed.
        unsafe { (library.verbs.ibv_modify_qp)(self.pair.as_ptr(), &raw mut to_error, sys::IBV_QP_STATE) };
        // SAFETY: the id is alive. One that was not connected has nobody to tell.
        unsafe { (library.cm.rdma_disconnect)(self.id.id) };
    }

    /// Whether the card touches none of its memory any more: everything that was posted has ended.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.is_broken && self.memory.posted.is_empty() && !self.with_card.contains(&true)
    }

    /// Whether its card also flushes what is posted when the connection has ended already. Soft-iWARP does not: of such a request nobody
    /// is told, and only that the pair is destroyed ends it.
    #[must_use]
    pub fn flushes_late(&self) -> bool {
        !self.registration.domain().device().is_iwarp()
    }

    /// Messages that were posted and have not ended, as far as is known.
    #[must_use]
    pub fn under_way(&self) -> usize {
        self.memory.posted.len()
    }

    /// Messages that have ended.
    #[must_use]
    pub fn ended_count(&self) -> u64 {
        self.finished
    }

    /// Whether a message can be posted that takes so many requests ([`QueuePair::requests_of`]).
    #[must_use]
    pub fn has_room(&self, requests: u32) -> bool {
        !self.is_broken && self.room >= requests && !self.free_frames.is_empty()
    }

    /// How many requests a message takes that binds a window before, or not, and writes so many spans.
    #[must_use]
    pub fn requests_of(&self, binds: bool, spans: usize) -> u32 {
        u32::try_from(spans.div_ceil(self.pieces)).unwrap_or(u32::MAX).saturating_add(1 + u32::from(binds))
    }

    /// Whether a message with so many requests could ever be posted.
    #[must_use]
    pub fn takes(&self, requests: u32) -> bool {
        requests <= self.requests
    }

    /// Whether another buffer can be exposed now.
    #[must_use]
    pub fn has_window(&self) -> bool {
        self.memory.windows.has_free()
    }

    /// Takes a buffer for the peer to write to; nothing but [`QueuePair::take_back`] gives it back, or it goes with the pair.
    ///
    /// # Errors
    /// [`Error`] when it cannot be registered, or there is no window for it.
    pub fn expose(&mut self, span: SpanMut) -> Result<Exposure, Error> {
        let address = span.pointer().addr().get() as u64;
        let (window, key) = self.memory.windows.lend(span, &self.registration)?;
        Ok(Exposure { window, remote: Remote { address, key } })
    }

    /// The buffer that was exposed by this window, if the message in `receive` has ended the use of its key, and of no other. To be
    /// asked before the receive is given to the card again.
    pub fn take_back(&mut self, window: usize, receive: u32) -> Option<SpanMut> {
        let key = (*self.invalidated.get(receive as usize)?)?;
        self.memory.windows.take_back(window, key)
    }

    /// Builds a message in a free frame by `write`, which gives its length, and posts it with what goes with it. There has to be room
    /// ([`QueuePair::has_room`]).
    ///
    /// # Errors
    /// [`Error`]: the connection is to be ended, as it is not known what of it was sent.
    pub fn send(&mut self, post: Post, write: impl FnOnce(&mut [u8]) -> usize) -> Result<(), Error> {
        let full = || Error::Refused { what: "send a message", reason: "no frame is free".to_owned() };
        let frame = self.free_frames.pop().ok_or_else(full)?;
        let (place, capacity) = (self.memory.sends.at(frame), self.memory.sends.length());
        // SAFETY: the frame is free: no request that is under way names it, and there is no other reference to it.
        let length = write(unsafe { std::slice::from_raw_parts_mut(place.as_ptr(), capacity) }).min(capacity);
        let sent = self.post(frame, length, post);
        self.is_broken |= sent.is_err();
        sent
    }

    fn post(&mut self, frame: u32, length: usize, post: Post) -> Result<(), Error> {
        let Post { bind, shows, write, invalidate, signalled } = post;
        let (spans, remote) = write.unwrap_or_default();
        let (pieces, regions) = self.pieces_of(&spans)?;
        // The peer says where, and may say anything.
        let length_of = |pieces: &[sys::ibv_sge]| pieces.iter().map(|piece| u64::from(piece.length)).sum::<u64>();
        if remote.address.checked_add(length_of(&pieces)).is_none() {
            let reason = "what it is to be written to ends beyond the last address".to_owned();
            return Err(Error::Refused { what: "write to the peer", reason });
        }
        let mut requests: SmallVec<[sys::ibv_send_wr; 4]> = SmallVec::new();
        if let Some(window) = bind {
            requests.push(self.bind(window)?);
        }
        if let Some(window) = shows {
            requests.push(self.memory.shown.request(window, &self.registration)?);
        }
        let mut at = remote.address;
        for pieces in pieces.chunks(self.pieces) {
            let mut request = sys::ibv_send_wr::new(0, sys::IBV_WR_RDMA_WRITE, 0);
            request.wr.rdma = sys::ibv_remote { remote_addr: at, rkey: remote.key };
            // The library declares what it only reads mutable.
            request.sg_list = pieces.as_ptr().cast_mut();
            request.num_sge = pieces.len() as i32;
            requests.push(request);
            at += length_of(pieces);
        }
        let place = self.memory.sends.at(frame).addr().get() as u64;
        let mut message = sys::ibv_sge { addr: place, length: length as u32, lkey: self.memory.sends.lkey() };
        let is_inline = length <= self.inline;
        let count = requests.len() as u32 + 1;
        self.unsignalled += count;
        // Frames come back by completions, too: the last one asks for some.
        let signalled = signalled || self.unsignalled >= self.requests / SIGNALS || self.free_frames.is_empty();
        requests.push(message_request(&raw mut message, (is_inline, signalled), invalidate));
        for request in &mut requests {
            request.wr_id = self.next;
            self.next += 1;
        }
        let first = requests.as_mut_ptr();
        for at in 1..requests.len() {
            // SAFETY: both are of the list.
            unsafe { (*first.add(at - 1)).next = first.add(at) };
        }
        // From here on the card may have them, whatever the library says.
        self.room = self.room.saturating_sub(count);
        if signalled {
            self.unsignalled = 0;
        }
        let kept = (!is_inline).then_some(frame);
        let last = self.next - 1;
        self.memory.posted.push_back(Posted {
            last,
            requests: count,
            frame: kept,
            read: None,
            plain: None,
            _regions: regions,
            _spans: spans,
        });
        let mut failed = std::ptr::null_mut();
        // SAFETY: the pair is alive; the requests are linked, and name pieces that live until this returns, and memory that is
        // kept with them until they have ended: frames, spans and what is lent.
        let result = unsafe { sys::ibv_post_send(self.pair.as_ptr(), first, &raw mut failed) };
        by_result("post a message", result)?;
        if let Some(window) = bind {
            self.memory.windows.bound(window);
        }
        if let Some(window) = shows {
            self.memory.shown.bound(window);
        }
        if is_inline {
            self.free_frames.push(frame);
        }
        Ok(())
    }

    fn bind(&self, window: usize) -> Result<sys::ibv_send_wr, Error> {
        let binding = self.memory.windows.binding(window, &self.registration);
        let missing = || Error::Refused { what: "bind a memory window", reason: "nothing is lent in it".to_owned() };
        let mut request = sys::ibv_send_wr::new(0, sys::IBV_WR_BIND_MW, 0);
        request.bind_mw = binding.ok_or_else(missing)?;
        Ok(request)
    }

    /// The pieces of memory that spans are, and what had to be registered for them.
    fn pieces_of(&self, spans: &Spans) -> Result<(Pieces, Regions), Error> {
        let (mut pieces, mut regions) = (Pieces::new(), Regions::new());
        for span in spans.iter().filter(|span| !span.is_empty()) {
            let (address, length) = (span.as_ptr().addr(), span.len());
            let lkey = match self.registration.region(address, length) {
                Some(region) => region.lkey(),
                None => {
                    // SAFETY: the bytes are mapped as long as the span lives, which is kept with the region; the card is only
                    // told to read them.
                    let region =
                        unsafe { Region::register(self.registration.domain(), span.as_ptr().cast_mut(), length) }?;
                    let lkey = region.lkey();
                    regions.push(region);
                    lkey
                }
            };
            // A span is a part of an extent, of 4 MiB at most.
            pieces.push(sys::ibv_sge { addr: address as u64, length: length as u32, lkey });
        }
        Ok((pieces, regions))
    }

    /// A request of this pair has ended.
    pub fn ended(&mut self, completion: Completion) -> Ended {
        let entry = &completion.0;
        if entry.qp_num != self.number() {
            return Ended::Flushed;
        }
        let receive = (entry.wr_id & RECEIVE != 0).then_some((entry.wr_id & !RECEIVE) as u32);
        match receive {
            Some(receive) => {
                if let Some(with_card) = self.with_card.get_mut(receive as usize) {
                    *with_card = false;
                }
            }
            None => self.ended_through(entry.wr_id, entry.status == sys::IBV_WC_SUCCESS),
        }
        if entry.status != sys::IBV_WC_SUCCESS {
            let is_news = !std::mem::replace(&mut self.is_broken, true) && entry.status != sys::IBV_WC_WR_FLUSH_ERR;
            return if is_news { Ended::Failed(self.words(entry)) } else { Ended::Flushed };
        }
        let Some(receive) = receive else { return Ended::Sent };
        if let Some(invalidated) = self.invalidated.get_mut(receive as usize) {
            let with_inv = self.registration.domain().device().with_inv;
            *invalidated = (entry.wc_flags & with_inv != 0).then_some(entry.invalidated_rkey);
        }
        Ended::Received { receive, length: entry.byte_len as usize }
    }

    /// All requests up to this number have ended, and as they should, or the connection is broken.
    fn ended_through(&mut self, number: u64, is_good: bool) {
        while self.memory.posted.front().is_some_and(|posted| posted.last <= number) {
            let Some(posted) = self.memory.posted.pop_front() else { break };
            self.room += posted.requests;
            self.finished += 1;
            self.free_frames.extend(posted.frame);
            if let Some(read) = posted.read {
                self.memory.reads.ended(read, is_good);
            }
            self.memory.plain_done.extend(posted.plain.filter(|_| is_good));
        }
    }

    fn words(&self, entry: &sys::ibv_wc) -> String {
        // SAFETY: the words of a status are static.
        let words = unsafe { CStr::from_ptr((self.id.channel.library.verbs.ibv_wc_status_str)(entry.status)) };
        format!("{} (vendor's error {:#x})", words.to_string_lossy(), entry.vendor_err)
    }
}

/// Makes the pair of `id`; what it has room for.
fn create(
    id: &Id,
    registration: &Registration,
    [receiving, sending]: [&Arc<CompletionQueue>; 2],
    cap: sys::ibv_qp_cap,
) -> Result<sys::ibv_qp_cap, Error> {
    let domain = registration.domain();
    let mut attributes = sys::ibv_qp_init_attr {
        qp_context: std::ptr::null_mut(),
        send_cq: sending.raw(),
        recv_cq: receiving.raw(),
        srq: std::ptr::null_mut(),
        cap,
        qp_type: sys::IBV_QPT_RC,
        sq_sig_all: 0,
    };
    let create = domain.device().library.cm.rdma_create_qp;
    // SAFETY: the id, the domain and the queues are alive, and of one device.
    by_errno("make a queue pair", unsafe { create(id.id, domain.pd, &raw mut attributes) })?;
    Ok(attributes.cap)
}
