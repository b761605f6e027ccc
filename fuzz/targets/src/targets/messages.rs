//! Messages that arrive whole: headers, bodies, hellos, packets.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use forebay_identity::{Peer, Scope};
use forebay_transport::message::{
    AdoptRequest, Change, ChangeReply, CoverageReply, FreeReply, FreeRequest, ListReply, ListRequest, PartReply,
    PartsReply, PathAddress, PathsReply, StatReadReply, StatReply, UploadRequest, UploadsReply, VERBS_VERSION,
    VerbsPaths,
};
use forebay_transport::wire::{
    HEADER_LEN, HELLO_LEN, Hello, MAX_PAYLOAD, MAX_REPLY_BODY, ReplyHeader, RequestHeader, set_tag,
};
use forebay_transport::{Op, Provenance, Request};
use forebay_types::{
    Attr, BlockKey, DirEntry, FailureKind, FileId, FilePart, FileVersion, PartPage, PendingUpload, Role, SectorRange,
    UploadMarker, UploadPage, UploadedPart, VersionTag,
};

use crate::input::{Input, Output};
use crate::targets::Seed;

const SECOND: Duration = Duration::from_secs(1);
const BLOCK_SIZE: u32 = 4 << 20;

pub(super) mod hello {
    use super::*;

    /// A member as an input has it: the length of its cluster's name, the name, its block size.
    fn member(input: &mut Input<'_>) -> Hello {
        let length = input.u8();
        let cluster = String::from_utf8_lossy(input.take(length.into())).into_owned();
        Hello { protocol: input.u16(), block_size: input.u32(), ..Hello::ours(&cluster, 0) }
    }

    pub(crate) fn run(bytes: &[u8]) {
        let mut input = Input::new(bytes);
        let flags = input.u8();
        let (ours, theirs) = (member(&mut input), member(&mut input));
        // Acceptance is mutual.
        let taken = ours.check(&theirs.encode());
        assert_eq!(taken.is_ok(), theirs.check(&ours.encode()).is_ok());
        match &taken {
            Ok(theirs) => {
                assert_eq!((theirs.protocol, theirs.block_size), (ours.protocol, ours.block_size));
            }
            // Our own name is what our configuration takes.
            Err(_) if ours.cluster.contains(char::is_control) => {}
            Err(error) => assert!(!error.to_string().contains(char::is_control), "a stranger writes into a log"),
        }
        let (major, minor) = (input.u16(), input.u16());
        let mut said = input.rest().to_vec();
        if flags & 1 != 0
            && let Some(hello) = said.first_chunk_mut::<HELLO_LEN>()
        {
            crate::seal::seal(hello);
        }
        if let Some(hello) = said.first_chunk::<HELLO_LEN>()
            && let Ok(theirs) = ours.check(hello)
        {
            assert_eq!((theirs.protocol, theirs.block_size), (ours.protocol, ours.block_size));
        }
        forebay_rdma::fuzzing::hello(&ours, major, minor, &said);
    }

    pub(crate) fn seeds() -> Vec<Seed> {
        let ours = Hello::ours("prod", BLOCK_SIZE);
        let member = |output: Output, hello: &Hello| {
            let output = output.u8(hello.cluster.len() as u8).bytes(&hello.cluster);
            output.u16(hello.protocol).u32(hello.block_size)
        };
        let both = |theirs: &Hello| member(member(Output::default().u8(1), &ours), theirs).u16(1).u16(20);
        let version = [1, 0, 20, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let long = Hello { cluster: "é".repeat(30), ..ours.clone() };
        vec![
            ("same", both(&ours).bytes(ours.encode()).done()),
            ("with_ucx", both(&ours).bytes(ours.encode()).bytes(version).done()),
            ("another_cluster", both(&Hello::ours("staging", BLOCK_SIZE)).bytes(long.encode()).bytes(version).done()),
            ("another_protocol", both(&Hello { protocol: 99, ..ours.clone() }).bytes(b"GET / HTTP/1.1\r\n").done()),
        ]
    }
}

pub(super) mod headers {
    use super::*;

    pub(crate) fn run(bytes: &[u8]) {
        let mut input = Input::new(bytes);
        let flags = input.u8();
        let mut header = input.array::<HEADER_LEN>();
        if flags & 1 != 0 {
            match flags & 2 {
                0 => drop(crate::seal::request(&mut header)),
                _ => drop(crate::seal::reply(&mut header)),
            }
        }
        if let Ok(request) = RequestHeader::decode(&header) {
            assert!(request.length <= MAX_PAYLOAD && request.body_len <= request.op.max_body());
            assert_eq!(RequestHeader::decode(&request.encode()), Ok(request));
        }
        if let Ok(reply) = ReplyHeader::decode(&header) {
            assert!(reply.payload_len <= MAX_PAYLOAD && reply.body_len <= MAX_REPLY_BODY);
            assert_eq!(ReplyHeader::decode(&reply.encode()), Ok(reply));
        }
    }

