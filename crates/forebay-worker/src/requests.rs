//! The requests.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use forebay_engine::Keeping;
use forebay_memory::Spans;
use forebay_one_sided::Location;
use forebay_origin::{Origin, Room};
use forebay_store::Keep;
use forebay_transport::message::{CoverageReply, ListRequest, MAX_PARTS, PartReply, PathsReply};
use forebay_transport::{Caller, FileSlice, Flags, Look, Op, Provenance, Request, Response, ResponsePayload, Service};
use forebay_types::{BlockKey, BlockLayout, Failure, FailureKind, FileVersion, FsPath, Permission};
use tracing::warn;

use crate::stats::Served;
use crate::worker::Worker;

/// Files that the counters show as the hottest ones.
const HOTTEST: usize = 20;
/// A request that gives less time for counters is not told of the room of origins.
const ROOMS_WITHIN: Duration = Duration::from_secs(2);

impl Worker {
    /// The description of the version that a request is about: attached, or known from an earlier one.
    pub(crate) fn version_of(&self, request: &Request) -> Result<Arc<FileVersion>, Failure> {
        let id = request.block.file;
        if request.body.is_empty() {
            return self.versions.get(id).ok_or_else(|| {
                Failure::new(FailureKind::NeedsDescription, format!("this worker does not know file version {id}"))
            });
        }
        let is_new = self.versions.get(id).is_none();
        let version = self.versions.learn(id, &request.body)?;
        // What a restart found, and what came from another worker, came without a policy.
        if is_new
            && let Keeping::As(keep) = self.scopes.of_file(id, &version).keeping
            && keep != Keep::default()
        {
            self.store().reclass_file(id, keep);
        }
        Ok(version)
    }

    async fn read(&self, request: &Request, takes_files: bool) -> Result<(Response, Served), Failure> {
        let Request { block, offset, length, .. } = *request;
        if length == 0 {
            return Err(Failure::new(FailureKind::InvalidArgument, "a read of no bytes"));
        }
        if request.flags.contains(Flags::SCRUB) && self.shows(&request.caller, &block) {
            self.store().scrub(&block);
        }
        if request.flags.contains(Flags::CACHED) {
            return self.read_cached(request).await.map(counted);
        }
        let described = self.admit(request)?;
        self.heat.note(&block, length);
        if takes_files && let Some(slice) = self.store().disk_slice(&block, offset, length).await {
            let checksums = slice.checksums.as_ref().filter(|_| request.flags.contains(Flags::CHECKSUMS));
            let body = checksums.map_or_else(Bytes::new, |checksums| checksums.as_bytes().clone());
            let file = FileSlice { file: Arc::clone(&slice.file), offset: slice.offset, length, pin: Box::new(slice) };
            let provenance = Provenance { disk: length, ..Provenance::default() };
            return Ok(counted(Response { provenance, body, payload: ResponsePayload::File(file) }));
        }
        let version = match described.map_or_else(|| self.version_of(request), Ok) {
            Ok(version) => version,
            // What is cached is served without a description: after a restart, the first readers of a warm disk.
            Err(unknown) if unknown.kind() == FailureKind::NeedsDescription => {
                let stored = self.store().read(&block, offset, length).await.map_err(Failure::from)?;
                let stored = stored.ok_or(unknown)?;
                let provenance =
                    Provenance { memory: stored.from_memory, disk: stored.from_disk, ..Provenance::default() };
                return Ok(counted(Response::of_spans(stored.spans, provenance)));
            }
            Err(refused) => return Err(refused),
        };
        let _unaided = request.flags.contains(Flags::UNAIDED).then(|| self.unaided.begin(block));
        let layout = BlockLayout::new(version.size, self.block_size);
        let read = self.engine.read(&version, block, layout, offset, length).await;
        let read = self.noticing_change(&version, request, read).await?;
        self.label(&block, &version);
        let origin = read.from_source - read.from_cache;
        let provenance = Provenance { memory: read.from_memory, disk: read.from_disk, origin };
        let served = Served { provenance, peers: read.from_cache };
        let told = served.told();
        // What was fetched just now is in memory, with its checksums.
        let response = self.checksummed(request, told).unwrap_or_else(|| Response::of_spans(read.spans, told));
        Ok((response, served))
    }

