//! Small files: what a name is and the bytes of its file in one answer.
//!
//! A mount that opens a small file it does not know asks what it is, opens it and reads it: two trips to a worker for bytes that
//! could have come along with the first. A file beyond what the caller has room for is answered like any name. One that would
//! have to be fetched is waited for a moment only, and not at all when the caller does not want it: in a cluster, the worker
//! that knows a name rarely owns its bytes, and another one is to fetch and to keep them.
//!
//! What is known and in memory is answered at once, by the transport's own thread, as a read is.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use forebay_engine::Keeping;
use forebay_memory::Spans;
use forebay_store::Keep;
use forebay_transport::message::{StatReadReply, StatReply};
use forebay_transport::wire::MAX_BODY_BESIDE_PAYLOAD;
use forebay_transport::{Flags, Op, Provenance, Request, Response, ResponsePayload};
use forebay_types::{
    BlockKey, BlockLayout, Failure, FailureKind, FileId, FileVersion, FsPath, SECTOR_SIZE, SectorChecksums,
};

use crate::requests::path_of;
use crate::stats::Served;
use crate::worker::Worker;

/// How long an answer about a name waits for the bytes of its file. Requests that only want to know the name wait, too,
/// and must not feel an origin that is stuck.
const CONTENT_WITHIN: Duration = Duration::from_secs(1);

/// The bytes of a whole file.
struct Content {
    spans: Spans,
    checksums: Option<SectorChecksums>,
    served: Served,
}

impl Worker {
    /// The answer about a name that is known, whose file, if it is a small one, is in memory.
    fn try_stat_read(&self, request: &Request, path: &FsPath) -> Option<(Response, Served)> {
        let stat = self.metadata.try_stat(path, request.flags)?;
        let Some((version, key, length)) = self.small(&stat, request) else {
            return Some(answered(stat, None));
        };
        let content = self.in_memory(request, key, length)?;
        self.learn(key.file, version);
        Some(answered(stat, Some(content)))
    }

    /// The answer to a question about a name, if it can be given without waiting.
    pub(crate) fn try_name(&self, request: &Request) -> Option<Response> {
        let path = path_of(&request.body).ok()?;
        self.admit_at(request, &path).ok()?;
        let (response, served) = match request.op {
            Op::StatRead => self.try_stat_read(request, &path)?,
            _ => {
                let stat = self.metadata.try_stat(&path, request.flags)?;
                (Response::of_body(stat.encode()), Served::default())
            }
        };
        self.counters.asked(request.op);
        self.counters.served(served);
        Some(response)
    }

    /// The answer about a name, with the bytes of a small file.
    pub(crate) async fn stat_read(&self, request: &Request) -> Result<(Response, Served), Failure> {
        let path = path_of(&request.body)?;
        self.admit_at(request, &path)?;
        let revalidate = request.flags.contains(Flags::REVALIDATE);
        let mut stat = self.metadata.stat(&path, revalidate).await?;
        let asked = Instant::now();
        let Some((version, key, length)) = self.small(&stat, request) else {
            return Ok(answered(stat, None));
        };
        if !fits(&stat, request, length) {
            return Ok(answered(stat, None));
        }
        let content = match self.content(request, version, key, length).await {
            Err(failure) if failure.kind() == FailureKind::VersionChanged => {
                self.versions.forget(key.file);
                // Two mounts may lead to it.
                let scope = self.scopes.current();
                scope.namespace.paths_of(&version.origin, &version.path).for_each(|path| self.metadata.forget(&path));
                return Ok(answered(self.metadata.stat(&path, false).await?, None));
            }
            // The reader will meet the same failure, and gets it as an error.
            content => content.unwrap_or_default(),
        };
        // It was not asked for the name just now.
        stat.valid_for = stat.valid_for.saturating_sub(asked.elapsed());
        Ok(answered(stat, content))
    }

