//! Reads of objects: one GET each, checked against what was asked for, and summed while its bytes come in.
//!
//! From S3 the bytes go from the socket into the caller's buffer: they were left on the connection ([`Slot`], ADR 0039). Where they come
//! through the HTTP client's buffers, they are copied and summed a sector at a time, so that memory is gone through once.

use std::ops::Range;

use chrono::{DateTime, Utc};
use forebay_types::{Failure, FailureKind, FileVersion, RunningChecksums, SECTOR_SIZE, SectorChecksums, VersionTag};
use futures::StreamExt as _;
use object_store::path::Path;
use object_store::{GetOptions, GetRange, GetResult, ObjectMeta};

use super::ObjectStoreOrigin;
use super::exchange::Exchange;
use super::failure::Problem;
use super::in_place::Slot;
use super::listing::{quoted, whole_seconds};
use crate::names::{check_read, shown};
use crate::retry::Verdict;
use crate::stats::Operation;

impl ObjectStoreOrigin {
    /// Reads exactly `range` of exactly this version into `into`.
    pub(super) async fn read_range(
        &self,
        version: &FileVersion,
        range: Range<u64>,
        into: &mut [u8],
    ) -> Result<SectorChecksums, Failure> {
        check_read(&self.requests.url, version, &range, into.len())?;
        let (_, key) = self.key(&version.path)?;
        let mut attempts = self.requests.attempts(Operation::Read, &version.path);
        loop {
            let exchange = Exchange::default();
            match attempts.run(self.read_once(version, &key, range.clone(), into, &exchange)).await {
                Ok(checksums) => {
                    self.requests.stats.count_bytes(into.len() as u64);
                    return Ok(checksums);
                }
                Err(problem) => attempts.retry_or_give_up(problem, !exchange.observed().sent).await?,
            }
        }
    }

    async fn read_once(
        &self,
        version: &FileVersion,
        key: &Path,
        range: Range<u64>,
        into: &mut [u8],
        exchange: &Exchange,
    ) -> Result<SectorChecksums, Problem> {
        let (path, slot) = (&version.path, Slot::default());
        let mut extensions = exchange.extensions();
        extensions.insert(slot.clone());
        let mut options =
            GetOptions { range: Some(GetRange::Bounded(range.clone())), extensions, ..GetOptions::default() };
        match &version.tag {
            // A weak tag never matches in `If-Match` (RFC 9110, 13.1.1); the check of the answer has to do.
            VersionTag::Etag(etag) if etag.starts_with("W/") => {}
            VersionTag::Etag(etag) => options.if_match = Some(etag.to_string()),
            VersionTag::Modified { nanos, .. } => {
                options.if_unmodified_since = Some(DateTime::from_timestamp_nanos(*nanos))
            }
        }
        let place = || shown(&self.requests.url, path);
        let result = match self.client.store.get_opts(key, options).await {
            Ok(result) => result,
            Err(error) => {
                let problem = self.problem(path, exchange, &error);
                return Err(match problem.failure.kind() {
                    FailureKind::NotFound => Problem::version_changed(&self.requests.url, path),
                    // A whole answer to a request for a range: trying again changes nothing.
                    _ if exchange.observed().status == 200 => Problem::new(
                        Verdict::Final,
                        FailureKind::Unsupported,
                        format!("{}: {} does not serve ranges of files", place(), self.requests.setting.endpoint),
                    ),
                    _ => problem,
                });
            }
        };
        if !is_version(&result, version) {
            return Err(Problem::version_changed(&self.requests.url, path));
        }
        if result.range != range {
            return Err(Problem::transient(format!("{}: bytes {:?} came for {range:?}", place(), result.range)));
        }
        let length = into.len();
        let too_many = || Problem::transient(format!("{}: more bytes came than the {length} asked for", place()));
        let too_few = |came: u64| Problem::transient(format!("{}: {came} bytes came of {length}", place()));
        let mut checksums = RunningChecksums::of_length(length);
        if let Some(body) = slot.take() {
            match body.length() {
                came if came > length as u64 => return Err(too_many()),
                came if came < length as u64 => return Err(too_few(came)),
                _ => {}
            }
            if let Err(error) = body.read(into, |so_far| checksums.advance(so_far)).await {
                let error = object_store::Error::Generic { store: "S3", source: Box::new(error) };
                return Err(self.problem(path, exchange, &error));
            }
            return Ok(checksums.end(into));
        }
        let (mut chunks, mut filled) = (result.into_stream(), 0);
        while let Some(chunk) = chunks.next().await {
            let chunk = chunk.map_err(|error| self.problem(path, exchange, &error))?;
            for piece in chunk.chunks(SECTOR_SIZE as usize) {
                into.get_mut(filled..filled + piece.len()).ok_or_else(too_many)?.copy_from_slice(piece);
                filled += piece.len();
                checksums.advance(&into[..filled]);
            }
        }
        if filled < length {
            return Err(too_few(filled as u64));
        }
        Ok(checksums.end(into))
    }
}

/// Whether an answer is of this version. Without an entity tag in it there is the condition that was sent.
fn is_version(result: &GetResult, version: &FileVersion) -> bool {
    let ObjectMeta { size, e_tag, last_modified, .. } = &result.meta;
    let same_tag = match &version.tag {
        VersionTag::Etag(expected) => e_tag.as_deref().map(quoted).is_some_and(|etag| etag == **expected),
        VersionTag::Modified { nanos, .. } => is_same_second(*last_modified, *nanos),
    };
    same_tag && *size == version.size
}

fn is_same_second(time: DateTime<Utc>, nanos: i64) -> bool {
    whole_seconds(time) == nanos
}