    /// What is held, for another worker, or for a client that has divided a read among its cards: nothing is fetched and nothing
    /// waited for, so workers that ask one another cannot wait in a circle. What may not be shown is as good as not held.
    async fn read_cached(&self, request: &Request) -> Result<Response, Failure> {
        let Request { block, offset, length, .. } = *request;
        let stored = match self.admit(request) {
            Ok(_) => self.store().read_at_once(&block, offset, length).await,
            Err(_) => None,
        };
        let Some(stored) = stored else {
            let message = format!("{length} bytes at {offset} of block {block} are not cached");
            return Err(Failure::new(FailureKind::NotCached, message));
        };
        if !request.caller.is_worker() {
            self.heat.note(&block, length);
        }
        let provenance = Provenance { memory: stored.from_memory, disk: stored.from_disk, ..Provenance::default() };
        let checksums =
            request.flags.contains(Flags::CHECKSUMS).then(|| self.store().checksums(&block, offset, length)).flatten();
        let body = checksums.map_or_else(Bytes::new, |checksums| checksums.as_bytes().clone());
        Ok(Response { provenance, body, payload: ResponsePayload::Spans(stored.spans) })
    }

    /// Bytes that memory has all of, with their checksums where these are wanted and at hand.
    #[inline]
    fn read_in_memory(&self, request: &Request) -> Option<Response> {
        let provenance = Provenance { memory: request.length, ..Provenance::default() };
        if request.flags.contains(Flags::CHECKSUMS)
            && let Some(response) = self.checksummed(request, provenance)
        {
            return Some(response);
        }
        // Another worker believes no bytes without their checksums: those of several runs are gathered in `read_cached`.
        if request.flags.contains(Flags::CACHED) {
            return None;
        }
        let spans = self.shown_to(&request.caller).try_read(&request.block, request.offset, request.length)?;
        Some(Response::of_spans(spans, provenance))
    }

    /// A read that memory had all of.
    #[inline]
    fn note_hit(&self, block: &BlockKey, length: u32) {
        self.heat.note(block, length);
        self.counters.hit(length);
    }

    /// Bytes in memory that the caller will check, with their checksums.
    fn checksummed(&self, request: &Request, provenance: Provenance) -> Option<Response> {
        let shown = self.shown_to(&request.caller);
        let (span, checksums) = shown.try_read_checksummed(&request.block, request.offset, request.length)?;
        let payload = ResponsePayload::Spans(Spans::from_iter([span]));
        Some(Response { provenance, body: checksums.as_bytes().clone(), payload })
    }

    async fn fill(&self, request: &Request) -> Result<(Response, Served), Failure> {
        let version = self.admitted_version(request)?;
        let layout = BlockLayout::new(version.size, self.block_size);
        let fill = self.engine.fill(&version, request.block, layout, request.offset, request.length).await;
        let fill = self.noticing_change(&version, request, fill).await?;
        self.label(&request.block, &version);
        let origin = fill.from_source - fill.from_cache;
        let served = Served { provenance: Provenance { origin, ..Provenance::default() }, peers: fill.from_cache };
        let provenance = served.told();
        Ok((Response { provenance, body: Bytes::new(), payload: ResponsePayload::None }, served))
    }

    /// Where a part of a file lies, by its number: the origin knows.
    async fn part(&self, request: &Request) -> Result<Response, Failure> {
        let (version, number) = (self.admitted_version(request)?, request.offset);
        if number == 0 || number as usize > MAX_PARTS {
            let message = format!("there is no part {number}: parts are counted from 1 to {MAX_PARTS}");
            return Err(Failure::new(FailureKind::InvalidArgument, message));
        }
        let scope = self.scopes.current();
        let origin = scope.namespace.origin(&version.origin);
        let origin = origin.ok_or_else(|| scope.namespace.no_mount_on(&version.origin))?;
        let part = origin.part(&version, number).await;
        let part = self.noticing_change(&version, request, part).await?;
        Ok(Response::of_body(PartReply(part).encode()))
    }

    /// When an object turns out to have changed, nothing that is remembered about it is to be believed any more.
    async fn noticing_change<T>(
        &self,
        version: &FileVersion,
        request: &Request,
        result: Result<T, Failure>,
    ) -> Result<T, Failure> {
        if let Err(failure) = &result
            && failure.kind() == FailureKind::VersionChanged
        {
            self.versions.forget(request.block.file);
            let scope = self.scopes.current();
            scope.namespace.paths_of(&version.origin, &version.path).for_each(|path| self.metadata.forget(&path));
        }
        result
    }

