//! Memory that one peer is shown: parts of a pool and a board, through memory windows of type 2 that let it read and
//! not write.
//!
//! A window belongs to the queue pair that bound it, so its key is of no use to anybody else. Ending a window ends its
//! key at once.

use std::fmt;
use std::sync::Arc;

use forebay_one_sided::Board;
use forebay_verbs_sys as sys;

use crate::domain::{Domain, Region};
use crate::error::{Error, refused};
use crate::registration::Registration;

/// Windows of one queue pair, at most: a slab of 1 TiB has a thousand parts.
const MAX_WINDOWS: usize = 4096;

/// What a peer may read, and by which window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shown {
    /// The window's number.
    pub window: usize,
    /// Where it begins in its pool, or on its board, in bytes.
    pub start: u64,
    /// Its bytes.
    pub length: u64,
    /// Its address, as the card knows it.
    pub address: u64,
    /// Its key.
    pub key: u32,
}

/// A board that is registered with a card.
pub struct ReadableBoard {
    // Before the board.
    region: Region,
    board: Arc<Board>,
}

impl ReadableBoard {
    /// Registers a board. Peers reach nothing of it but what a queue pair shows them.
    ///
    /// # Errors
    /// [`Error::Register`].
    pub fn new(domain: &Arc<Domain>, board: &Arc<Board>) -> Result<Arc<Self>, Error> {
        let (base, length) = board.memory();
        // SAFETY: the memory is the board's, which this holds for longer than the region. Cards are only told to read
        // it: windows on it let nobody write.
        let region = unsafe { Region::register(domain, base.cast_mut(), length) }?;
        Ok(Arc::new(Self { region, board: Arc::clone(board) }))
    }
}

impl fmt::Debug for ReadableBoard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReadableBoard({:?})", self.board)
    }
}

/// The windows of one queue pair, each to be bound once.
pub(crate) struct ShownWindows {
    domain: Arc<Domain>,
    windows: Vec<Window>,
}

struct Window {
    raw: *mut sys::ibv_mw,
    key: u32,
    what: What,
}

// SAFETY: a window belongs to no thread, and its owner alone uses it.
unsafe impl Send for Window {}

enum What {
    /// The part that this byte of the pool lies in.
    Pool(usize),
    Board(Arc<ReadableBoard>),
}

impl ShownWindows {
    pub(crate) fn new(domain: &Arc<Domain>) -> Self {
        Self { domain: Arc::clone(domain), windows: Vec::new() }
    }

    /// See [`QueuePair::show`](crate::QueuePair::show).
    pub(crate) fn of_pool(&mut self, offset: usize, registration: &Registration) -> Result<Option<Shown>, Error> {
        let Some((start, length, _)) = registration.part_at(offset) else { return Ok(None) };
        let (window, key) = self.make(What::Pool(start))?;
        let address = (registration.base() + start) as u64;
        Ok(Some(Shown { window, start: start as u64, length: length as u64, address, key }))
    }

    /// See [`QueuePair::show_board`](crate::QueuePair::show_board).
    pub(crate) fn of_board(&mut self, board: &Arc<ReadableBoard>) -> Result<Shown, Error> {
        let (base, length) = board.board.memory();
        let (window, key) = self.make(What::Board(Arc::clone(board)))?;
        Ok(Shown { window, start: 0, length: length as u64, address: base.addr() as u64, key })
    }

    fn make(&mut self, what: What) -> Result<(usize, u32), Error> {
        if self.windows.len() >= MAX_WINDOWS {
            let reason = format!("all {MAX_WINDOWS} are in use");
            return Err(Error::Refused { what: "show memory to a peer", reason });
        }
        // SAFETY: the domain is alive.
        let raw = unsafe { sys::ibv_alloc_mw(self.domain.pd, sys::IBV_MW_TYPE_2) };
        if raw.is_null() {
            return Err(refused("make a memory window"));
        }
        // SAFETY: it is alive.
        let first = unsafe { (*raw).rkey };
        // The lowest byte is its owner's. It is bound once.
        let key = (first & !0xff) | (first.wrapping_add(1) & 0xff);
        self.windows.push(Window { raw, key, what });
        Ok((self.windows.len() - 1, key))
    }

    /// The request that binds window `index`.
    pub(crate) fn request(&self, index: usize, registration: &Registration) -> Result<sys::ibv_send_wr, Error> {
        let missing = || Error::Refused { what: "show memory to a peer", reason: "there is no such window".to_owned() };
        let window = self.windows.get(index).ok_or_else(missing)?;
        let (mr, addr, length) = match &window.what {
            What::Pool(offset) => {
                let (start, length, region) = registration.part_at(*offset).ok_or_else(missing)?;
                (region.raw(), registration.base() + start, length)
            }
            What::Board(board) => {
                let (base, length) = board.board.memory();
                (board.region.raw(), base.addr(), length)
            }
        };
        let mut request = sys::ibv_send_wr::new(0, sys::IBV_WR_BIND_MW, 0);
        let bind_info = sys::ibv_mw_bind_info {
            mr,
            addr: addr as u64,
            length: length as u64,
            mw_access_flags: sys::IBV_ACCESS_REMOTE_READ,
        };
        request.bind_mw = sys::ibv_bind { mw: window.raw, rkey: window.key, bind_info };
        Ok(request)
    }

    /// The request that binds window `index` was posted.
    pub(crate) fn bound(&self, index: usize) {
        if let Some(window) = self.windows.get(index) {
            // SAFETY: the window is alive; the library leaves this to its owner.
            unsafe { (*window.raw).rkey = window.key };
        }
    }

    /// Ends all of them.
    pub(crate) fn clear(&mut self) {
        for Window { raw, what, .. } in self.windows.drain(..) {
            // SAFETY: it is alive, and ended once. A failure leaks it; the region that it is bound to then stays, too.
            let result = unsafe { sys::ibv_dealloc_mw(raw) };
            if result != 0 {
                let reason = std::io::Error::from_raw_os_error(result.abs());
                tracing::error!(%reason, "a memory window cannot be ended; its peer may read on until its connection ends");
            }
            // What it was bound to may be ended after it.
            drop(what);
        }
    }
}

impl Drop for ShownWindows {
    /// The queue pair is gone: its peer reads nothing any more.
    fn drop(&mut self) {
        self.clear();
    }
}
