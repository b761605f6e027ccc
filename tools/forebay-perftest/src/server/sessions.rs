//! The sessions of clients, each with an area of the memory that clients write.

use std::collections::HashMap;

use forebay_locks::Mutex;
use tokio_util::sync::CancellationToken;

use crate::plan::MAX_CLIENTS;

/// The sessions there are.
#[derive(Default)]
pub(super) struct Sessions {
    open: Mutex<HashMap<u64, Session>>,
}

/// One session.
#[derive(Clone)]
struct Session {
    area: usize,
    ended: CancellationToken,
}

impl Sessions {
    /// A new session, unless there are too many: its number, its area, and what is cancelled at its end.
    pub(super) fn open(&self) -> Option<(u64, usize, CancellationToken)> {
        let mut open = self.open.lock();
        let area = (0..MAX_CLIENTS).find(|area| open.values().all(|session| session.area != *area))?;
        let (number, ended) = (rand::random(), CancellationToken::new());
        open.insert(number, Session { area, ended: ended.clone() });
        Some((number, area, ended))
    }

    /// What is cancelled when the session ends; `None` when there is none of that number.
    pub(super) fn end_of(&self, number: u64) -> Option<CancellationToken> {
        self.open.lock().get(&number).map(|session| session.ended.clone())
    }

    pub(super) fn close(&self, number: u64) {
        if let Some(session) = self.open.lock().remove(&number) {
            session.ended.cancel();
        }
    }

    pub(super) fn count(&self) -> usize {
        self.open.lock().len()
    }
}