    /// What is held of a block; nothing, for those who could not read it without describing its file.
    async fn coverage(&self, request: &Request) -> Result<Response, Failure> {
        if !request.caller.is_of_cluster()
            && let Err(refused) = self.admit(request)
        {
            return match refused.kind() {
                FailureKind::PermissionDenied => Err(refused),
                _ => Ok(Response::of_body(CoverageReply::default().encode())),
            };
        }
        let coverage = match request.flags.contains(Flags::SCRUB) {
            true => self.store().audit(&request.block).await?,
            false => self.store().coverage(&request.block),
        };
        Ok(Response::of_body(CoverageReply { memory: coverage.memory, disk: coverage.disk }.encode()))
    }

    fn offered_paths(&self) -> PathsReply {
        self.paths.get().map(|offered| offered.paths.clone()).unwrap_or_default()
    }

    /// The counters. Who may see counters alone is not told which files are read.
    async fn stats(&self, within: Duration, caller: &Caller) -> Response {
        let sees_names = caller.is_of_cluster() || !matches!(caller, Caller::Proved(_));
        let scope = self.scopes.current();
        let known: Vec<_> = scope.namespace.origins().collect();
        let rooms = rooms_of(&known, within).await;
        let origins = known.iter().zip(rooms).map(|((at, origin), room)| {
            serde_json::json!({
                "path": at.to_string(), "url": &**origin.url(), "opened": origin.is_open(), "counts": origin.counts(),
                "room": room,
            })
        });
        let origins: Vec<_> = origins.collect();
        let account = |(path, account, quota): (&FsPath, _, forebay_types::ByteSize)| {
            let used = self.store().account(account);
            serde_json::json!({ "path": path.to_string(), "quota": quota.as_u64(), "memory": used.memory, "disk": used.disk })
        };
        let hottest = self.hot_files(if sees_names { HOTTEST } else { 0 }).into_iter().map(|hot| {
            let path = hot.path.map_or_else(|| hot.file.to_string(), |path| path.to_string());
            let (reads, bytes) = (hot.reads_per_minute.round(), hot.bytes_per_minute.round());
            serde_json::json!({ "path": path, "reads_per_minute": reads, "bytes_per_minute": bytes })
        });
        let stats = serde_json::json!({
            "worker": self.counts(),
            "store": self.store().stats(),
            "origins": origins,
            "accounts": scope.quotas().map(account).collect::<Vec<_>>(),
            "hottest": hottest.collect::<Vec<_>>(),
            "rdma": self.paths.get().map(|offered| (offered.report)()),
        });
        Response::of_body(stats.to_string().into())
    }

    /// What every client is told: the room of the origins at which it may read.
    async fn room_below(&self, request: &Request) -> Response {
        let scope = self.scopes.current();
        let origins = scope.namespace.origins();
        let known: Vec<_> =
            origins.filter(|(at, _)| scope.admits(&request.caller, at, Permission::Read).is_ok()).collect();
        let rooms = rooms_of(&known, request.deadline).await;
        let told = known.iter().zip(rooms);
        let told = told.map(|((at, _), room)| serde_json::json!({ "path": at.to_string(), "room": room }));
        Response::of_body(serde_json::json!({ "origins": told.collect::<Vec<_>>() }).to_string().into())
    }

    async fn answer(&self, request: &Request, takes_files: bool) -> Result<(Response, Served), Failure> {
        let response = match request.op {
            Op::Read => return self.read(request, takes_files).await,
            Op::Fill => return self.fill(request).await,
            Op::Ping => Response::of_body(Bytes::copy_from_slice(&self.instance.to_le_bytes())),
            Op::Stat => {
                let revalidate = request.flags.contains(Flags::REVALIDATE);
                let path = path_of(&request.body)?;
                self.admit_at(request, &path)?;
                let reply = self.metadata.stat(&path, revalidate).await?;
                Response::of_body(reply.encode())
            }
            Op::List => {
                let ListRequest { path, token, max } = ListRequest::decode(&request.body)?;
                let (path, revalidate) = (path_of(&path)?, request.flags.contains(Flags::REVALIDATE));
                self.admit_at(request, &path)?;
                Response::of_body(self.metadata.list_encoded(&path, token, max, revalidate).await?)
            }
            Op::Coverage => self.coverage(request).await?,
            Op::Stats if request.flags.contains(Flags::BELOW) => self.room_below(request).await,
            Op::Stats => self.stats(request.deadline, &request.caller).await,
            Op::Paths => Response::of_body(self.offered_paths().encode()),
            Op::Free => self.free(request).await?,
            Op::Adopt => self.adopt(request).await?,
            Op::Change => self.change(request).await?,
            Op::Upload => self.upload(request).await?,
            Op::Refresh => self.refresh(request).await?,
            Op::StatRead => return self.stat_read(request).await,
            Op::Part => self.part(request).await?,
            // The server answers it that knows who asks: nobody is asked to prove anything where it gets here.
            Op::Admit => return Err(Failure::new(FailureKind::Unsupported, "this worker asks nobody for a pass")),
        };
        Ok((response, Served::default()))
    }
}

