//! A worker that lets a client read its memory by itself: which windows it has opened to it, and how it closes them
//! (ADR 0035). Who may be told what, and when that is taken back, is `forebay-one-sided`'s.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use forebay_one_sided::{Action, Giving, Location, Memory, Opened, Peer};
use forebay_types::SECTOR_SIZE;
use forebay_verbs::{ReadableBoard, Shown};

use crate::peer_link::Seen;
use crate::verbs::channel::Outgoing;
use crate::verbs::frame::Kind;
use crate::verbs::links::Link;

/// Of one connection.
pub(crate) struct Teller {
    giving: RefCell<Giving>,
    board: Arc<ReadableBoard>,
    is_board_open: Cell<bool>,
    /// Bytes of the pool that its client has keys of.
    open: RefCell<Vec<Range<u64>>>,
    /// The card has no more windows: it is not asked for one at each hit.
    is_full: Cell<bool>,
    /// What was shown when it got the first of them.
    number: Cell<Option<u64>>,
}

impl Teller {
    /// It has no key yet.
    pub(crate) fn new(board: &Arc<ReadableBoard>) -> Self {
        Self {
            giving: RefCell::default(),
            board: Arc::clone(board),
            is_board_open: Cell::new(false),
            open: RefCell::default(),
            is_full: Cell::new(false),
            number: Cell::new(None),
        }
    }

    /// Whether the client may be told where something lies.
    pub(crate) fn may_tell(&self, seen: Seen) -> bool {
        if self.giving.borrow_mut().may_tell(peer(seen)).is_err() {
            return false;
        }
        if self.number.get().is_none() {
            self.number.set(Some(seen.number));
        }
        true
    }

    /// Opens what `location` speaks of, if it is not open yet; whether it is open then.
    pub(crate) fn open(&self, link: &Rc<Link>, location: &Location) -> bool {
        let start = u64::from(location.at) * u64::from(SECTOR_SIZE);
        let end = start + u64::from(location.length);
        if let Some(open) = self.open.borrow().iter().find(|open| open.contains(&start)) {
            return end <= open.end;
        }
        if self.is_full.get() {
            return false;
        }
        if !self.is_board_open.get() {
            let shown = link.with_pair(|pair| pair.show_board(&self.board)).inspect(|shown| self.note(shown));
            let Some(Ok(shown)) = shown else { return false };
            self.is_board_open.set(true);
            tell(link, Memory::Board, shown);
        }
        let shown = link.with_pair(|pair| pair.show(start)).inspect(|shown| self.note(shown));
        let Some(Ok(Some(shown))) = shown else { return false };
        let open = shown.start..shown.start + shown.length;
        let has_all = end <= open.end;
        self.open.borrow_mut().push(open);
        tell(link, Memory::Slab, shown);
        has_all
    }

    /// To be called now and then: who may not see all any more, or saw what is not shown any more, loses its keys.
    pub(crate) fn look(&self, link: &Rc<Link>, seen: Seen, now: Instant) {
        let has_changed = self.number.get().is_some_and(|number| number != seen.number);
        let mut giving = self.giving.borrow_mut();
        let withdrawn = if has_changed { giving.withdraw(now) } else { None };
        let action = withdrawn.or_else(|| giving.look(peer(seen), now));
        drop(giving);
        self.act(link, action);
    }

    /// The client says that it has forgotten.
    pub(crate) fn forgotten(&self, link: &Rc<Link>) {
        let action = self.giving.borrow_mut().forgotten();
        self.act(link, action);
    }

    fn act(&self, link: &Rc<Link>, action: Option<Action>) {
        match action {
            None => {}
            Some(Action::TellToForget) => link.send(Outgoing::new(Kind::Forget, &[])),
            Some(Action::EndKeys) => {
                link.with_pair(|pair| pair.hide());
                self.open.borrow_mut().clear();
                self.is_board_open.set(false);
                self.is_full.set(false);
                self.number.set(None);
            }
        }
    }

    /// What cannot be shown is read in the ordinary way.
    fn note<T>(&self, shown: &Result<T, forebay_verbs::Error>) {
        if let Err(error) = shown {
            tracing::debug!(%error, "memory cannot be shown to an RDMA client");
            self.is_full.set(true);
        }
    }
}

fn peer(Seen { sees_all, is_recorded, .. }: Seen) -> Peer {
    Peer { speaks: true, sees_all, is_recorded }
}

fn tell(link: &Rc<Link>, memory: Memory, shown: Shown) {
    let Shown { window, start, length, address, key } = shown;
    let opened = Opened { memory, key, start, length, address };
    // The window is bound before the message that tells of it, as all is carried out in order.
    link.send(Outgoing { shows: Some(window), ..Outgoing::new(Kind::Opened, &opened.encode()) });
}
