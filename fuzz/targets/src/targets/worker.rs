//! What a worker makes of requests, whoever sent them.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use forebay_engine::FetchPolicy;
use forebay_memory::Pool;
use forebay_origin::{FakeOrigin, Origin};
use forebay_store::{Store, StoreOptions};
use forebay_transport::message::{
    AdoptRequest, Change, ChangeReply, CoverageReply, FreeReply, FreeRequest, ListReply, ListRequest, PartReply,
    PartsReply, PathsReply, StatReadReply, StatReply, UploadRequest, UploadsReply,
};
use forebay_transport::wire::{MAX_PAYLOAD, MAX_REPLY_BODY};
use forebay_transport::{Flags, Op, Request, Response, ResponsePayload, Service};
use forebay_types::{BlockKey, ByteSize, FailureKind, FileId, FileVersion, FsPath, MAX_BLOCK_SIZE};
use forebay_worker::{MetadataOptions, Namespace, Worker, WorkerOptions};

use crate::input::{Input, Output};
use crate::support::{block_on, pool};
use crate::targets::Seed;

thread_local! {
    static POOL: Pool = pool(ByteSize::mib(32));
}

/// The one file that there is at first, and what it holds.
pub(super) const FILE: &str = "d/file";
pub(super) static CONTENT: [u8; 70_000] = {
    let mut content = [0; 70_000];
    let mut at = 0;
    while at < content.len() {
        content[at] = (at % 251) as u8;
        at += 1;
    }
    content
};

pub(super) mod worker_requests {
    use super::*;

    /// Most requests of an input.
    const MAX: usize = 12;
    /// Longer than an answer can take, where nothing is slow.
    const DEADLINE: Duration = Duration::from_secs(20);

    pub(crate) fn run(bytes: &[u8]) {
        let mut input = Input::new(bytes);
        block_on(async {
            let origin = Arc::new(FakeOrigin::new("s3://b"));
            let version = origin.put(FILE, CONTENT.to_vec());
            let worker = worker(&origin).await;
            for _ in 0..MAX {
                if input.is_empty() {
                    break;
                }
                let request = request(&mut input, &version);
                ask(&worker, request, &version).await;
            }
        });
    }

    /// A request as an input has it. Of blocks, half are those of the file.
    fn request(input: &mut Input<'_>, version: &FileVersion) -> Request {
        let (op, flags, what) = (input.u8(), input.u8(), input.u8());
        let op = Op::from_wire(op % 17).unwrap_or(Op::Ping);
        let file = if what & 1 == 0 { version.id() } else { FileId(input.array()) };
        let index = if what & 2 == 0 { 0 } else { input.u64() };
        let (offset, length) = (input.u32(), input.u32());
        let body = input.piece();
        // As a transport lets it through.
        let length = length % (MAX_PAYLOAD + 1);
        let body: Bytes = match (what & 4, op) {
            (0, Op::Read | Op::Fill | Op::Adopt | Op::Part) => version.encode().into(),
            (0, Op::Upload) => {
                let upload = UploadRequest {
                    path: b"/up".to_vec(),
                    part: None,
                    only_new: false,
                    bytes: Bytes::copy_from_slice(body),
                };
                let request = upload.request(DEADLINE);
                [&request.body[..], &request.tail].concat().into()
            }
            _ => Bytes::copy_from_slice(body),
        };
        let block = BlockKey { file, index };
        Request { flags: Flags(flags), block, offset, length, ..Request::on_path(op, body, DEADLINE) }
    }

    async fn ask(worker: &Worker, request: Request, version: &FileVersion) {
        let now = worker.try_handle(&request);
        let answer = match now {
            Some(response) => Ok(response),
            None => worker.handle(request.clone(), false).await,
        };
        let response = match answer {
            Ok(response) => response,
            Err(failure) => {
                assert!(failure.kind() != FailureKind::Internal, "{request:?}: {failure}");
                return;
            }
        };
        answers(&request, &response, version);
    }

