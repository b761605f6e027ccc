//! Copies. The origin makes them itself, with one request and without a byte on the wire, of objects up to a size: 5 GiB
//! on S3. Larger ones are read and sent in parts.
//!
//! Reads in between are pinned to one version, so a source that is replaced meanwhile fails the copy (`VersionChanged`) and
//! never mixes; the upload is given up then, and also when nobody waits for the copy any more. A few parts are under way at
//! once, which bounds the memory to [`AT_ONCE`] × [`PART`] (more for objects of over 640 GB, as an upload has 10,000 parts
//! at most).

use std::ops::Range;

use bytes::Bytes;
use forebay_types::{Attr, Failure, FailureKind, FileVersion};
use futures::{StreamExt, TryStreamExt};
use object_store::ObjectStoreExt;
use tokio::runtime::Handle;
use tracing::warn;

use super::ObjectStoreOrigin;
use super::attempts::AT_WORK;
use super::writes::Abort;
use crate::Origin;
use crate::names::{MAX_PARTS, check_path, not_found};
use crate::stats::Operation;

const PART: u64 = 64 << 20;
const AT_ONCE: usize = 3;
/// What one request reads of a part, as of a block: what fails is asked for again.
const READ: u64 = 8 << 20;

impl ObjectStoreOrigin {
    pub(super) async fn copy_file(&self, from: &[u8], to: &[u8]) -> Result<Attr, Failure> {
        let (writer, key) = self.to_change(to)?;
        check_path(&self.requests.url, from)?;
        let source = self.stat(from).await?;
        let Some(version) = source.version() else { return Err(not_found(&self.requests.url, from)) };
        if from == to {
            return Ok(source);
        }
        self.refuse_directory(to).await?;
        if version.size > writer.largest_copy {
            return self.copy_in_parts(version, to, part_size(version.size)).await;
        }
        let (_, source) = self.key(from)?;
        let copied = self.change(Operation::Copy, to, AT_WORK, || writer.store.copy(&source, &key)).await;
        let (_, exchange) = copied.map_err(|failure| match failure.kind() {
            FailureKind::NotFound => not_found(&self.requests.url, from),
            _ => failure,
        })?;
        self.settled(to, version.size, exchange.observed().etag.as_deref()).await
    }

    pub(super) async fn copy_in_parts(&self, version: &FileVersion, to: &[u8], part: u64) -> Result<Attr, Failure> {
        let upload = self.begin(to).await?;
        let unfinished = Unfinished { abort: self.to_abort(to, &upload)?, runtime: Handle::current() };
        let sent: Result<Vec<String>, Failure> = futures::stream::iter(ranges(0..version.size, part).zip(1..))
            .map(|(range, number)| self.copy_part(version, range, to, &upload, number))
            .buffered(AT_ONCE)
            .try_collect()
            .await;
        let completed = match sent {
            Ok(tags) => self.complete(to, &upload, version.size, &tags).await,
            Err(failure) => Err(failure),
        };
        match &completed {
            Ok(_) => unfinished.keep(),
            Err(_) => unfinished.give_up().await,
        }
        completed
    }

    async fn copy_part(
        &self,
        version: &FileVersion,
        range: Range<u64>,
        to: &[u8],
        upload: &str,
        number: u32,
    ) -> Result<String, Failure> {
        let start = range.start;
        let too_large = |_| Failure::new(FailureKind::TooLarge, "a part does not fit this machine's memory");
        let mut bytes = vec![0; usize::try_from(range.end - start).map_err(too_large)?];
        for range in ranges(range, READ) {
            // Within the vector, whose length fits.
            let into = &mut bytes[(range.start - start) as usize..(range.end - start) as usize];
            self.read(version, range, into).await?;
        }
        self.send_part(to, upload, number, Bytes::from(bytes)).await
    }
}

/// The upload of a copy, which is given up if it is dropped before it is over: in the background, for as long as the attempts
/// of one request take.
struct Unfinished {
    /// `None` when there is nothing to give up any more.
    abort: Option<Abort>,
    /// Where the copy is made: it may be dropped elsewhere.
    runtime: Handle,
}

impl Unfinished {
    /// It is complete.
    fn keep(mut self) {
        self.abort = None;
    }

    async fn give_up(mut self) {
        if let Some(abort) = &self.abort {
            run(abort).await;
        }
        self.abort = None;
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if let Some(abort) = self.abort.take() {
            self.runtime.spawn(async move { run(&abort).await });
        }
    }
}

async fn run(abort: &Abort) {
    if let Err(failure) = abort.run().await {
        let file = abort.file();
        warn!(%file, %failure, "cannot give up an upload in parts; a lifecycle rule of the bucket can");
    }
}

fn part_size(size: u64) -> u64 {
    size.div_ceil(u64::from(MAX_PARTS)).next_multiple_of(1 << 20).max(PART)
}

/// A range, cut into pieces of at most `length`.
fn ranges(range: Range<u64>, length: u64) -> impl Iterator<Item = Range<u64>> {
    let end = range.end;
    range.step_by(usize::try_from(length).unwrap_or(usize::MAX)).map(move |start| start..end.min(start + length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_in_parts_has_as_many_parts_as_are_allowed() {
        for size in [5 << 30, 640 << 30, 5 << 40] {
            let part = part_size(size);
            let parts = ranges(0..size, part).count();
            assert!(part >= PART && parts <= MAX_PARTS as usize, "{size}: {parts} parts of {part}");
            assert_eq!(ranges(0..size, part).last().unwrap().end, size);
        }
        assert_eq!(part_size(6 << 30), PART);
    }
}
