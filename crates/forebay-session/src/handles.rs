//! Files that were read by their path, kept open for as long as what the path was is believed.
//!
//! A batch of a thousand reads of one file looks its name up once. How long an answer is believed is the cluster's to say
//! (`metadata.ttl`), as for a mount.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_client::OpenFile;
use parking_lot::Mutex;

/// The most files. A file that is open costs about a kilobyte.
const MAX_HANDLES: usize = 4096;

#[derive(Default)]
pub(crate) struct Handles {
    open: Mutex<HashMap<Box<[u8]>, Known, foldhash::fast::RandomState>>,
}

struct Known {
    file: Arc<OpenFile>,
    until: Instant,
}

impl Handles {
    /// The file at `path`, if that is known at `now`.
    pub(crate) fn get(&self, path: &[u8], now: Instant) -> Option<Arc<OpenFile>> {
        let open = self.open.lock();
        open.get(path).filter(|known| known.until > now).map(|known| Arc::clone(&known.file))
    }

    /// That `path` is `file`, which may be believed for `valid_for` from `now` on.
    pub(crate) fn put(&self, path: &[u8], file: &Arc<OpenFile>, now: Instant, valid_for: Duration) {
        if valid_for.is_zero() {
            return;
        }
        let mut open = self.open.lock();
        if open.len() >= MAX_HANDLES {
            open.retain(|_, known| known.until > now);
            if open.len() >= MAX_HANDLES {
                open.clear();
            }
        }
        open.insert(path.into(), Known { file: Arc::clone(file), until: now + valid_for });
    }

    /// `path` is something else by now.
    pub(crate) fn forget(&self, path: &[u8]) {
        self.open.lock().remove(path);
    }

    /// Closes all of them.
    pub(crate) fn clear(&self) {
        self.open.lock().clear();
    }
}
