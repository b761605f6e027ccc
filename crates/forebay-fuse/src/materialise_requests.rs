//! Requests to materialise files, however often they are read: `forebay fs local add`, and jobs for clients.
//!
//! A request is a file or a directory with all below it. It is walked by the mount itself, and each of its files is asked for and
//! waited for, a few at a time: the request of a million files takes no more memory than that of one. How far it is can be asked at
//! any time, also for a while after it has ended. One that is cancelled looks for no further files; those that it asked for come.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_locks::Mutex;
use forebay_materialise::NotTaken;
use forebay_types::{Failure, FsPath};
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

/// Requests that have ended and are remembered, the latest.
const REMEMBERED: usize = 256;
/// Requests that are under way at once: each asks for a few files at a time.
const UNDER_WAY: usize = 1024;
/// Files that are named of those that did not come.
const NAMED: usize = 10;

/// How far a request is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MaterialiseProgress {
    /// Files that were found so far.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Files that are there whole.
    pub ready: u64,
    /// Their bytes.
    pub ready_bytes: u64,
    /// Files that there is no room for.
    pub no_room: u64,
    /// Files that could not be had for another reason.
    pub failed: u64,
    /// The first of both, with the reason.
    pub first: Vec<(String, String)>,
    /// Why the walk itself ended early, if it did.
    pub error: Option<String>,
    /// Whether nothing more will come.
    pub ended: bool,
}

/// The materialise requests of a mount.
#[derive(Default)]
pub(crate) struct MaterialiseRequests {
    latest: AtomicU64,
    remembered: Mutex<VecDeque<(u64, Arc<MaterialiseRequest>)>>,
}

/// One request.
#[derive(Default)]
pub(crate) struct MaterialiseRequest {
    progress: Mutex<MaterialiseProgress>,
    cancelled: CancellationToken,
}

impl MaterialiseRequests {
    /// Takes one more request, which ends at once where too many are under way. Its number.
    pub(crate) fn remember(&self, request: &Arc<MaterialiseRequest>) -> u64 {
        let number = self.latest.fetch_add(1, Ordering::Relaxed) + 1;
        let mut remembered = self.remembered.lock();
        let ended = remembered.iter().filter(|(_, request)| request.has_ended()).count();
        if remembered.len() - ended >= UNDER_WAY {
            request
                .give_up("too many requests are under way: name a directory above them, or wait until some have ended");
        }
        if ended >= REMEMBERED
            && let Some(oldest) = remembered.iter().position(|(_, request)| request.has_ended())
        {
            remembered.remove(oldest);
        }
        remembered.push_back((number, Arc::clone(request)));
        number
    }

    /// The request of a number, if it is remembered.
    pub(crate) fn get(&self, number: u64) -> Option<Arc<MaterialiseRequest>> {
        let remembered = self.remembered.lock();
        remembered.iter().find(|(known, _)| *known == number).map(|(_, request)| Arc::clone(request))
    }
}

impl MaterialiseRequest {
    /// How far it is.
    pub(crate) fn progress(&self) -> MaterialiseProgress {
        self.progress.lock().clone()
    }

    /// Looks for nothing more.
    pub(crate) fn cancel(&self) {
        self.cancelled.cancel();
    }

    /// What `work` gives, unless the request is cancelled before.
    pub(crate) async fn run_until_cancelled<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        self.cancelled.run_until_cancelled(work).await
    }

    /// A file was found.
    pub(crate) fn found(&self, size: u64) {
        let mut progress = self.progress.lock();
        progress.files += 1;
        progress.bytes += size;
    }

    /// What became of a file that was found.
    pub(crate) fn came(&self, path: &FsPath, size: u64, outcome: Result<(), NotTaken>) {
        let mut progress = self.progress.lock();
        let Err(reason) = outcome else {
            (progress.ready, progress.ready_bytes) = (progress.ready + 1, progress.ready_bytes + size);
            return;
        };
        match reason {
            NotTaken::NoRoom => progress.no_room += 1,
            _ => progress.failed += 1,
        }
        if progress.first.len() < NAMED {
            progress.first.push((path.to_string(), reason.to_string()));
        }
    }

    /// The walk has ended.
    pub(crate) fn end(&self, walked: Result<(), Failure>) {
        let mut progress = self.progress.lock();
        (progress.ended, progress.error) = (true, walked.err().map(|failure| failure.to_string()));
    }

    /// Nothing more will come, for this reason.
    pub(crate) fn give_up(&self, why: &str) {
        let mut progress = self.progress.lock();
        (progress.ended, progress.error) = (true, Some(why.to_owned()));
    }

    /// Whether nothing more will come.
    pub(crate) fn has_ended(&self) -> bool {
        self.progress.lock().ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_requests_that_have_ended_are_remembered_and_all_that_have_not() {
        let requests = MaterialiseRequests::default();
        let under_way = requests.remember(&Arc::default());
        let ended = |_| {
            let request = Arc::default();
            let number = requests.remember(&request);
            request.end(Ok(()));
            number
        };
        let numbers: Vec<u64> = (0..REMEMBERED + 3).map(ended).collect();
        assert!(requests.get(numbers[2]).is_none() && requests.get(numbers[3]).is_some());
        assert!(requests.get(under_way).is_some() && requests.get(0).is_none());
    }

    #[test]
    fn a_request_beyond_those_that_may_be_under_way_is_refused() {
        let requests = MaterialiseRequests::default();
        let all: Vec<Arc<MaterialiseRequest>> = (0..UNDER_WAY).map(|_| Arc::default()).collect();
        for request in &all {
            requests.remember(request);
        }
        let one_more = Arc::default();
        let number = requests.remember(&one_more);
        assert!(requests.get(number).unwrap().progress.lock().error.as_ref().unwrap().contains("too many"));
        assert!(all.iter().all(|request| !request.has_ended()));
        all[7].end(Ok(()));
        let next = Arc::default();
        requests.remember(&next);
        assert!(!next.has_ended());
    }

    #[test]
    fn a_request_names_the_first_of_what_did_not_come() {
        let (request, path) = (MaterialiseRequest::default(), FsPath::new(b"/a".as_slice()).unwrap());
        for _ in 0..NAMED + 5 {
            request.found(7);
            request.came(&path, 7, Err(NotTaken::NoRoom));
        }
        request.found(7);
        request.came(&path, 7, Ok(()));
        request.end(Ok(()));
        let progress = request.progress.lock();
        assert_eq!((progress.files, progress.no_room, progress.ready, progress.ready_bytes), (16, 15, 1, 7));
        assert_eq!((progress.first.len(), progress.ended), (NAMED, true));
    }
}
