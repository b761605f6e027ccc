//! Whether a run in memory is sealed, so that clients may read it by themselves (ADR 0035).
//!
//! A run is not sealed any more once it has left the index, whoever still looks at it. Its seal is a view of its bytes,
//! so that these are not reused before the seal has ended.

use std::fmt;

use forebay_memory::Span;
use forebay_one_sided::{Location, Next, Sealed, Warmth};

use crate::sync::Mutex;

/// The seal of one run, if it has one.
#[derive(Default)]
pub(crate) struct Sealing {
    warmth: Warmth,
    state: Mutex<State>,
}

#[derive(Default)]
enum State {
    #[default]
    Open,
    Sealed(Sealed<Span>),
    /// It has left the index.
    Ended,
}

impl Sealing {
    /// Whether its seal is one of the views of its bytes.
    pub(crate) fn is_sealed(&self) -> bool {
        matches!(*self.state.lock(), State::Sealed(_))
    }

    /// Somebody could have used its location: whether to have it sealed.
    pub(crate) fn hit(&self) -> Next {
        self.warmth.hit()
    }

    /// Nobody had the time to.
    pub(crate) fn cool(&self) {
        self.warmth.cool();
    }

    /// It was sealed, which is of no use if it has left the index meanwhile.
    pub(crate) fn sealed(&self, sealed: Sealed<Span>) {
        let mut state = self.state.lock();
        if matches!(*state, State::Open) {
            *state = State::Sealed(sealed);
        }
    }

    /// Its bytes were found to be right, so what a client found to be wrong was its seal: it is to have another one, if it is
    /// warm still.
    pub(crate) fn renew(&self) {
        let before = {
            let mut state = self.state.lock();
            match &*state {
                State::Sealed(_) => std::mem::take(&mut *state),
                State::Open | State::Ended => return,
            }
        };
        // First: nobody seals it while it has the old one.
        drop(before);
        self.warmth.cool();
    }

    /// It is not sealed any more, and will not be.
    pub(crate) fn end(&self) {
        let before = std::mem::replace(&mut *self.state.lock(), State::Ended);
        // Not under the lock: its view may be the last one of the bytes, which then go back to the pool.
        drop(before);
    }

    /// Where the run lies that begins with sector `first` of its block and has so many bytes.
    pub(crate) fn location(&self, first: u32, length: u32) -> Option<Location> {
        match &*self.state.lock() {
            State::Sealed(sealed) => Some(Location { generation: sealed.generation(), at: sealed.at(), first, length }),
            State::Open | State::Ended => None,
        }
    }
}

impl fmt::Debug for Sealing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sealing").field("is_sealed", &self.is_sealed()).finish_non_exhaustive()
    }
}
