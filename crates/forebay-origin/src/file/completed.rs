//! The uploads that were completed last, and their outcome: a request that is repeated gets the same answer.

use std::collections::VecDeque;

use forebay_locks::Mutex;
use forebay_types::Attr;

/// Completed uploads that are remembered.
const REMEMBERED: usize = 1024;

/// The latest first.
#[derive(Default)]
pub(super) struct Completed(Mutex<VecDeque<(String, Attr)>>);

impl Completed {
    pub(super) fn find(&self, path: &[u8], upload: &str) -> Option<Attr> {
        let completed = self.0.lock();
        let attr = completed.iter().find(|(known, _)| known == upload).map(|(_, attr)| attr.clone());
        attr.filter(|attr| attr.version().is_some_and(|version| *version.path == *path))
    }

    pub(super) fn remember(&self, upload: &str, attr: &Attr) {
        let mut completed = self.0.lock();
        completed.truncate(REMEMBERED - 1);
        completed.push_front((upload.to_owned(), attr.clone()));
    }
}
