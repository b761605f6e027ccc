//! The uploads that were begun here last, whose names hold more than S3 tells of them.

use std::collections::VecDeque;

use forebay_locks::Mutex;

/// Uploads whose marks are remembered, the last ones that were begun.
const REMEMBERED: usize = 1024;

/// What S3 calls each, and its mark.
#[derive(Default)]
pub(super) struct Begun(Mutex<VecDeque<(String, String)>>);

impl Begun {
    pub(super) fn remember(&self, id: &str, mark: &str) {
        let mut begun = self.0.lock();
        begun.truncate(REMEMBERED - 1);
        begun.push_front((id.to_owned(), mark.to_owned()));
    }

    /// The name of an upload that S3 calls `id`.
    pub(super) fn name_of(&self, id: &str) -> String {
        let begun = self.0.lock();
        let mark = begun.iter().find(|(known, _)| known == id).map_or("", |(_, mark)| mark.as_str());
        format!("{mark}:{id}")
    }
}
