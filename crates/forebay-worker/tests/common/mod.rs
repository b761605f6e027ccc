//! Workers over fake origins, asked as a transport asks them.

#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::sync::Arc;
use std::time::Duration;

use forebay_engine::FetchPolicy;
use forebay_memory::{Pool, PoolOptions};
use forebay_origin::{FakeOrigin, Origin};
use forebay_store::{DiskOptions, Store, StoreOptions};
use forebay_transport::message::StatReply;
use forebay_transport::{Flags, Op, Request, Response, ResponsePayload, Service};
use forebay_types::{BlockKey, ByteSize, Failure, FileVersion, FsPath, MAX_BLOCK_SIZE};
use forebay_worker::{MetadataOptions, Namespace, Worker, WorkerOptions};

pub(crate) const SECOND: Duration = Duration::from_secs(1);
pub(crate) const BLOCK: u32 = MAX_BLOCK_SIZE;

pub(crate) fn path(text: &str) -> FsPath {
    FsPath::new(text).unwrap()
}

pub(crate) fn pattern(length: usize, seed: u8) -> Vec<u8> {
    (0..length).map(|at| (at ^ (at >> 8) ^ (at >> 16)) as u8 ^ seed).collect()
}

pub(crate) fn namespace(mounts: &[(&str, &Arc<FakeOrigin>)]) -> Namespace {
    Namespace::new(mounts.iter().map(|(at, origin)| (path(at), Arc::clone(origin) as Arc<dyn Origin>))).unwrap()
}

pub(crate) async fn store(memory_mib: u64, disk: Option<&std::path::Path>) -> Store {
    let pool = Pool::new(PoolOptions::fixed(ByteSize::mib(memory_mib))).unwrap();
    let disks = disk.into_iter().map(|dir| DiskOptions { dir: dir.to_owned(), size: ByteSize::mib(128) }).collect();
    Store::open(StoreOptions { disks, ..StoreOptions::in_memory(pool) }).await.unwrap()
}

pub(crate) fn worker_of(store: Store, origin: &Arc<FakeOrigin>) -> Arc<Worker> {
    let options = WorkerOptions {
        block_size: BLOCK,
        fetch: FetchPolicy::origin(64 << 10, 4 << 20),
        deadline: 20 * SECOND,
        metadata: MetadataOptions { ttl: 60 * SECOND, entries: 10_000 },
        takes_changes: true,
    };
    Arc::new(Worker::new(store, namespace(&[("/s3", origin)]), options))
}

pub(crate) async fn worker(origin: &Arc<FakeOrigin>) -> Arc<Worker> {
    worker_of(store(64, None).await, origin)
}

pub(crate) fn origin() -> Arc<FakeOrigin> {
    Arc::new(FakeOrigin::new("fake://bucket"))
}

pub(crate) fn block(version: &FileVersion, index: u64) -> BlockKey {
    BlockKey { file: version.id(), index }
}

/// As a transport asks: at once, else with a wait.
pub(crate) async fn ask(worker: &Worker, request: Request) -> Result<Response, Failure> {
    match worker.try_handle(&request) {
        Some(response) => Ok(response),
        None => worker.handle(request, false).await,
    }
}

pub(crate) async fn read(
    worker: &Worker,
    version: &FileVersion,
    index: u64,
    offset: u32,
    length: u32,
) -> Result<Vec<u8>, Failure> {
    read_within(10 * SECOND, worker, version, index, offset, length).await
}

/// The same by a reader that waits as long as that.
pub(crate) async fn read_within(
    deadline: Duration,
    worker: &Worker,
    version: &FileVersion,
    index: u64,
    offset: u32,
    length: u32,
) -> Result<Vec<u8>, Failure> {
    let request = Request::on_block(Op::Read, block(version, index), offset, length, deadline);
    Ok(bytes_of(&ask(worker, request.with_body(version.encode().into())).await?))
}

pub(crate) fn cached(key: BlockKey, offset: u32, length: u32) -> Request {
    Request::on_block(Op::Read, key, offset, length, SECOND).with_flags(Flags::CACHED.and(Flags::CHECKSUMS))
}

pub(crate) fn bytes_of(response: &Response) -> Vec<u8> {
    match &response.payload {
        ResponsePayload::Spans(spans) => spans.iter().flat_map(|span| span.iter().copied()).collect(),
        other => panic!("no bytes in memory: {other:?}"),
    }
}

pub(crate) async fn stat(worker: &Worker, name: &str) -> Result<StatReply, Failure> {
    let request = Request::on_path(Op::Stat, path(name).as_bytes().to_vec().into(), SECOND);
    Ok(StatReply::decode(&ask(worker, request).await?.body).unwrap())
}

pub(crate) async fn stats(worker: &Worker) -> serde_json::Value {
    let request = Request::on_path(Op::Stats, bytes::Bytes::new(), SECOND);
    serde_json::from_slice(&ask(worker, request).await.unwrap().body).unwrap()
}
