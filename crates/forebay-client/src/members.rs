//! Verbs of a client that concern certain workers and not just any that answers: bringing blocks into caches, looking at what
//! is there, and dropping it. Jobs are made of them.

use std::sync::Arc;

use forebay_cluster::PlacementKey;
use forebay_transport::message::{CoverageReply, FreeReply, FreeRequest, MAX_FREED};
use forebay_transport::{Flags, Op, Request};
use forebay_types::{BlockKey, BlockLayout, Failure, FileId, FileVersion, FsPath};

use crate::client::{BlockLocation, Client};
use crate::routes::Link;

/// What a worker did to have a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Loaded {
    /// Bytes of the block.
    pub bytes: u64,
    /// Workers that have it now.
    pub workers: u32,
    /// Bytes that had to be fetched, from the origin or from each other, on all of them together.
    pub fetched: u64,
}

/// The room of the origin that is mounted somewhere in the namespace, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OriginRoom {
    /// Where it is mounted.
    pub path: FsPath,
    /// What is free.
    pub free: u64,
    /// What there is.
    pub total: u64,
}

impl Client {
    /// Brings a whole block into the caches of the `replicas` workers that own it. One after the other, so that the first
    /// asks the origin and the others ask it.
    ///
    /// # Errors
    /// That of the first worker that could not.
    pub async fn load_block(&self, version: &FileVersion, key: BlockKey, replicas: u8) -> Result<Loaded, Failure> {
        let length = self.layout(version.size).block_len(key.index);
        let router = &self.shared.router;
        let request = Request::on_block(Op::Fill, key, 0, length, router.timeout());
        let routes = Arc::clone(&router.routes());
        let owners: Vec<Arc<Link>> = routes.owners(PlacementKey::from(&key), replicas).map(Arc::clone).collect();
        if owners.is_empty() {
            // Says what is wrong with a cluster without workers.
            router.fill(version, key, 0, length).await?;
        }
        let mut loaded = Loaded { bytes: u64::from(length), ..Loaded::default() };
        for owner in owners {
            let answer = router.call_described(&owner, version, &request, None).await?;
            let reply = router.note(&owner, answer).map_err(|failure| failure.context(&owner.member))?;
            loaded.workers += 1;
            loaded.fetched += u64::from(reply.provenance.origin) + u64::from(reply.provenance.memory);
        }
        Ok(loaded)
    }

    /// How much of a block is held by that one of its `replicas` owners that holds least of it, in bytes. With `check`, they
    /// check every byte that they hold against its checksum first, and drop what is wrong.
    ///
    /// # Errors
    /// When an owner does not say.
    pub async fn held(&self, layout: BlockLayout, key: BlockKey, replicas: u8, check: bool) -> Result<u32, Failure> {
        let flags = if check { Flags::SCRUB } else { Flags::default() };
        let routes = Arc::clone(&self.shared.router.routes());
        let owners = routes.owners(PlacementKey::from(&key), replicas).map(|link| self.coverage(link, key, flags));
        let mut least = None;
        for coverage in futures::future::join_all(owners).await {
            let held = bytes_of(&coverage?, layout.block_len(key.index));
            least = Some(least.map_or(held, |least: u32| least.min(held)));
        }
        Ok(least.unwrap_or(0))
    }

    async fn coverage(&self, link: &Arc<Link>, key: BlockKey, flags: Flags) -> Result<CoverageReply, Failure> {
        let router = &self.shared.router;
        let request = Request::on_block(Op::Coverage, key, 0, 0, router.timeout()).with_flags(flags);
        let answer = link.transport.call(request, None).await;
        let reply = router.note(link, answer).map_err(|failure| failure.context(&link.member))?;
        CoverageReply::decode(&reply.body)
    }

    /// Drops all blocks of files, each given with how many blocks it has, from the caches of all workers.
    ///
    /// # Errors
    /// When a worker does not answer: it may hold some of them still.
    pub async fn free(&self, files: &[(FileId, u64)]) -> Result<FreeReply, Failure> {
        let mut freed = FreeReply::default();
        for batch in files.chunks(MAX_FREED) {
            let FreeReply { blocks, bytes } =
                self.free_at_all(&FreeRequest { files: batch.to_vec(), below: None }).await?;
            freed = FreeReply { blocks: freed.blocks + blocks, bytes: freed.bytes + bytes };
        }
        Ok(freed)
    }

    /// Drops what is cached of all files that show at `path` or below it, those that are gone included, as far as the workers know
    /// where they showed.
    ///
    /// # Errors
    /// As [`Client::free`].
    pub async fn free_below(&self, path: &FsPath) -> Result<FreeReply, Failure> {
        self.free_at_all(&FreeRequest { files: Vec::new(), below: Some(path.as_bytes().to_vec()) }).await
    }

