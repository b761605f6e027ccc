//! Files that were read by their path, kept open for as long as what the path was is believed.
//!
//! A batch of a thousand reads of one file looks its name up once. How long an answer is believed is the cluster's to say
//! (`metadata.ttl`), as for a mount. What a session changed itself is not believed any more, also if the answer comes to it late.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_client::OpenFile;
use forebay_locks::Mutex;

/// The most files. A file that is open costs about a kilobyte.
const MAX_HANDLES: usize = 4096;

#[derive(Default)]
pub(crate) struct Handles {
    open: Mutex<Open>,
}

#[derive(Default)]
struct Open {
    files: HashMap<Box<[u8]>, Known, foldhash::fast::RandomState>,
    /// When the session last changed something. What was asked before may have become something else by it.
    changed: Option<Instant>,
}

struct Known {
    file: Arc<OpenFile>,
    until: Instant,
}

impl Handles {
    /// The file at `path`, if that is known at `now`.
    pub(crate) fn get(&self, path: &[u8], now: Instant) -> Option<Arc<OpenFile>> {
        let open = self.open.lock();
        open.files.get(path).filter(|known| known.until > now).map(|known| Arc::clone(&known.file))
    }

    /// That `path` is `file`, which was asked at `now` and may be believed for `valid_for` from then on.
    pub(crate) fn put(&self, path: &[u8], file: &Arc<OpenFile>, now: Instant, valid_for: Duration) {
        if valid_for.is_zero() {
            return;
        }
        let mut open = self.open.lock();
        if open.changed.is_some_and(|changed| changed >= now) {
            return;
        }
        let files = &mut open.files;
        if files.len() >= MAX_HANDLES {
            files.retain(|_, known| known.until > now);
            if files.len() >= MAX_HANDLES {
                files.clear();
            }
        }
        files.insert(path.into(), Known { file: Arc::clone(file), until: now + valid_for });
    }

    /// `path` is something else by now.
    pub(crate) fn forget(&self, path: &[u8]) {
        self.open.lock().files.remove(path);
    }

    /// The session has changed `path`, by `now`.
    pub(crate) fn changed(&self, path: &[u8], now: Instant) {
        let mut open = self.open.lock();
        open.files.remove(path);
        open.changed = Some(now);
    }

    /// Closes all of them.
    pub(crate) fn clear(&self) {
        self.open.lock().files.clear();
    }
}