    /// What is answered is what was asked for, and no byte of a file is another than what the file holds.
    fn answers(request: &Request, response: &Response, version: &FileVersion) {
        assert!(response.body.len() <= MAX_REPLY_BODY as usize);
        let bytes = match &response.payload {
            ResponsePayload::Spans(spans) => spans.iter().flat_map(|span| span.to_vec()).collect::<Vec<u8>>(),
            _ => Vec::new(),
        };
        assert!(bytes.is_empty() || request.op.brings_payload(), "nobody asked for bytes");
        if request.op == Op::Read && request.block == (BlockKey { file: version.id(), index: 0 }) {
            let range = request.offset as usize..(request.offset + request.length) as usize;
            assert_eq!(Some(&bytes[..]), CONTENT.get(range), "what is read is what is there");
        }
        let body = &response.body;
        let is_right = match request.op {
            Op::Stat => StatReply::decode(body).is_ok(),
            Op::StatRead => StatReadReply::decode(body).is_ok() && bytes.len() <= request.length as usize,
            Op::List => ListReply::decode(body).is_ok(),
            Op::Coverage => CoverageReply::decode(body).is_ok(),
            Op::Paths => PathsReply::decode(body).is_ok(),
            Op::Free => FreeReply::decode(body).is_ok(),
            Op::Change => match Change::decode(&request.body) {
                Ok(Change::Parts { .. }) => PartsReply::decode(body).is_ok(),
                Ok(Change::Uploads { .. }) => UploadsReply::decode(body).is_ok(),
                _ => ChangeReply::decode(body).is_ok(),
            },
            Op::Upload => ChangeReply::decode(body).is_ok(),
            Op::Part => PartReply::decode(body).is_ok(),
            Op::Stats => serde_json::from_slice::<serde_json::Value>(body).is_ok(),
            Op::Ping | Op::Read | Op::Fill | Op::Adopt | Op::Refresh | Op::Admit => true,
        };
        assert!(is_right, "{request:?}: {response:?}");
    }

    pub(crate) fn seeds() -> Vec<Seed> {
        let ask = |output: Output, op: Op, flags: Flags, what: u8, offset: u32, length: u32, body: &[u8]| {
            output.u8(op as u8).u8(flags.0).u8(what).u32(offset).u32(length).piece(body)
        };
        let none = Flags::default();
        let new = Output::default;
        let reads = ask(new(), Op::Read, Flags::CHECKSUMS, 0, 0, 65_536, b"");
        let reads = ask(reads, Op::Read, Flags::CACHED, 4, 4096, 100, b"");
        let reads = ask(ask(reads, Op::Coverage, none, 4, 0, 0, b""), Op::Fill, none, 0, 0, 70_000, b"");
        let list = ListRequest { path: b"/d".to_vec(), token: None, max: 10 }.encode();
        let names = ask(new(), Op::Stat, none, 4, 0, 0, b"/d/file");
        let names = ask(names, Op::StatRead, none, 4, 0, 100_000, b"/d/file");
        let names = ask(ask(names, Op::List, none, 4, 0, 0, &list), Op::Refresh, Flags::BELOW, 4, 0, 0, b"/d");
        let change = |change: Change| change.encode();
        let made = ask(new(), Op::Change, none, 4, 0, 0, &change(Change::MakeDirectory { path: b"/e".to_vec() }));
        let copy = Change::Copy { from: b"/d/file".to_vec(), to: b"/e/file".to_vec() };
        let changes = ask(ask(made, Op::Change, none, 4, 0, 0, &change(copy)), Op::Upload, none, 0, 0, 0, b"new bytes");
        let changes = ask(changes, Op::Change, none, 4, 0, 0, &change(Change::Remove { path: b"/d/file".to_vec() }));
        let begun = ask(new(), Op::Change, none, 4, 0, 0, &change(Change::Begin { path: b"/p".to_vec() }));
        let parts = Change::Parts { path: b"/p".to_vec(), upload: "upload-2".into(), after: 0, max: 10 };
        let uploads = Change::Uploads { path: b"/".to_vec(), prefix: b"p".to_vec(), after: None, max: 10 };
        let told = ask(begun, Op::Change, none, 4, 0, 0, &change(parts));
        let begun = ask(told, Op::Change, none, 4, 0, 0, &change(uploads));
        let reads = ask(reads, Op::Part, none, 0, 1, 0, b"");
        let free = FreeRequest { files: Vec::new(), below: Some(b"/".to_vec()) }.encode();
        let adopt = AdoptRequest { from: "w2".into(), block_length: 70_000 }.encode();
        let rest = ask(ask(new(), Op::Stats, none, 4, 0, 0, b""), Op::Paths, none, 4, 0, 0, b"");
        let rest = ask(ask(rest, Op::Free, none, 4, 0, 0, &free), Op::Adopt, none, 4, 0, 65_536, &adopt);
        vec![
            ("reads", reads.done()),
            ("names", names.done()),
            ("changes", changes.done()),
            ("begun", begun.done()),
            ("rest", rest.done()),
        ]
    }
}

pub(super) async fn worker(origin: &Arc<FakeOrigin>) -> Worker {
    let store = Store::open(StoreOptions::in_memory(POOL.with(Pool::clone))).await.expect("a store of memory opens");
    let second = Duration::from_secs(1);
    let options = WorkerOptions {
        block_size: MAX_BLOCK_SIZE,
        fetch: FetchPolicy::origin(64 << 10, 4 << 20),
        deadline: 20 * second,
        metadata: MetadataOptions { ttl: 60 * second, entries: 1000 },
        takes_changes: true,
    };
    let mount = (FsPath::root(), Arc::clone(origin) as Arc<dyn Origin>);
    Worker::new(store, Namespace::new([mount]).expect("one mount is none too many"), options)
}