    /// The version, the one block and the size of the file that `stat` tells of, if it is one whose bytes are wanted here.
    fn small<'a>(&self, stat: &'a StatReply, request: &Request) -> Option<(&'a FileVersion, BlockKey, u32)> {
        let version = stat.attr.version()?;
        let length = u32::try_from(version.size).ok()?;
        let is_wanted = (1..=request.length.min(self.block_size)).contains(&length);
        is_wanted.then(|| (version, BlockKey { file: version.id(), index: 0 }, length))
    }

    /// The bytes of a file, if they can be had soon.
    async fn content(
        &self,
        request: &Request,
        version: &FileVersion,
        key: BlockKey,
        length: u32,
    ) -> Result<Option<Content>, Failure> {
        if let Some(content) = self.in_memory(request, key, length) {
            self.learn(key.file, version);
            return Ok(Some(content));
        }
        if request.flags.contains(Flags::CACHED) {
            let Some(stored) = self.store().read_at_once(&key, 0, length).await else { return Ok(None) };
            self.heat.note(&key, length);
            self.learn(key.file, version);
            let provenance = Provenance { memory: stored.from_memory, disk: stored.from_disk, ..Provenance::default() };
            let served = Served { provenance, peers: 0 };
            return Ok(Some(Content { spans: stored.spans, checksums: None, served }));
        }
        self.heat.note(&key, length);
        let version = self.learn(key.file, version);
        let layout = BlockLayout::new(version.size, self.block_size);
        let read = tokio::time::timeout(CONTENT_WITHIN, self.engine.read(&version, key, layout, 0, length)).await;
        // It goes on being fetched: a client that opens the file finds it.
        let Ok(read) = read else { return Ok(None) };
        let read = read?;
        self.label(&key, &version);
        let origin = read.from_source - read.from_cache;
        let provenance = Provenance { memory: read.from_memory, disk: read.from_disk, origin };
        Ok(Some(Content { spans: read.spans, checksums: None, served: Served { provenance, peers: read.from_cache } }))
    }

    /// The bytes of a file that are in memory: with their checksums for a caller that checks them, checked for another.
    fn in_memory(&self, request: &Request, key: BlockKey, length: u32) -> Option<Content> {
        let checksummed = || {
            let (span, checksums) = self.store().try_read_checksummed(&key, 0, length)?;
            Some((Spans::from_iter([span]), Some(checksums)))
        };
        let (spans, checksums) = match request.flags.contains(Flags::CHECKSUMS) {
            true => checksummed()?,
            false => (self.engine.try_read(&key, 0, length)?, None),
        };
        self.heat.note(&key, length);
        let provenance = Provenance { memory: length, ..Provenance::default() };
        Some(Content { spans, checksums, served: Served { provenance, peers: 0 } })
    }

    /// Remembers a version, so that the next reader need not describe it.
    fn learn(&self, id: FileId, version: &FileVersion) -> Arc<FileVersion> {
        if let Some(known) = self.versions.get(id) {
            return known;
        }
        let version = self.versions.remember(id, version.clone());
        // What a restart found, and what came from another worker, came without a policy.
        if let Keeping::As(keep) = self.scopes.of_file(id, &version).keeping
            && keep != Keep::default()
        {
            self.store().reclass_file(id, keep);
        }
        version
    }
}

/// Whether an answer about a name leaves room for the bytes of its file, and their checksums, beside it: long names do not.
fn fits(stat: &StatReply, request: &Request, length: u32) -> bool {
    let checksums = match request.flags.contains(Flags::CHECKSUMS) {
        true => size_of::<u32>() * length.div_ceil(SECTOR_SIZE) as usize,
        false => 0,
    };
    let reply = StatReadReply { stat: stat.clone(), checksums: vec![0; checksums].into() };
    reply.encode().len() <= MAX_BODY_BESIDE_PAYLOAD as usize
}

/// The answer, without the content where not every transport would take both.
fn answered(stat: StatReply, content: Option<Content>) -> (Response, Served) {
    let (spans, checksums, served) = match content {
        Some(Content { spans, checksums, served }) => (Some(spans), checksums, served),
        None => (None, None, Served::default()),
    };
    let checksums = checksums.map_or_else(Bytes::new, |checksums| checksums.as_bytes().clone());
    let body = StatReadReply { stat, checksums }.encode();
    match spans {
        Some(spans) if body.len() <= MAX_BODY_BESIDE_PAYLOAD as usize => {
            let payload = ResponsePayload::Spans(spans);
            (Response { provenance: served.told(), body, payload }, served)
        }
        _ => (Response::of_body(body), Served::default()),
    }
}
