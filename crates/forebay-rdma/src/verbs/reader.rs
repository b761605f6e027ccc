//! A client that reads its worker's memory by itself: what it knows of it, and which reads are under way (ADR 0035).
//! What is read where, and when that is believed, is `forebay-one-sided`'s.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use forebay_one_sided::{Fault, KnownLocations, KnownOptions, OPENED_LEN, Opened, Plan, Reach, Requests};
use forebay_transport::wire::HEADER_LEN;
use forebay_transport::{Flags, Op, Request, located};
use forebay_types::BlockKey;

use crate::client_link::Call;
use crate::gauges::Gauges;

/// One read under way: the card has its buffer.
pub(crate) struct UnderWay {
    pub(crate) plan: Plan,
    pub(crate) request: Request,
    pub(crate) call: Call,
}

/// Of one connection.
pub(crate) struct Reader {
    known: RefCell<KnownLocations>,
    reach: RefCell<Reach>,
    /// The blocks of requests whose answers may bring a location.
    asked: RefCell<HashMap<u64, BlockKey>>,
    under_way: RefCell<HashMap<u64, UnderWay>>,
    next: Cell<u64>,
    /// The worker has taken back what it told, and was not told yet that this is forgotten.
    is_to_say: Cell<bool>,
    gauges: Arc<Gauges>,
}

impl Reader {
    /// Nothing is known yet.
    pub(crate) fn new(gauges: &Arc<Gauges>) -> Self {
        Self {
            known: RefCell::new(KnownLocations::new(KnownOptions::default())),
            reach: RefCell::default(),
            asked: RefCell::default(),
            under_way: RefCell::default(),
            next: Cell::new(0),
            is_to_say: Cell::new(false),
            gauges: Arc::clone(gauges),
        }
    }

    /// How to read what is asked for, if it is known where it lies. Reads that have the worker look are for the worker.
    /// Those of what is cached alone, as the parts of a divided read are, are not: what has a location is.
    pub(crate) fn plan(&self, request: &Request, now: Instant) -> Option<(Plan, Requests)> {
        if request.op != Op::Read || request.flags.contains(Flags::SCRUB) || self.is_to_say.get() {
            return None;
        }
        let plan = self.known.borrow_mut().find(&request.block, request.offset, request.length, now)?;
        let requests = self.reach.borrow().requests(&plan)?;
        Some((plan, requests))
    }

    /// A read begins; its number.
    pub(crate) fn begin(&self, under_way: UnderWay) -> u64 {
        let number = self.next.get();
        self.next.set(number.wrapping_add(1));
        self.under_way.borrow_mut().insert(number, under_way);
        number
    }

    /// The read of this number has ended.
    pub(crate) fn end(&self, number: u64) -> Option<UnderWay> {
        self.under_way.borrow_mut().remove(&number)
    }

    /// The connection has ended, and all reads with it.
    pub(crate) fn end_all(&self) -> Vec<UnderWay> {
        self.known.borrow_mut().forget_all();
        std::mem::take(&mut *self.under_way.borrow_mut()).into_values().collect()
    }

    /// Whether reads are under way.
    pub(crate) fn is_busy(&self) -> bool {
        !self.under_way.borrow().is_empty()
    }

    /// One was believed.
    pub(crate) fn believed(&self) {
        self.gauges.one_sided.fetch_add(1, Ordering::Relaxed);
    }

    /// One was not: the worker is asked.
    #[cold]
    pub(crate) fn mistaken(&self, plan: &Plan, fault: Fault) {
        self.gauges.one_sided_refused.fetch_add(1, Ordering::Relaxed);
        self.known.borrow_mut().mistaken(plan.block(), plan.location().generation);
        if fault.is_corrupt() {
            tracing::warn!(block = %plan.block(), %fault, "what was read of a worker's memory is corrupt; it is asked for it");
        }
    }

    /// A request for bytes of `block` goes by this number.
    pub(crate) fn ask(&self, id: u64, block: BlockKey) {
        self.asked.borrow_mut().insert(id, block);
    }

    /// Its answer has come, which may say where they lie.
    ///
    /// # Errors
    /// How it breaks the protocol.
    pub(crate) fn answered(&self, id: u64, message: &[u8], now: Instant) -> Result<(), String> {
        let Some(block) = self.asked.borrow_mut().remove(&id) else { return Ok(()) };
        let Some(header) = message.first_chunk::<HEADER_LEN>() else { return Ok(()) };
        let location = located::location(header).map_err(|error| error.to_string())?;
        if let Some(location) = location.filter(|_| !self.is_to_say.get()) {
            self.known.borrow_mut().learn(block, location, now);
        }
        Ok(())
    }

    /// The worker opens a region of its memory.
    ///
    /// # Errors
    /// How that breaks the protocol.
    pub(crate) fn opened(&self, message: &[u8]) -> Result<(), String> {
        let bytes = <&[u8; OPENED_LEN]>::try_from(message);
        let bytes = bytes.map_err(|_| format!("it opens memory in {} bytes", message.len()))?;
        let opened = Opened::decode(bytes).map_err(|error| error.to_string())?;
        self.reach.borrow_mut().open(opened).map_err(|error| error.to_string())
    }

    /// The worker takes back all that it told.
    pub(crate) fn forget(&self) {
        self.known.borrow_mut().forget_all();
        self.reach.borrow_mut().close();
        // Answers that are on their way were told before.
        self.asked.borrow_mut().clear();
        self.is_to_say.set(true);
    }

    /// Whether the worker is to be told, now, that it is forgotten: once.
    pub(crate) fn says_forgotten(&self) -> bool {
        !self.is_busy() && self.is_to_say.replace(false)
    }
}