/// The room of each of these origins, where it is known. File systems are asked for it; a request that has too little time does not
/// wait for that.
async fn rooms_of(known: &[(&FsPath, &Arc<dyn Origin>)], within: Duration) -> Vec<Option<Room>> {
    match within < ROOMS_WITHIN {
        true => vec![None; known.len()],
        false => futures::future::join_all(known.iter().map(|(_, origin)| origin.room())).await,
    }
}

/// An answer whose bytes all came from where it says.
fn counted(response: Response) -> (Response, Served) {
    let provenance = response.provenance;
    (response, Served { provenance, peers: 0 })
}

#[async_trait::async_trait]
impl Service for Worker {
    fn shows_all(&self, caller: &Caller) -> bool {
        self.scopes.current().shows_all(caller)
    }

    fn shown_number(&self) -> u64 {
        self.scopes.current().shown_number()
    }

    fn locate(&self, request: &Request) -> Option<Location> {
        // Before it is known what is mounted, no access list is known, either, and so not who may see all.
        let scope = self.scopes.current();
        if scope.namespace.lacks() && scope.namespace.is_guarded() {
            return None;
        }
        self.shown_to(&request.caller).locate(&request.block, request.offset, request.length)
    }

    fn try_handle(&self, request: &Request) -> Option<Response> {
        if matches!(request.op, Op::Stat | Op::StatRead) {
            return self.try_name(request);
        }
        if request.op != Op::Read || request.length == 0 {
            return None;
        }
        // To check a whole block may have to wait for its turn.
        if request.flags.contains(Flags::SCRUB) {
            return None;
        }
        let response = self.read_in_memory(request)?;
        self.note_hit(&request.block, request.length);
        Some(response)
    }

    fn try_read(&self, block: &BlockKey, offset: u32, length: u32) -> Option<Spans> {
        let spans = self.shown_to(&Caller::Local).try_read(block, offset, length)?;
        self.note_hit(block, length);
        Some(spans)
    }

    fn try_look(&self, block: &BlockKey, offset: u32, length: u32, look: Look<'_>) -> bool {
        let looked = self.shown_to(&Caller::Local).try_look(block, offset, length, look).is_some();
        if looked {
            self.note_hit(block, length);
        }
        looked
    }

    fn holds(&self, block: &BlockKey, offset: u32, length: u32) -> bool {
        self.shown_to(&Caller::Local).is_in_memory(block, offset, length)
    }

    fn expect_reads(&self, version: &Arc<FileVersion>, block: &BlockKey, ranges: &[(u32, u32)], gap: u32) {
        let layout = BlockLayout::new(version.size, self.block_size);
        self.engine.begin(version, *block, layout, ranges, gap);
    }

    async fn handle(&self, request: Request, takes_files: bool) -> Result<Response, Failure> {
        if let Err(refused) = self.rates.pace(&request).await {
            // Counted, and not in the log, which whoever asks too often would fill.
            self.counters.asked(request.op);
            self.counters.failed();
            return Err(refused);
        }
        let answer = self.answer(&request, takes_files).await;
        match &answer {
            Ok((_, served)) => {
                self.counters.asked(request.op);
                self.counters.served(*served);
            }
            // Ordinary parts of the protocol: the one is followed by the same request with the description, the other is an
            // answer.
            Err(failure) if matches!(failure.kind(), FailureKind::NeedsDescription | FailureKind::NotCached) => {}
            Err(failure) => {
                self.counters.asked(request.op);
                self.counters.failed();
                if failure.kind().is_transient() {
                    warn!(op = request.op.name(), block = %request.block, %failure, "request failed");
                }
            }
        }
        answer.map(|(response, _)| response)
    }
}

pub(crate) fn path_of(bytes: &[u8]) -> Result<FsPath, Failure> {
    FsPath::new(bytes).map_err(|error| {
        let kind = match error {
            forebay_types::PathError::NameTooLong(_) => FailureKind::NameTooLong,
            _ => FailureKind::InvalidArgument,
        };
        Failure::new(kind, error.to_string())
    })
}
