//! The requests by which blocks leave the cache, and enter it from other workers.

use std::time::Duration;

use bytes::Bytes;
use forebay_engine::{Fetched, Keeping};
use forebay_transport::message::{AdoptRequest, FreeReply, FreeRequest};
use forebay_transport::{Provenance, Request, Response, ResponsePayload};
use forebay_types::{BlockKey, Failure, FailureKind, FileId, FileVersion, FsPath, SectorRange};

use crate::requests::path_of;
use crate::worker::Worker;

/// Files that are freed between two yields to other tasks: each takes some microseconds.
const BATCH: usize = 32;

impl Worker {
    /// Drops files from the cache. What is being fetched of them just now still arrives.
    pub(crate) async fn free(&self, request: &Request) -> Result<Response, Failure> {
        let FreeRequest { files, below } = FreeRequest::decode(&request.body)?;
        let mut files: Vec<FileId> = files.into_iter().map(|(file, _)| file).collect();
        if let Some(path) = below {
            files.extend(self.known_below(&path_of(&path)?).await);
        }
        let mut reply = FreeReply::default();
        for batch in files.chunks(BATCH) {
            for file in batch {
                let removed = self.store().remove_file(*file);
                reply.blocks += removed.blocks;
                reply.bytes += removed.bytes.as_u64();
            }
            tokio::task::yield_now().await;
        }
        self.counters.freed(reply.blocks, reply.bytes);
        Ok(Response::of_body(reply.encode()))
    }

    /// The versions that show at `path` or below it, by what this worker was told of them. Those whose files are gone
    /// are in no listing any more. (Where a version shows that a restart has found on disk, and that no request has
    /// described since, this worker does not know.)
    async fn known_below(&self, path: &FsPath) -> Vec<FileId> {
        let scope = self.scopes.current();
        let mut found = Vec::new();
        for batch in self.versions.all().chunks(BATCH) {
            let shows = |version: &FileVersion| {
                let mut at = scope.namespace.paths_of(&version.origin, &version.path);
                at.any(|shown| shown.relative_to(path).is_some())
            };
            found.extend(batch.iter().filter(|(_, version)| shows(version)).map(|(file, _)| *file));
            tokio::task::yield_now().await;
        }
        found
    }

    /// Takes a part of a block from another worker, as far as it is not here. The reply's provenance counts what was taken,
    /// as bytes that a cache had.
    pub(crate) async fn adopt(&self, request: &Request) -> Result<Response, Failure> {
        let AdoptRequest { from, block_length } = AdoptRequest::decode(&request.body)?;
        let key = request.block;
        let wanted = self.sectors_of(request, block_length)?;
        let keeping = match self.versions.get(key.file) {
            Some(version) => self.scopes.of_file(key.file, &version).keeping,
            // Whose it is, is not known before a client describes it.
            None => Keeping::default(),
        };
        let coverage = self.store().coverage(&key);
        let deadline = request.deadline.min(self.deadline);
        let mut provenance = Provenance::default();
        if let Keeping::As(keep) = keeping {
            for sectors in wanted.without(coverage.memory.into_iter().chain(coverage.disk)) {
                let fetched = self.adopted(&from, key, sectors, block_length, deadline).await?;
                self.store().publish_as(key, sectors, block_length, fetched.filled, fetched.checksums, keep);
                let length = sectors.byte_len(block_length);
                provenance.memory += length;
                self.counters.adopted(length);
            }
        }
        Ok(Response { provenance, body: Bytes::new(), payload: ResponsePayload::None })
    }

    async fn adopted(
        &self,
        from: &str,
        key: BlockKey,
        sectors: SectorRange,
        block_length: u32,
        deadline: Duration,
    ) -> Result<Fetched, Failure> {
        let Some(peers) = self.peers.get() else {
            return Err(Failure::new(FailureKind::Unsupported, "this worker is in no cluster, so it knows no peers"));
        };
        peers.cached_by(from, key, sectors, block_length, self.store(), deadline).await
    }

    /// The sectors that a request is about: whole ones, of a block that there may be.
    fn sectors_of(&self, request: &Request, block_length: u32) -> Result<SectorRange, Failure> {
        let Request { offset, length, .. } = *request;
        let sectors = SectorRange::covering(offset, length).filter(|sectors| {
            let is_whole = sectors.byte_offset() == offset && sectors.byte_len(block_length) == length;
            is_whole && block_length <= self.block_size
        });
        sectors.ok_or_else(|| {
            let message =
                format!("{length} bytes at {offset} are not whole sectors of a block of {block_length} bytes");
            Failure::new(FailureKind::InvalidArgument, message)
        })
    }
}