    pub(crate) fn seeds() -> Vec<Seed> {
        let request = Request::on_block(Op::Read, BlockKey { file: FileId([1; 16]), index: 2 }, 3, 4, SECOND);
        let provenance = Provenance { memory: 1, disk: 2, origin: 3 };
        let failure = Some(FailureKind::VersionChanged);
        let reply = ReplyHeader { id: 5, failure, body_len: 6, payload_len: 7, provenance };
        vec![
            ("request", Output::default().u8(1).bytes(RequestHeader::of(9, &request).encode()).done()),
            ("reply", Output::default().u8(3).bytes(reply.encode()).done()),
        ]
    }
}

pub(super) mod bodies {
    use super::*;

    /// What it decodes is written, and reads as the same.
    macro_rules! comes_back {
        ($kind:ty, $bytes:expr) => {
            if let Ok(read) = <$kind>::decode($bytes) {
                assert_eq!(<$kind>::decode(&read.encode()), Ok(read));
            }
        };
    }

    pub(crate) fn run(bytes: &[u8]) {
        let mut input = Input::new(bytes);
        let kind = input.u8();
        let body = input.rest();
        match kind % 18 {
            0 => comes_back!(ListRequest, body),
            1 => comes_back!(ListReply, body),
            2 => comes_back!(StatReply, body),
            3 => comes_back!(StatReadReply, body),
            4 => comes_back!(CoverageReply, body),
            5 => comes_back!(PathsReply, body),
            6 => comes_back!(FreeRequest, body),
            7 => comes_back!(FreeReply, body),
            8 => comes_back!(AdoptRequest, body),
            9 => comes_back!(Change, body),
            10 => comes_back!(ChangeReply, body),
            11 => {
                if let Ok(version) = FileVersion::decode(body) {
                    assert_eq!(version.encode(), body);
                    assert_eq!(FileVersion::decode(body).map(|again| again.id()), Ok(version.id()));
                }
            }
            12 => upload(body),
            13 => made_upload(input),
            14 => admission(body),
            15 => comes_back!(PartsReply, body),
            16 => comes_back!(UploadsReply, body),
            _ => comes_back!(PartReply, body),
        }
    }

    /// A body as it arrives: all of it in one piece, or its end by itself.
    fn upload(body: &[u8]) {
        let request = Request::on_path(Op::Upload, Bytes::copy_from_slice(body), SECOND);
        let Ok(read) = UploadRequest::decode(&request) else { return };
        assert_eq!(UploadRequest::decode(&read.request(SECOND)), Ok(read));
    }

    /// Somebody who proved who it is asks to be admitted elsewhere.
    fn admission(body: &[u8]) {
        let scope = Scope::new("forebay", "prod").expect("both are names");
        let identity = scope.identity(Role::Reader, "team-a").expect("it is a name");
        forebay_tcp::fuzzing::admission(&Peer { identity, until: SystemTime::UNIX_EPOCH, authority: None }, body);
    }

    /// One that is made, since its checksum stands in the middle of it, and then damaged in one place.
    fn made_upload(mut input: Input<'_>) {
        let path = input.piece().to_vec();
        let part = (input.u8() & 1 != 0).then(|| (String::from_utf8_lossy(input.piece()).into_owned(), input.u32()));
        let (at, flip) = (usize::from(input.u16()), input.u8());
        let only_new = part.is_none() && at & 1 != 0;
        let upload = UploadRequest { path, part, only_new, bytes: Bytes::copy_from_slice(input.rest()) };
        let request = upload.request(SECOND);
        assert_eq!(UploadRequest::decode(&request).as_ref(), Ok(&upload));
        let mut body = [&request.body[..], &request.tail].concat();
        let first = body.len() - upload.bytes.len();
        if let Some(byte) = body.get_mut(at) {
            *byte ^= flip;
        }
        if UploadRequest::decode(&Request { body: body.into(), tail: Bytes::new(), ..request }).is_ok() {
            assert!(
                at < first || flip == 0 || upload.bytes.get(at - first).is_none(),
                "a changed byte has another sum"
            );
        }
    }

