//! An origin in memory with programmable faults, for tests and simulations.
//!
//! It keeps to the [`Origin`] contract (the conformance suite runs against it), counts what it is asked, so that a test
//! can say "one miss, one GET", and does on demand what real origins do at bad moments: fail, stall, take long, break
//! off in the middle of a body. Parts of uploads may be of any size here, so that tests need no large files.

mod state;
mod writes;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use forebay_locks::Mutex;
use forebay_types::{Attr, DirEntry, Failure, FileVersion, PartPage, UploadMarker, UploadPage};
use tokio::sync::watch;

pub use self::state::FakeCounts;
use self::state::{FakeOriginState, Fault, Operations};
use crate::names::{check_change, check_path, check_read, invalid, not_a_directory, not_found, version_changed};
use crate::{ListPage, Origin, OriginCounts};

/// An origin in memory. Cheap to clone: clones are the same origin.
#[derive(Clone)]
pub struct FakeOrigin {
    url: Arc<str>,
    state: Arc<Mutex<FakeOriginState>>,
    stalled: watch::Sender<bool>,
    waiting: watch::Sender<usize>,
}

/// Holds back the operations of a [`FakeOrigin`]; dropping it lets them go.
pub struct Stall(watch::Sender<bool>);

impl Drop for Stall {
    fn drop(&mut self) {
        self.0.send_replace(false);
    }
}

impl FakeOrigin {
    /// An empty origin with this URL, `fake://test` for example.
    pub fn new(url: impl Into<Arc<str>>) -> Self {
        let url = url.into();
        Self {
            state: Arc::new(Mutex::new(FakeOriginState::new(Arc::clone(&url)))),
            url,
            stalled: watch::Sender::new(false),
            waiting: watch::Sender::new(0),
        }
    }

    /// Stores or replaces an object: each put is a new version, also with the same bytes.
    pub fn put(&self, path: impl AsRef<[u8]>, bytes: impl Into<Bytes>) -> FileVersion {
        let mut state = self.state.lock();
        state.store(path.as_ref(), bytes.into());
        state.version_of(path.as_ref(), &state.objects[path.as_ref()])
    }

    /// Makes a directory that is there even with nothing in it, as a `dir/` marker does.
    pub fn make_directory(&self, path: impl AsRef<[u8]>) {
        self.state.lock().directories.insert(path.as_ref().to_vec());
    }

    /// Deletes an object or a directory of [`FakeOrigin::make_directory`]; whether it was there.
    pub fn delete(&self, path: impl AsRef<[u8]>) -> bool {
        let mut state = self.state.lock();
        let object = state.objects.remove(path.as_ref()).is_some();
        state.directories.remove(path.as_ref()) || object
    }

    /// The version that an object has now.
    #[must_use]
    pub fn version(&self, path: impl AsRef<[u8]>) -> Option<FileVersion> {
        let state = self.state.lock();
        state.objects.get(path.as_ref()).map(|object| state.version_of(path.as_ref(), object))
    }

    /// Every operation takes this much longer from now on.
    pub fn set_delay(&self, delay: Duration) {
        self.state.lock().delay = delay;
    }

    /// The next `count` operations of any kind fail.
    pub fn fail_next(&self, count: usize, failure: &Failure) {
        self.add_faults(count, Operations::Any, 0, failure);
    }

    /// The next `count` reads deliver `after_bytes` bytes into the caller's buffer and then fail.
    pub fn fail_next_reads(&self, count: usize, after_bytes: usize, failure: &Failure) {
        self.add_faults(count, Operations::Reads, after_bytes, failure);
    }

    /// The next `count` changes (puts, uploads, copies, removals, directories) fail, and change nothing.
    pub fn fail_next_changes(&self, count: usize, failure: &Failure) {
        self.add_faults(count, Operations::Changes, 0, failure);
    }

    /// Forgets the faults that are still to come.
    pub fn clear_faults(&self) {
        self.state.lock().faults.clear();
    }

    /// From now on operations wait, already counted, until the [`Stall`] is dropped.
    #[must_use]
    pub fn stall(&self) -> Stall {
        self.stalled.send_replace(true);
        Stall(self.stalled.clone())
    }