    async fn free_at_all(&self, request: &FreeRequest) -> Result<FreeReply, Failure> {
        let router = &self.shared.router;
        let routes = Arc::clone(&router.routes());
        let body = request.encode();
        let asks = routes.all().map(|link| {
            let request = Request::on_path(Op::Free, body.clone(), router.timeout());
            async move {
                let answer = router.note(link, link.transport.call(request, None).await);
                FreeReply::decode(&answer.map_err(|failure| failure.context(&link.member))?.body)
            }
        });
        let mut freed = FreeReply::default();
        for reply in futures::future::join_all(asks).await {
            let FreeReply { blocks, bytes } = reply?;
            freed = FreeReply { blocks: freed.blocks + blocks, bytes: freed.bytes + bytes };
        }
        Ok(freed)
    }

    /// The workers in the order in which they own a block, each with what it holds of it, then those that are leaving.
    pub async fn locate(&self, key: BlockKey, replicas: u8) -> Vec<BlockLocation> {
        let routes = Arc::clone(&self.shared.router.routes());
        let ranked = routes.topology.ring.ranked(&key);
        let ranked = ranked.into_iter().map(|at| &routes.links[at]).chain(&routes.leaving).enumerate();
        let asks = ranked.map(|(rank, link)| async move {
            let coverage = self.coverage(link, key, Flags::default()).await;
            BlockLocation { worker: Arc::clone(&link.member), owner: rank < usize::from(replicas.max(1)), coverage }
        });
        futures::future::join_all(asks).await
    }

    /// The room of those origins whose room is known and at which this client may read, by the account of one worker.
    ///
    /// # Errors
    /// When no worker answers.
    pub async fn origin_rooms(&self) -> Result<Vec<OriginRoom>, Failure> {
        let key = PlacementKey::from(&FsPath::root());
        // The counters are not for every client.
        let told = self.shared.router.ask(key, Op::Stats, bytes::Bytes::new(), Flags::BELOW).await?;
        Ok(rooms_in(&told))
    }

    /// Asks for a sign of life: of one worker after the other, until one gives it.
    ///
    /// # Errors
    /// When none does.
    pub async fn ping(&self) -> Result<(), Failure> {
        let key = PlacementKey::from(&FsPath::root());
        self.shared.router.ask(key, Op::Ping, bytes::Bytes::new(), Flags::default()).await.map(drop)
    }

    /// Every worker's counters, as JSON text, or why it did not say.
    pub async fn worker_stats(&self) -> Vec<(Arc<str>, Result<String, Failure>)> {
        let router = &self.shared.router;
        let routes = Arc::clone(&router.routes());
        let asks = routes.all().map(|link| async {
            let request = Request::on_path(Op::Stats, bytes::Bytes::new(), router.timeout());
            let answer = router.note(link, link.transport.call(request, None).await);
            (Arc::clone(&link.member), answer.map(|reply| String::from_utf8_lossy(&reply.body).into_owned()))
        });
        futures::future::join_all(asks).await
    }
}

/// The room of origins in the counters of a worker.
fn rooms_in(told: &[u8]) -> Vec<OriginRoom> {
    let counters: serde_json::Value = serde_json::from_slice(told).unwrap_or_default();
    let room = |origin: &serde_json::Value| {
        let path = FsPath::new(origin["path"].as_str()?).ok()?;
        let bytes = |name| origin.pointer(name)?.as_u64();
        Some(OriginRoom { path, free: bytes("/room/free")?, total: bytes("/room/total")? })
    };
    counters["origins"].as_array().into_iter().flatten().filter_map(room).collect()
}

/// How many bytes of a block of `length` bytes are covered, in memory or on disk.
fn bytes_of(coverage: &CoverageReply, length: u32) -> u32 {
    let mut ranges: Vec<_> = coverage.memory.iter().chain(&coverage.disk).copied().collect();
    ranges.sort_unstable();
    let (mut bytes, mut upto) = (0u32, 0);
    for range in ranges {
        let start = range.byte_offset().max(upto);
        let end = (range.byte_offset().saturating_add(range.byte_len(length))).min(length);
        bytes += end.saturating_sub(start);
        upto = upto.max(end);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_types::SectorRange;

    #[test]
    fn the_room_of_origins_is_read_where_it_is_known() {
        let told = r#"{ "origins": [
            { "path": "/", "url": "s3://b", "room": null },
            { "path": "/d", "url": "file:///d", "room": { "free": 3, "total": 7, "in_memory": false } } ] }"#;
        let path = FsPath::new("/d").unwrap();
        assert_eq!(rooms_in(told.as_bytes()), [OriginRoom { path, free: 3, total: 7 }]);
        assert_eq!(rooms_in(b"no counters"), []);
    }

    #[test]
    fn what_is_in_memory_and_on_disk_counts_once() {
        let sector = forebay_types::SECTOR_SIZE;
        let range = |start, end| SectorRange { start, end };
        let coverage = CoverageReply { memory: vec![range(0, 2), range(3, 4)], disk: vec![range(1, 3)] };
        assert_eq!(bytes_of(&coverage, sector * 4), sector * 4);
        assert_eq!(bytes_of(&coverage, sector * 3 + 100), sector * 3 + 100, "the last sector is cut off");
        let coverage = CoverageReply { memory: vec![range(0, 1)], disk: vec![range(2, 3)] };
        assert_eq!(bytes_of(&coverage, sector * 4), sector * 2);
        assert_eq!(bytes_of(&CoverageReply::default(), sector), 0);
    }
}