    pub(crate) fn seeds() -> Vec<Seed> {
        let tag = VersionTag::Etag("\"abc\"".into());
        let version = FileVersion { origin: "s3://b".into(), path: b"a/\xff".as_slice().into(), size: 7 << 30, tag };
        let modified = FileVersion { tag: VersionTag::Modified { nanos: -1, inode: 9 }, ..version.clone() };
        let attr = Attr { modified_nanos: 7, replicas: 3, writable: true, ..Attr::file(version.clone()) };
        let stat = StatReply { attr: attr.clone(), valid_for: Duration::from_millis(1500) };
        let entry = |name: &[u8], attr| DirEntry { name: name.into(), attr };
        let entries = vec![entry(b"x\xff", attr.clone()), entry(b"d", Attr::directory())];
        let list = ListReply { entries, next: Some("t".into()), valid_for: Duration::ZERO };
        let request = ListRequest { path: b"/a".to_vec(), token: Some("t".into()), max: 1000 };
        let coverage = CoverageReply {
            memory: vec![SectorRange { start: 1, end: 5 }],
            disk: vec![SectorRange { start: 0, end: 128 }],
        };
        let address = PathAddress { card: "mlx5_0:1".into(), host: "10.0.0.1".into(), port: 59999 };
        let (data, metadata) = (vec![address.clone()], Some(address));
        let verbs = VerbsPaths { version: VERBS_VERSION, data: data.clone(), metadata: metadata.clone() };
        let paths = PathsReply { ucx: Some("1.20.0".into()), data, metadata, verbs: Some(verbs) };
        let free = FreeRequest { files: vec![(FileId([7; 16]), 5)], below: Some(b"/a".to_vec()) };
        let parts = vec!["\"1\"".into(), "\"2\"".into()];
        let complete = Change::Complete { path: b"/a".to_vec(), upload: "u".into(), size: 9, parts };
        let rename = Change::Copy { from: b"/a".to_vec(), to: b"/b".to_vec() };
        let changed = ChangeReply { attr: Some(attr), token: "t".into() };
        let upload = UploadRequest {
            path: b"/a".to_vec(),
            part: Some(("u".into(), 3)),
            only_new: false,
            bytes: Bytes::from_static(b"b"),
        };
        let sent = upload.request(SECOND);
        let part = UploadedPart { number: 3, tag: "5:\"e\"".into(), size: 5, modified_nanos: 7 };
        let parts_told = PartPage { parts: vec![part], has_more: true };
        let pending = PendingUpload { path: b"d/a".to_vec(), upload: "m:1".into(), begun_nanos: -1 };
        let next = Some(UploadMarker { path: b"d/a".to_vec(), upload: ":1".into() });
        let uploads_told = UploadPage { uploads: vec![pending], next };
        let seed = |kind: u8, body: &[u8]| Output::default().u8(kind).bytes(body).done();
        vec![
            ("list_request", seed(0, &request.encode())),
            ("list_reply", seed(1, &list.encode())),
            ("stat_reply", seed(2, &stat.encode())),
            ("stat_read_reply", seed(3, &StatReadReply { stat, checksums: Bytes::from_static(b"body") }.encode())),
            ("coverage_reply", seed(4, &coverage.encode())),
            ("paths_reply", seed(5, &paths.encode())),
            ("free_request", seed(6, &free.encode())),
            ("free_reply", seed(7, &FreeReply { blocks: 1, bytes: 300 }.encode())),
            ("adopt_request", seed(8, &AdoptRequest { from: "w1".into(), block_length: BLOCK_SIZE }.encode())),
            ("complete", seed(9, &complete.encode())),
            ("copy", seed(9, &rename.encode())),
            ("change_reply", seed(10, &changed.encode())),
            ("version", seed(11, &version.encode())),
            ("version_modified", seed(11, &modified.encode())),
            ("upload", seed(12, &[&sent.body[..], &sent.tail].concat())),
            ("parts_reply", seed(15, &PartsReply(parts_told).encode())),
            ("uploads_reply", seed(16, &UploadsReply(uploads_told).encode())),
            ("part_reply", seed(17, &PartReply(Some(FilePart { range: 5..9, count: 2 })).encode())),
            ("admission", seed(14, &7_u64.to_le_bytes())),
            ("admission_of_nobody", seed(14, &[0; 8])),
            (
                "made_upload",
                Output::default().u8(13).piece(b"/a").u8(1).piece(b"u").u32(3).u16(9).u8(0).bytes(b"b").done(),
            ),
        ]
    }
}

pub(super) mod window {
    use super::*;
    use forebay_shm::fuzzing::{answered, asked, greeting};

    /// Bytes before the ids that a packet releases.
    const RELEASES: usize = 8;