    /// Waits until at least `count` operations are held back by a [`Stall`].
    pub async fn wait_for_stalled(&self, count: usize) {
        // The sender lives in `self`, so the channel cannot be closed.
        let _ = self.waiting.subscribe().wait_for(|waiting| *waiting >= count).await;
    }

    /// What was asked so far.
    #[must_use]
    pub fn counts(&self) -> FakeCounts {
        self.state.lock().counts
    }

    /// The path and the range of every read so far, failed ones included, in the order of arrival.
    #[must_use]
    pub fn reads(&self) -> Vec<(Vec<u8>, Range<u64>)> {
        self.state.lock().reads.clone()
    }

    /// The file of each upload that was begun and neither completed nor aborted.
    #[must_use]
    pub fn uploads(&self) -> Vec<Vec<u8>> {
        self.state.lock().uploads.values().map(|upload| upload.path.clone()).collect()
    }

    fn add_faults(&self, count: usize, operations: Operations, after_bytes: usize, failure: &Failure) {
        let fault = || Fault { operations, after_bytes, failure: failure.clone() };
        self.state.lock().faults.extend(std::iter::repeat_with(fault).take(count));
    }

    /// Counts a change, lets the faults and stalls happen, and then makes it.
    async fn change<T>(
        &self,
        path: &[u8],
        count: impl FnOnce(&mut FakeCounts) + Send,
        apply: impl FnOnce(&mut FakeOriginState) -> Result<T, Failure> + Send,
    ) -> Result<T, Failure> {
        check_change(&self.url, path)?;
        count(&mut self.state.lock().counts);
        match self.enter(Operations::Changes).await {
            Some(fault) => Err(fault.failure),
            None => apply(&mut self.state.lock()),
        }
    }

    /// The wait and the fault that are programmed for an operation.
    async fn enter(&self, asked: Operations) -> Option<Fault> {
        let (delay, fault) = {
            let mut state = self.state.lock();
            let is_due = |fault: &Fault| fault.operations == Operations::Any || fault.operations == asked;
            let due = state.faults.iter().position(is_due);
            (state.delay, due.and_then(|index| state.faults.remove(index)))
        };
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        if *self.stalled.borrow() {
            let _held = Held::new(&self.waiting);
            // The sender lives in `self`, so the channel cannot be closed.
            let _ = self.stalled.subscribe().wait_for(|stalled| !stalled).await;
        }
        fault
    }
}

/// One operation that is held back; counts itself out also when it is cancelled.
struct Held<'a>(&'a watch::Sender<usize>);