    pub(crate) fn run(bytes: &[u8]) {
        let mut input = Input::new(bytes);
        let flags = input.u8();
        let mut packet = input.rest().to_vec();
        let puts_right = flags & 1 != 0;
        match flags >> 1 & 3 {
            0 | 1 => {
                if puts_right {
                    let ids = if packet.starts_with(b"FR") { packet.get(2).copied().unwrap_or_default() } else { 0 };
                    let start = if ids == 0 { 0 } else { RELEASES + 8 * usize::from(ids) };
                    let length = packet.len().saturating_sub(start + HEADER_LEN) as u32;
                    if let Some(request) = packet.get_mut(start..) {
                        if let Some(field) = request.get_mut(4..8) {
                            field.copy_from_slice(&length.to_le_bytes());
                        }
                        crate::seal::request(request);
                    }
                }
                asked(&packet);
            }
            2 => {
                if puts_right {
                    crate::seal::reply(&mut packet);
                }
                answered(&packet);
            }
            _ => greeting(&packet),
        }
    }

    pub(crate) fn seeds() -> Vec<Seed> {
        let block = BlockKey { file: FileId([3; 16]), index: 4 };
        let request = RequestHeader::of(1, &Request::on_block(Op::Read, block, 0, 4096, SECOND)).encode();
        let releases = Output::default().bytes(b"FR").u16(2).u32(0).u64(7).u64(8).done();
        let reply = |failure, body: &[u8], payload_len| {
            let header = ReplyHeader {
                id: 1,
                failure,
                body_len: body.len() as u32,
                payload_len,
                provenance: Provenance::default(),
            };
            Output::default().u8(5).bytes(header.encode()).bytes(body)
        };
        let greeting = Output::default().u8(7).bytes(Hello::ours("prod", BLOCK_SIZE).encode());
        vec![
            ("request", Output::default().u8(1).bytes(request).done()),
            ("releases", Output::default().u8(1).bytes(&releases).done()),
            ("both", Output::default().u8(1).bytes(&releases).bytes(request).done()),
            ("places", reply(None, b"body", 5000).u64(4096).u32(4096).u32(0).u64(65536).u32(904).u32(0).done()),
            ("elsewhere", reply(None, b"", 5000).done()),
            ("failure", reply(Some(FailureKind::NotFound), b"no", 0).done()),
            ("greeting", greeting.u64(1 << 30).u32(64).u32(0).u64(9).done()),
        ]
    }
}

pub(super) mod ucx {
    use super::*;
    use forebay_rdma::fuzzing::{Data, reply, request, shows};

    pub(crate) fn run(bytes: &[u8]) {
        let mut input = Input::new(bytes);
        let flags = input.u8();
        let mut header = input.piece().to_vec();
        let announced = input.u32();
        let data = input.rest();
        let is_request = flags & 2 == 0;
        if flags & 1 != 0 {
            match is_request {
                true => drop(crate::seal::request(&mut header)),
                false => drop(crate::seal::reply(&mut header)),
            }
        }
        // What a tag is compared with: a number of the input's, or the one that is there.
        let own = u64::from(announced).wrapping_mul(0x0001_0000_0001);
        let there = header.get(52..60).and_then(|tag| tag.try_into().ok()).map_or(own, u64::from_le_bytes);
        shows(&header, if flags & 8 == 0 { own } else { there });
        let data = if flags & 4 == 0 { Data::Eager(data) } else { Data::Rendezvous(announced as usize) };
        if is_request { request(&header, data) } else { reply(&header, data) }
    }

    pub(crate) fn seeds() -> Vec<Seed> {
        let block = BlockKey { file: FileId([3; 16]), index: 4 };
        let asked = |body: &'static [u8]| {
            let request = Request::on_block(Op::Read, block, 0, 4096, SECOND).with_body(Bytes::from_static(body));
            RequestHeader::of(1, &request).encode()
        };
        let told = |body: &[u8], payload_len| {
            let provenance = Provenance::default();
            ReplyHeader { id: 1, failure: None, body_len: body.len() as u32, payload_len, provenance }.encode()
        };
        let tagged = |mut header: [u8; HEADER_LEN], tag| {
            set_tag(&mut header, tag);
            header
        };
        let seed = |flags: u8, header: &[u8], announced: u32, data: &[u8]| {
            Output::default().u8(flags).piece(header).u32(announced).bytes(data).done()
        };
        vec![
            ("request", seed(1, &[&asked(b"body")[..], b"body"].concat(), 0, b"")),
            ("body_in_data", seed(1, &asked(b"body"), 0, b"body")),
            ("tagged", seed(1 | 8, &tagged(asked(b"body"), 1 << 40), 0, b"body")),
            ("tag_of_another", seed(1, &tagged(asked(b"body"), 1 << 40), 7, b"body")),
            ("reply", seed(3, &[&told(b"body", 7)[..], b"body"].concat(), 0, b"payload")),
            ("rendezvous", seed(7, &[&told(b"body", 70_000)[..], b"body"].concat(), 70_000, b"")),
            ("listing_in_data", seed(3, &told(b"listing", 0), 0, b"listing")),
        ]
    }
}