impl<'a> Held<'a> {
    fn new(waiting: &'a watch::Sender<usize>) -> Self {
        waiting.send_modify(|count| *count += 1);
        Self(waiting)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

#[async_trait::async_trait]
impl Origin for FakeOrigin {
    fn url(&self) -> &Arc<str> {
        &self.url
    }

    fn counts(&self) -> OriginCounts {
        let counts = FakeOrigin::counts(self);
        let asked = counts.gets + counts.lists + counts.stats;
        let uploads = counts.begins + counts.parts + counts.completes + counts.aborts;
        let changes = counts.puts + uploads + counts.copies + counts.removes + counts.directories;
        let FakeCounts { bytes, uploaded, .. } = counts;
        OriginCounts { requests: asked + changes, bytes, uploaded, ..OriginCounts::default() }
    }

    async fn stat(&self, path: &[u8]) -> Result<Attr, Failure> {
        check_path(&self.url, path)?;
        self.state.lock().counts.stats += 1;
        if let Some(fault) = self.enter(Operations::Any).await {
            return Err(fault.failure);
        }
        let state = self.state.lock();
        if state.is_directory(path) {
            return Ok(Attr::directory());
        }
        state.objects.get(path).map(|object| state.attr_of(path, object)).ok_or_else(|| not_found(&self.url, path))
    }

    async fn list(&self, path: &[u8], token: Option<&str>, max: usize) -> Result<ListPage, Failure> {
        check_path(&self.url, path)?;
        let start = match token.map(str::parse) {
            None => 0,
            Some(Ok(start)) => start,
            Some(Err(_)) => return Err(invalid(&self.url, path, "not a listing token of this origin")),
        };
        self.state.lock().counts.lists += 1;
        if let Some(fault) = self.enter(Operations::Any).await {
            return Err(fault.failure);
        }
        let state = self.state.lock();
        if !state.is_directory(path) {
            let is_file = state.objects.contains_key(path);
            return Err(if is_file { not_a_directory(&self.url, path) } else { not_found(&self.url, path) });
        }
        let prefix = if path.is_empty() { Vec::new() } else { [path, b"/"].concat() };
        let names = state.names(&prefix);
        let end = names.len().min(start + max.max(1));
        let entries = names.iter().skip(start).take(max.max(1)).map(|name| {
            let path = [&prefix[..], name].concat();
            let attr = match state.objects.get(&path) {
                Some(object) if !state.is_directory(&path) => state.attr_of(&path, object),
                _ => Attr::directory(),
            };
            DirEntry { name: name.as_slice().into(), attr }
        });
        Ok(ListPage { entries: entries.collect(), next: (end < names.len()).then(|| end.to_string()) })
    }

    async fn read(&self, version: &FileVersion, range: Range<u64>, into: &mut [u8]) -> Result<(), Failure> {
        check_read(&self.url, version, &range, into.len())?;
        {
            let mut state = self.state.lock();
            state.counts.gets += 1;
            state.reads.push((version.path.to_vec(), range.clone()));
        }
        let fault = self.enter(Operations::Reads).await;
        let mut state = self.state.lock();
        let bytes = match state.objects.get(&*version.path) {
            Some(object) if state.version_of(&version.path, object) == *version => object.bytes.clone(),
            _ => return Err(version_changed(&self.url, &version.path)),
        };
        // `check_read` has bound the range to the version's size, which is the length of these bytes.
        let wanted = &bytes[range.start as usize..range.end as usize];
        if let Some(fault) = fault {
            let delivered = fault.after_bytes.min(wanted.len());
            into[..delivered].copy_from_slice(&wanted[..delivered]);
            return Err(fault.failure);
        }
        into.copy_from_slice(wanted);
        state.counts.bytes += wanted.len() as u64;
        Ok(())
    }

    fn takes_changes(&self) -> bool {
        true
    }

    async fn put(&self, path: &[u8], bytes: Bytes) -> Result<Attr, Failure> {
        let length = bytes.len() as u64;
        self.change(
            path,
            |counts| counts.puts += 1,
            |state| {
                state.store_file(path, bytes)?;
                state.counts.uploaded += length;
                state.attr_in(path)
            },
        )
        .await
    }

    async fn create(&self, path: &[u8], bytes: Bytes) -> Result<Attr, Failure> {
        let length = bytes.len() as u64;
        self.change(
            path,
            |counts| counts.puts += 1,
            |state| {
                state.store_new_file(path, bytes)?;
                state.counts.uploaded += length;
                state.attr_in(path)
            },
        )
        .await
    }

    async fn begin_upload(&self, path: &[u8]) -> Result<String, Failure> {
        self.change(path, |counts| counts.begins += 1, |state| state.begin(path)).await
    }

    async fn upload_part(&self, path: &[u8], upload: &str, number: u32, bytes: Bytes) -> Result<String, Failure> {
        let add = |state: &mut FakeOriginState| state.add_part(path, upload, number, bytes);
        self.change(path, |counts| counts.parts += 1, add).await
    }

    async fn complete_upload(&self, path: &[u8], upload: &str, size: u64, parts: &[String]) -> Result<Attr, Failure> {
        let complete = |state: &mut FakeOriginState| state.complete(path, upload, size, parts);
        self.change(path, |counts| counts.completes += 1, complete).await
    }

    async fn abort_upload(&self, path: &[u8], upload: &str) -> Result<(), Failure> {
        let abort = |state: &mut FakeOriginState| {
            state.uploads.remove(upload);
            Ok(())
        };
        self.change(path, |counts| counts.aborts += 1, abort).await
    }

    async fn list_parts(&self, path: &[u8], upload: &str, after: u32, max: usize) -> Result<PartPage, Failure> {
        check_change(&self.url, path)?;
        self.state.lock().counts.lists += 1;
        match self.enter(Operations::Any).await {
            Some(fault) => Err(fault.failure),
            None => self.state.lock().parts_of(path, upload, after, max.max(1)),
        }
    }

    async fn list_uploads(
        &self,
        prefix: &[u8],
        after: Option<&UploadMarker>,
        max: usize,
    ) -> Result<UploadPage, Failure> {
        self.state.lock().counts.lists += 1;
        match self.enter(Operations::Any).await {
            Some(fault) => Err(fault.failure),
            None => Ok(self.state.lock().uploads_below(prefix, after, max.max(1))),
        }
    }

    async fn copy(&self, from: &[u8], to: &[u8]) -> Result<Attr, Failure> {
        check_path(&self.url, from)?;
        self.change(to, |counts| counts.copies += 1, |state| state.copy_file(from, to)).await
    }

    async fn remove(&self, path: &[u8]) -> Result<(), Failure> {
        self.change(path, |counts| counts.removes += 1, |state| state.remove_file(path)).await
    }

    async fn make_directory(&self, path: &[u8]) -> Result<Attr, Failure> {
        self.change(path, |counts| counts.directories += 1, |state| state.add_directory(path)).await
    }

    async fn remove_directory(&self, path: &[u8]) -> Result<(), Failure> {
        self.change(path, |counts| counts.directories += 1, |state| state.drop_directory(path)).await
    }
}

#[cfg(test)]
mod tests {
    use forebay_types::FailureKind;

    use super::*;

    #[tokio::test]
    async fn programmed_faults_come_in_order_and_then_end() {
        let origin = FakeOrigin::new("fake://test");
        let version = origin.put("a", &b"0123456789"[..]);
        let down = Failure::new(FailureKind::Unavailable, "down");
        origin.fail_next_reads(1, 4, &down);
        let mut into = [0; 10];
        assert_eq!(origin.read(&version, 0..10, &mut into).await, Err(down));
        assert_eq!(&into[..5], b"0123\0");
        assert_eq!(origin.read(&version, 0..10, &mut into).await, Ok(()));
        assert_eq!(&into, b"0123456789");
        assert_eq!(origin.counts(), FakeCounts { gets: 2, bytes: 10, ..FakeCounts::default() });
    }

    #[tokio::test]
    async fn faults_of_changes_leave_reads_alone_and_change_nothing() {
        let origin = FakeOrigin::new("fake://test");
        let down = Failure::new(FailureKind::Unavailable, "down");
        origin.fail_next_changes(2, &down);
        assert_eq!(origin.stat(b"").await, Ok(Attr::directory()));
        assert_eq!(Origin::put(&origin, b"a", Bytes::from_static(b"1")).await, Err(down.clone()));
        assert_eq!(origin.begin_upload(b"a").await, Err(down));
        assert_eq!((origin.version("a"), origin.uploads().len()), (None, 0));
        let upload = origin.begin_upload(b"a").await.unwrap();
        assert_eq!(origin.uploads(), [b"a"]);
        origin.abort_upload(b"a", &upload).await.unwrap();
        assert!(origin.uploads().is_empty());
        let counts = origin.counts();
        assert_eq!((counts.puts, counts.begins, counts.aborts, counts.uploaded), (1, 2, 1, 0));
    }

    #[tokio::test]
    async fn a_stall_holds_operations_until_it_is_dropped() {
        let origin = FakeOrigin::new("fake://test");
        origin.put("a", &b"x"[..]);
        let stall = origin.stall();
        let held = tokio::spawn({
            let origin = origin.clone();
            async move { origin.stat(b"a").await }
        });
        origin.wait_for_stalled(1).await;
        assert!(!held.is_finished());
        drop(stall);
        assert_eq!(held.await.unwrap().unwrap().size(), 1);
    }
}
